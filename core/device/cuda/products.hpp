// Products of cuBLASLt with what they need, kept: a decode step that was taken before makes none.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "core/device/cuda/cublaslt.hpp"
#include "core/device/table.hpp"

namespace attnkit::core::device {

// The bytes, up to 256, of which an address is a multiple.
inline uint32_t alignment(const void* p) {
  return uint32_t{1} << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(p)));
}

// D = W x + beta D + bias: a product of shapes and types, and of the addresses' alignment.
struct ProductKey {
  DeviceType type, result;  // of W and x, of D and the bias
  int64_t inputs, outputs, rows;
  uint32_t aligned_weight, aligned_x, aligned_y;  // bytes
  const void* bias;                               // NULL: none, or added by the caller
  auto operator<=>(const ProductKey&) const = default;
};

// Descriptions of a product that cuBLASLt keeps; freed with it.
class Product {
 public:
  Product(const cublaslt::Library& library, const ProductKey& key);
  Product(const Product&) = delete;
  ~Product();

  void *raw = nullptr, *weight = nullptr, *x = nullptr, *y = nullptr;
  cublaslt::Algorithm algorithm{};
  bool adds_bias;

 private:
  const cublaslt::Library& library_;
};

// Of one device; any thread.
//
// An algorithm is chosen for a number of rows rounded up to a power of two, 16 or more, and serves all that round to
// it, so that a row's sums are cut alike whoever stands beside it.  That its bits are alike too, cuBLASLt does not
// promise, and from one power of two to the next they may differ.
class Products {
 public:
  Products() = default;
  Products(const Products&) = delete;
  ~Products();
  // Errors    Refusal ATTN_DEVICE where cuBLASLt is missing or does not start.
  void open(uint64_t workspace_bytes);
  // Errors    Refusal ATTN_DEVICE where cuBLASLt has no algorithm.
  std::shared_ptr<const Product> get(const ProductKey& key);
  // y = W x + beta y, enqueued.
  void run(const Product& product, const void* weight, const void* x, float beta, void* y, void* workspace,
           uintptr_t stream) const;

 private:
  std::shared_ptr<Product> make(const ProductKey& key);
  bool choose(Product& product, const ProductKey& key);

  const cublaslt::Library* library_ = nullptr;
  void* handle_ = nullptr;
  uint64_t workspace_bytes_ = 0;
  std::shared_mutex mutex_;
  std::map<ProductKey, std::shared_ptr<const Product>> kept_;
  // By rounded rows and, in place of a bias, its alignment, which cuBLASLt reads off the address; 0: none.
  std::map<std::pair<ProductKey, uint32_t>, cublaslt::Algorithm> chosen_;
};

}  // namespace attnkit::core::device
