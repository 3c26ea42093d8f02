// luna on CUDA: the mathematics of luna.cpp.
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "cuda/bidirectional.hpp"
#include "cuda/causal.hpp"
#include "cuda/gradient.hpp"

namespace {

using namespace luna::cuda;
using attnkit::Layout;
using attnkit::View;

struct Luna : luna::Model {
  static constexpr attnkit::About about = on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int tile, gradient_tile;  // rows of a tile: keys, and queries of causal blocks
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    check(r);
    count(r, info);
    return r.is_f64() ? plan_in<double>(r, info) : plan_in<float>(r, info);
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0) return;
    with_type<true>(io.o.of(r.ports), [&](auto type) { run_in<decltype(type)>(plan, r); });
  }

  void backward(const Plan& plan, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    with_type<true>(io.o.of(g.run->ports), [&](auto type) {
      using T = decltype(type);
      if constexpr (sizeof(T) >= sizeof(float)) backward_in<T>(plan, g);
    });
  }

 private:
  // Of a run: what is known where nothing keeps it, and what is summed of segments.
  template <class Real>
  struct RunScratch {
    Real *memory, *split;
    RunScratch(Layout& layout, int64_t known, int64_t sums)
        : memory(layout.take<Real>(known)), split(layout.take<Real>(sums)) {
      if (sums == 0) split = nullptr;
    }
  };
  // Of a gradient.
  template <class Real>
  struct Scratch {
    Real *pq, *packed, *of_keys, *of_values, *of_packed, *of_pq, *of_p, *norm, *scores;
    double* moments;
    Scratch(Layout& layout, const luna::Shape& s, int64_t batch, int64_t queries) {
      const int64_t rows = batch * s.l * s.width(), packs = s.causal ? 0 : rows;
      for (Real** part : {&pq, &of_pq, &of_p}) *part = layout.take<Real>(rows);
      for (Real** part : {&packed, &of_keys, &of_packed}) *part = layout.take<Real>(packs);
      of_values = s.causal || s.tied ? of_keys : layout.take<Real>(batch * s.l * s.heads * s.e);
      norm = layout.take<Real>(s.gives() ? batch * 2 * s.width() : 0);
      scores = layout.take<Real>(s.causal ? batch * s.heads * queries * 2 * s.l : 0);
      moments = layout.take<double>(s.gives() ? batch * 2 * s.l : 0);
    }
  };

  // Numbers of what is known of a batch row, in whole lines.
  template <class Real>
  int64_t row() const {
    return static_cast<int64_t>(attnkit::aligned(static_cast<uint64_t>(luna::memory_size(shape)) * sizeof(Real)) /
                                sizeof(Real));
  }

  // Numbers of a batch row's scratch in a run at these bounds; f64 is for checks.
  template <class Real>
  int64_t split_row(int64_t queries, int64_t keys) const {
    const bool splits = keys > kSegment || (shape.causal && queries > kSegment);
    return splits && sizeof(Real) == sizeof(float) ? Sizes(shape).split_row(shape.causal, keys) : 0;
  }

  // Rows of the largest tile that fits; bytes(rows): of a block.  whose: in the message.
  template <class Bytes>
  static int tile_of(const char* whose, const Bytes& bytes) {
    const auto fits = [](uint64_t n) { return n <= static_cast<uint64_t>(most_shared()); };
    const uint64_t few = bytes(kFew);
    if (!fits(few))
      throw luna::unsupported("the rows of ", kFew, " tokens and of P take ", whose, few,
                              " bytes of a block's shared memory, which is ", most_shared(),
                              " bytes: make projection smaller or the heads narrower");
    return fits(bytes(kTile)) ? kTile : kFew;
  }

  template <class Real>
  Plan plan_in(const attnkit::Request& r, attnkit::Info& info) const {
    const Sizes s(shape);
    const int64_t packed = shape.causal ? 0 : r.batch * row<Real>();
    info.scratch_bytes = Layout::measure<RunScratch<Real>>(r.streams() || r.trains() ? 0 : packed,
                                                           r.batch * split_row<Real>(r.queries, r.keys));
    info.train(r, packed, 0, Layout::measure<Scratch<Real>>(shape, r.batch, r.queries));
    const int tile = tile_of("", [&](int rows) {
      if (shape.causal) return Recurrence<Real>::bytes(s, rows);
      return std::max(Pack<Real>::bytes(s, rows), Unpack<Real>::bytes(s, rows));
    });
    if (!r.trains()) return {tile, 0};
    return {tile, tile_of("in a gradient ", [&](int rows) {
              if (shape.causal) return RecurrenceGradient<Real>::bytes(s, rows);
              return std::max(PackGradient<Real>::bytes(s, rows), UnpackGradient<Real>::bytes(s, rows));
            })};
  }

  template <class T>
  Work<T> work_of(const attn_run& r) const {
    using Real = RealOf<T>;
    const auto rows = [&](luna::Port port) { return View<const T>(r, port); };
    const auto learned = [&](luna::Port port) { return View<const Real>(r, port); };
    const bool aux = shape.contextual && io.p_in.of(r.ports).data != nullptr;
    Layout layout(r.exec->scratch);
    const RunScratch<Real> scratch(layout, shape.causal || r.state || r.saved ? 0 : r.batch * row<Real>(),
                                   r.batch * split_row<Real>(r.queries, r.keys));
    return {Sizes(shape),
            rows(io.q),
            rows(io.k),
            rows(shape.tied ? io.k : io.v),
            rows(io.pk),
            rows(shape.tied ? io.pk : io.pv),
            View<T>(r, io.o),
            learned(aux ? io.p_in : io.start),
            aux,
            {r, io.pq_weight, io.pq_bias},
            {r, io.k_weight, io.k_bias},
            {r, io.v_weight, io.v_bias},
            learned(io.norm_weight).data,
            learned(io.norm_bias).data,
            View<Real>(r, io.p_out),
            Lengths(r, shape.causal),
            States(r),
            r.saved ? static_cast<Real*>(r.saved) : scratch.memory,
            row<Real>(),
            scratch.split,
            static_cast<Real>(luna::scale(shape.d)),
            static_cast<Real>(luna::scale(shape.pack_d())),
            1};
  }

  template <class Kernel, class... Argument>
  static void start(const attn_run& r, int64_t blocks, uint64_t bytes, Kernel* kernel, const Argument&... arguments) {
    start(r, blocks, 1, bytes, kernel, arguments...);
  }
  template <class Kernel, class... Argument>
  static void start(const attn_run& r, int64_t blocks, int64_t across, uint64_t bytes, Kernel* kernel,
                    const Argument&... arguments) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(across));
    launch(about.name, kernel, {grid, kThreads, bytes}, *r.exec, arguments...);
  }
  static int64_t blocks_of(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

  template <class T>
  void run_in(const Plan& plan, const attn_run& r) const {
    Work<T> w = work_of<T>(r);
    if (shape.causal) {
      if (r.queries == 0 && r.keys == 0) return;
      const bool few = r.state != nullptr && r.queries <= kFew && r.keys <= kFew;
      const int tile = few ? kFew : plan.tile;
      const int64_t heads = r.batch * shape.heads;
      const auto walk = [&](bool sums, int64_t rows) {
        const int64_t segments = w.split ? std::max<int64_t>(1, segments_of(rows)) : 1;
        start(r, heads, segments, Recurrence<T>::bytes(w.sizes, tile), causal_kernel<T>, w, tile, sums);
      };
      if constexpr (sizeof(RealOf<T>) == sizeof(float))
        if (w.split) {
          if (r.keys > 0) walk(true, r.keys);
          start(r, heads, blocks_of(w.sizes.sums()), 0, prefixes_kernel<T>, w);
        }
      return walk(false, r.queries);
    }
    if (r.keys > 0) {
      start(r, r.batch * shape.pack_heads, w.split ? segments_of(r.keys) : 1, Pack<T>::bytes(w.sizes, plan.tile),
            pack_kernel<T>, w, plan.tile);
      if constexpr (sizeof(RealOf<T>) == sizeof(float))
        if (w.split) start(r, r.batch * blocks_of(w.sizes.totals()), 0, combine_kernel<T>, w);
      start(r, r.batch * project_blocks(w.sizes), 0, project_kernel<T>, w);
    }
    const int tile = r.queries <= kFew ? kFew : plan.tile;
    w.tiles = static_cast<int>(std::max<int64_t>(1, (r.queries + tile - 1) / tile));
    start(r, r.batch * shape.heads * w.tiles, Unpack<T>::bytes(w.sizes, tile), unpack_kernel<T>, w, tile);
  }

  template <class Real>
  void backward_in(const Plan& plan, const attn_grad& g) const {
    const attn_run& r = *g.run;
    Layout layout(r.exec->scratch);
    const Scratch<Real> scratch(layout, shape, r.batch, r.queries);
    const auto of = [&](luna::Port port) { return View<Real>(g, port); };
    const Work<Real> run = work_of<Real>(r);
    const GradientWork<Real> w{run,
                               View<const Real>(g, io.o),
                               View<const Real>(g, io.p_out),
                               of(io.q),
                               of(io.k),
                               of(io.v),
                               of(io.pk),
                               of(io.pv),
                               of(io.p_in),
                               scratch.pq,
                               scratch.packed,
                               scratch.of_keys,
                               scratch.of_values,
                               scratch.of_packed,
                               scratch.of_pq,
                               scratch.of_p,
                               scratch.moments,
                               scratch.norm,
                               scratch.scores,
                               r.batch};
    const int64_t columns = r.batch * column_blocks(run.sizes);
    start(r, columns + r.batch, 0, begin_kernel<Real>, w);
    const int tile = plan.gradient_tile;
    if (shape.causal) {
      start(r, r.batch * shape.heads, RecurrenceGradient<Real>::bytes(run.sizes, tile), causal_gradient_kernel<Real>, w,
            tile);
    } else {
      start(r, r.batch * shape.heads, UnpackGradient<Real>::bytes(run.sizes, tile), unpack_gradient_kernel<Real>, w,
            tile);
      start(r, columns, 0, packed_gradient_kernel<Real>, w);
      start(r, r.batch * shape.pack_heads, PackGradient<Real>::bytes(run.sizes, tile), pack_gradient_kernel<Real>, w,
            tile);
    }
    start(r, columns, 0, p_gradient_kernel<Real>, w);
    learn(g, w);
  }

  template <class Real>
  void learn(const attn_grad& g, const GradientWork<Real>& w) const {
    const attn_run& r = *g.run;
    const int64_t width = shape.width();
    const auto dense = [&](luna::Port weight, luna::Port bias, const Real* of, int64_t outputs,
                           const Rows<const Real>& x) {
      const Lesson<Real> lesson{of, static_cast<int>(outputs), x, View<Real>(g, weight), View<Real>(g, bias).data};
      if (!lesson.weight.data && !lesson.bias) return;
      const int64_t blocks = (width + kColumns) / kColumns * ((outputs + kColumns - 1) / kColumns);
      start(r, blocks, 0, learn_kernel<Real>, w, lesson);
    };
    const auto sum = [&](luna::Port port, const Real* from, int64_t next, int64_t rows) {
      const Rows<Real> to = View<Real>(g, port);
      if (!to.data) return;
      start(r, blocks_of(rows * width), 0, sum_kernel<Real>, from, next, r.batch, static_cast<int>(rows),
            static_cast<int>(width), to);
    };
    dense(io.pq_weight, io.pq_bias, w.of_pq, width, w.run.p);
    if (!w.run.aux) sum(io.start, w.of_p, shape.l * width, shape.l);
    if (shape.causal) return;
    View<const Real> packed;
    packed.data = w.packed;
    packed.batch = shape.l * width;
    packed.next = width;
    dense(io.k_weight, io.k_bias, w.of_keys, width, packed);
    if (!shape.tied) dense(io.v_weight, io.v_bias, w.of_values, shape.heads * shape.e, packed);
    if (!w.given_next.data) return;
    sum(io.norm_weight, w.norm, 2 * width, 1);
    sum(io.norm_bias, w.norm + width, 2 * width, 1);
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<Luna>)
