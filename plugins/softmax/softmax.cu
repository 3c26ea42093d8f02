// softmax on CUDA: the mathematics of softmax.cpp.  Whole sequences in f16 and bf16 are cuDNN's where it takes them.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/attend_whole.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;

struct Softmax : softmax::Model {
  static constexpr attnkit::About about = cuda::on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int keys;                                         // of a tile
    int64_t spans;                                    // of the keys of rows of a few queries
    std::shared_ptr<const cuda::cudnn::Whole> whole;  // NULL where cuDNN does not serve
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (cache.rounds()) throw attnkit::unsupported("only the CPU rounds keys and values: set cache = \"f32\"");
    count(r, info);
    Plan plan{attend::plan(shape, r, info), attend::spans_of(r), cuda::cudnn::Whole::make(r, shape, block.causal != 0)};
    info.scratch_bytes = attend::bytes_of_parts(shape, r);
    if (!plan.whole) return plan;
    info.scratch_bytes = std::max(info.scratch_bytes, plan.whole->scratch_bytes());
    if (r.trains()) {
      info.saved_bytes = plan.whole->saved_bytes();
      info.backward_scratch_bytes = plan.whole->backward_scratch_bytes();
    }
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    if (plan.whole && trains_in_halves(r) && r.queries > 0 && r.keys > 0)
      return plan.whole->run(about.name, r, io, factor());
    cuda::with_type<true>(io.o.of(r.ports), [&](auto number) {
      using T = decltype(number);
      attend::run<T>(about.name, r, io, shape, factor_of<T>(), block.causal != 0, plan.keys, attend::Everywhere{},
                     static_cast<int>(plan.spans));
    });
  }

  static bool trains_in_halves(const Plan& plan) { return plan.whole != nullptr; }
  // cuDNN's causal mask knows no positions.
  bool trains_in_halves(const attn_run& r) const { return !block.causal || r.q_pos == nullptr; }

  void backward(const Plan& plan, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    if (plan.whole) return plan.whole->run_backward(about.name, g, io, factor());
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

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<Softmax>)
