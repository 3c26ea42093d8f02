// The scan of s4d on CUDA.
//
// The recurrence is run row by row with everything in registers: a lane has one channel and 2 or 8 of its states, a
// warp 8 channels by four lanes, and longer orders have more warps for the same channels.  Lanes leave what their
// states add to a row in shared memory, and a tile of rows is added up at once, always in the same order, so a stream
// gives the same bits in any pieces that are not split.  A block makes the discrete form from the learned tensors
// itself, in f64, once for all batch rows that it runs.
//
// A long row has a block for each of its segments, so that a few channels fill a device, in three kernels: segments are
// run from states of zeros, without results, begin_kernel makes of the states at their ends those with which segments
// begin, and they are run again.  Whether a row is split depends on its own length alone, so that neither padding nor
// neighbours change a bit.
#pragma once
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>

#include "../model.hpp"

namespace s4d::cuda {

using namespace attnkit::cuda;

constexpr int kRows = 32;                      // of a tile
constexpr int kChannels = 8, kQuarters = 4;    // of a warp
constexpr int kFewStates = 2, kStates = 8;     // of a lane, by the order
constexpr int kMostThreads = 512;              // those of order 1024
constexpr int64_t kFewRows = 64;               // of runs whose blocks take several batch rows,
constexpr int64_t kBlocks = 1056, kMost = 32;  // as long as this many blocks are left, and at most so many
constexpr int kSegment = 1024;                 // rows of a block of a split row; a power of 2
constexpr int64_t kMostWhole = 4096;           // rows of at most so many stay whole: a split costs 5/7 more arithmetic
constexpr int kBeginners = 128;                // threads of a block of begin_kernel
static_assert(kSegment % kRows == 0);
__host__ __device__ constexpr int64_t segments_of(int64_t rows) { return (rows + kSegment - 1) / kSegment; }

template <class T>
struct Work {
  using Real = RealOf<T>;
  Rows<const T> x, given;  // given: the gradient of o
  Rows<T> o, dx;
  Lengths lengths;
  States states;
  const Real *log_step, *skip;
  Rows<const Real> log_decay, frequency, readout[2];  // readout: forward, from the end
  Real* behind;  // results of the scan that runs against the other, [B][keys][channels]; NULL in causal blocks
  float* begun;  // states with which segments begin, each laid out as a stream's; NULL where no row is split
  int channels, half, width;  // width: of a head of the output
  int parts, groups, blocks;  // warps that share 8 channels; eights of channels of a block; blocks of a row
  int64_t batch, together;    // batch rows of a block

