// s4d: a diagonal state space in place of attention; each channel is filtered by a sum of damped oscillations.
// The slow form to compare with the paper: reference.hpp.
//
// Gu, Gupta, Goel and Re: On the Parameterization and Initialization of Diagonal State Space Models, NeurIPS 2022,
// arXiv:2206.11893, S4D-Lin with zero-order hold.
//
//   y_t = Re sum_n G_n . h_t,n + D u_t,   h_t = h_(t-1) + (e^(dA) - 1) h_(t-1) + u_t,   G = 2 C (e^(dA) - 1) / A
//
// per channel, A_n = -e^a_n + i w_n for one of each conjugate pair, n = 1 ... order / 2.  It is the paper's
// x_t = e^(dA) x_(t-1) + B u_t, y_t = 2 Re C . x_t + D u_t, with B = (e^(dA) - 1) / A moved into the readout.  In a
// bidirectional block a second readout of the same oscillations runs from the end over the rows after t.  Cost per
// channel and row: 6 order + 2 flops, 10 order + 2 in both directions; state per channel: order + 1 floats.
#include <attnkit/kernels/work.hpp>
#include <mutex>

#include "discretise.hpp"
#include "gradient.hpp"
#include "memo.hpp"

namespace {

using attnkit::Layout;
using attnkit::Port;
using attnkit::Sight;
using attnkit::unsupported;
using attnkit::View;
using s4d::Coefficients;
using s4d::Shape;
namespace simd = attnkit::simd;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kTile = s4d::kRows;

// A worker's scratch for 16 channels: coefficients, states, a tile of rows and one of results.
struct Scratch {
  Coefficients coefficients;
  float *states, *rows, *results;
  Scratch(Layout& layout, const Shape& s)
      : coefficients{layout.take(kLanes * s.half * (2 + 2 * s.directions)), s.half},
        states(layout.take(kLanes * s.half * 2)),
        rows(layout.take(kLanes * kTile)),
        results(layout.take(kLanes * kTile)) {}
};

struct Job {
  const Shape& shape;
  const attn_run& run;
  bool causal;
  s4d::Learned<const float> learned;
  View<const float> x;
  View<float> o;
  attnkit::State state;
};

// A row enters a state of 16 channels.
template <class V>
ATTNKIT_INLINE void enter(const V& row, const V& step_re, const V& step_im, V& re, V& im) {
  const V next = (row + step_re * re) + (re - step_im * im);
  im = (im + step_re * im) + step_im * re;
  re = next;
}

// R states of 16 channels over `rows` rows.  Forward: a row enters, then its result is read; backward: read, then
// enter.
template <class Isa, int R, bool kBackward>
ATTNKIT_INLINE void scan(const Coefficients& k, int64_t n, float* states, const float* u, float* y, int64_t rows) {
  Vec<Isa> re[R], im[R], step_re[R], step_im[R], out_re[R], out_im[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    re[r] = simd::at<Isa>(states + 2 * (n + r) * kLanes);
    im[r] = simd::at<Isa>(states + (2 * (n + r) + 1) * kLanes);
    step_re[r] = simd::at<Isa>(k.step(0, n + r));
    step_im[r] = simd::at<Isa>(k.step(1, n + r));
    out_re[r] = simd::at<Isa>(k.readout(kBackward, n + r));
    out_im[r] = simd::at<Isa>(k.readout(kBackward, n + r) + kLanes);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = kBackward ? rows - 1 - i : i;
    const Vec<Isa> row = simd::at<Isa>(u + t * kLanes);
    Vec<Isa> sum = simd::at<Isa>(y + t * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (kBackward) sum = (sum + out_re[r] * re[r]) - out_im[r] * im[r];
      enter(row, step_re[r], step_im[r], re[r], im[r]);
      if (!kBackward) sum = (sum + out_re[r] * re[r]) - out_im[r] * im[r];
    }
    simd::store(sum, y + t * kLanes);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    simd::store(re[r], states + 2 * (n + r) * kLanes);
    simd::store(im[r], states + (2 * (n + r) + 1) * kLanes);
  }
}

// Sixteen channels, or the last ones, of one batch row while they run.
template <class Isa>
class Filter {
 public:
  ATTNKIT_INLINE Filter(const Job& job, int64_t b, int64_t first, const Scratch& scratch)
      : job_(job),
        sight_(job.run, b, job.causal),
        k_(scratch.coefficients),
        b_(b),
        first_(first),
        here_(std::min(kLanes, job.shape.channels - first)),
        states_(scratch.states),
        u_(scratch.rows),
        y_(scratch.results),
        past_(job.state ? job.state.row(b) : nullptr) {}

