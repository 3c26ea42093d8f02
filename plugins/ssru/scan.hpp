// The forward run of ssru: a vector of channels of one batch row, tile by tile of rows.
#pragma once
#include <attnkit/kernels/work.hpp>
#include <cmath>

namespace ssru {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t kRows = 64;  // of a tile
constexpr int64_t kSaved = 4;  // numbers of a channel and row that a run under ATTN_TRAIN saves

struct Shape {
  int64_t heads, channels;
};

template <class Real>
struct Learned {
  View<Real> value, forget;  // a row for each input
  Real* bias;
};

// A worker's scratch for its channels: x W, f and 1 - f.
template <class Real>
struct Tile {
  static constexpr int64_t lanes = simd::Lanes<Real>::count;
  Real *values, *keeps, *writes;
  explicit Tile(Layout& layout)
      : values(layout.take<Real>(kRows * lanes)),
        keeps(layout.take<Real>(kRows * lanes)),
        writes(layout.take<Real>(kRows * lanes)) {}
};

template <class Real>
struct Job {
  Shape shape;
  const attn_run& run;
  Learned<const Real> learned;
  View<const Real> x;
  View<Real> o;
  attnkit::State state;
  // Of batch row b: x W, f, 1 - f and c of row t, each of all channels, or NULL.
  Real* saved(int64_t b, int64_t t) const {
    return run.saved ? static_cast<Real*>(run.saved) + (b * run.keys + t) * kSaved * shape.channels : nullptr;
  }
};

// The first n numbers at p; zeros in the other lanes.
template <class Isa, class Real>
ATTNKIT_INLINE simd::Vector<Real, Isa> load(const Real* p, int64_t n) {
  if (n >= simd::Lanes<Real>::count) return simd::at<Isa>(p);
  alignas(64) Real part[simd::Lanes<Real>::count] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(Real));
  return simd::at<Isa>(part);
}

// The first n lanes to p.
template <class V, class Real>
ATTNKIT_INLINE void store(const V& x, int64_t n, Real* p) {
  if (n >= simd::Lanes<Real>::count) return simd::store(x, p);
  alignas(64) Real part[simd::Lanes<Real>::count];
  simd::store(x, part);
  std::memcpy(p, part, static_cast<size_t>(n) * sizeof(Real));
}

// f = sigmoid(z), and 1 - f, which a difference would round away where f is near 1.
template <class V>
struct Gate {
  V keep, write;
};
template <class Real, class V>
ATTNKIT_INLINE Gate<V> gate_of(const V& z) {
  const auto positive = z > Real{0};
  V e = simd::select(positive, -z, z);
  if constexpr (sizeof(Real) == sizeof(float)) {
    simd::exp(e);
  } else {
    alignas(64) Real lanes[simd::Lanes<Real>::count];
    simd::store(e, lanes);
    for (Real& lane : lanes) lane = std::exp(lane);
    e = simd::load_as<V>(lanes);
  }
  const V large = Real{1} / (e + Real{1}), small = e * large;
  return {simd::select(positive, large, small), simd::select(positive, small, large)};
}

template <class Isa, class Real>
class Scan {
 public:
  using V = simd::Vector<Real, Isa>;
  static constexpr int64_t kLanes = simd::Lanes<Real>::count;

  ATTNKIT_INLINE Scan(const Job<Real>& job, int64_t b, int64_t first, const Tile<Real>& tile)
      : job_(job),
        sight_(job.run, b, true),
        tile_(tile),
        b_(b),
        first_(first),
        here_(std::min(kLanes, job.shape.channels - first)),
        past_(job.state ? reinterpret_cast<Real*>(job.state.row(b)) + first : nullptr) {}

  ATTNKIT_INLINE void operator()() {
    V c{};
    if (past_) c = load<Isa>(past_, here_);
    for (; next_ < sight_.queries && row_of(next_) < 0; ++next_) put(next_, c);
    for (int64_t t = 0; t < sight_.fresh; t += kRows) {
      const int64_t rows = std::min(kRows, sight_.fresh - t);
      constexpr int R = Isa::rows / 2;
      int64_t i = 0;
      for (; i + R <= rows; i += R) project<R>(t, i);
      for (; i < rows; ++i) project<1>(t, i);
      for (i = 0; i < rows; ++i) {
        const V w = simd::at<Isa>(tile_.values + i * kLanes);
        const V keep = simd::at<Isa>(tile_.keeps + i * kLanes), write = simd::at<Isa>(tile_.writes + i * kLanes);
        c = keep * c + write * w;
        if (Real* saved = job_.saved(b_, t + i)) {
          const int64_t d = job_.shape.channels;
          store(w, here_, saved + first_);
          store(keep, here_, saved + d + first_);
          store(write, here_, saved + 2 * d + first_);
          store(c, here_, saved + 3 * d + first_);
        }
        for (; next_ < sight_.queries && row_of(next_) == t + i; ++next_) put(next_, c);
      }
    }
    if (past_ && sight_.fresh > 0) store(c, here_, past_);
  }

 private:
  // The fresh row whose c query i reads: its own, or the newest before it.  Below 0: it is in the past, or nowhere.
  ATTNKIT_INLINE int64_t row_of(int64_t i) const { return sight_.seen(i) - 1 - sight_.past; }

  // x W and the gates of rows [t + i, t + i + R).
  template <int R>
  ATTNKIT_INLINE void project(int64_t t, int64_t i) const {
    const int64_t d = job_.shape.channels;
    const Real* rows[R];
    V value[R], gate[R];
    const V bias = load<Isa>(job_.learned.bias + first_, here_);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      rows[r] = job_.x.row(b_, 0, t + i + r);
      value[r] = V{};
      gate[r] = V{};
    }
    for (int64_t k = 0; k < d; ++k) {
      const V w = load<Isa>(job_.learned.value.row(k) + first_, here_);
      const V f = load<Isa>(job_.learned.forget.row(k) + first_, here_);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        value[r] += rows[r][k] * w;
        gate[r] += rows[r][k] * f;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      simd::store(value[r], tile_.values + (i + r) * kLanes);
      const Gate<V> made = gate_of<Real>(gate[r] + bias);
      simd::store(made.keep, tile_.keeps + (i + r) * kLanes);
      simd::store(made.write, tile_.writes + (i + r) * kLanes);
    }
  }

  // The result of query i.  The heads of an output row need not lie beside each other.
  ATTNKIT_INLINE void put(int64_t i, const V& c) const {
    const int64_t width = job_.shape.channels / job_.shape.heads;
    const V result = simd::select(c < Real{0}, V{}, c);
    if (job_.o.head == width) return store(result, here_, job_.o.row(b_, 0, i) + first_);
    for (int64_t n = first_; n < first_ + here_; ++n) job_.o.row(b_, n / width, i)[n % width] = result[n - first_];
  }

  const Job<Real>& job_;
  Sight sight_;
  Tile<Real> tile_;
  int64_t b_, first_, here_, next_ = 0;
  Real* past_;
};

}  // namespace ssru
