// Softmax attention of whole sequences by cuDNN: o = softmax(scale q k^T, masked) v, and its gradient, as graphs that
// it runs as one kernel or a few.  Tensors are f16 or bf16 and lie as a model has them, [B][rows][heads][width]; heads
// of keys may be shared.
//
//   p = e^(scale q k^T - l)    l = log sum e^(scale q k^T), which a run that trains leaves
//   dv = p^T do,  ds = scale p (do v^T - sum(do o)),  dq = ds k,  dk = ds^T q
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_CUDNN_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_CUDNN_HPP
#include <attnkit/kernels/cuda/cudnn_graph.hpp>

namespace attnkit::cuda::cudnn {

struct AttentionShape {
  int64_t batch, heads, kv_heads, queries, keys, d, e;
  DataType type;
  bool causal, padded, trains;  // padded: each row of the batch brings its lengths; trains: leaves l
};

// Tensors of both graphs, and masks.
class AttentionTensors : public Graph {
 public:
  enum Id : int64_t {
    kQ = 1,
    kK,
    kV,
    kO,
    kGivenO,
    kGivenQ,
    kGivenK,
    kGivenV,
    kLogSum,
    kProduct,
    kSumOfQ,
    kQueries,
    kKeys,
    kScale,
    kHidden,
    kOne,
    kFirstVirtual
  };
  const AttentionShape& shape() const { return s_; }

 protected:
  AttentionTensors(const Library& library, const AttentionShape& s) : Graph(library, kFirstVirtual), s_(s) {
    if (s.padded) {
      queries_ = &tensor(kQueries, kInt32, {s.batch, 1, 1, 1});
      keys_ = &tensor(kKeys, kInt32, {s.batch, 1, 1, 1});
    }
    if (s.padded || s.causal) hidden_ = &number(kHidden);
    scale_ = &number(kScale);
  }

  // Rows of a model, and the same with rows and columns exchanged.
  const Descriptor& model(int64_t id, int64_t heads, int64_t rows, int64_t width) {
    return tensor(id, s_.type, {s_.batch, heads, rows, width}, {rows * heads * width, width, heads * width, 1});
  }
  const Descriptor& turned(int64_t id, int64_t heads, int64_t rows, int64_t width) {
    return tensor(id, s_.type, {s_.batch, heads, width, rows}, {rows * heads * width, width, 1, heads * width});
  }
  Four of_pairs() const { return {s_.batch, s_.heads, s_.queries, s_.keys}; }
  Four of_rows() const { return {s_.batch, s_.heads, s_.queries, 1}; }
  const Descriptor& pairs(Mode mode, DataType precision, DataType type, std::initializer_list<const Descriptor*> inputs,
                          int64_t axis = -1) {
    return pointwise(mode, precision, inputs, between(type, of_pairs()), axis);
  }
  const Descriptor& rows(Mode mode, std::initializer_list<const Descriptor*> inputs) {
    return pointwise(mode, kFloat, inputs, between(kFloat, of_rows()));
  }

  // scale q k^T, -infinity past the lengths.
  const Descriptor& scores(const Descriptor& q, const Descriptor& k, bool pads) {
    const Descriptor& product = between(kFloat, of_pairs());
    matmul(q, k, product, queries_, keys_, nullptr, pads);
    return padded(pairs(kMultiply, kFloat, kFloat, {&product, scale_}));
  }
  const Descriptor& padded(const Descriptor& score) {
    if (!s_.padded) return score;
    const Descriptor &row = index(score, 2), &column = index(score, 3);
    const Descriptor &is_query = pairs(kLess, kInt32, kBoolean, {&row, queries_}),
                     &is_key = pairs(kLess, kInt32, kBoolean, {&column, keys_});
    return select(score, pairs(kAnd, kBoolean, kBoolean, {&is_query, &is_key}));
  }
  const Descriptor& causal(const Descriptor& score) {
    if (!s_.causal) return score;
    const Descriptor &row = index(score, 2), &column = index(score, 3);
    return select(score, pairs(kNotLess, kInt32, kBoolean, {&row, &column}));
  }

  const AttentionShape s_;
  const Descriptor *queries_ = nullptr, *keys_ = nullptr, *hidden_ = nullptr, *scale_ = nullptr;

