// cuBLASLt: where it is missing, and the real one without a device where it is installed.
#include "core/device/cuda/cublaslt.hpp"

#include <gtest/gtest.h>

namespace attnkit::core::cublaslt {
namespace {

TEST(Cublaslt, IsRefusedByNameWhereItIsMissing) {
  try {
    const Library none("libnowhere.so.1");
    FAIL() << "libnowhere.so.1 is there";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(ATTN_DEVICE, refusal.code());
    EXPECT_NE(std::string::npos, std::string(refusal.what()).find("install libnowhere.so.1, of NVIDIA's cuBLAS"))
        << refusal.what();
  }
}

TEST(Cublaslt, LacksFunctionsInAnotherLibrary) {
  try {
    const Library other("libm.so.6");
    FAIL() << "libm multiplies matrices";
  } catch (const Refusal& refusal) {
    EXPECT_STREQ("libm.so.6 has no cublasLtCreate: install another cuBLAS", refusal.what());
  }
}

TEST(Cublaslt, TheRealOneStartsOrSaysWhyNot) {
  for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (void* found = dlopen(file, RTLD_LAZY))
      dlclose(found);
    else
      continue;
    const Library library(file);
    void *product = nullptr, *layout = nullptr, *preference = nullptr, *handle = nullptr;
    EXPECT_EQ(0, library.create_product(&product, kTf32, kFloat));
    EXPECT_EQ(0, library.set(product, kTransposeA, &kTransposed, sizeof kTransposed));
    EXPECT_EQ(0, library.set(product, kEpilogue, &kAddsBias, sizeof kAddsBias));
    const float* bias = nullptr;
    EXPECT_EQ(0, library.set(product, kBias, &bias, sizeof bias));
    EXPECT_EQ(0, library.create_layout(&layout, kBfloat16, 17, 3, 17));
    EXPECT_EQ(0, library.create_preference(&preference));
    const uint64_t most = 1 << 20;
    EXPECT_EQ(0, library.prefer(preference, kMostWorkspace, &most, sizeof most));
    const uint32_t aligned = 4;
    for (const Preference p : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD})
      EXPECT_EQ(0, library.prefer(preference, p, &aligned, sizeof aligned));
    EXPECT_EQ(0, library.destroy_preference(preference));
    EXPECT_EQ(0, library.destroy_layout(layout));
    EXPECT_EQ(0, library.destroy_product(product));
    const int status = library.create(&handle);
    if (status == 0) {
      library.destroy(handle);
    } else {
      try {
        library.expect(status, "cannot start");
      } catch (const Refusal& refusal) {
        EXPECT_NE(std::string::npos, std::string(refusal.what()).find(" cannot start: the library was not initialized"))
            << refusal.what();
      }
    }
    return;
  }
  GTEST_SKIP() << "no cuBLASLt is installed";
}

}  // namespace
}  // namespace attnkit::core::cublaslt