  __device__ int segments(int64_t b) const {
    const int64_t fresh = Sight(lengths, b).fresh;
    return begun && fresh > kMostWhole ? static_cast<int>(segments_of(fresh)) : 1;
  }
  __device__ float* begun_of(int64_t b, int segment) const {
    return begun + (b * segments_of(lengths.keys) + segment) * channels * (2 * half + 1);
  }
};

struct Complex {
  double re, im;
};
__device__ inline Complex operator+(const Complex& a, const Complex& b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Complex operator*(const Complex& a, const Complex& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ inline Complex operator*(double a, const Complex& b) { return {a * b.re, a * b.im}; }
__device__ inline Complex conj(const Complex& a) { return {a.re, -a.im}; }
__device__ inline double norm(const Complex& a) { return a.re * a.re + a.im * a.im; }

// As on the CPU: of 709 at most, and NaN stays NaN.
__device__ inline double bounded_exp(double x) { return exp(x > 709 ? 709 : x); }

// One state of a channel: A, e^(dA) - 1 and b = (e^(dA) - 1) / A, which is d where A is 0.
struct Oscillation {
  double d;
  Complex a, step, b;
  template <class T>
  __device__ Oscillation(const Work<T>& w, int channel, int n)
      : d(bounded_exp(w.log_step[channel])),
        a{-bounded_exp(w.log_decay.at(0, 0, channel)[n]), static_cast<double>(w.frequency.at(0, 0, channel)[n])} {
    double sine, cosine;  // of half the angle, so that nothing cancels where it is small
    sincospi(d * a.im * 0.15915494309189535, &sine, &cosine);
    const double lost = 2 * sine * sine, grown = expm1(d * a.re);
    step = {grown * (1 - lost) - lost, (grown + 1) * 2 * sine * cosine};
    const double size = norm(a);
    b = size > 0 ? (1 / size) * (step * conj(a)) : Complex{d, 0};
  }
};

template <class T>
__device__ Complex readout_of(const Work<T>& w, int direction, int channel, int n) {
  const auto* c = w.readout[direction].at(0, channel, n);
  return {static_cast<double>(c[0]), static_cast<double>(c[1])};
}

// Which fresh row a query reads: i - shift, or the newest before it.
struct Reading {
  int fresh, queries, shift;
  __device__ Reading(const Lengths& lengths, int64_t b) {
    const Sight sight(lengths, b);
    fresh = static_cast<int>(sight.fresh);
    queries = static_cast<int>(sight.queries);
    shift = static_cast<int>(sight.causal ? sight.past - sight.q_pos : 0);
  }
  // The first query that reads `row` or one behind it.
  __device__ int first(int row) const {
    const int i = row + shift;
    return row >= fresh || i > queries ? queries : i < 0 ? 0 : i;
  }
  // The gradient of what was read of a row.
  template <class T>
  __device__ T sum(const Work<T>& w, int64_t b, int row, int channel) const {
    T sum = 0;
    for (int i = first(row); i < first(row + 1); ++i) sum += w.given.at(b, channel / w.width, i)[channel % w.width];
    return sum;
  }
};

// The channels of a block, while rows pass them.  kSecond: with the readout of the scan from the end, whose rows are
// read before they enter; what it gives is left behind.  kGradient: the filter turned round, which makes the gradient
// of x of that of its results; so its second scan runs forward.  kEnds: only the state is wanted, with which the
// segment that follows would begin after zeros.
template <class T, int kOwn, bool kSecond, bool kGradient, bool kEnds>
class Scan {
  using Real = RealOf<T>;
  static constexpr bool kBackward = kSecond != kGradient;

 public:
  static uint64_t bytes(int groups, int parts) {
    return static_cast<uint64_t>(kRows * groups * (kChannels + 32 * parts)) * sizeof(Real);
  }

  __device__ explicit Scan(const Work<T>& work)
      : w_(work),
        first_(static_cast<int>(blockIdx.x) % work.blocks * work.groups * kChannels),
        own_(warp() / work.parts * kChannels + lane() % kChannels),
        state_(warp() % work.parts * kOwn * kQuarters + lane() / kChannels) {
    SharedParts parts;
    x_ = parts.take<Real>(kRows * all());
    y_ = parts.take<Real>(kRows * threads());
    discretise();
  }

  __device__ void operator()(int64_t b) {
    const Reading reading(w_.lengths, b);
    const int segments = w_.segments(b), segment = static_cast<int>(blockIdx.y) + (kEnds && kBackward);
    const bool last = segment + 1 == segments;
    const int begin = segment * kSegment, end = last ? reading.fresh : begin + kSegment;
    float* kept = !kGradient && w_.states ? w_.states.row(b) + channel() : nullptr;
    const float* begun = segments > 1 ? w_.begun_of(b, segment) + channel() : kept;
    // States that are not there too: an infinity or NaN in them would reach the next batch row.
#pragma unroll
    for (int r = 0; r < kOwn; ++r) re_[r] = im_[r] = 0;
    if (!kEnds && begun)
      each_state([&](int r, int n) {
        re_[r] = begun[int64_t{2} * n * w_.channels];
        im_[r] = begun[(int64_t{2} * n + 1) * w_.channels];
      });
    if constexpr (!kSecond && !kGradient && !kEnds)
      if (segment == 0) read_past(b, reading, begun);
#pragma unroll 1
    for (int t = begin; t < end; t += kRows) tile(b, reading, kBackward ? begin + (end - 1) / kRows * kRows - t : t);
    if (!kEnds && !last) return;
    if constexpr (kEnds) {
      store(w_.begun_of(b, kBackward ? segment - 1 : segment + 1) + channel());
    } else if constexpr (!kSecond && kGradient) {
      for_channels(reading.fresh, static_cast<int>(w_.lengths.keys),
                   [&](int row, int c) { w_.dx.at(b, 0, row)[first_ + c] = 0; });
    } else if constexpr (!kSecond) {
      if (kept && reading.fresh > 0) {
        store(kept);
        if (state_ == 0 && channel() < w_.channels)
          kept[int64_t{2} * w_.half * w_.channels] =
              static_cast<float>(widened(w_.x.at(b, 0, reading.fresh - 1)[channel()]));
      }
      for_channels(reading.queries, static_cast<int>(w_.lengths.queries), [&](int i, int c) { put(b, i, c, 0); });
    }
  }

 private:
  __device__ int all() const { return w_.groups * kChannels; }
  __device__ int threads() const { return w_.groups * w_.parts * 32; }
  __device__ int channel() const { return first_ + own_; }
  // Calls f(r, n) for the lane's states n that there are.
  template <class F>
  __device__ void each_state(const F& f) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
      if (const int n = state_ + r * kQuarters; n < w_.half && channel() < w_.channels) f(r, n);
  }
  __device__ void store(float* state) {
    each_state([&](int r, int n) {
      state[int64_t{2} * n * w_.channels] = static_cast<float>(re_[r]);
      state[(int64_t{2} * n + 1) * w_.channels] = static_cast<float>(im_[r]);
    });
  }

  // e^(dA) - 1 and 2 C (e^(dA) - 1) / A, through the lane's own part of y_: in f64 they take too many registers to be
  // made side by side.  A state that is not there follows the row and adds nothing.
  __device__ void discretise() {
    static_assert(4 * kOwn <= kRows);
    const int own = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int r = 0; r < kOwn; ++r) {
      const int n = state_ + r * kQuarters;
      Complex step{-1, 0}, out{0, 0};
      if (n < w_.half && channel() < w_.channels) {
        const Oscillation oscillation(w_, channel(), n);
        step = oscillation.step;
        out = 2 * (readout_of(w_, kSecond, channel(), n) * oscillation.b);
      }
      y_[r * 4 * threads() + own] = static_cast<Real>(step.re);
      y_[(r * 4 + 1) * threads() + own] = static_cast<Real>(step.im);
      y_[(r * 4 + 2) * threads() + own] = static_cast<Real>(out.re);
      y_[(r * 4 + 3) * threads() + own] = static_cast<Real>(out.im);
    }
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      re_[r] = im_[r] = 0;
      step_re_[r] = y_[r * 4 * threads() + own];
      step_im_[r] = y_[(r * 4 + 1) * threads() + own];
      out_re_[r] = y_[(r * 4 + 2) * threads() + own];
      out_im_[r] = y_[(r * 4 + 3) * threads() + own];
    }
  }