  ATTNKIT_INLINE void operator()() {
    if (past_ && sight_.fresh == 1 && sight_.queries == 1 && row_of(0) == 0) return step();
    begin();
    while (next_ < sight_.queries && row_of(next_) < 0) ++next_;
    if (next_ > 0) read_past();
    for (int64_t t = 0; t < sight_.fresh; t += kTile) tile<false>(t);
    if (past_ && sight_.fresh > 0) keep();
    if (!job_.causal) {
      std::memset(states_, 0, static_cast<size_t>(2 * job_.shape.half * kLanes) * sizeof(float));
      for (int64_t t = (sight_.fresh - 1) / kTile * kTile; t >= 0 && sight_.fresh > 0; t -= kTile) tile<true>(t);
    }
  }

 private:
  // The fresh row whose result query i reads: its own, or the newest before it.  Below 0: it is in the past, or
  // nowhere.
  ATTNKIT_INLINE int64_t row_of(int64_t i) const {
    return job_.causal ? sight_.seen(i) - 1 - sight_.past : std::min(i, sight_.fresh - 1);
  }

  // Part of the state's [half][2][channels], then the newest row's [channels].
  ATTNKIT_INLINE float* past(int64_t i) const { return past_ + i * job_.shape.channels + first_; }

  // One row and its result, each state read and written once.
  ATTNKIT_INLINE void step() {
    Vec<Isa> x, skip;
    simd::load(job_.x.row(b_, 0, 0) + first_, here_, x);
    simd::load(job_.learned.skip + first_, here_, skip);
    Vec<Isa> sum = x * skip;
    for (int64_t n = 0; n < job_.shape.half; ++n) {
      Vec<Isa> re, im;
      simd::load(past(2 * n), here_, re);
      simd::load(past(2 * n + 1), here_, im);
      enter(x, simd::at<Isa>(k_.step(0, n)), simd::at<Isa>(k_.step(1, n)), re, im);
      sum = (sum + simd::at<Isa>(k_.readout(0, n)) * re) - simd::at<Isa>(k_.readout(0, n) + kLanes) * im;
      simd::store(re, here_, past(2 * n));
      simd::store(im, here_, past(2 * n + 1));
    }
    simd::store(x, here_, past(2 * job_.shape.half));
    put(0, sum);
  }

  ATTNKIT_INLINE void begin() {
    for (int64_t i = 0; i < 2 * job_.shape.half; ++i) {
      Vec<Isa> x{};
      if (past_) simd::load(past(i), here_, x);
      simd::store(x, states_ + i * kLanes);
    }
  }

  ATTNKIT_INLINE void keep() {
    for (int64_t i = 0; i < 2 * job_.shape.half; ++i) simd::store(simd::at<Isa>(states_ + i * kLanes), here_, past(i));
    Vec<Isa> x;
    simd::load(job_.x.row(b_, 0, sight_.fresh - 1) + first_, here_, x);
    simd::store(x, here_, past(2 * job_.shape.half));
  }

  // Queries [0, next_) see nothing of this run: they read the past as it stands.
  ATTNKIT_INLINE void read_past() {
    Vec<Isa> y{}, skip;
    if (past_) {
      simd::load(past(2 * job_.shape.half), here_, y);
      simd::load(job_.learned.skip + first_, here_, skip);
      y = y * skip;
      for (int64_t n = 0; n < job_.shape.half; ++n) {
        y += simd::at<Isa>(k_.readout(0, n)) * simd::at<Isa>(states_ + 2 * n * kLanes);
        y -= simd::at<Isa>(k_.readout(0, n) + kLanes) * simd::at<Isa>(states_ + (2 * n + 1) * kLanes);
      }
    }
    for (int64_t i = 0; i < next_; ++i) put(i, y);
  }

  // Rows [t, t + kTile), or up to the last one, and the queries that read them.
  template <bool kBackward>
  ATTNKIT_INLINE void tile(int64_t t) {
    constexpr int R = Isa::rows / 2;
    const int64_t rows = std::min(kTile, sight_.fresh - t);
    Vec<Isa> skip, x;
    simd::load(job_.learned.skip + first_, here_, skip);
    for (int64_t i = 0; i < rows; ++i) {
      simd::load(job_.x.row(b_, 0, t + i) + first_, here_, x);
      simd::store(x, u_ + i * kLanes);
      simd::store(kBackward ? Vec<Isa>{} : x * skip, y_ + i * kLanes);
    }
    int64_t n = 0;
    for (; n + R <= job_.shape.half; n += R) scan<Isa, R, kBackward>(k_, n, states_, u_, y_, rows);
    for (; n < job_.shape.half; ++n) scan<Isa, 1, kBackward>(k_, n, states_, u_, y_, rows);
    int64_t i = kBackward ? t : next_;
    for (; i < sight_.queries && row_of(i) < t + rows; ++i)
      put(i, simd::at<Isa>(y_ + (row_of(i) - t) * kLanes), kBackward);
    if (!kBackward) next_ = i;
  }

