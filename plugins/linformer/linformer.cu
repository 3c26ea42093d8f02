// linformer on CUDA: the mathematics of linformer.cpp.
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "cuda/gradient.hpp"
#include "model.hpp"

namespace {

using namespace linformer::cuda;
using attnkit::Layout;
using attnkit::View;

struct Linformer : linformer::Model {
  static constexpr attnkit::About about = on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int together;
  };

  // Of a gradient; a prefix's has more.
  template <class Real>
  struct Scratch {
    Real *heads, *sums, *given_out, *scores, *learned;
    Scratch(Layout& layout, const Linformer& m, int64_t batch, int64_t queries, int64_t keys, bool prefix) {
      const int64_t pairs = batch * m.shape.heads;
      heads = layout.take<Real>(pairs * m.shape.head_floats());
      sums = layout.take<Real>(pairs * m.shape.rank * (m.shape.d + m.shape.e));
      given_out = layout.take<Real>(prefix ? 0 : pairs * queries);
      scores = layout.take<Real>(prefix ? pairs * queries * 2 * m.shape.rank : 0);
      learned = layout.take<Real>(prefix ? pairs * m.of_head() * m.shape.rank * keys : 0);
    }
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
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
  int of_head() const { return f ? 2 : 1; }  // matrices

  template <class Real>
  uint64_t heads_bytes(int64_t batch) const {
    return static_cast<uint64_t>(batch * shape.heads * shape.head_floats()) * sizeof(Real);
  }

  template <class Real>
  Plan plan_in(const attnkit::Request& r, attnkit::Info& info) const {
    const Sizes s(shape);
    const bool prefix = r.shows_prefixes();
    const int together = s.together<Real>();
    if (together == 0)
      throw attnkit::unsupported("the scores of one query over rank = ", shape.rank, " mixtures take ",
                                 s.bytes<Real>(1), " bytes of a block's shared memory, which is ", most_shared(),
                                 " bytes: lower rank");
    if (r.trains() && !prefix && softmax::gradient_tile<Real>(softmax::Sizes(shape)) == 0)
      throw attnkit::unsupported("gradients of heads of ", shape.d, " and ", shape.e,
                                 " numbers do not fit, a few rows ", "at a time, into a block's ", most_shared(),
                                 " bytes of shared memory: make the heads narrower");
    if (!r.streams()) info.scratch_bytes = attnkit::aligned(heads_bytes<Real>(r.batch));
    info.train(r, prefix ? 0 : r.batch * shape.heads * r.queries, 0,
               Layout::measure<Scratch<Real>>(*this, r.batch, r.queries, r.keys, prefix));
    return Plan{together};
  }

  template <class T>
  Work<T> work_of(const Plan& plan, const attn_run& r, RealOf<T>* heads) const {
    using Real = RealOf<T>;
    const auto rows = [&](attnkit::Port port) { return View<const T>(r, port); };
    const auto matrix = [&](attnkit::Port port) { return Rows<const Real>(View<const Real>(r, port)); };
    const int64_t tiles = std::max<int64_t>(1, (r.queries + plan.together - 1) / plan.together);
    return {Sizes(shape),
            rows(io.q),
            rows(io.k),
            rows(io.v),
            matrix(e),
            matrix(f ? f : e),
            View<T>(r, io.o),
            Lengths(r, false),
            States(r),
            heads,
            r.visible ? nullptr : static_cast<Real*>(r.saved),
            1,
            static_cast<int>(shape.lanes()),
            static_cast<Real>(1 / std::sqrt(static_cast<double>(shape.d))),
            plan.together,
            static_cast<int>(tiles)};
  }

  template <class Real>
  void clear_heads(const attn_run& r, Real* heads) const {
    const auto stream = reinterpret_cast<cudaStream_t>(r.exec->stream);
    const cudaError_t error = cudaMemsetAsync(heads, 0, heads_bytes<Real>(r.batch), stream);
    if (error != cudaSuccess)
      throw attnkit::Refusal(ATTN_DEVICE, attnkit::say("CUDA cannot clear memory: ", cudaGetErrorString(error)));
  }

