// Stands in for libcudnn.so.9: the functions that attnkit/kernels/cuda/cudnn.hpp looks up, with graphs of operations
// that are computed one after another in f32, each tensor rounded to its type.
//
// It knows what the operations mean, not which graphs the library takes: it refuses widths that are no multiple of 8,
// as the library does, and takes any other graph.  What the library itself says of attnkit's graphs is tested beside
// it.
#include "cuda/emulator/cudnn.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <attnkit/kernels/cuda/cudnn.hpp>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace attnkit::cuda::cudnn;

constexpr int kBadParameter = 2000, kUnsupported = 3000;

bool has_device = true;
thread_local std::string last_words;

int refused(int status, const std::string& words) {
  last_words = words;
  return status;
}

struct Object {
  int kind;
  bool final = false;
  std::map<int, std::vector<char>> bytes;
  std::map<int, std::vector<Object*>> others;

  template <class Value>
  std::vector<Value> all(int attribute) const {
    const auto found = bytes.find(attribute);
    std::vector<Value> values;
    if (found == bytes.end()) return values;
    values.resize(found->second.size() / sizeof(Value));
    std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
  template <class Value>
  Value one(int attribute, Value without = {}) const {
    const auto values = all<Value>(attribute);
    return values.empty() ? without : values[0];
  }
  bool is(int attribute) const { return one<char>(attribute) != 0; }
  const Object* other(int attribute) const {
    const auto found = others.find(attribute);
    return found == others.end() ? nullptr : found->second.at(0);
  }
};

// A tensor's numbers, all of them in order.
struct Numbers {
  std::array<int64_t, 4> shape;
  std::vector<float> data;
  // An axis of 1 counts for all.
  float at(const std::array<int64_t, 4>& i) const {
    int64_t place = 0;
    for (size_t d = 0; d < 4; ++d) place = place * shape[d] + (shape[d] == 1 ? 0 : i[d]);
    return data[static_cast<size_t>(place)];
  }
};

float rounded(float x, int type) {
  if (type == kHalf) return __half2float(__float2half_rn(x));
  if (type == kBfloat16) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

std::array<int64_t, 4> shape_of(const Object& tensor, int attribute = kTensorDimensions) {
  const auto all = tensor.all<int64_t>(attribute);
  return {all.at(0), all.at(1), all.at(2), all.at(3)};
}

template <class Visit>
void for_each(const std::array<int64_t, 4>& shape, const Visit& visit) {
  for (int64_t a = 0; a < shape[0]; ++a)
    for (int64_t b = 0; b < shape[1]; ++b)
      for (int64_t c = 0; c < shape[2]; ++c)
        for (int64_t d = 0; d < shape[3]; ++d) visit(std::array<int64_t, 4>{a, b, c, d});
}

// One execution, after the call has returned.
class Execution {
 public:
  // Numbers that are no tensors are read now, as they are by the library.
  Execution(const Object& graph, const Object& pack) : graph_(&graph) {
    const auto ids = pack.all<int64_t>(kPackIds);
    const auto pointers = pack.all<void*>(kPackPointers);
    for (size_t i = 0; i < ids.size(); ++i) pointers_[ids[i]] = pointers[i];
    for (const Object* operation : graph_->others.at(kGraphOperations))
      for (const auto& [attribute, tensors] : operation->others)
        if (tensors[0]->is(kTensorIsByValue))
          values_[tensors[0]] = {{1, 1, 1, 1},
                                 {*static_cast<float*>(pointers_.at(tensors[0]->one<int64_t>(kTensorId)))}};
  }

  void run() {
    for (const Object* operation : graph_->others.at(kGraphOperations))
      if (operation->kind == kOperationMatmul)
        multiply(*operation);
      else if (operation->kind == kOperationReduction)
        reduce(*operation);
      else if (operation->kind == kOperationReshape)
        transpose(*operation);
      else
        apply(*operation);
  }

 private:
  const Numbers& read(const Object* tensor) {
    if (const auto found = values_.find(tensor); found != values_.end()) return found->second;
    Numbers& to = values_[tensor];
    to.shape = shape_of(*tensor);
    for_each(to.shape, [&](const auto& i) { to.data.push_back(number(*tensor, i)); });
    return to;
  }
  float number(const Object& tensor, const std::array<int64_t, 4>& i) const {
    const void* element = place(tensor, i);
    switch (tensor.one<int>(kTensorType)) {
      case kHalf:
        return __half2float(*static_cast<const __half*>(element));
      case kBfloat16:
        return __bfloat162float(*static_cast<const __nv_bfloat16*>(element));
      case kInt32:
        return static_cast<float>(*static_cast<const int32_t*>(element));
    }
    return *static_cast<const float*>(element);
  }
  void* place(const Object& tensor, const std::array<int64_t, 4>& i) const {
    const int type = tensor.one<int>(kTensorType);
    const auto strides = shape_of(tensor, kTensorStrides);
    int64_t at = 0;
    for (size_t d = 0; d < 4; ++d) at += i[d] * strides[d];
    return static_cast<char*>(pointers_.at(tensor.one<int64_t>(kTensorId))) +
           at * (type == kHalf || type == kBfloat16 ? 2 : 4);
  }
  // f(i) is element i of the tensor.
  template <class F>
  void write(const Object* tensor, const F& f) {
    const int type = tensor->one<int>(kTensorType);
    Numbers made{shape_of(*tensor), {}};
    for_each(made.shape, [&](const auto& i) {
      const float x = rounded(f(i), type);
      made.data.push_back(x);
      if (tensor->is(kTensorIsVirtual)) return;
      if (type == kHalf)
        *static_cast<__half*>(place(*tensor, i)) = __float2half_rn(x);
      else if (type == kBfloat16)
        *static_cast<__nv_bfloat16*>(place(*tensor, i)) = __float2bfloat16_rn(x);
      else
        *static_cast<float*>(place(*tensor, i)) = x;
    });
    values_[tensor] = std::move(made);
  }

  // Rows and columns past the lengths are not computed: here they are NaN.
  void multiply(const Object& operation) {
    const Numbers &a = read(operation.other(kMatmulA)), &b = read(operation.other(kMatmulB));
    const auto length = [&](int attribute, int64_t batch, int64_t without) {
      const Object* lengths = operation.other(attribute);
      return lengths ? static_cast<int64_t>(read(lengths).at({batch, 0, 0, 0})) : without;
    };
    write(operation.other(kMatmulC), [&](const auto& i) {
      const int64_t heads = a.shape[1] / b.shape[1];
      if (i[2] >= length(kMatmulRows, i[0], a.shape[2]) || i[3] >= length(kMatmulColumns, i[0], b.shape[3]))
        return std::numeric_limits<float>::quiet_NaN();
      float sum = 0;
      for (int64_t k = 0; k < length(kMatmulDepth, i[0], a.shape[3]); ++k)
        sum += a.at({i[0], i[1], i[2], k}) * b.at({i[0], i[1] / heads, k, i[3]});
      return sum;
    });
  }
  // An element is of as many in a row as an axis is shorter.
  void reduce(const Object& operation) {
    const Numbers& x = read(operation.other(kReductionX));
    const auto shape = shape_of(*operation.other(kReductionY));
    const bool sums = operation.other(kReductionDescriptor)->one<int>(kReductionOperator) == kSum;
    std::array<int64_t, 4> parts;
    for (size_t d = 0; d < 4; ++d) parts[d] = x.shape[d] / shape[d];
    write(operation.other(kReductionY), [&](const auto& i) {
      float all = sums ? 0 : -std::numeric_limits<float>::infinity();
      for_each(parts, [&](auto of) {
        for (size_t d = 0; d < 4; ++d) of[d] += i[d] * parts[d];
        const float one = x.at(of);
        all = sums ? all + one : std::max(all, one);
      });
      return all;
    });
  }
  void transpose(const Object& operation) {
    const Numbers& x = read(operation.other(kReshapeX));
    write(operation.other(kReshapeY), [&](const auto& i) { return x.at({i[0], i[1], i[3], i[2]}); });
  }
  void apply(const Object& operation) {
    const Object& how = *operation.other(kPointwiseDescriptor);
    const Numbers& x = read(operation.other(kPointwiseX));
    const Numbers* b = operation.other(kPointwiseB) ? &read(operation.other(kPointwiseB)) : nullptr;
    const Numbers* t = operation.other(kPointwiseT) ? &read(operation.other(kPointwiseT)) : nullptr;
    const int mode = how.one<int>(kPointwiseMode);
    const auto axis = static_cast<size_t>(how.one<int64_t>(kPointwiseAxis));
    write(operation.other(kPointwiseY), [&](const auto& i) {
      const float left = x.at(i), right = b ? b->at(i) : 0;
      switch (mode) {
        case kAdd:
          return left + right;
        case kMultiply:
          return left * right;
        case kDivide:
          return left / right;
        case kSubtract:
          return left - right;
        case kExponential:
          return std::exp(left);
        case kLogarithm:
          return std::log(left);
        case kIdentity:
          return left;
        case kNotLess:
          return left >= right ? 1.0f : 0.0f;
        case kLess:
          return left < right ? 1.0f : 0.0f;
        case kAnd:
          return left != 0 && right != 0 ? 1.0f : 0.0f;
        case kIndex:
          return static_cast<float>(i[axis]);
        case kSelect:
          return t->at(i) != 0 ? left : right;
      }
      return std::numeric_limits<float>::quiet_NaN();
    });
  }

  const Object* graph_;
  std::map<int64_t, void*> pointers_;
  std::map<const Object*, Numbers> values_;
};

std::atomic<uint64_t> executions{0};

struct Context {
  cudaStream_t stream = nullptr;
};

}  // namespace

namespace emulator {
void set_cudnn_has_device(bool has) { has_device = has; }
uint64_t cudnn_executions() { return executions; }
}  // namespace emulator

extern "C" {
int cudnnCreate(void** handle) {
  if (!has_device) return refused(kNotInitialized, "there is no device");
  *handle = new Context;
  return 0;
}
int cudnnDestroy(void* handle) {
  delete static_cast<Context*>(handle);
  return 0;
}
int cudnnSetStream(void* handle, void* stream) {
  static_cast<Context*>(handle)->stream = static_cast<cudaStream_t>(stream);
  return 0;
}
size_t cudnnGetVersion() { return 90000; }
const char* cudnnGetErrorString(int status) {
  return status == 0                 ? "CUDNN_STATUS_SUCCESS"
         : status == kUnsupported    ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == kBadParameter   ? "CUDNN_STATUS_BAD_PARAM"
         : status == kNotInitialized ? "CUDNN_STATUS_NOT_INITIALIZED"
                                     : "unknown";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  std::snprintf(text, size, "%s", last_words.c_str());
  last_words.clear();
}
int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  *descriptor = new Object{kind, false, {}, {}};
  return 0;
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  delete static_cast<Object*>(descriptor);
  return 0;
}
int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t count, const void* elements) {
  auto& object = *static_cast<Object*>(descriptor);
  if (object.final) return refused(kBadParameter, "the descriptor is final");
  if (type == kDescriptors) {
    const auto* others = static_cast<Object* const*>(elements);
    for (int64_t i = 0; i < count; ++i)
      if (!others[i]->final) return refused(kBadParameter, "an attribute is not final");
    object.others[attribute].assign(others, others + count);
    return 0;
  }
  constexpr auto size_of = [](int type) -> int64_t {
    if (type == kIntegers || type == kDoubles || type == kPointers || type == kHandles) return 8;
    return type == kBooleans || type == kCharacters ? 1 : 4;
  };
  const auto* bytes = static_cast<const char*>(elements);
  object.bytes[attribute].assign(bytes, bytes + count * size_of(type));
  return 0;
}
int cudnnBackendFinalize(void* descriptor) {
  auto& object = *static_cast<Object*>(descriptor);
  if (object.kind == kHeuristic)
    for (const Object* operation : object.other(kHeuristicGraph)->others.at(kGraphOperations))
      if (operation->kind == kOperationMatmul && operation->other(kMatmulA)->is(kTensorIsVirtual) &&
          shape_of(*operation->other(kMatmulC))[3] % 8 != 0)
        return refused(kUnsupported, "the width of a head is no multiple of 8");
  object.final = true;
  return 0;
}
int cudnnBackendGetAttribute(void* descriptor, int attribute, int, int64_t, int64_t* count, void* elements) {
  auto& object = *static_cast<Object*>(descriptor);
  *count = 1;
  if (attribute == kHeuristicResults) {
    Object& config = **static_cast<Object**>(elements);
    config.others[kHeuristicGraph] = object.others.at(kHeuristicGraph);
    config.final = true;
  } else if (attribute == kPlanWorkspace) {
    *static_cast<int64_t*>(elements) = 100;
  }
  return 0;
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  const Object& graph = *static_cast<Object*>(plan)->other(kPlanConfig)->other(kHeuristicGraph);
  // The graph lives as long as the plan, which its owner keeps until the stream has run; a graph may run it many times.
  const Execution execution(graph, *static_cast<Object*>(pack));
  ++executions;
  const cudaError_t error =
      emulator::run_on_stream(static_cast<Context*>(handle)->stream, [execution] { Execution(execution).run(); });
  return error == cudaSuccess ? 0 : refused(kBadParameter, cudaGetErrorString(error));
}
}