  // The result of query i, or what is added to it.  The heads of an output row need not lie beside each other.
  ATTNKIT_INLINE void put(int64_t i, const Vec<Isa>& y, bool adds = false) const {
    const int64_t width = job_.shape.channels / job_.shape.heads;
    if (job_.o.head == width) {
      float* o = job_.o.row(b_, 0, i) + first_;
      Vec<Isa> old{};
      if (adds) simd::load(o, here_, old);
      simd::store(adds ? old + y : y, here_, o);
      return;
    }
    for (int64_t c = first_; c < first_ + here_; ++c) {
      float& o = job_.o.row(b_, c / width, i)[c % width];
      o = adds ? o + y[c - first_] : y[c - first_];
    }
  }

  const Job& job_;
  Sight sight_;
  Coefficients k_;
  int64_t b_, first_, here_, next_ = 0;
  float *states_, *u_, *y_, *past_;
};

struct S4d : s4d::Model {
  using Model::Model;
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // scratch of a worker
    const s4d::Memo* memo = nullptr;     // of streams
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    Plan plan{Layout::measure<Scratch>(shape), Layout::measure<s4d::Work<float>>(shape)};
    if (r.streams()) {
      std::call_once(streams, [this] { memo = std::make_unique<const s4d::Memo>(shape); });
      plan.memo = memo.get();
    }
    if (r.is_f64()) plan.run_bytes = plan.backward_bytes = Layout::measure<s4d::Work<double>>(shape);
    info.scratch(r, plan.run_bytes);
    info.train(r, 0, plan.backward_bytes);
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (attnkit::is_f64(run, o)) {
      each_block<double>(run, plan.run_bytes, 1, [&](const auto& block) { block.forward({run, o}); });
      return;
    }
    const Job job{shape,    run,      block.causal != 0,  learned<const float>(run.ports),
                  {run, x}, {run, o}, attnkit::State(run)};
    // Batch rows that an item of 16 channels runs.  The discrete form is found or made once for all of them; to make it
    // costs as much as running some rows.
    const int64_t batch = run.batch, together = run.keys < kTile ? std::max<int64_t>(batch, 1) : 1;
    const int64_t blocks = (shape.channels + kLanes - 1) / kLanes, groups = (batch + together - 1) / together;
    const auto body = [&](auto isa, int64_t begin, int64_t end, void* memory) __attribute__((always_inline)) {
      using Isa = decltype(isa);
      Layout layout(memory);
      const Scratch scratch(layout, shape);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % blocks * kLanes, from = item / blocks * together;
        Scratch mine = scratch;
        const bool kept = plan.memo && plan.memo->take(job.learned, first, mine.coefficients);
        if (!kept) {
          mine.coefficients = scratch.coefficients;
          s4d::discretise<Isa>(job.learned, shape.channels, first, shape.directions, mine.coefficients);
          if (plan.memo) plan.memo->keep(job.learned, first, mine.coefficients);
        }
        for (int64_t b = from; b < std::min(from + together, batch); ++b) Filter<Isa>(job, b, first, mine)();
        if (kept) plan.memo->give(first);
      }
    };
    const auto rows = static_cast<double>(std::max(run.keys, run.queries) * together);
    const double flops =
        static_cast<double>(kLanes * shape.half * shape.directions) * (12 * rows + (plan.memo ? 20 : 200));
    simd::for_items(run, blocks * groups, {flops, plan.run_bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    attnkit::with_real(attnkit::is_f64(*grad.run, o), [&](auto real) {
      using Real = decltype(real);
      each_block<Real>(*grad.run, plan.backward_bytes, 4, [&](const auto& block) {
        block.backward({grad, o}, {grad, x}, learned<Real>(grad.grads));
      });
    });
  }

  // Calls body with each block of 16 channels; passes: runs that one costs.
  template <class Real, class Body>
  void each_block(const attn_run& run, uint64_t bytes, int64_t passes, const Body& body) const {
    const double flops = 12.0 * static_cast<double>(kLanes * shape.half * shape.directions * passes) *
                         static_cast<double>(run.batch * std::max(run.keys, run.queries));
    attnkit::for_each_item(
        run, (shape.channels + kLanes - 1) / kLanes, {flops, bytes}, [&](int64_t item, void* memory) {
          Layout layout(memory);
          body(s4d::Block<Real>{
              shape, run, block.causal != 0, learned<const Real>(run.ports), {run, x}, item * kLanes, {layout, shape}});
        });
  }

  mutable std::once_flag streams;
  mutable std::unique_ptr<const s4d::Memo> memo;  // made with the first plan of a stream
};

}  // namespace

ATTNKIT_PLUGIN(S4d)
