// cuBLASLt, loaded when a device is opened: its products of matrices, by the functions and numbers of its C interface.
//
// Nothing here needs it to build; where it is missing, a device is refused in one sentence.
#pragma once

#include <dlfcn.h>

#include <attnkit/plugin.hpp>
#include <cstddef>
#include <cstdint>

namespace attnkit::core::cublaslt {

// Numbers of cublasLt.h, the same in 12 and 13; tests/cuda compares them with the header where it is installed.
enum Compute : int { kF32 = 68, kTf32 = 77 };
enum DataType : int { kFloat = 0, kHalf = 2, kBfloat16 = 14 };
enum Attribute : int { kTransposeA = 3, kEpilogue = 7, kBias = 8 };
enum Preference : int { kMostWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8 };
constexpr int32_t kTransposed = 1;
constexpr uint32_t kAddsBias = 4;
constexpr int kNotInitialized = 1, kNotSupported = 15;

struct Algorithm {
  uint64_t data[8];
};
struct Choice {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

class Library {
 public:
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  size_t (*version)();
  const char* (*text_of)(int status);
  int (*create_product)(void** product, int compute, int scale_type);
  int (*destroy_product)(void* product);
  int (*set)(void* product, int attribute, const void* value, size_t bytes);
  int (*create_layout)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t between_columns);
  int (*destroy_layout)(void* layout);
  int (*create_preference)(void** preference);
  int (*destroy_preference)(void* preference);
  int (*prefer)(void* preference, int attribute, const void* value, size_t bytes);
  int (*choose)(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int wanted,
                Choice* choices, int* found);
  int (*check)(void* handle, void* product, void* a, void* b, void* c, void* d, const Algorithm* algorithm,
               Choice* choice);
  int (*multiply)(void* handle, void* product, const void* alpha, const void* a, void* a_layout, const void* b,
                  void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                  const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream);

  // Errors    Refusal ATTN_DEVICE where the file is missing or lacks a function.
  explicit Library(const char* file) : file_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (file_ == nullptr)
      throw Refusal(ATTN_DEVICE, say("cuBLASLt is missing, by which a device multiplies matrices: install ", file,
                                     ", of NVIDIA's cuBLAS, where programs find libraries (", dlerror(), ")"));
    find(create, file, "cublasLtCreate");
    find(destroy, file, "cublasLtDestroy");
    find(version, file, "cublasLtGetVersion");
    find(text_of, file, "cublasLtGetStatusString");
    find(create_product, file, "cublasLtMatmulDescCreate");
    find(destroy_product, file, "cublasLtMatmulDescDestroy");
    find(set, file, "cublasLtMatmulDescSetAttribute");
    find(create_layout, file, "cublasLtMatrixLayoutCreate");
    find(destroy_layout, file, "cublasLtMatrixLayoutDestroy");
    find(create_preference, file, "cublasLtMatmulPreferenceCreate");
    find(destroy_preference, file, "cublasLtMatmulPreferenceDestroy");
    find(prefer, file, "cublasLtMatmulPreferenceSetAttribute");
    find(choose, file, "cublasLtMatmulAlgoGetHeuristic");
    find(check, file, "cublasLtMatmulAlgoCheck");
    find(multiply, file, "cublasLtMatmul");
  }
  Library(const Library&) = delete;

  // Errors    Refusal ATTN_DEVICE unless status is 0.
  template <class... Piece>
  void expect(int status, const Piece&... what) const {
    if (status == 0) return;
    const size_t v = version();  // 130101 of 13.1.1
    throw Refusal(ATTN_DEVICE,
                  say("cuBLASLt ", v / 10000, ".", v / 100 % 100, ".", v % 100, " ", what..., ": ", text_of(status)));
  }

 private:
  template <class F>
  void find(F& function, const char* file, const char* name) {
    function = reinterpret_cast<F>(dlsym(file_, name));
    if (function == nullptr) throw Refusal(ATTN_DEVICE, say(file, " has no ", name, ": install another cuBLAS"));
  }
  void* file_;  // stays open, as the kernels in it do
};

}  // namespace attnkit::core::cublaslt
