// cuDNN 9, loaded when it is first asked for: its graphs of operations, by the functions and numbers of its C
// interface.
//
// Nothing here needs cuDNN to build, or to be there: Library::get() is NULL where libcudnn.so.9 is not.
#ifndef ATTNKIT_KERNELS_CUDA_CUDNN_HPP
#define ATTNKIT_KERNELS_CUDA_CUDNN_HPP
#include <dlfcn.h>

#include <attnkit/plugin.hpp>
#include <stdexcept>

#ifndef ATTNKIT_CUDNN
#define ATTNKIT_CUDNN "libcudnn.so.9"
#endif

namespace attnkit::cuda::cudnn {

// Numbers of cudnn_graph.h, fixed for all of cuDNN 9; tests/cuda compares them with the header where it is installed.
enum Kind : int {
  kPointwise = 0,
  kEngineConfig = 3,
  kHeuristic = 4,
  kExecutionPlan = 5,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProperties = 38
};
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kMatmulPrecision = 1500,
  kMatmulPadding = 1503,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kMatmulRows = 1525,
  kMatmulColumns = 1526,
  kMatmulDepth = 1527,
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceJson = 2702
};
enum AttributeType : int {
  kHandles = 0,
  kDataTypes = 1,
  kBooleans = 2,
  kIntegers = 3,
  kDoubles = 5,
  kPointers = 6,
  kHeuristicModes = 8,
  kPointwiseModes = 14,
  kDescriptors = 15,
  kReductionOperators = 18,
  kCharacters = 24
};
enum DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBfloat16 = 9, kBoolean = 11 };
enum Mode : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExponential = 13,
  kLogarithm = 15,
  kIdentity = 21,
  kNotLess = 303,
  kLess = 304,
  kAnd = 400,
  kIndex = 501,
  kSelect = 601
};
enum Reduction : int { kSum = 0, kMax = 3 };
constexpr int kFallback = 2, kBest = 3;  // heuristics
constexpr int kNotInitialized = 1001;

class Library {
 public:
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*set_stream)(void* handle, void* stream);
  size_t (*version)();
  const char* (*text_of)(int status);
  void (*last_error)(char* text, size_t size);
  int (*create_descriptor)(int kind, void** descriptor);
  int (*destroy_descriptor)(void* descriptor);
  int (*finalize)(void* descriptor);
  int (*set)(void* descriptor, int attribute, int type, int64_t count, const void* elements);
  int (*query)(void* descriptor, int attribute, int type, int64_t room, int64_t* count, void* elements);
  int (*execute)(void* handle, void* plan, void* pack);

  static const Library* get() {
    static const Library found(ATTNKIT_CUDNN);
    return found.complete_ ? &found : nullptr;
  }
  explicit Library(const char* file) : file_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    complete_ = file_ != nullptr;
    find(create, "cudnnCreate");
    find(destroy, "cudnnDestroy");
    find(set_stream, "cudnnSetStream");
    find(version, "cudnnGetVersion");
    find(text_of, "cudnnGetErrorString");
    find(last_error, "cudnnGetLastErrorString");
    find(create_descriptor, "cudnnBackendCreateDescriptor");
    find(destroy_descriptor, "cudnnBackendDestroyDescriptor");
    find(finalize, "cudnnBackendFinalize");
    find(set, "cudnnBackendSetAttribute");
    find(query, "cudnnBackendGetAttribute");
    find(execute, "cudnnBackendExecute");
  }
  Library(const Library&) = delete;
  bool is_complete() const { return complete_; }

  // "cuDNN 9.19.0 <what>: <its words>".
  std::string say_why(const char* what, int status) const {
    char words[256] = {};
    last_error(words, sizeof words);
    for (char* c = words; *c; ++c)
      if (static_cast<unsigned char>(*c) < ' ') *c = ' ';
    return say("cuDNN ", version() / 10000, ".", version() / 100 % 100, ".", version() % 100, " ", what, ": ",
               text_of(status), *words ? ", " : "", words);
  }

 private:
  template <class F>
  void find(F& function, const char* name) {
    function = file_ ? reinterpret_cast<F>(dlsym(file_, name)) : nullptr;
    complete_ = complete_ && function != nullptr;
  }
  void* file_;
  bool complete_;
};

// Thrown for what cuDNN does not do; the message says why.
class NotSupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Descriptor {
 public:
  Descriptor(const Library& library, Kind kind) : library_(library) {
    check(library.create_descriptor(kind, &raw_), "makes no descriptor");
  }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { library_.destroy_descriptor(raw_); }

  template <class Value>
  Descriptor& set(Attribute attribute, AttributeType type, const Value* values, size_t count) {
    check(library_.set(raw_, attribute, type, static_cast<int64_t>(count), values), "refuses an attribute");
    return *this;
  }
  template <class Value>
  Descriptor& set(Attribute attribute, AttributeType type, const Value& value) {
    return set(attribute, type, &value, 1);
  }
  Descriptor& set(Attribute attribute, const Descriptor& other) { return set(attribute, kDescriptors, other.raw_); }
  Descriptor& finalize(const char* what) {
    check(library_.finalize(raw_), what);
    return *this;
  }
  int64_t integer(Attribute attribute) const {
    int64_t value = 0, count = 0;
    check(library_.query(raw_, attribute, kIntegers, 1, &count, &value), "does not answer");
    return value;
  }
  void* raw() const { return raw_; }

 private:
  void check(int status, const char* what) const {
    if (status != 0) throw NotSupported(library_.say_why(what, status));
  }
  const Library& library_;
  void* raw_ = nullptr;
};

// A handle on the current device.
class Handle {
 public:
  // Errors    Refusal ATTN_DEVICE where there is no device.
  explicit Handle(const Library& library) : library_(library) {
    if (const int status = library.create(&raw_))
      throw Refusal(ATTN_DEVICE, library.say_why("cannot start", status) + ": is there a GPU, and a driver for it?");
  }
  Handle(const Handle&) = delete;
  ~Handle() { library_.destroy(raw_); }
  void* raw() const { return raw_; }

 private:
  const Library& library_;
  void* raw_ = nullptr;
};

}  // namespace attnkit::cuda::cudnn
#endif
