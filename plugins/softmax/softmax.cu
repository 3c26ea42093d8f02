// softmax on CUDA: the mathematics of softmax.cpp.  Whole sequences in f16 and bf16 are cuDNN's where it takes them.
#include <attnkit/kernels/cuda/attend.hpp>
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
    count(r, info);
    const attend::Sizes sizes(shape);
    const int keys = attend::keys_of_tile<float>(sizes);
    if (keys == 0)
      throw attnkit::unsupported("heads of ", shape.d, " and ", shape.e, " numbers do not fit, ", attend::kWide,
                                 " rows at a time, into a block's ", cuda::kMostShared,
                                 " bytes of shared memory: make the heads narrower");
    Plan plan{keys, cuda::cudnn::Whole::make(r, shape, block.causal != 0)};
    if (plan.whole) info.scratch_bytes = plan.whole->scratch_bytes();
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    if (plan.whole && r.queries > 0 && r.keys > 0)
      plan.whole->run(about.name, r, io, factor());
    else
      cuda::with_type(io.o.of(r.ports), [&](auto type) {
        attend::run<decltype(type)>(about.name, r, io, shape, factor(), block.causal != 0, plan.keys);
      });
  }
};

}  // namespace

ATTNKIT_PLUGIN(Softmax)
