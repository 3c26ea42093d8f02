// local on CUDA: the mathematics of local.cpp.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;

struct Local : local::Model {
  static constexpr attnkit::About about = cuda::on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int keys;  // of a tile
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (cache.rounds()) throw attnkit::unsupported("only the CPU rounds keys and values: set cache = \"f32\"");
    count(r, info);
    return {attend::plan<attend::Window>(shape, r, info)};
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

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<Local>)
