// The scan of a diagonal state space: 16 channels of one batch row, forward and, in bidirectional blocks, backward.
#pragma once
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/guard.hpp>

#include "discretise.hpp"

namespace s4d {

using attnkit::Sight;
using attnkit::View;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kTile = 64;  // rows that pass one group of states before the next group's turn

struct Shape {
  int64_t heads, channels, half, directions;  // half: states of a channel, one of each conjugate pair
  int64_t parts() const { return 2 + 2 * directions; }
  int64_t state_floats() const { return channels * (2 * half + 1); }
  // Coefficients, states, a tile of rows and one of results, for 16 channels.
  int64_t worker_floats() const { return kLanes * (half * (parts() + 2) + 2 * kTile); }
};

struct Plan {
  uint64_t worker_bytes;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  bool causal;
  int64_t rows_of_item;  // batch rows that one item runs: the discrete form is made once for all of them
  Learned learned;
  View<const float> x;
  View<float> o;
  int64_t width;  // of a head of the output
};

// R states of 16 channels over `rows` rows.  Forward: a row enters, then its result is read; backward: read, then
// enter.
template <int R, bool kBackward>
ATTNKIT_INLINE void scan(const Coefficients& k, int64_t n, float* states, const float* u, float* y, int64_t rows) {
  Vec re[R], im[R], step_re[R], step_im[R], out_re[R], out_im[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    re[r] = simd::at(states + 2 * (n + r) * kLanes).v;
    im[r] = simd::at(states + (2 * (n + r) + 1) * kLanes).v;
    step_re[r] = simd::at(k.step(0, n + r)).v;
    step_im[r] = simd::at(k.step(1, n + r)).v;
    out_re[r] = simd::at(k.readout(kBackward, n + r)).v;
    out_im[r] = simd::at(k.readout(kBackward, n + r) + kLanes).v;
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = kBackward ? rows - 1 - i : i;
    const Vec row = simd::at(u + t * kLanes).v;
    Vec sum = simd::at(y + t * kLanes).v;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (kBackward) sum = (sum + out_re[r] * re[r]) - out_im[r] * im[r];
      const Vec next = (row + step_re[r] * re[r]) + (re[r] - step_im[r] * im[r]);
      im[r] = (im[r] + step_re[r] * im[r]) + step_im[r] * re[r];
      re[r] = next;
      if (!kBackward) sum = (sum + out_re[r] * re[r]) - out_im[r] * im[r];
    }
    simd::at(y + t * kLanes).v = sum;
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    simd::at(states + 2 * (n + r) * kLanes).v = re[r];
    simd::at(states + (2 * (n + r) + 1) * kLanes).v = im[r];
  }
}

// Sixteen channels, or the last ones, of one batch row while they run.
template <class Isa>
class Filter {
 public:
  ATTNKIT_INLINE Filter(const Job& job, int64_t b, int64_t first, float* scratch)
      : job_(job),
        sight_(job.run, b, job.causal),
        k_{scratch, job.shape.half},
        b_(b),
        first_(first),
        here_(std::min(kLanes, job.shape.channels - first)) {
    states_ = scratch + job.shape.parts() * job.shape.half * kLanes;
    u_ = states_ + 2 * job.shape.half * kLanes;
    y_ = u_ + kTile * kLanes;
    const attn_run& run = job.run;
    if (run.state)
      past_ = reinterpret_cast<float*>(static_cast<char*>(run.state) +
                                       static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride);
  }

  ATTNKIT_INLINE void operator()() {
    begin();
    while (next_ < sight_.queries && row_of(next_) < 0) ++next_;
    if (next_ > 0) read_past();
    for (int64_t t = 0; t < sight_.fresh; t += kTile) tile<false>(t);
    if (past_ && sight_.fresh > 0) keep();
    if (!job_.causal) {
      std::memset(states_, 0, static_cast<size_t>(2 * job_.shape.half * kLanes) * sizeof(float));
      for (int64_t t = (sight_.fresh - 1) / kTile * kTile; t >= 0 && sight_.fresh > 0; t -= kTile) tile<true>(t);
    }
    for (int64_t i = next_; i < job_.run.queries; ++i) put(i, Vec{});
  }

 private:
  // The fresh row whose result query i reads: its own, or the newest before it.  Below 0: it is in the past, or
  // nowhere.
  ATTNKIT_INLINE int64_t row_of(int64_t i) const {
    return job_.causal ? sight_.seen(i) - 1 - sight_.past : std::min(i, sight_.fresh - 1);
  }

