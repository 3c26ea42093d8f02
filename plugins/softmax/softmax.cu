// softmax on CUDA: the mathematics of softmax.cpp.  Whole sequences in f16 and bf16 are cuDNN's where it takes them.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/attend_whole.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;

struct Softmax : softmax::Model {
  static constexpr attnkit::About about{Model::about.name,
                                        Model::about.summary,
                                        Model::about.citation,
                                        Model::about.state_revision,
                                        cuda::kCudaDevice,
                                        0,
                                        true};
  using Model::Model;
  struct Plan {
    int keys;                                         // of a tile
    std::shared_ptr<const cuda::cudnn::Whole> whole;  // NULL where cuDNN does not serve
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (cache.rounds()) throw attnkit::unsupported("only the CPU rounds keys and values: set cache = \"f32\"");
    count(r, info);
    const attend::Sizes sizes(shape);
    const int keys = r.is_f64() ? attend::keys_of_tile<double>(sizes) : attend::keys_of_tile<float>(sizes);
    const int rows = r.is_f64() ? attend::gradient_tile<double>(sizes) : attend::gradient_tile<float>(sizes);
    if (keys == 0 || (r.trains() && rows == 0))
      throw attnkit::unsupported("heads of ", shape.d, " and ", shape.e, " numbers do not fit, a few rows at a time, ",
                                 "into a block's ", cuda::most_shared(),
                                 " bytes of shared memory: make the heads narrower");
    const int64_t queries = r.batch * shape.heads * r.queries;
    info.train(r, queries, 0, attnkit::aligned(r.real_bytes(queries)));
    Plan plan{keys, cuda::cudnn::Whole::make(r, shape, block.causal != 0)};
    if (plan.whole) info.scratch_bytes = plan.whole->scratch_bytes();
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    if (plan.whole && r.queries > 0 && r.keys > 0) return plan.whole->run(about.name, r, io, factor());
    cuda::with_type<true>(io.o.of(r.ports), [&](auto number) {
      using T = decltype(number);
      attend::run<T>(about.name, r, io, shape, factor_of<T>(), block.causal != 0, plan.keys);
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