 private:
  const Descriptor& index(const Descriptor& like, int64_t axis) { return pairs(kIndex, kInt32, kInt32, {&like}, axis); }
  // -infinity for pairs that are not seen.
  const Descriptor& select(const Descriptor& score, const Descriptor& seen) {
    return pairs(kSelect, kFloat, kFloat, {&score, hidden_, &seen});
  }
};

// The graphs are bmm, scale, masks, softmax, bmm, in the order and with the types that cuDNN knows as attention.
// handle: NULL leaves a graph without a device.
// Errors    NotSupported.
class AttentionGraph : public AttentionTensors {
 public:
  AttentionGraph(const Library& library, void* handle, const AttentionShape& s) : AttentionTensors(library, s) {
    const Descriptor &q = model(kQ, s.heads, s.queries, s.d), &v = model(kV, s.kv_heads, s.keys, s.e),
                     &o = model(kO, s.heads, s.queries, s.e), &k = turned(kK, s.kv_heads, s.keys, s.d);
    const Descriptor& score = causal(scores(q, k, s.padded));
    const Descriptor& most = reduce(kMax, score, between(kFloat, of_rows()));
    const Descriptor& above = pairs(kSubtract, kFloat, kFloat, {&score, &most});
    const Descriptor& weight = pairs(kExponential, kFloat, kFloat, {&above});
    const Descriptor& sum = reduce(kSum, weight, between(kFloat, of_rows()));
    // Without the log of the sum cuDNN takes the graph for one with dropout, and refuses it.
    const Descriptor& to = s.trains ? tensor(kLogSum, kFloat, of_rows()) : between(kFloat, of_rows());
    pointwise(kAdd, kFloat, {&most, &rows(kLogarithm, {&sum})}, to);
    matmul(pairs(kDivide, kFloat, s.type, {&weight, &sum}), v, o, queries_, nullptr, keys_, s.padded);
    finish_graph(handle);
  }
};

class AttentionGradientGraph : public AttentionTensors {
 public:
  AttentionGradientGraph(const Library& library, void* handle, const AttentionShape& s) : AttentionTensors(library, s) {
    const Descriptor &q = model(kQ, s.heads, s.queries, s.d), &k = turned(kK, s.kv_heads, s.keys, s.d),
                     &v = turned(kV, s.kv_heads, s.keys, s.e), &o = model(kO, s.heads, s.queries, s.e),
                     &given = model(kGivenO, s.heads, s.queries, s.e), &log_sum = tensor(kLogSum, kFloat, of_rows());

    const Descriptor& mixed =
        pointwise(kMultiply, kFloat, {&given, &o}, between(kFloat, {s.batch, s.heads, s.queries, s.e}));
    const Descriptor& product =
        pointwise(kMultiply, kFloat, {&reduce(kSum, mixed, between(kFloat, of_rows())), &number(kOne)},
                  tensor(kProduct, kFloat, of_rows()));

    const Descriptor* score = &pairs(kSubtract, kFloat, kFloat, {&scores(q, k, false), &log_sum});
    if (library.version() < 91000) score = &padded(*score);  // from there on it does that by itself
    const Descriptor& p = pairs(kExponential, kFloat, kFloat, {&causal(*score)});
    give(p, given, model(kGivenV, s.kv_heads, s.keys, s.e), s.e);

    const Descriptor& dp = between(kFloat, of_pairs());
    matmul(given, v, dp, queries_, keys_, nullptr);
    const Descriptor& above = pairs(kSubtract, kFloat, kFloat, {&dp, &product});
    const Descriptor& weighed = pairs(kMultiply, kFloat, kFloat, {&above, &p});
    const Descriptor& ds = pairs(kMultiply, kFloat, kFloat, {&weighed, scale_});
    give(ds, q, model(kGivenK, s.kv_heads, s.keys, s.d), s.d);

    const int64_t row = s.kv_heads * s.d;
    const Descriptor &keys =
                         transpose(k, between(s.type, {s.batch, s.kv_heads, s.keys, s.d}, {s.keys * row, s.d, row, 1})),
                     &sum = tensor(kSumOfQ, kFloat, {s.batch, s.heads, s.queries, s.d});
    matmul(ds, keys, sum, queries_, nullptr, keys_);
    pointwise(kIdentity, kFloat, {&sum}, model(kGivenQ, s.heads, s.queries, s.d));
    finish_graph(handle);
  }

 private:
  // to = pairs^T x, of heads that share one of `to` added up.
  void give(const Descriptor& pairs, const Descriptor& x, const Descriptor& to, int64_t width) {
    const int64_t head = s_.queries * s_.keys;
    const Descriptor& turned = transpose(
        pairs, between(s_.type, {s_.batch, s_.heads, s_.keys, s_.queries}, {s_.heads * head, head, 1, s_.keys}));
    if (s_.heads == s_.kv_heads) return matmul(turned, x, to, keys_, nullptr, queries_);
    const Descriptor& of_heads = between(s_.type, {s_.batch, s_.heads, s_.keys, width});
    matmul(turned, x, of_heads, keys_, nullptr, queries_);
    reduce(kSum, of_heads, to);
  }
};

}  // namespace attnkit::cuda::cudnn
#endif
