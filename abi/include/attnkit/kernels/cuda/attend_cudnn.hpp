// Softmax attention of whole sequences by cuDNN: o = softmax(scale q k^T, masked) v as a graph that it runs as one
// kernel.  Tensors are f16 or bf16 and lie as a model has them, [B][rows][heads][width]; heads of keys may be shared.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_CUDNN_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_CUDNN_HPP
#include <array>
#include <atomic>
#include <attnkit/kernels/cuda/cudnn.hpp>
#include <limits>
#include <vector>

namespace attnkit::cuda::cudnn {

struct AttentionShape {
  int64_t batch, heads, kv_heads, queries, keys, d, e;
  DataType type;
  bool causal, padded;  // padded: each row of the batch brings its lengths
};

// The graph: bmm, scale, masks, softmax, bmm, in the order and with the types that cuDNN knows as attention.
class AttentionGraph {
 public:
  enum Id : int64_t { kQ = 1, kK, kV, kO, kQueries, kKeys, kScale, kHidden, kFirstVirtual };

  // handle: NULL leaves the graph without a device.
  // Errors    NotSupported.
  AttentionGraph(const Library& library, void* handle, const AttentionShape& s) : library_(library), s_(s) {
    const Descriptor &q = model(kQ, s.heads, s.queries, s.d), &v = model(kV, s.kv_heads, s.keys, s.e),
                     &o = model(kO, s.heads, s.queries, s.e);
    const int64_t row = s.kv_heads * s.d;
    const Descriptor& k = tensor(kK, s.type, {s.batch, s.kv_heads, s.d, s.keys}, {s.keys * row, s.d, 1, row});
    const Descriptor& scale = number(kScale);
    if (s.padded) {
      queries_ = &tensor(kQueries, kInt32, {s.batch, 1, 1, 1}, {1, 1, 1, 1});
      keys_ = &tensor(kKeys, kInt32, {s.batch, 1, 1, 1}, {1, 1, 1, 1});
    }
    if (s.padded || s.causal) hidden_ = &number(kHidden);

    const Descriptor* score = &pairs(kFloat);
    matmul(q, k, *score, queries_, keys_, nullptr);
    score = &pointwise(kMultiply, kFloat, kFloat, {score, &scale});
    if (s.padded) {
      const Descriptor &row_of = index(*score, 2), &column = index(*score, 3);
      const Descriptor &is_query = pointwise(kLess, kInt32, kBoolean, {&row_of, queries_}),
                       &is_key = pointwise(kLess, kInt32, kBoolean, {&column, keys_});
      score = &select(*score, pointwise(kAnd, kBoolean, kBoolean, {&is_query, &is_key}));
    }
    if (s.causal) {
      const Descriptor &row_of = index(*score, 2), &column = index(*score, 3);
      score = &select(*score, pointwise(kNotLess, kInt32, kBoolean, {&row_of, &column}));
    }
    const Descriptor& most = reduce(kMax, *score);
    const Descriptor& above = pointwise(kSubtract, kFloat, kFloat, {score, &most});
    const Descriptor& weight = pointwise(kExponential, kFloat, kFloat, {&above});
    const Descriptor& sum = reduce(kSum, weight);
    // Nothing reads the log of the sum, but without it cuDNN takes the graph for one with dropout, and refuses it.
    of_rows(kAdd, {&most, &of_rows(kLogarithm, {&sum})});
    matmul(pointwise(kDivide, kFloat, s.type, {&weight, &sum}), v, o, queries_, nullptr, keys_);

    std::vector<void*> raw;
    for (const auto* operation : operations_) raw.push_back(operation->raw());
    Descriptor& graph = make(kOperationGraph);
    graph.set(kGraphOperations, kDescriptors, raw.data(), raw.size());
    if (handle) graph.set(kGraphHandle, kHandles, handle);
    graph_ = &graph.finalize("refuses attention of this shape");
  }

  const AttentionShape& shape() const { return s_; }

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

 private:
  static constexpr int64_t kMaxConfigs = 8;
  using Four = std::array<int64_t, 4>;

  Descriptor& make(Kind kind) { return owned_.emplace_back(library_, kind); }
  Descriptor& begin_tensor(int64_t id, DataType type, const Four& dimensions, const Four& strides) {
    return make(kTensor)
        .set(kTensorId, kIntegers, id)
        .set(kTensorType, kDataTypes, type)
        .set(kTensorAlignment, kIntegers, int64_t{16})
        .set(kTensorDimensions, kIntegers, dimensions.data(), 4)
        .set(kTensorStrides, kIntegers, strides.data(), 4);
  }
  const Descriptor& tensor(int64_t id, DataType type, const Four& dimensions, const Four& strides) {
    return begin_tensor(id, type, dimensions, strides).finalize("refuses a tensor");
  }
  const Descriptor& model(int64_t id, int64_t heads, int64_t rows, int64_t width) {
    return tensor(id, s_.type, {s_.batch, heads, rows, width}, {rows * heads * width, width, heads * width, 1});
  }
  const Descriptor& number(int64_t id) {
    return begin_tensor(id, kFloat, {1, 1, 1, 1}, {1, 1, 1, 1})
        .set(kTensorIsByValue, kBooleans, true)
        .finalize("refuses a number");
  }
  // One for each query, and for each key of it.
  const Descriptor& between(DataType type, int64_t keys) {
    const int64_t head = s_.queries * keys;
    return begin_tensor(next_++, type, {s_.batch, s_.heads, s_.queries, keys}, {s_.heads * head, head, keys, 1})
        .set(kTensorIsVirtual, kBooleans, true)
        .finalize("refuses a tensor between operations");
  }
  const Descriptor& pairs(DataType type) { return between(type, s_.keys); }

