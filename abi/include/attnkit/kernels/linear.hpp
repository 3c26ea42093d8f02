// A linear attention is a feature map: ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Map>) of a struct Map.
//
// linear/core.hpp computes it, linear/gradient.hpp its gradient.  A Map has
//   about, options, fill as in plugin.hpp
//   explicit Map(const attnkit::linear::Setup&);     may change the shape, whose features are D when it arrives
//   ATTNKIT_INLINE void query(const Real* x, const attnkit::linear::Place&, Real* row) const;
//   ATTNKIT_INLINE void key(...the same...) const;   writes the D' features of row x, which is D wide
// templates by Real, float or double.  It trains if it has a derivative:
//   ATTNKIT_INLINE void query_gradient(const Real* x, const Place&, Real* row, const Real* given, Real* to) const;
//   ATTNKIT_INLINE void key_gradient(...the same...) const;    from the gradient of row, given, writes that of x to
//   `to`,
//                                                              and may write over row; with LEARNED ports it has a
//   attnkit::Learned learned() const;                          last argument Real* learned, those ports' gradients, to
//                                                              which it adds
// And, where it needs them,
//   void check(const attnkit::Request&, attnkit::Info&) const;       refuses what it cannot do
//   double flops() const;                                            of the map, per row and head
//   static constexpr const char* output_doc;                         if the output is no weighted mean
//   static bool shares_keys(const attnkit::Values&);                 false if key() differs between heads of queries
//   template <class Isa> ATTNKIT_INLINE void finish(Real* const* rows, int64_t n) const;    what query and key left
//                                                              undone of n rows, at most kFinish
//   template <class Real> auto bind(const attn_run&) const;          the map of one run, with query and key
#ifndef ATTNKIT_KERNELS_LINEAR_HPP
#define ATTNKIT_KERNELS_LINEAR_HPP
#include <attnkit/kernels/linear/core.hpp>
#include <attnkit/kernels/linear/gradient.hpp>

namespace attnkit::linear {

// The arguments of a map.
struct Setup {
  const attn_block& block;
  const Values& values;
  Ports& ports;
  Shape& shape;
};

template <class Map>
class Mechanism {
 public:
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // scratch of a worker
    uint32_t workers;
  };
  static constexpr About about = Map::about;
  static constexpr bool clears_gradients = true;
  static Options options() { return Map::options(); }

  Mechanism(const attn_block& b, const Values& values, Ports& ports)
      : block_(b),
        shape_(b, shares_keys(values)),
        guard_(Guard::from(values)),
        ports_(ports.qkv(shape_, output_doc())),
        map_(Setup{b, values, ports, shape_}) {
    if constexpr (requires { map_.learned(); }) learned_ = map_.learned();
  }

  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const requires requires(const Map& map) {
    map.fill(port, seed, data, count);
  }
  { map_.fill(port, seed, data, count); }

  Plan plan(const Request& r, Info& info) const {
    check_sight(block_, r);
    if constexpr (requires { map_.check(r, info); }) map_.check(r, info);
    cost(shape_, r, map_flops(), info);
    Plan plan{0, 0, r.workers};
    with_real(r.is_f64(), [&](auto real) {
      using Real = decltype(real);
      plan.run_bytes = info.scratch(r, Layout::measure<Scratch<Real>>(shape_, r.streams()));
      plan.backward_bytes = Layout::measure<GradientScratch<Real>>(shape_);
    });
    const int64_t items = r.batch * shape_.heads;
    info.train(r, items * r.queries, plan.backward_bytes, r.real_bytes(items * learned_.floats()));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const double flops = 2.0 * static_cast<double>((run.queries + run.keys) * shape_.features * (shape_.e + 1));
    with_map(run, [&](const auto& map, auto real) {
      using Real = decltype(real);
      using Bound = std::decay_t<decltype(map)>;
      using Body = Run<Bound, Real>;
      const int64_t together = simd::heads_together(run, shape_), heads = shape_.heads / together,
                    parts = Body::parts_of(run, shape_, map_flops(), run.batch * heads);
      const Body body{shape_,   guard_,        map,        block_.causal != 0,
                      run,      {run, ports_}, State(run), static_cast<Real*>(run.saved),
                      together, parts};
      simd::for_heads<Real>(run, heads * parts,
                            {flops * static_cast<double>(together) / static_cast<double>(parts), plan.run_bytes}, body);
    });
  }

  void backward(const Plan& plan, const attn_grad& grad) const requires Differentiable<Map> {
    const attn_run& run = *grad.run;
    const double flops = 8.0 * static_cast<double>((run.queries + run.keys) * shape_.features * (shape_.e + 1));
    with_map(run, [&](const auto& map, auto real) {
      using Real = decltype(real);
      using Bound = std::decay_t<decltype(map)>;
      char* shared = static_cast<char*>(run.exec->scratch) + plan.backward_bytes * plan.workers;
      const Gradient<Bound, Real> body{shape_,
                                       guard_,
                                       map,
                                       block_.causal != 0,
                                       run,
                                       {run, ports_},
                                       {grad, ports_},
                                       learned_.floats(),
                                       reinterpret_cast<Real*>(shared)};
      for_each_head(run, shape_.kv_heads, {flops * static_cast<double>(shape_.group()), plan.backward_bytes}, body);
      learned_.collect(grad, shape_.heads, body.learned);
    });
  }

 private:
  double map_flops() const {
    if constexpr (requires { map_.flops(); })
      return map_.flops();
    else
      return 0;
  }
  static bool shares_keys(const Values& values) {
    if constexpr (requires { Map::shares_keys(values); }) return Map::shares_keys(values);
    return true;
  }
  static constexpr const char* output_doc() {
    if constexpr (requires { Map::output_doc; }) return Map::output_doc;
    return "weighted mean of the values";
  }
  // Calls body with the map of a run and a zero of its type.
  template <class Body>
  void with_map(const attn_run& run, const Body& body) const {
    const auto with = [&](auto real) {
      if constexpr (requires { map_.template bind<decltype(real)>(run); })
        body(map_.template bind<decltype(real)>(run), real);
      else
        body(map_, real);
    };
    if constexpr (Differentiable<Map>)
      with_real(is_f64(run, ports_.o), with);
    else
      with(float{});
  }
  attn_block block_;
  Shape shape_;
  Guard guard_;
  QkvPorts ports_;
  Map map_;
  Learned learned_;
};

}  // namespace attnkit::linear
#endif