  __device__ Real read(int r, Real sum) const { return fused(-out_im_[r], im_[r], fused(out_re_[r], re_[r], sum)); }
  __device__ void enter(int r, Real x) {
    const Real next = fused(step_re_[r], re_[r], x) + fused(-step_im_[r], im_[r], re_[r]);
    im_[r] = fused(step_im_[r], re_[r], fused(step_re_[r], im_[r], im_[r]));
    re_[r] = next;
  }

  // Queries before the first row see nothing of this run: they read the past as it stands.
  __device__ void read_past(int64_t b, const Reading& reading, const float* state) {
    const int end = reading.first(0);
    if (end == 0) return;
    Real sum = 0;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) sum = read(r, sum);
    y_[threadIdx.x] = sum;
    if (state_ == 0) x_[own_] = state && channel() < w_.channels ? state[int64_t{2} * w_.half * w_.channels] : 0;
    __syncthreads();
    for_channels(0, end, [&](int i, int c) { put(b, i, c, result(0, c)); });
    __syncthreads();
  }

  // Rows [t, t + kRows), or up to the last one.
  __device__ void tile(int64_t b, const Reading& reading, int t) {
    const int rows = reading.fresh - t < kRows ? reading.fresh - t : kRows;
    for_block(0, rows, [&](int row, int c) {
      Real x = 0;
      if (first_ + c < w_.channels) {
        if constexpr (kGradient)
          x = reading.sum(w_, b, t + row, first_ + c);
        else
          x = widened(w_.x.at(b, 0, t + row)[first_ + c]);
      }
      x_[row * all() + c] = x;
    });
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < rows; ++i) {
      const int row = kBackward ? rows - 1 - i : i;
      const Real x = x_[row * all() + own_];
      Real sum = 0;
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        if constexpr (kSecond && !kEnds) sum = read(r, sum);
        enter(r, x);
        if constexpr (!kSecond && !kEnds) sum = read(r, sum);
      }
      if constexpr (!kEnds) y_[row * threads() + static_cast<int>(threadIdx.x)] = sum;
    }
    __syncthreads();  // the next rows write over these
    if constexpr (!kEnds) {
      leave(b, reading, t, rows);
      __syncthreads();
    }
  }

  // Gives what is made of rows [t, t + rows).
  __device__ void leave(int64_t b, const Reading& reading, int t, int rows) const {
    const auto behind = [&](int row, int c) {
      return w_.behind + ((b * w_.lengths.keys + t + row) * w_.channels + first_ + c);
    };
    const auto whole = [&](int row, int c) { return w_.behind ? result(row, c) + *behind(row, c) : result(row, c); };
    if constexpr (kSecond)
      for_channels(0, rows, [&](int row, int c) { *behind(row, c) = sum_of_row(row, c); });
    else if constexpr (kGradient)
      for_channels(0, rows, [&](int row, int c) { w_.dx.at(b, 0, t + row)[first_ + c] = whole(row, c); });
    else
      for_channels(reading.first(t), reading.first(t + rows), [&](int i, int c) {
        put(b, i, c, whole(i - reading.shift < reading.fresh ? i - reading.shift - t : rows - 1, c));
      });
  }

  // The sum of what the lanes of a channel have left of a row.
  __device__ Real sum_of_row(int row, int c) const {
    Real sum = 0;
    for (int part = 0; part < w_.parts; ++part)
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter)
        sum += y_[row * threads() + (c / kChannels * w_.parts + part) * 32 + quarter * kChannels + c % kChannels];
    return sum;
  }

  __device__ Real result(int row, int c) const {
    return fused(w_.skip[first_ + c], x_[row * all() + c], sum_of_row(row, c));
  }
  __device__ void put(int64_t b, int i, int c, Real number) const {
    w_.o.at(b, (first_ + c) / w_.width, i)[(first_ + c) % w_.width] = narrowed<T>(number);
  }

  // Calls f(i, c) for the block's channels c, the last ones too if there are fewer.
  template <class F>
  __device__ void for_block(int begin, int end, const F& f) const {
#pragma unroll 1
    for (int x = static_cast<int>(threadIdx.x); x < (end - begin) * all(); x += threads())
      f(begin + x / all(), x % all());
  }
  template <class F>
  __device__ void for_channels(int begin, int end, const F& f) const {
    for_block(begin, end, [&](int i, int c) {
      if (first_ + c < w_.channels) f(i, c);
    });
  }

  const Work<T>& w_;
  const int first_, own_, state_;  // channels of the block and of the lane in it; the lane's first state
  Real re_[kOwn], im_[kOwn], step_re_[kOwn], step_im_[kOwn], out_re_[kOwn], out_im_[kOwn];
  Shared<Real> x_, y_;
};