  void finish(Descriptor& operation, const char* what) { operations_.push_back(&operation.finalize(what)); }

  // Lengths, where given, replace the sizes of the tensors.
  void matmul(const Descriptor& a, const Descriptor& b, const Descriptor& c, const Descriptor* rows,
              const Descriptor* columns, const Descriptor* depth) {
    Descriptor& how = make(kMatmul).set(kMatmulPrecision, kDataTypes, kFloat);
    if (columns) how.set(kMatmulPadding, kDoubles, 0.0);
    how.finalize("refuses a product of matrices");
    Descriptor& operation =
        make(kOperationMatmul).set(kMatmulDescriptor, how).set(kMatmulA, a).set(kMatmulB, b).set(kMatmulC, c);
    if (rows) operation.set(kMatmulRows, *rows);
    if (columns) operation.set(kMatmulColumns, *columns);
    if (depth) operation.set(kMatmulDepth, *depth);
    finish(operation, "refuses a product of matrices");
  }
  const Descriptor& pointwise(Mode mode, DataType precision, DataType type,
                              std::initializer_list<const Descriptor*> inputs, int64_t axis = -1) {
    return apply(mode, precision, inputs, pairs(type), axis);
  }
  const Descriptor& of_rows(Mode mode, std::initializer_list<const Descriptor*> inputs) {
    return apply(mode, kFloat, inputs, between(kFloat, 1), -1);
  }
  const Descriptor& apply(Mode mode, DataType precision, std::initializer_list<const Descriptor*> inputs,
                          const Descriptor& to, int64_t axis) {
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
  const Descriptor& index(const Descriptor& like, int64_t axis) {
    return pointwise(kIndex, kInt32, kInt32, {&like}, axis);
  }
  // -infinity for pairs that are not seen.
  const Descriptor& select(const Descriptor& score, const Descriptor& seen) {
    return pointwise(kSelect, kFloat, kFloat, {&score, hidden_, &seen});
  }
  const Descriptor& reduce(Reduction reduction, const Descriptor& from) {
    Descriptor& how = make(kReduction).set(kReductionOperator, kReductionOperators, reduction);
    how.set(kReductionPrecision, kDataTypes, kFloat).finalize("refuses a reduction");
    const Descriptor& to = between(kFloat, 1);
    finish(make(kOperationReduction).set(kReductionDescriptor, how).set(kReductionX, from).set(kReductionY, to),
           "refuses a reduction");
    return to;
  }

  const Library& library_;
  const AttentionShape s_;
  std::deque<Descriptor> owned_;
  std::vector<Descriptor*> operations_;
  const Descriptor *queries_ = nullptr, *keys_ = nullptr, *hidden_ = nullptr, *graph_ = nullptr;
  int64_t next_ = kFirstVirtual;
};

// A graph made ready for the current device.
class AttentionPlan {
 public:
  // The arguments of a run: device memory aligned to 16 bytes.
  struct Tensors {
    const void *q, *k, *v;
    void* o;
    const int32_t *queries, *keys;  // lengths, where the shape is padded
    void* workspace;
  };

  // Errors    NotSupported with cuDNN's reason.
  AttentionPlan(const Library& library, const Handle& handle, const AttentionShape& shape)
      : library_(library), graph_(library, handle.raw(), shape) {
    std::string why = "cuDNN proposes no way to run attention of this shape";
    for (const int heuristic : {kBest, kFallback}) {
      std::vector<std::unique_ptr<Descriptor>> configs;
      try {
        configs = graph_.configs(heuristic);
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

  // Enqueues it.
  // Errors    Refusal ATTN_DEVICE.
  void run(const Handle& handle, uintptr_t stream, const Tensors& t, float scale) const {
    using Id = AttentionGraph::Id;
    const AttentionShape& s = graph_.shape();
    float hidden = -std::numeric_limits<float>::infinity();
    std::array<int64_t, 8> ids{Id::kQ, Id::kK, Id::kV, Id::kO, Id::kScale};
    std::array<const void*, 8> pointers{t.q, t.k, t.v, t.o, &scale};
    size_t n = 5;
    const auto bring = [&](int64_t id, const void* pointer) {
      ids[n] = id;
      pointers[n++] = pointer;
    };
    if (s.padded || s.causal) bring(Id::kHidden, &hidden);
    if (s.padded) {
      bring(Id::kQueries, t.queries);
      bring(Id::kKeys, t.keys);
    }
    try {
      Descriptor pack(library_, kVariantPack);
      pack.set(kPackIds, kIntegers, ids.data(), n).set(kPackPointers, kPointers, pointers.data(), n);
      pack.set(kPackWorkspace, kPointers, t.workspace).finalize("refuses the tensors of a run");
      int status = library_.set_stream(handle.raw(), reinterpret_cast<void*>(stream));
      if (status == 0) status = library_.execute(handle.raw(), plan_->raw(), pack.raw());
      if (status != 0) throw NotSupported(library_.say_why("cannot run attention", status));
    } catch (const NotSupported& failed) {
      throw Refusal(ATTN_DEVICE, failed.what());
    }
  }

 private:
  const Library& library_;
  AttentionGraph graph_;
  std::unique_ptr<Descriptor> config_, plan_;
  uint64_t workspace_bytes_ = 0;
};

}  // namespace attnkit::cuda::cudnn
#endif
