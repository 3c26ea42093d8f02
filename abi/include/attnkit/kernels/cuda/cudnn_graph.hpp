// A graph of cuDNN's operations, put together one by one, and a plan that runs it as one kernel or a few.
#ifndef ATTNKIT_KERNELS_CUDA_CUDNN_GRAPH_HPP
#define ATTNKIT_KERNELS_CUDA_CUDNN_GRAPH_HPP
#include <array>
#include <attnkit/kernels/cuda/cudnn.hpp>
#include <span>
#include <vector>

namespace attnkit::cuda::cudnn {

class Graph {
 public:
  // Of the tensors and numbers that a run brings.
  const std::vector<int64_t>& ids() const { return ids_; }

  // The ways to run it that cuDNN proposes, best first; each is there as long as the list.  device: instead of a
  // handle's, or NULL.
  std::vector<std::unique_ptr<Descriptor>> configs(int heuristic, const Descriptor* device = nullptr) const {
    Descriptor search(library_, kHeuristic);
    search.set(kHeuristicGraph, *graph_).set(kHeuristicMode, kHeuristicModes, heuristic);
    if (device) search.set(kHeuristicDevice, *device);
    search.finalize("proposes nothing for attention of this shape");
    std::vector<std::unique_ptr<Descriptor>> found;
    std::vector<void*> raw;
    for (size_t i = 0; i < kMaxConfigs; ++i)
      raw.push_back(found.emplace_back(std::make_unique<Descriptor>(library_, kEngineConfig))->raw());
    int64_t count = 0;
    if (library_.query(search.raw(), kHeuristicResults, kDescriptors, kMaxConfigs, &count, raw.data()) != 0) count = 0;
    found.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMaxConfigs)));
    return found;
  }

 protected:
  using Four = std::array<int64_t, 4>;

  // Tensors between operations have ids from first_virtual on.
  Graph(const Library& library, int64_t first_virtual) : library_(library), next_(first_virtual) {}
  const Library& library() const { return library_; }

  const Descriptor& tensor(int64_t id, DataType type, const Four& dimensions, const Four& strides) {
    ids_.push_back(id);
    return begin_tensor(id, type, dimensions, strides).finalize("refuses a tensor");
  }
  // Its numbers lie one after another.
  const Descriptor& tensor(int64_t id, DataType type, const Four& dimensions) {
    return tensor(id, type, dimensions, packed(dimensions));
  }
  const Descriptor& number(int64_t id) {
    ids_.push_back(id);
    return begin_tensor(id, kFloat, {1, 1, 1, 1}, {1, 1, 1, 1})
        .set(kTensorIsByValue, kBooleans, true)
        .finalize("refuses a number");
  }
  const Descriptor& between(DataType type, const Four& dimensions, const Four& strides) {
    return begin_tensor(next_++, type, dimensions, strides)
        .set(kTensorIsVirtual, kBooleans, true)
        .finalize("refuses a tensor between operations");
  }
  const Descriptor& between(DataType type, const Four& dimensions) {
    return between(type, dimensions, packed(dimensions));
  }

  // Lengths, where given, replace the sizes of the tensors.  pads: are the columns past them zeros?
  void matmul(const Descriptor& a, const Descriptor& b, const Descriptor& c, const Descriptor* rows,
              const Descriptor* columns, const Descriptor* depth, bool pads = false) {
    Descriptor& how = make(kMatmul).set(kMatmulPrecision, kDataTypes, kFloat);
    if (pads) how.set(kMatmulPadding, kDoubles, 0.0);
    how.finalize("refuses a product of matrices");
    Descriptor& operation =
        make(kOperationMatmul).set(kMatmulDescriptor, how).set(kMatmulA, a).set(kMatmulB, b).set(kMatmulC, c);
    if (rows) operation.set(kMatmulRows, *rows);
    if (columns) operation.set(kMatmulColumns, *columns);
    if (depth) operation.set(kMatmulDepth, *depth);
    finish(operation, "refuses a product of matrices");
  }
  const Descriptor& pointwise(Mode mode, DataType precision, std::initializer_list<const Descriptor*> inputs,
                              const Descriptor& to, int64_t axis = -1) {
    Descriptor& how = make(kPointwise).set(kPointwiseMode, kPointwiseModes, mode);
    how.set(kPointwisePrecision, kDataTypes, precision);
    if (axis >= 0) how.set(kPointwiseAxis, kIntegers, axis);
    how.finalize("refuses an operation");
    Descriptor& operation = make(kOperationPointwise).set(kPointwiseDescriptor, how).set(kPointwiseY, to);
    constexpr Attribute kInputs[] = {kPointwiseX, kPointwiseB, kPointwiseT};
    size_t i = 0;
    for (const Descriptor* input : inputs) operation.set(kInputs[i++], *input);
    finish(operation, "refuses an operation");
    return to;
  }
  // An axis that is shorter in `to` is added up, or its largest found, in parts.
  const Descriptor& reduce(Reduction reduction, const Descriptor& from, const Descriptor& to) {
    Descriptor& how = make(kReduction).set(kReductionOperator, kReductionOperators, reduction);
    how.set(kReductionPrecision, kDataTypes, kFloat).finalize("refuses a reduction");
    finish(make(kOperationReduction).set(kReductionDescriptor, how).set(kReductionX, from).set(kReductionY, to),
           "refuses a reduction");
    return to;
  }
  // The same numbers, whose last two axes have changed places in `to`.
  const Descriptor& transpose(const Descriptor& from, const Descriptor& to) {
    finish(make(kOperationReshape).set(kReshapeX, from).set(kReshapeY, to), "refuses a transposition");
    return to;
  }

  // handle: NULL leaves the graph without a device.
  void finish_graph(void* handle) {
    std::vector<void*> raw;
    for (const auto* operation : operations_) raw.push_back(operation->raw());
    Descriptor& graph = make(kOperationGraph);
    graph.set(kGraphOperations, kDescriptors, raw.data(), raw.size());
    if (handle) graph.set(kGraphHandle, kHandles, handle);
    graph_ = &graph.finalize("refuses attention of this shape");
  }

 private:
  static constexpr int64_t kMaxConfigs = 8;
  static Four packed(const Four& n) { return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}; }
  Descriptor& make(Kind kind) { return owned_.emplace_back(library_, kind); }
  Descriptor& begin_tensor(int64_t id, DataType type, const Four& dimensions, const Four& strides) {
    return make(kTensor)
        .set(kTensorId, kIntegers, id)
        .set(kTensorType, kDataTypes, type)
        .set(kTensorAlignment, kIntegers, int64_t{16})
        .set(kTensorDimensions, kIntegers, dimensions.data(), 4)
        .set(kTensorStrides, kIntegers, strides.data(), 4);
  }
  void finish(Descriptor& operation, const char* what) { operations_.push_back(&operation.finalize(what)); }

  const Library& library_;
  std::deque<Descriptor> owned_;
  std::vector<Descriptor*> operations_;
  std::vector<int64_t> ids_;
  const Descriptor* graph_ = nullptr;
  int64_t next_;
};

