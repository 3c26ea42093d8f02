// The parts of a kernel that are no C++: shared memory, copies that go on while threads compute, and products of small
// matrices on the tensor cores.  attnkit's tests have a stand-in for this file that runs on a CPU and sees races and
// accesses beyond an array, so a kernel reaches shared memory only through what is declared here.
//
//   ATTNKIT_SHARED(float, sums, 64);        64 floats of the block, by index alone: sums[i]
//   SharedParts parts;                      the dynamic shared memory that the launch brings, cut into pieces
//   Shared<float> rows = parts.take<float>(n);      aligned to 16 bytes, one after another
//   as<float4>(rows)[i]                     the same memory by 16 bytes; also of a pointer to global memory
#ifndef ATTNKIT_KERNELS_CUDA_DEVICE_HPP
#define ATTNKIT_KERNELS_CUDA_DEVICE_HPP
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#define ATTNKIT_SHARED(T, name, n) __shared__ __align__(16) T name[n]

namespace attnkit::cuda {

template <class T>
using Shared = T*;

class SharedParts {
 public:
  __device__ SharedParts() {
    extern __shared__ __align__(16) unsigned char attnkit_dynamic_shared[];
    next_ = attnkit_dynamic_shared;
  }
  template <class T>
  __device__ Shared<T> take(int64_t n) {
    auto* part = reinterpret_cast<T*>(next_);
    next_ += (n * sizeof(T) + 15) / 16 * 16;
    return part;
  }

 private:
  unsigned char* next_;
};

template <class U, class T>
__device__ U* as(T* p) {
  return reinterpret_cast<U*>(p);
}

// Begins to copy 16 bytes; both ends are aligned to 16.  They are there for this thread after wait_for_copies, for
// others after a barrier that follows it.
template <class T>
__device__ void copy_async(Shared<T> to, const T* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the newest kGroups groups are on their way.
template <int kGroups>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// x with the 10 bits of fraction that a tensor core reads, to the nearest.
__device__ inline float as_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// The i-th number of a register that holds two of T.
template <class T>
__device__ float half_of(uint32_t pair, int i) {
  const auto bits = static_cast<unsigned short>(pair >> (16 * i));
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(__ushort_as_half(bits));
  else
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

// Two numbers as such a register has them, to the nearest.
template <class T>
__device__ uint32_t pair_of(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// d += a b by a whole warp: 16 x 8 of depth 16, T half or bfloat16, two numbers to a register; PTX m16n8k16 says which
// lane holds what.
template <class T>
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same of depth 8 in tf32, PTX m16n8k8; operands as as_tf32 gives them.
__device__ inline void multiply_add(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// Four 8 x 8 matrices of two-byte numbers as a product wants them; lane l names row l % 8 of matrix l / 8.
template <bool kTransposed, class T>
__device__ void load_matrices(uint32_t (&to)[4], Shared<T> row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

}  // namespace attnkit::cuda
#endif