// A block per channels, batch rows and segment.
template <class T, int kOwn, bool kSecond, bool kGradient, bool kEnds>
static __global__ void __launch_bounds__(kMostThreads, 1) scan_kernel(const Work<T> w) {
  const int64_t from = blockIdx.x / w.blocks * w.together;
  if (static_cast<int>(blockIdx.y) + kEnds >= w.segments(from)) return;
  Scan<T, kOwn, kSecond, kGradient, kEnds> scan(w);
  for (int64_t b = from; b < from + w.together && b < w.batch; ++b) scan(b);
}

// A thread per state of a batch row, and per number of its newest row, which queries before the first read.
template <class T>
static __global__ void __launch_bounds__(kBeginners) begin_kernel(const Work<T> w, bool backward) {
  const int64_t f = int64_t{blockIdx.x} * kBeginners + threadIdx.x, all = w.channels * (w.half + int64_t{1});
  const int64_t b = f / all;
  if (b >= w.batch) return;
  const int segments = w.segments(b), n = static_cast<int>(f % all / w.channels);
  if (segments == 1) return;
  const int channel = static_cast<int>(f % w.channels);
  const int64_t re = int64_t{2} * n * w.channels + channel, im = re + w.channels;
  const float* kept = w.states ? w.states.row(b) : nullptr;
  float* begun = w.begun_of(b, backward ? segments - 1 : 0);
  begun[re] = kept ? kept[re] : 0;
  if (n == w.half) return;
  begun[im] = kept ? kept[im] : 0;
  Complex state{begun[re], begun[im]}, power = Oscillation(w, channel, n).step + Complex{1, 0};
  // Only the row's last segment may be shorter, and what passes it here is zeros or nothing.
#pragma unroll 1
  for (int rows = 1; rows < kSegment; rows *= 2) power = power * power;
#pragma unroll 1
  for (int i = 1; i < segments; ++i) {
    begun = w.begun_of(b, backward ? segments - 1 - i : i);
    state = power * state + Complex{begun[re], begun[im]};
    begun[re] = static_cast<float>(state.re);
    begun[im] = static_cast<float>(state.im);
  }
}

}  // namespace s4d::cuda