  // Part of the state's [half][2][channels], then the newest row's [channels].
  ATTNKIT_INLINE float* past(int64_t i) const { return past_ + i * job_.shape.channels + first_; }

  ATTNKIT_INLINE void begin() {
    for (int64_t i = 0; i < 2 * job_.shape.half; ++i) {
      Vec x{};
      if (past_) simd::load(past(i), here_, x);
      simd::at(states_ + i * kLanes).v = x;
    }
  }

  ATTNKIT_INLINE void keep() {
    for (int64_t i = 0; i < 2 * job_.shape.half; ++i) simd::store(simd::at(states_ + i * kLanes).v, here_, past(i));
    Vec x;
    simd::load(job_.x.row(b_, 0, sight_.fresh - 1) + first_, here_, x);
    simd::store(x, here_, past(2 * job_.shape.half));
  }

  // Queries [0, next_) see nothing of this run: they read the past as it stands, or are zeros.
  ATTNKIT_INLINE void read_past() {
    Vec y{}, skip;
    if (past_) {
      simd::load(past(2 * job_.shape.half), here_, y);
      simd::load(job_.learned.skip + first_, here_, skip);
      y = y * skip;
      for (int64_t n = 0; n < job_.shape.half; ++n) {
        y += simd::at(k_.readout(0, n)).v * simd::at(states_ + 2 * n * kLanes).v;
        y -= simd::at(k_.readout(0, n) + kLanes).v * simd::at(states_ + (2 * n + 1) * kLanes).v;
      }
    }
    for (int64_t i = 0; i < next_; ++i) put(i, sight_.seen(i) > 0 ? y : Vec{});
  }

  // Rows [t, t + kTile), or up to the last one, and the queries that read them.
  template <bool kBackward>
  ATTNKIT_INLINE void tile(int64_t t) {
    constexpr int R = Isa::rows / 2;
    const int64_t rows = std::min(kTile, sight_.fresh - t);
    Vec skip, x;
    simd::load(job_.learned.skip + first_, here_, skip);
    for (int64_t i = 0; i < rows; ++i) {
      simd::load(job_.x.row(b_, 0, t + i) + first_, here_, x);
      simd::at(u_ + i * kLanes).v = x;
      simd::at(y_ + i * kLanes).v = kBackward ? Vec{} : x * skip;
    }
    int64_t n = 0;
    for (; n + R <= job_.shape.half; n += R) scan<R, kBackward>(k_, n, states_, u_, y_, rows);
    for (; n < job_.shape.half; ++n) scan<1, kBackward>(k_, n, states_, u_, y_, rows);
    if (kBackward) {
      for (int64_t i = t; i < sight_.queries && row_of(i) < t + rows; ++i)
        add(i, simd::at(y_ + (row_of(i) - t) * kLanes).v);
    } else {
      for (; next_ < sight_.queries && row_of(next_) < t + rows; ++next_)
        put(next_, simd::at(y_ + (row_of(next_) - t) * kLanes).v);
    }
  }

  ATTNKIT_INLINE void put(int64_t i, const Vec& y) const {
    if (together())
      simd::store(y, here_, job_.o.row(b_, 0, i) + first_);
    else
      for (int64_t c = 0; c < here_; ++c) *element(i, c) = y[c];
  }

  ATTNKIT_INLINE void add(int64_t i, const Vec& y) const {
    if (together()) {
      Vec sum;
      simd::load(job_.o.row(b_, 0, i) + first_, here_, sum);
      sum += y;
      simd::store(sum, here_, job_.o.row(b_, 0, i) + first_);
    } else {
      for (int64_t c = 0; c < here_; ++c) *element(i, c) += y[c];
    }
  }

  // Do the heads of an output row lie beside each other?
  ATTNKIT_INLINE bool together() const { return job_.o.head == job_.width; }
  ATTNKIT_INLINE float* element(int64_t i, int64_t c) const {
    return job_.o.row(b_, (first_ + c) / job_.width, i) + (first_ + c) % job_.width;
  }

  const Job& job_;
  Sight sight_;
  Coefficients k_;
  int64_t b_, first_, here_, next_ = 0;
  float *states_, *u_, *y_, *past_ = nullptr;
};

}  // namespace s4d
