// The real cuDNN's answers to attnkit's graphs, without a device: it is told of one, an H100, and proposes its kernels.
// Skipped where the library is not.
#include <gtest/gtest.h>

#include <attnkit/kernels/cuda/attend_cudnn.hpp>
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif

namespace attnkit::cuda::cudnn {
namespace {

#if __has_include(<cudnn_graph.h>)
#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(kHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(kOperationMatmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(kOperationReduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(kOperationReshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
SAME(kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
SAME(kHeuristicMode, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(kHeuristicGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(kHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(kPlanConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(kPointwiseDescriptor, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(kPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
SAME(kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(kPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(kMatmulPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(kMatmulPadding, CUDNN_ATTR_MATMUL_PADDING_VALUE);
SAME(kMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(kMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(kMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(kMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(kMatmulRows, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
SAME(kMatmulColumns, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
SAME(kMatmulDepth, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
SAME(kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(kReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(kReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(kReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
SAME(kReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(kHandles, CUDNN_TYPE_HANDLE);
SAME(kDataTypes, CUDNN_TYPE_DATA_TYPE);
SAME(kBooleans, CUDNN_TYPE_BOOLEAN);
SAME(kIntegers, CUDNN_TYPE_INT64);
SAME(kDoubles, CUDNN_TYPE_DOUBLE);
SAME(kPointers, CUDNN_TYPE_VOID_PTR);
SAME(kHeuristicModes, CUDNN_TYPE_HEUR_MODE);
SAME(kPointwiseModes, CUDNN_TYPE_POINTWISE_MODE);
SAME(kDescriptors, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(kReductionOperators, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(kCharacters, CUDNN_TYPE_CHAR);
SAME(kFloat, CUDNN_DATA_FLOAT);
SAME(kHalf, CUDNN_DATA_HALF);
SAME(kInt32, CUDNN_DATA_INT32);
SAME(kBfloat16, CUDNN_DATA_BFLOAT16);
SAME(kBoolean, CUDNN_DATA_BOOLEAN);
SAME(kAdd, CUDNN_POINTWISE_ADD);
SAME(kMultiply, CUDNN_POINTWISE_MUL);
SAME(kDivide, CUDNN_POINTWISE_DIV);
SAME(kSubtract, CUDNN_POINTWISE_SUB);
SAME(kExponential, CUDNN_POINTWISE_EXP);
SAME(kLogarithm, CUDNN_POINTWISE_LOG);
SAME(kIdentity, CUDNN_POINTWISE_IDENTITY);
SAME(kNotLess, CUDNN_POINTWISE_CMP_GE);
SAME(kLess, CUDNN_POINTWISE_CMP_LT);
SAME(kAnd, CUDNN_POINTWISE_LOGICAL_AND);
SAME(kIndex, CUDNN_POINTWISE_GEN_INDEX);
SAME(kSelect, CUDNN_POINTWISE_BINARY_SELECT);
SAME(kSum, CUDNN_REDUCE_TENSOR_ADD);
SAME(kMax, CUDNN_REDUCE_TENSOR_MAX);
SAME(kFallback, CUDNN_HEUR_MODE_FALLBACK);
SAME(kBest, CUDNN_HEUR_MODE_A);
SAME(kNotInitialized, CUDNN_STATUS_NOT_INITIALIZED);
#if CUDNN_VERSION >= 90800
SAME(kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
SAME(kHeuristicDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
SAME(kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif
#undef SAME
#endif

// Of an H100, in the words of cuDNN 9.8 and later.
constexpr std::string_view kH100 = R"({"deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
"deviceName": "NVIDIA H100 80GB HBM3", "multiProcessorCount": 132, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
"l2CacheSize": 52428800, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
"regsPerBlock": 65536, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
"reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
"maxThreadsPerSM": 2048, "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 85000000000})";

constexpr AttentionShape kShape{2, 4, 2, 100, 120, 64, 64, kHalf, false, false, false};

class RealCudnn : public testing::Test {
 protected:
  void SetUp() override {
    if (!library().is_complete()) GTEST_SKIP() << "there is no " << ATTNKIT_REAL_CUDNN;
  }
  static const Library& library() {
    static const Library found(ATTNKIT_REAL_CUDNN);
    return found;
  }
  template <class Check>
  static void for_all_masks(const Check& check) {
    for (const DataType type : {kHalf, kBfloat16})
      for (const bool causal : {false, true})
        for (const bool padded : {false, true})
          for (const bool trains : {false, true}) {
            SCOPED_TRACE(say("type ", int{type}, " causal ", causal, " padded ", padded, " trains ", trains));
            AttentionShape shape = kShape;
            shape.type = type;
            shape.causal = causal;
            shape.padded = padded;
            shape.trains = trains;
            check(shape);
          }
  }
};

TEST_F(RealCudnn, TakesTheGraphs) {
  for_all_masks([](const AttentionShape& shape) {
    EXPECT_NO_THROW(AttentionGraph(library(), nullptr, shape));
    if (shape.trains) {
      EXPECT_NO_THROW(AttentionGradientGraph(library(), nullptr, shape));
    }
  });
}

// cuDNN asks for the driver's library before it says which of its kernels serve; the toolkit's stub will do.
TEST_F(RealCudnn, ProposesKernelsForAnH100) {
  if (library().version() < 90800) GTEST_SKIP() << "cuDNN can be told of devices since 9.8";
  if (!dlopen("libcuda.so.1", RTLD_NOW) && !dlopen(ATTNKIT_CUDA_STUB, RTLD_NOW))
    GTEST_SKIP() << "neither a driver nor " << ATTNKIT_CUDA_STUB;
  Descriptor h100(library(), kDeviceProperties);
  h100.set(kDeviceJson, kCharacters, kH100.data(), kH100.size()).finalize("does not know an H100");
  const auto is_served = [&](const Graph& graph) { return !graph.configs(kBest, &h100).empty(); };
  for_all_masks([&](AttentionShape shape) {
    for (const int64_t kv_heads : {2, 4})
      for (const int64_t width : {20, 40, 64, 128, 256}) {
        SCOPED_TRACE(say("width ", width, " heads of keys ", kv_heads));
        shape.kv_heads = kv_heads;
        shape.d = shape.e = width;
        EXPECT_EQ(width % 8 == 0, is_served(AttentionGraph(library(), nullptr, shape)));
        if (!shape.trains) continue;
        EXPECT_EQ(width % 8 == 0, is_served(AttentionGradientGraph(library(), nullptr, shape)));
      }
  });
}

TEST_F(RealCudnn, SaysThatThereIsNoDevice) {
  try {
    const Handle handle(library());
    const AttentionGraph graph(library(), handle.raw(), kShape);
    const GraphPlan plan(library(), handle, graph);
    GTEST_SKIP() << "there is a device: its plan needs " << plan.workspace_bytes() << " bytes";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(ATTN_DEVICE, refusal.code());
    const std::string words = refusal.what();
    EXPECT_EQ(0u, words.find("cuDNN 9.")) << words;
    EXPECT_NE(std::string::npos, words.find("cannot start")) << words;
    EXPECT_NE(std::string::npos, words.find("is there a GPU, and a driver for it?")) << words;
  }
}

TEST(NoCudnn, IsNoLibrary) { EXPECT_FALSE(Library("/nowhere/libcudnn.so.9").is_complete()); }

}  // namespace
}  // namespace attnkit::cuda::cudnn
