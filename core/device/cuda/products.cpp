#include "core/device/cuda/products.hpp"

#include <cuda_runtime.h>

#ifndef ATTNKIT_CUBLASLT
#if CUDART_VERSION >= 13000
#define ATTNKIT_CUBLASLT "libcublasLt.so.13"
#else
#define ATTNKIT_CUBLASLT "libcublasLt.so.12"
#endif
#endif

namespace attnkit::core::device {
namespace {

constexpr size_t kMostKept = 8192;
constexpr int64_t kFewRows = 16;  // share an algorithm: all of them wait for the weights
const char* const kTypes[] = {"f32", "tf32", "bf16", "f16"};

cublaslt::DataType number_of(DeviceType type) {
  if (type == DeviceType::bf16) return cublaslt::kBfloat16;
  return type == DeviceType::f16 ? cublaslt::kHalf : cublaslt::kFloat;
}

}  // namespace

// cuBLASLt counts along columns: its y (outputs, rows) is the transpose of W, which it sees as (inputs, outputs), by x
// (inputs, rows).
Product::Product(const cublaslt::Library& library, const ProductKey& key)
    : adds_bias(key.bias != nullptr), library_(library) {
  const auto n = [](int64_t count) { return static_cast<uint64_t>(count); };
  const int number = number_of(key.type), compute = key.type == DeviceType::tf32 ? cublaslt::kTf32 : cublaslt::kF32;
  const char* const why = "describes no product";
  library.expect(library.create_product(&raw, compute, cublaslt::kFloat), why);
  library.expect(library.set(raw, cublaslt::kTransposeA, &cublaslt::kTransposed, sizeof cublaslt::kTransposed), why);
  if (adds_bias) {
    library.expect(library.set(raw, cublaslt::kEpilogue, &cublaslt::kAddsBias, sizeof cublaslt::kAddsBias), why);
    library.expect(library.set(raw, cublaslt::kBias, &key.bias, sizeof key.bias), why);
  }
  library.expect(library.create_layout(&weight, number, n(key.inputs), n(key.outputs), key.inputs), why);
  library.expect(library.create_layout(&x, number, n(key.inputs), n(key.rows), key.inputs), why);
  library.expect(library.create_layout(&y, number_of(key.result), n(key.outputs), n(key.rows), key.outputs), why);
}

Product::~Product() {
  for (void* layout : {weight, x, y})
    if (layout) library_.destroy_layout(layout);
  if (raw) library_.destroy_product(raw);
}

Products::~Products() {
  if (handle_) library_->destroy(handle_);
}

void Products::open(uint64_t workspace_bytes) {
  static const cublaslt::Library library(ATTNKIT_CUBLASLT);
  library_ = &library;
  workspace_bytes_ = workspace_bytes;
  library.expect(library.create(&handle_), "cannot start");
}

std::shared_ptr<const Product> Products::get(const ProductKey& key) {
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
  }
  const std::unique_lock lock(mutex_);
  if (const auto found = kept_.find(key); found != kept_.end()) return found->second;
  if (kept_.size() >= kMostKept) kept_.clear();
  return kept_[key] = make(key);
}

std::shared_ptr<Product> Products::make(const ProductKey& key) {
  auto made = std::make_shared<Product>(*library_, key);
  if (choose(*made, key)) return made;
  if (key.bias) {
    ProductKey bare = key;
    bare.bias = nullptr;
    return make(bare);
  }
  library_->expect(cublaslt::kNotSupported, "has no algorithm for a dense layer of ", key.inputs, " inputs and ",
                   key.outputs, " outputs, ", key.rows, " rows, in ", kTypes[static_cast<int>(key.type)],
                   ": set another type");
  return nullptr;
}

bool Products::choose(Product& product, const ProductKey& key) {
  ProductKey rounded = key;
  rounded.rows = std::max(kFewRows, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(key.rows))));
  rounded.bias = nullptr;
  const std::pair asked(rounded, key.bias ? alignment(key.bias) : 0);
  cublaslt::Choice choice{};
  const auto fits = [&](const cublaslt::Algorithm& algorithm) {
    return library_->check(handle_, product.raw, product.weight, product.x, product.y, product.y, &algorithm,
                           &choice) == 0 &&
           choice.workspace <= workspace_bytes_;
  };
  if (const auto before = chosen_.find(asked); before != chosen_.end() && fits(before->second)) {
    product.algorithm = before->second;
    return true;
  }

  void* preference = nullptr;
  library_->expect(library_->create_preference(&preference), "takes no preference");
  const auto freed = [this](void* p) { library_->destroy_preference(p); };
  const std::unique_ptr<void, decltype(freed)> owned(preference, freed);
  const auto prefer = [&](cublaslt::Preference attribute, const auto& value) {
    library_->expect(library_->prefer(preference, attribute, &value, sizeof value), "takes no preference");
  };
  prefer(cublaslt::kMostWorkspace, workspace_bytes_);
  prefer(cublaslt::kAlignmentA, key.aligned_weight);
  prefer(cublaslt::kAlignmentB, key.aligned_x);
  prefer(cublaslt::kAlignmentC, key.aligned_y);
  prefer(cublaslt::kAlignmentD, key.aligned_y);
  const auto search = [&](const Product& of) {
    int found = 0;
    return library_->choose(handle_, of.raw, of.weight, of.x, of.y, of.y, preference, 1, &choice, &found) == 0 &&
           found > 0 && choice.status == 0;
  };
  ProductKey whole = key;
  whole.rows = rounded.rows;
  if (search(Product(*library_, whole))) {
    const cublaslt::Algorithm algorithm = choice.algorithm;
    chosen_[asked] = algorithm;
    if (fits(algorithm)) {
      product.algorithm = algorithm;
      return true;
    }
  }
  if (!search(product)) return false;
  product.algorithm = choice.algorithm;
  return true;
}

void Products::run(const Product& product, const void* weight, const void* x, float beta, void* y, void* workspace,
                   uintptr_t stream) const {
  const float one = 1;
  library_->expect(
      library_->multiply(handle_, product.raw, &one, weight, product.weight, x, product.x, &beta, y, product.y, y,
                         product.y, &product.algorithm, workspace, workspace_bytes_, reinterpret_cast<void*>(stream)),
      "does not run a dense layer");
}

}  // namespace attnkit::core::device
