// s4d on CUDA: the mathematics of s4d.cpp.
//
// The recurrence is run row by row with everything in registers: a lane has one channel and 2 or 8 of its states, a
// warp 8 channels by four lanes, and longer orders have more warps for the same channels.  Lanes leave what their
// states add to a row in shared memory, and a tile of rows is added up at once, always in the same order, so a stream
// gives the same bits however it is split.  A block makes the discrete form from the learned tensors itself, in f64,
// once for all batch rows that it runs.
#include <algorithm>
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda;

constexpr int kRows = 32;                      // of a tile
constexpr int kChannels = 8, kQuarters = 4;    // of a warp
constexpr int kFewStates = 2, kStates = 8;     // of a lane, by the order
constexpr int kMostThreads = 512;              // those of order 1024
constexpr int64_t kFewRows = 64;               // of runs whose blocks take several batch rows,
constexpr int64_t kBlocks = 1056, kMost = 32;  // as long as this many blocks are left, and at most so many

template <class T>
struct Work {
  Rows<const T> x;
  Rows<T> o;
  Lengths lengths;
  States states;
  const float *log_step, *skip;
  Rows<const float> log_decay, frequency, readout, readout_back;
  float* behind;              // results of the scan from the end, [B][keys][channels], NULL in causal blocks
  int channels, half, width;  // width: of a head of the output
  int parts, groups, blocks;  // warps that share 8 channels; eights of channels of a block; blocks of a row
  int64_t batch, together;    // batch rows of a block
};

// The channels of a block, while rows pass them.
template <class T, int kOwn, bool kBackward>
class Scan {
 public:
  static uint64_t bytes(int groups, int parts) {
    return static_cast<uint64_t>(kRows * groups * (kChannels + 32 * parts)) * sizeof(float);
  }

  __device__ explicit Scan(const Work<T>& work)
      : w_(work),
        first_(static_cast<int>(blockIdx.x) % work.blocks * work.groups * kChannels),
        own_(warp() / work.parts * kChannels + lane() % kChannels),
        state_(warp() % work.parts * kOwn * kQuarters + lane() / kChannels) {
    SharedParts parts;
    x_ = parts.take<float>(kRows * all());
    y_ = parts.take<float>(kRows * threads());
    discretise();
  }

