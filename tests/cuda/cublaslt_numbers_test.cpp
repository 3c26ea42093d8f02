// Our numbers of cuBLASLt are its header's, where that is installed.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include "core/device/cuda/cublaslt.hpp"

namespace attnkit::core::cublaslt {

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(kF32, CUBLAS_COMPUTE_32F);
SAME(kTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(kFloat, CUDA_R_32F);
SAME(kHalf, CUDA_R_16F);
SAME(kBfloat16, CUDA_R_16BF);
SAME(kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(kBias, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(kMostWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(kAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(kAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(kAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(kAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(kTransposed, CUBLAS_OP_T);
SAME(kAddsBias, CUBLASLT_EPILOGUE_BIAS);
SAME(kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(sizeof(Algorithm), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(Choice), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(Choice, workspace), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(Choice, status), offsetof(cublasLtMatmulHeuristicResult_t, state));

}  // namespace attnkit::core::cublaslt
#endif