  template <class T>
  void run_in(const Plan& plan, const attn_run& r) const {
    using Real = RealOf<T>;
    const Work<T> w = work_of<T>(plan, r, static_cast<Real*>(r.exec->scratch));
    const int64_t pairs = r.batch * shape.heads;
    const auto start = [&](auto* kernel, int64_t blocks, uint64_t bytes) {
      launch(about.name, kernel, {dim3(static_cast<unsigned>(blocks)), kThreads, bytes}, *r.exec, w);
    };
    if (!r.state) clear_heads(r, w.scratch);
    const uint64_t bytes = w.sizes.template bytes<Real>(plan.together);
    if (r.visible) return start(prefix_kernel<T>, pairs, bytes);
    if (r.keys > 0) start(append_kernel<T>, pairs * w.sizes.tiles(), 0);
    if (r.queries > 0) start(attend_kernel<T>, pairs * w.tiles, bytes);
  }

  template <class Real>
  void backward_in(const Plan& plan, const attn_grad& g) const {
    const attn_run& r = *g.run;
    const int64_t pairs = r.batch * shape.heads, tiles = (r.keys + kTile - 1) / kTile;
    Layout layout(r.exec->scratch);
    const Scratch<Real> scratch(layout, *this, r.batch, r.queries, r.keys, r.visible != nullptr);
    GradientWork<Real> w{work_of<Real>(plan, r, scratch.heads),
                         View<const Real>(g, io.o),
                         View<Real>(g, io.q),
                         View<Real>(g, io.k),
                         View<Real>(g, io.v),
                         {View<Real>(g, e), f ? View<Real>(g, f) : View<Real>{}},
                         scratch.sums,
                         scratch.scores,
                         scratch.learned,
                         r.batch,
                         of_head()};
    const Sizes& s = w.run.sizes;
    const bool learns = w.of_matrix[0].data || w.of_matrix[1].data;
    const auto start = [&](auto* kernel, int64_t blocks, const auto& work) {
      if (blocks > 0) launch(about.name, kernel, {dim3(static_cast<unsigned>(blocks)), kThreads}, *r.exec, work);
    };
    const int64_t lessons = tiles * s.rows() * (f ? 2 : matrices);
    clear_heads(r, scratch.heads);
    if (r.visible) {
      start(prefix_gradient_kernel<Real>, pairs, w);
      if (learns) start(learn_kernel<Real, true>, lessons, w);
      return;
    }
    w.run.mixture = s.d;
    w.run.channel = 1;
    if (r.keys > 0) start(append_kernel<Real>, pairs * s.tiles(), w.run);
    attend_backward(g, w, scratch, w.dk.data || w.dv.data || learns);
    start(give_kernel<Real>, pairs * tiles * s.columns(), w);
    if (learns) start(learn_kernel<Real, false>, lessons, w);
  }

  // dq, and R and T if they are wanted, which are what Kbar and Vbar get as keys and values.
  template <class Real>
  void attend_backward(const attn_grad& g, const GradientWork<Real>& w, const Scratch<Real>& scratch,
                       bool wants_sums) const {
    attn_run mixtures = *g.run;  // every query sees all of them
    mixtures.keys = shape.rank;
    mixtures.k_len = nullptr;
    const int64_t head = shape.head_floats(), sums = shape.rank * (shape.d + shape.e);
    const auto rows_of = [&](auto* data, int64_t of_head, int64_t width) {
      View<std::remove_pointer_t<decltype(data)>> rows;
      rows.data = data;
      rows.batch = shape.heads * of_head;
      rows.head = of_head;
      rows.next = width;
      return rows;
    };
    const Real* const heads = scratch.heads;
    Real* const none = nullptr;
    softmax::run_backward(
        about.name, *g.run->exec,
        softmax::GradientWork<Real, softmax::Everywhere>{
            softmax::Sizes(shape), w.run.q, rows_of(heads, head, shape.d),
            rows_of(heads + shape.d * shape.lanes(), head, shape.e), View<const Real>(*g.run, io.o), w.given, w.dq,
            rows_of(wants_sums ? scratch.sums : none, sums, shape.d),
            rows_of(wants_sums ? scratch.sums + shape.rank * shape.d : none, sums, shape.e), Lengths(mixtures, false),
            w.run.lse, scratch.given_out, w.run.scale, static_cast<int>(g.run->batch * shape.heads)});
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<Linformer>)