  __device__ void operator()(int64_t b) {
    {
      const Sight sight(w_.lengths, b);
      fresh_ = static_cast<int>(sight.fresh);
      queries_ = static_cast<int>(sight.queries);
      shift_ = static_cast<int>(sight.causal ? sight.past - sight.q_pos : 0);
    }
    float* kept = w_.states ? w_.states.row(b) + channel() : nullptr;
    each_state([&](int r, int64_t n) {
      re_[r] = kept ? kept[2 * n * w_.channels] : 0;
      im_[r] = kept ? kept[(2 * n + 1) * w_.channels] : 0;
    });
    if constexpr (kBackward) {
      for (int t = (fresh_ - 1) / kRows * kRows; t >= 0 && fresh_ > 0; t -= kRows) tile(b, t);
      return;
    }
    next_ = reading(0);
    if (next_ > 0) read_past(b);
    for (int t = 0; t < fresh_; t += kRows) tile(b, t);
    if (kept && fresh_ > 0) {
      each_state([&](int r, int64_t n) {
        kept[2 * n * w_.channels] = re_[r];
        kept[(2 * n + 1) * w_.channels] = im_[r];
      });
      if (state_ == 0 && channel() < w_.channels)
        kept[int64_t{2} * w_.half * w_.channels] = widened(w_.x.at(b, 0, fresh_ - 1)[channel()]);
    }
    for_outputs(b, queries_, static_cast<int>(w_.lengths.queries), [](int, int) { return 0.0f; });
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

  // e^(dA) - 1 and 2 C (e^(dA) - 1) / A, through the lane's own part of y_: in f64 they take too many registers to be
  // made side by side.  A state that is not there follows the row and adds nothing.
  __device__ void discretise() {
    static_assert(4 * kOwn <= kRows);
    const Rows<const float>& readout = kBackward ? w_.readout_back : w_.readout;
    const int own = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int r = 0; r < kOwn; ++r) {
      const int n = state_ + r * kQuarters;
      double step[2] = {-1, 0}, out[2] = {0, 0};
      if (n < w_.half && channel() < w_.channels) {
        const double d = exp(static_cast<double>(w_.log_step[channel()])),
                     decay = exp(fmin(static_cast<double>(w_.log_decay.at(0, 0, channel())[n]), 709.0)),
                     frequency = w_.frequency.at(0, 0, channel())[n], size = exp(-d * decay);
        double sine, cosine;
        sincospi(d * frequency * 0.31830988618379067, &sine, &cosine);
        step[0] = size * cosine - 1;
        step[1] = size * sine;
        const double norm = decay * decay + frequency * frequency, factor = norm > 0 ? 2 / norm : 0;
        const double b_re = norm > 0 ? (step[1] * frequency - step[0] * decay) * factor : 2 * d,
                     b_im = -(step[1] * decay + step[0] * frequency) * factor;
        const float* c = readout.at(0, channel(), n);
        out[0] = c[0] * b_re - c[1] * b_im;
        out[1] = c[0] * b_im + c[1] * b_re;
      }
      for (int i = 0; i < 2; ++i) {
        y_[(r * 4 + i) * threads() + own] = static_cast<float>(step[i]);
        y_[(r * 4 + 2 + i) * threads() + own] = static_cast<float>(out[i]);
      }
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

  __device__ float read(int r, float sum) const { return fmaf(-out_im_[r], im_[r], fmaf(out_re_[r], re_[r], sum)); }
  __device__ void enter(int r, float x) {
    const float next = fmaf(step_re_[r], re_[r], x) + fmaf(-step_im_[r], im_[r], re_[r]);
    im_[r] = fmaf(step_im_[r], re_[r], fmaf(step_re_[r], im_[r], im_[r]));
    re_[r] = next;
  }

  // The first query that reads `row` or one behind it.
  __device__ int reading(int row) const {
    const int i = row + shift_;
    return row >= fresh_ || i > queries_ ? queries_ : i < 0 ? 0 : i;
  }

  // Queries [0, next_) see nothing of this run: they read the past as it stands.
  __device__ void read_past(int64_t b) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) sum = read(r, sum);
    y_[threadIdx.x] = sum;
    if (state_ == 0) {
      const bool is = w_.states && channel() < w_.channels;
      x_[own_] = is ? w_.states.row(b)[int64_t{2} * w_.half * w_.channels + channel()] : 0;
    }
    __syncthreads();
    for_outputs(b, 0, next_, [this](int, int c) { return fmaf(w_.skip[first_ + c], x_[c], sum_of_row(0, c)); });
    __syncthreads();
  }

  // Rows [t, t + kRows), or up to the last one, and the queries that read them.
  __device__ void tile(int64_t b, int t) {
    const int rows = fresh_ - t < kRows ? fresh_ - t : kRows;
    for (int i = static_cast<int>(threadIdx.x); i < rows * all(); i += threads()) {
      const int c = first_ + i % all();
      x_[i] = c < w_.channels ? widened(w_.x.at(b, 0, t + i / all())[c]) : 0;
    }
    __syncthreads();
    for (int i = 0; i < rows; ++i) {
      const int row = kBackward ? rows - 1 - i : i;
      const float x = x_[row * all() + own_];
      float sum = 0;
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        if constexpr (kBackward) sum = read(r, sum);
        enter(r, x);
        if constexpr (!kBackward) sum = read(r, sum);
      }
      y_[row * threads() + static_cast<int>(threadIdx.x)] = sum;
    }
    __syncthreads();
    const auto behind = [&](int row, int c) {
      return w_.behind + ((b * w_.lengths.keys + t + row) * w_.channels + first_ + c);
    };
    if constexpr (kBackward) {
      for (int i = static_cast<int>(threadIdx.x); i < rows * all(); i += threads())
        if (first_ + i % all() < w_.channels) *behind(i / all(), i % all()) = sum_of_row(i / all(), i % all());
    } else {
      const int end = reading(t + rows);
      for_outputs(b, next_, end, [&](int i, int c) {
        const int row = i - shift_ < fresh_ ? i - shift_ - t : rows - 1;  // its own, or the newest before it
        const float sum = fmaf(w_.skip[first_ + c], x_[row * all() + c], sum_of_row(row, c));
        return w_.behind ? sum + *behind(row, c) : sum;
      });
      next_ = end;
    }
    __syncthreads();  // the next rows write over these
  }

  // What the lanes of a channel have left of a row.
  __device__ float sum_of_row(int row, int c) const {
    float sum = 0;
    for (int part = 0; part < w_.parts; ++part)
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter)
        sum += y_[row * threads() + (c / kChannels * w_.parts + part) * 32 + quarter * kChannels + c % kChannels];
    return sum;
  }

  // Calls number(i, c) for queries [begin, end) and the block's channels, for what to write.
  template <class Number>
  __device__ void for_outputs(int64_t b, int begin, int end, const Number& number) const {
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * all(); i += threads()) {
      const int c = i % all(), query = begin + i / all();
      if (first_ + c < w_.channels)
        w_.o.at(b, (first_ + c) / w_.width, query)[(first_ + c) % w_.width] = narrowed<T>(number(query, c));
    }
  }

  const Work<T>& w_;
  const int first_, own_, state_;           // channels of the block and of the lane in it; the lane's first state
  int fresh_ = 0, queries_ = 0, next_ = 0;  // rows of this run, queries, the first query that is not answered
  int shift_ = 0;                           // query i's own row is i - shift
  float re_[kOwn], im_[kOwn], step_re_[kOwn], step_im_[kOwn], out_re_[kOwn], out_im_[kOwn];
  Shared<float> x_, y_;
};

