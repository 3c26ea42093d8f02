// The part of ONNX Runtime's C API that an operator needs, declared here: the wheel has no headers.
//
// OrtApi is a table of function pointers that only grows; a function keeps its place.  GetApi(v) answers a runtime's
// table if it has all functions of version v, else NULL.  OrtCustomOp is filled by the operator; its `version` says how
// far.  Enums cross as int.
#pragma once
#include <cstddef>
#include <cstdint>

namespace attnkit::ort {

constexpr uint32_t version = 17;  // of 1.17: operators that run on the session's threads

struct Status;
struct Value;
struct Shape;  // element type and dimensions of a tensor
struct Domain;
struct SessionOptions;
struct KernelInfo;
struct Context;  // of one run of a kernel
struct ShapeContext;

// codes
constexpr int failed = 1, invalid_argument = 2, not_implemented = 9;
// element types
constexpr int undefined = 0, f32 = 1, u8 = 2, i32 = 6, i64 = 7, text = 8, f64 = 11;
// inputs and outputs of an operator
constexpr int optional = 1, variadic = 2;

template <int n>
struct Others {
  void* entries[n];
};

struct Api {
  Status* (*create_status)(int code, const char* message);  // 0
  Others<25> others_1;
  Status* (*create_domain)(const char* name, Domain**);  // 26
  Status* (*add_to_domain)(Domain*, const struct Operator*);
  Status* (*add_domain)(SessionOptions*, Domain*);
  Others<22> others_29;
  Status* (*tensor_data)(Value*, void**);  // 51
  Others<8> others_52;
  Status* (*element_type)(const Shape*, int*);  // 60
  Status* (*rank)(const Shape*, size_t*);
  Status* (*dimensions)(const Shape*, int64_t*, size_t);
  Others<2> others_63;
  Status* (*tensor_shape)(const Value*, Shape**);  // 65
  Others<20> others_66;
  Status* (*attribute_int)(const KernelInfo*, const char* name, int64_t*);  // 86
  // bytes: room on entry, length with the NUL on return; text NULL asks for that alone
  Status* (*attribute_text)(const KernelInfo*, const char* name, char* text, size_t* bytes);
  Others<1> others_88;
  Status* (*outputs)(const Context*, size_t*);
  Status* (*input)(const Context*, size_t, const Value**);
  Status* (*output)(Context*, size_t, const int64_t* dimensions, size_t rank, Value**);  // NULL: the node has none
  Others<1> others_92;
  void (*release_status)(Status*);  // 93
  Others<5> others_94;
  void (*release_shape)(Shape*);  // 99
  Others<1> others_100;
  void (*release_domain)(Domain*);  // 101
  Others<61> others_102;
  // n as bytes above; none of an attribute of another type
  Status* (*attribute_ints)(const KernelInfo*, const char* name, int64_t* values, size_t* n);  // 163
  Others<66> others_164;
  Status* (*node_inputs)(const KernelInfo*, size_t*);  // 230
  Status* (*node_outputs)(const KernelInfo*, size_t*);
  Others<12> others_232;
  Status* (*node_name)(const KernelInfo*, char* text, size_t* bytes);  // 244, as attribute_text
  Others<29> others_245;
  Status* (*parallel_for)(const Context*, void (*run)(void*, size_t), size_t n, size_t batches, void*);  // 274
};

#define ATTNKIT_ORT_AT(function, place) static_assert(offsetof(Api, function) == (place) * sizeof(void*))
ATTNKIT_ORT_AT(create_domain, 26);
ATTNKIT_ORT_AT(tensor_data, 51);
ATTNKIT_ORT_AT(element_type, 60);
ATTNKIT_ORT_AT(tensor_shape, 65);
ATTNKIT_ORT_AT(attribute_int, 86);
ATTNKIT_ORT_AT(outputs, 89);
ATTNKIT_ORT_AT(output, 91);
ATTNKIT_ORT_AT(release_status, 93);
ATTNKIT_ORT_AT(release_shape, 99);
ATTNKIT_ORT_AT(release_domain, 101);
ATTNKIT_ORT_AT(attribute_ints, 163);
ATTNKIT_ORT_AT(node_inputs, 230);
ATTNKIT_ORT_AT(node_name, 244);
ATTNKIT_ORT_AT(parallel_for, 274);
#undef ATTNKIT_ORT_AT

struct ApiBase {
  const Api* (*api)(uint32_t version);
  const char* (*version)();
};

struct Operator {
  uint32_t version;
  void* (*create)(const Operator*, const Api*, const KernelInfo*);
  const char* (*name)(const Operator*);
  const char* (*provider)(const Operator*);  // NULL: the CPU's
  int (*input_type)(const Operator*, size_t);
  size_t (*inputs)(const Operator*);
  int (*output_type)(const Operator*, size_t);
  size_t (*outputs)(const Operator*);
  void (*compute)(void* kernel, Context*);
  void (*destroy)(void* kernel);
  int (*input_kind)(const Operator*, size_t);
  int (*output_kind)(const Operator*, size_t);
  int (*input_memory)(const Operator*, size_t);  // 0: the provider's own
  int (*least_inputs)(const Operator*);          // of those that are variadic, as the next three
  int (*inputs_alike)(const Operator*);
  int (*least_outputs)(const Operator*);
  int (*outputs_alike)(const Operator*);
  // since version 16, in place of create and compute
  Status* (*try_create)(const Operator*, const Api*, const KernelInfo*, void** kernel);
  Status* (*try_compute)(void* kernel, Context*);
  // since version 17
  Status* (*infer)(const Operator*, ShapeContext*);
  int (*first_version)(const Operator*);
  int (*last_version)(const Operator*);
};

}  // namespace attnkit::ort
