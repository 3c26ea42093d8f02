// 16-bit types, and how a test asks a bridge for them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdlib>

namespace attnkit::test {

struct Type {
  const char* name;
  double gate;
  float rounded(float x) const {
    return gate < 2e-3 ? __half2float(__float2half_rn(x)) : __bfloat162float(__float2bfloat16_rn(x));
  }
};
constexpr Type kTypes[] = {{"f16", 1e-3}, {"bf16", 8e-3}};

// While it lives, plans of emulated variants are in this type.
class InType {
 public:
  explicit InType(const Type& type) { setenv("ATTNKIT_CUDA_TYPE", type.name, 1); }
  ~InType() { unsetenv("ATTNKIT_CUDA_TYPE"); }
  InType(const InType&) = delete;
};

}  // namespace attnkit::test