template <class T, int kOwn, bool kBackward>
static __global__ void __launch_bounds__(kMostThreads) scan_kernel(const Work<T> w) {
  Scan<T, kOwn, kBackward> scan(w);
  const int64_t from = blockIdx.x / w.blocks * w.together;
  for (int64_t b = from; b < from + w.together && b < w.batch; ++b) scan(b);
}

struct S4d : s4d::Model {
  static constexpr attnkit::About about{Model::about.name,
                                        Model::about.summary,
                                        Model::about.citation,
                                        Model::about.state_revision,
                                        kCudaDevice,
                                        0,
                                        true};
  using Model::Model;
  struct Plan {};

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    if (shape.directions == 2)
      info.scratch_bytes = attnkit::aligned(static_cast<uint64_t>(r.batch * r.keys * shape.channels) * sizeof(float));
    return {};
  }

  void run(const Plan&, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    with_type(o.of(r.ports), [&](auto number) { run_in<decltype(number)>(r); });
  }

 private:
  template <class T>
  void run_in(const attn_run& r) const {
    const s4d::Learned<const float> in = learned<const float>(r.ports);
    const bool few = shape.half <= kFewStates * kQuarters;
    const int states = (few ? kFewStates : kStates) * kQuarters;
    const int parts = static_cast<int>((shape.half + states - 1) / states), groups = std::max(1, 4 / parts);
    const auto blocks = static_cast<int>((shape.channels + groups * kChannels - 1) / (groups * kChannels));
    const int64_t together = r.keys < kFewRows ? std::clamp<int64_t>(blocks * r.batch / kBlocks, 1, kMost) : 1;
    const Work<T> work{attnkit::View<const T>(r, x),
                       attnkit::View<T>(r, o),
                       Lengths(r, block.causal != 0),
                       States(r),
                       in.log_step,
                       in.skip,
                       in.log_decay,
                       in.frequency,
                       in.readout[0],
                       in.readout[1],
                       block.causal ? nullptr : static_cast<float*>(r.exec->scratch),
                       static_cast<int>(shape.channels),
                       static_cast<int>(shape.half),
                       static_cast<int>(shape.channels / shape.heads),
                       parts,
                       groups,
                       blocks,
                       r.batch,
                       together};
    const auto start = [&](auto* kernel, uint64_t bytes) {
      const auto all = static_cast<unsigned>(blocks * ((r.batch + together - 1) / together));
      launch(about.name, kernel, {dim3(all), static_cast<unsigned>(32 * parts * groups), bytes}, *r.exec, work);
    };
    const auto with = [&](auto own) {
      constexpr int kOwn = decltype(own)::value;
      if (!block.causal) start(scan_kernel<T, kOwn, true>, Scan<T, kOwn, true>::bytes(groups, parts));
      start(scan_kernel<T, kOwn, false>, Scan<T, kOwn, false>::bytes(groups, parts));
    };
    if (few)
      with(std::integral_constant<int, kFewStates>{});
    else
      with(std::integral_constant<int, kStates>{});
  }
};

}  // namespace

ATTNKIT_PLUGIN(S4d)
