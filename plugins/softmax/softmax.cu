// softmax on CUDA: the mathematics of softmax.cpp.  Whole sequences in f16 and bf16 are cuDNN's where it takes them.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/attend_whole.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;

struct Softmax : softmax::Model {
  static constexpr attnkit::About about = cuda::on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int keys;                                         // of a tile
    int spans;                                        // of the keys of rows of a few queries
    std::shared_ptr<const cuda::cudnn::Whole> whole;  // NULL where cuDNN does not serve
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (cache.rounds()) throw attnkit::unsupported("only the CPU rounds keys and values: set cache = \"f32\"");
    count(r, info);
    Plan plan{attend::plan(shape, r, info), attend::spans_of(r), cuda::cudnn::Whole::make(r, shape, block.causal != 0)};
    info.scratch_bytes = attend::bytes_of_parts(shape, r);
    if (plan.whole) info.scratch_bytes = std::max(info.scratch_bytes, plan.whole->scratch_bytes());
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    if (plan.whole && r.queries > 0 && r.keys > 0) return plan.whole->run(about.name, r, io, factor());
    cuda::with_type<true>(io.o.of(r.ports), [&](auto number) {
      using T = decltype(number);
      attend::run<T>(about.name, r, io, shape, factor_of<T>(), block.causal != 0, plan.keys, attend::Everywhere{},
                     plan.spans);
    });
  }

  void backward(const Plan&, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    cuda::with_type<true>(io.o.of(g.run->ports), [&](auto number) {
      using T = decltype(number);
      if constexpr (sizeof(T) >= sizeof(float))
        attend::run_backward<T>(about.name, g, io, shape, factor_of<T>(), block.causal != 0);
    });
  }

 private:
  template <class T>
  double factor_of() const {
    return std::is_same_v<T, double> ? scale : factor();
  }
};

}  // namespace

ATTNKIT_PLUGIN(Softmax)