// A graph made ready for the current device.
class GraphPlan {
 public:
  // Errors    NotSupported with cuDNN's reason.
  GraphPlan(const Library& library, const Handle& handle, const Graph& graph) : library_(library), ids_(graph.ids()) {
    std::string why = "cuDNN proposes no way to run attention of this shape";
    for (const int heuristic : {kBest, kFallback}) {
      std::vector<std::unique_ptr<Descriptor>> configs;
      try {
        configs = graph.configs(heuristic);
      } catch (const NotSupported& refused) {
        why = refused.what();
      }
      for (auto& config : configs) {
        auto plan = std::make_unique<Descriptor>(library, kExecutionPlan);
        try {
          plan->set(kPlanHandle, kHandles, handle.raw()).set(kPlanConfig, *config).finalize("cannot build its plan");
          workspace_bytes_ = aligned(static_cast<uint64_t>(plan->integer(kPlanWorkspace)));
        } catch (const NotSupported& refused) {
          why = refused.what();
          continue;
        }
        config_ = std::move(config);
        plan_ = std::move(plan);
        return;
      }
    }
    throw NotSupported(why);
  }
  uint64_t workspace_bytes() const { return workspace_bytes_; }

  // Enqueues it.  all: by id, device memory aligned to 16 bytes, or a number; the graph asks for some of them.
  // Errors    Refusal ATTN_DEVICE.
  void run(const Handle& handle, uintptr_t stream, std::span<const void* const> all, void* workspace) const {
    std::array<const void*, 32> pointers;
    for (size_t i = 0; i < ids_.size(); ++i) pointers.at(i) = all[static_cast<size_t>(ids_[i])];
    try {
      Descriptor pack(library_, kVariantPack);
      pack.set(kPackIds, kIntegers, ids_.data(), ids_.size());
      pack.set(kPackPointers, kPointers, pointers.data(), ids_.size());
      pack.set(kPackWorkspace, kPointers, workspace).finalize("refuses the tensors of a run");
      int status = library_.set_stream(handle.raw(), reinterpret_cast<void*>(stream));
      if (status == 0) status = library_.execute(handle.raw(), plan_->raw(), pack.raw());
      if (status != 0) throw NotSupported(library_.say_why("cannot run attention", status));
    } catch (const NotSupported& failed) {
      throw Refusal(ATTN_DEVICE, failed.what());
    }
  }

 private:
  const Library& library_;
  const std::vector<int64_t> ids_;
  std::unique_ptr<Descriptor> config_, plan_;
  uint64_t workspace_bytes_ = 0;
};

}  // namespace attnkit::cuda::cudnn
#endif
