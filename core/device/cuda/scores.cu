// Tokens with the highest scores; a block walks a row.
#include <algorithm>
#include <cmath>

#include "core/device/cuda/block.hpp"
#include "core/device/cuda/device.hpp"

namespace attnkit::core::device {
namespace {

constexpr int kMostCount = kMostOfTop, kMostThreads = 1024;

// Threads of a block, the more the longer its row.
unsigned threads_for(int64_t outputs) { return outputs >= 8192 ? kMostThreads : kMostCount; }

struct Candidate {
  float score;
  int id;
};

__device__ Candidate better(const Candidate& a, const Candidate& b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

__device__ Candidate best_of_warp(Candidate c) {
  for (int bits = 16; bits > 0; bits /= 2)
    c = better(c, {__shfl_xor_sync(kAll, c.score, bits), __shfl_xor_sync(kAll, c.id, bits)});
  return c;
}

__global__ void __launch_bounds__(kMostThreads) best_kernel(const float* scores, int64_t outputs, int32_t* best) {
  ATTNKIT_SHARED(float, warps_score, 32);
  ATTNKIT_SHARED(int, warps_id, 32);
  scores += int64_t{blockIdx.x} * outputs;
  Candidate mine{-INFINITY, INT32_MAX};
  bool has_nan = false;
  for (int64_t i = threadIdx.x; i < outputs; i += blockDim.x) {
    const float score = scores[i];
    has_nan = has_nan || score != score;
    mine = better(mine, {score, static_cast<int>(i)});
  }
  mine = best_of_warp(mine);
  if (lane() == 0) {
    warps_score[warp()] = mine.score;
    warps_id[warp()] = mine.id;
  }
  has_nan = __syncthreads_or(has_nan) != 0;
  if (warp() != 0) return;
  mine = {-INFINITY, INT32_MAX};
  if (lane() < static_cast<int>(blockDim.x / 32)) mine = {warps_score[lane()], warps_id[lane()]};
  mine = best_of_warp(mine);
  if (lane() == 0) best[blockIdx.x] = has_nan ? -1 : mine.id;
}

// Larger for a higher score, and for the lower id among equals; no two of a row are equal.
__device__ uint64_t key_of(float score, int64_t id) {
  const unsigned bits = __float_as_uint(score + 0.0f);  // -0 is 0
  const unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<unsigned>(id));
}

// The keys from which `count` remain: (key & mask) >= begin.
struct Threshold {
  uint64_t begin, mask;
};

// By 8 bits at a time from the highest, counted in shared memory, until those that are left are all taken.
__device__ Threshold threshold_of(const float* scores, int64_t outputs, int count) {
  constexpr int kBins = 256;
  ATTNKIT_SHARED(int, bins, kBins);
  ATTNKIT_SHARED(int, chosen, 3);  // the bin of the last that is taken, how many are of it, and how many it has
  Threshold found{0, 0};
  int wanted = count;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += static_cast<int>(blockDim.x)) bins[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < outputs; i += blockDim.x) {
      const uint64_t key = key_of(scores[i], i);
      if ((key & found.mask) == found.begin) atomicAdd(bins + static_cast<int>(key >> shift & 255u), 1);
    }
    __syncthreads();
    if (warp() == 0) {  // a lane has 8 bins, from the highest
      const int highest = kBins - 1 - 8 * lane();
      int own = 0;
      for (int k = 0; k < 8; ++k) own += bins[highest - k];
      int before = own;
      for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(kAll, before, by);
        if (lane() >= by) before += other;
      }
      before -= own;
      if (before < wanted && wanted <= before + own) {
        int bin = highest;
        while (before + bins[bin] < wanted) before += bins[bin--];
        chosen[0] = bin;
        chosen[1] = wanted - before;
        chosen[2] = bins[bin];
      }
    }
    __syncthreads();
    found.begin |= static_cast<uint64_t>(static_cast<int>(chosen[0])) << shift;
    found.mask |= uint64_t{255} << shift;
    wanted = chosen[1];
    if (wanted == chosen[2]) break;
  }
  return found;
}

__global__ void __launch_bounds__(kMostThreads)
    top_kernel(const float* scores, int64_t outputs, int count, int32_t* ids, float* top, float* norms) {
  ATTNKIT_SHARED(uint64_t, keys, kMostCount);
  ATTNKIT_SHARED(int, taken, 1);
  scores += int64_t{blockIdx.x} * outputs;
  ids += int64_t{blockIdx.x} * count;
  top += int64_t{blockIdx.x} * count;
  const int t = static_cast<int>(threadIdx.x);

  float most = -INFINITY;
  bool has_nan = false;
  for (int64_t i = t; i < outputs; i += blockDim.x) {
    const float score = scores[i];
    has_nan = has_nan || score != score;
    most = fmaxf(most, score);
  }
  if (t == 0) taken[0] = 0;
  if (__syncthreads_or(has_nan)) {
    if (t < count) {
      ids[t] = -1;
      top[t] = NAN;
    }
    if (t == 0) norms[blockIdx.x] = NAN;
    return;
  }
  most = fold_of_block(most, -INFINITY, Larger{});
  float sum = 0;
  for (int64_t i = t; i < outputs; i += blockDim.x) sum += expf(scores[i] - most);
  sum = fold_of_block(sum, 0.0f, Sum{});
  if (t == 0) norms[blockIdx.x] = fabsf(most) == INFINITY ? most : most + logf(sum);
  if (count == 0) return;

  const Threshold from = threshold_of(scores, outputs, count);
  for (int64_t i = t; i < outputs; i += blockDim.x) {
    const uint64_t key = key_of(scores[i], i);
    if ((key & from.mask) >= from.begin) keys[atomicAdd(taken + 0, 1)] = key;
  }
  __syncthreads();
  if (t >= count) return;
  const uint64_t key = keys[t];
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += keys[i] > key ? 1 : 0;
  const auto id = static_cast<int>(0xFFFFFFFFu - static_cast<unsigned>(key));
  ids[rank] = id;
  top[rank] = scores[id];
}

}  // namespace

void best(DeviceHandle&, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs, int32_t* best) {
  if (rows == 0) return;
  start(stream, "the best scores", best_kernel, rows, threads_for(outputs), scores, outputs, best);
}

void top(DeviceHandle&, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs, int64_t count,
         int32_t* ids, float* top, float* norms) {
  if (count < 0 || count > std::min<int64_t>(outputs, kMostCount))
    throw invalid("the ", count, " highest of ", outputs, " scores: from 0 to ", std::min<int64_t>(outputs, kMostCount),
                  " are possible");
  if (rows == 0) return;
  start(stream, "the highest scores", top_kernel, rows, threads_for(outputs), scores, outputs, static_cast<int>(count),
        ids, top, norms);
}

}  // namespace attnkit::core::device
