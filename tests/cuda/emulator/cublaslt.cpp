// Stands in for libcublasLt.so: the functions that core/device/cuda/cublaslt.hpp looks up.  Products are sums in f32 of
// operands rounded as their type is, rounded once more where the result's is of 16 bits, bit for bit the same for a row
// whatever stands beside it, which the library does not promise.
//
// It refuses what the library refuses of attnkit's use: addresses that are less aligned than was said when the
// algorithm was chosen, a bias that was not aligned as its then, or not to 16 bytes, too little workspace.
#include "cuda/emulator/cublaslt.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <attnkit/kernels/cuda/device.hpp>
#include <vector>

#include "core/device/cuda/cublaslt.hpp"

namespace {

using namespace attnkit::core::cublaslt;

constexpr int kInvalid = 7;
constexpr uint64_t kWorkspace = 4096;

struct Product {
  int compute = 0;
  int32_t transposed = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;  // in the result's type
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t between;
};
struct Wishes {
  uint64_t workspace = 0;
  uint32_t aligned[4] = {256, 256, 256, 256};  // a, b, c, d
};

float number_at(const void* data, int type, uint64_t i) {
  if (type == kHalf) return __half2float(static_cast<const __half*>(data)[i]);
  if (type == kBfloat16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  return static_cast<const float*>(data)[i];
}
void put_number(float x, void* data, int type, uint64_t i) {
  if (type == kHalf)
    static_cast<__half*>(data)[i] = __float2half_rn(x);
  else if (type == kBfloat16)
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
  else
    static_cast<float*>(data)[i] = x;
}

// The numbers of a matrix, its columns one after another.
std::vector<float> numbers_of(const void* data, const Layout& layout, bool as_tf32) {
  std::vector<float> all;
  all.reserve(layout.rows * layout.columns);
  for (uint64_t c = 0; c < layout.columns; ++c)
    for (uint64_t r = 0; r < layout.rows; ++r) {
      const float x = number_at(data, layout.type, c * static_cast<uint64_t>(layout.between) + r);
      all.push_back(as_tf32 ? attnkit::cuda::as_tf32(x) : x);
    }
  return all;
}

// In 8 sums, which a compiler takes side by side.
float product_of(const float* a, const float* b, uint64_t n) {
  float sums[8] = {};
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (uint64_t k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

template <class T>
T& as(void* object) {
  return *static_cast<T*>(object);
}

template <class T>
int make(void** object, const T& value) {
  ++emulator::cublaslt().made;
  *object = new T(value);
  return 0;
}
template <class T>
int destroy(void* object) {
  delete static_cast<T*>(object);
  return 0;
}

// Of a product that attnkit asks for.
bool is_known(const Product& p, const Layout& a, const Layout& b, const Layout& d) {
  return p.transposed == kTransposed && a.type == b.type && (d.type == kFloat || d.type == a.type) &&
         a.rows == b.rows && a.columns == d.rows && b.columns == d.columns &&
         (p.compute == kF32 || (p.compute == kTf32 && a.type == kFloat)) && a.between == static_cast<int64_t>(a.rows) &&
         d.between == static_cast<int64_t>(d.rows);
}

bool is_aligned(const void* p, uint64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

namespace emulator {

__attribute__((visibility("default"))) Cublaslt& cublaslt() {
  static Cublaslt one;
  return one;
}

}  // namespace emulator

using emulator::cublaslt;

extern "C" {
#pragma GCC visibility push(default)

int cublasLtCreate(void** handle) {
  static int one;
  *handle = &one;
  return cublaslt().starts ? 0 : kNotInitialized;
}
int cublasLtDestroy(void*) { return 0; }
size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(int status) {
  switch (status) {
    case kNotInitialized:
      return "the library was not initialized";
    case kInvalid:
      return "an invalid value";
    case kNotSupported:
      return "the requested functionality is not supported";
  }
  return "an internal error";
}
int cublasLtMatmulDescCreate(void** product, int compute, int) { return make(product, Product{compute}); }
int cublasLtMatmulDescDestroy(void* product) { return destroy<Product>(product); }
int cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t bytes) {
  auto& p = as<Product>(product);
  const auto take = [&](auto& to) {
    if (bytes != sizeof to) return kInvalid;
    std::memcpy(&to, value, bytes);
    return 0;
  };
  if (attribute == kTransposeA) return take(p.transposed);
  if (attribute == kEpilogue) return take(p.epilogue);
  return attribute == kBias ? take(p.bias) : kInvalid;
}
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t between) {
  return make(layout, Layout{type, rows, columns, between});
}
int cublasLtMatrixLayoutDestroy(void* layout) { return destroy<Layout>(layout); }
int cublasLtMatmulPreferenceCreate(void** preference) { return make(preference, Wishes{}); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return destroy<Wishes>(preference); }
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  auto& wishes = as<Wishes>(preference);
  if (attribute == kMostWorkspace && bytes == sizeof wishes.workspace)
    std::memcpy(&wishes.workspace, value, bytes);
  else if (attribute >= kAlignmentA && attribute <= kAlignmentD && bytes == sizeof(uint32_t))
    std::memcpy(&wishes.aligned[attribute - kAlignmentA], value, bytes);
  else
    return kInvalid;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void*, void* d, void* preference, int,
                                   Choice* choice, int* found) {
  const auto& p = as<Product>(product);
  const auto& wishes = as<Wishes>(preference);
  *found = 0;
  if (!cublaslt().takes_any || (p.bias && !cublaslt().takes_bias) ||
      as<Layout>(d).columns > static_cast<uint64_t>(cublaslt().most_rows) || wishes.workspace < kWorkspace ||
      !is_known(p, as<Layout>(a), as<Layout>(b), as<Layout>(d)))
    return kNotSupported;
  ++cublaslt().chosen;
  *found = 1;
  *choice = {};
  choice->workspace = kWorkspace;
  for (int i = 0; i < 4; ++i) choice->algorithm.data[i] = wishes.aligned[i];
  choice->algorithm.data[4] = p.epilogue;
  choice->algorithm.data[5] = reinterpret_cast<uintptr_t>(p.bias) & -reinterpret_cast<uintptr_t>(p.bias);
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void* product, void* a, void* b, void*, void* d, const Algorithm* algorithm,
                            Choice* choice) {
  const auto& p = as<Product>(product);
  choice->workspace = kWorkspace;
  return is_known(p, as<Layout>(a), as<Layout>(b), as<Layout>(d)) && algorithm->data[4] == p.epilogue ? 0
                                                                                                      : kNotSupported;
}
int cublasLtMatmul(void*, void* product, const void* alpha, const void* a, void* a_layout, const void* b,
                   void* b_layout, const void* beta, const void* c, void*, void* d, void* d_layout,
                   const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
  const Product p = as<Product>(product);
  const Layout of_a = as<Layout>(a_layout), of_b = as<Layout>(b_layout), of_d = as<Layout>(d_layout);
  const float times = *static_cast<const float*>(beta);
  const uint64_t* aligned = algorithm->data;
  if (*static_cast<const float*>(alpha) != 1 || c != d || !is_known(p, of_a, of_b, of_d) || aligned[0] == 0 ||
      aligned[4] != p.epilogue || !is_aligned(a, aligned[0]) || !is_aligned(b, aligned[1]) ||
      !is_aligned(d, aligned[3]) || !is_aligned(p.bias, 16) ||
      (p.bias && !is_aligned(p.bias, std::min<uint64_t>(aligned[5], 256))) || workspace_bytes < kWorkspace ||
      !is_aligned(workspace, 256))
    return kInvalid;
  const cudaError_t error = emulator::run_on_stream(static_cast<cudaStream_t>(stream), [=] {
    const bool as_tf32 = p.compute == kTf32;
    const auto weight = numbers_of(a, of_a, as_tf32), x = numbers_of(b, of_b, as_tf32);
    for (uint64_t r = 0; r < of_d.columns; ++r)
      for (uint64_t o = 0; o < of_d.rows; ++o) {
        const uint64_t at = r * of_d.rows + o;
        const float sum = product_of(weight.data() + o * of_a.rows, x.data() + r * of_b.rows, of_a.rows);
        put_number(sum + (times == 0 ? 0 : times * number_at(d, of_d.type, at)) +
                       (p.bias ? number_at(p.bias, of_d.type, o) : 0),
                   d, of_d.type, at);
      }
    std::memset(workspace, 0xA5, kWorkspace);
  });
  return error == cudaSuccess ? 0 : kInvalid;
}

#pragma GCC visibility pop
}
