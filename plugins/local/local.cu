// local on CUDA: the mathematics of local.cpp.
#include <attnkit/kernels/cuda/attend_gradient.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;

struct Local : local::Model {
  static constexpr attnkit::About about{Model::about.name,
                                        Model::about.summary,
                                        Model::about.citation,
                                        Model::about.state_revision,
                                        cuda::kCudaDevice,
                                        0,
                                        true};
  using Model::Model;
  struct Plan {
    int keys;  // of a tile
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (cache.rounds()) throw attnkit::unsupported("only the CPU rounds keys and values: set cache = \"f32\"");
    count(r, info);
    const attend::Sizes sizes(shape);
    const int keys = r.is_f64() ? attend::keys_of_tile<double, attend::Window>(sizes)
                                : attend::keys_of_tile<float, attend::Window>(sizes);
    const int rows = r.is_f64() ? attend::gradient_tile<double, attend::Window>(sizes)
                                : attend::gradient_tile<float, attend::Window>(sizes);
    if (keys == 0 || (r.trains() && rows == 0))
      throw attnkit::unsupported("heads of ", shape.d, " and ", shape.e, " numbers do not fit, a few rows at a time, ",
                                 "into a block's ", cuda::most_shared(),
                                 " bytes of shared memory: make the heads narrower");
    const int64_t queries = r.batch * shape.heads * r.queries;
    info.train(r, queries, 0, attnkit::aligned(r.real_bytes(queries)));
    return {keys};
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    cuda::with_type<true>(io.o.of(r.ports), [&](auto number) {
      using T = decltype(number);
      attend::run<T>(about.name, r, io, shape, factor_of<T>(), window.causal, plan.keys, reach());
    });
  }

  void backward(const Plan&, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    cuda::with_type<true>(io.o.of(g.run->ports), [&](auto number) {
      using T = decltype(number);
      if constexpr (sizeof(T) >= sizeof(float))
        attend::run_backward<T>(about.name, g, io, shape, factor_of<T>(), window.causal, reach());
    });
  }

 private:
  attend::Window reach() const { return {window.before(), window.behind(), static_cast<uint32_t>(window.size)}; }
  template <class T>
  double factor_of() const {
    return std::is_same_v<T, double> ? scale : factor();
  }
};

}  // namespace

ATTNKIT_PLUGIN(Local)
