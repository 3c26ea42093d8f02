// The kernels of chunks, which hold S and z of a head in shared memory; and how a long row is split, so that a few
// heads fill a device.
//
// In a run of more than kRowSegment queries or keys a longer row has many blocks, in three kernels: sums_kernel sums
// each kRowSegment keys from nothing, prefixes_kernel adds these sums up in their order, the state first, and in
// chunks_kernel a block has kRowSegment queries and begins with what was summed of keys that all of them see.  That
// reads keys and values twice.  Whether a row is split depends on its own lengths alone, so that neither padding nor
// neighbours change a bit.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_CHUNKS_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_CHUNKS_HPP
#include <attnkit/kernels/cuda/linear/matrices.hpp>

namespace attnkit::cuda::linear {

constexpr int64_t kRowSegment = 1024;
constexpr int kMostThreads = 1024;
__host__ __device__ constexpr int64_t segments_of(int64_t rows) { return (rows + kRowSegment - 1) / kRowSegment; }

// Of a Call, for prefixes_kernel.
struct Summed {
  Lengths lengths;
  States states;
  float* sums;
};

// The segments of a row's keys.  Call: or Summed; H: Head, or what has its queries, keys and needs.
template <class Call, class H>
class Segments {
 public:
  __device__ Segments(const Call& call, const Sizes& sizes, const H& head) : call_(call), sizes_(sizes), head_(head) {}
  __device__ bool any() const { return call_.sums && (head_.queries > kRowSegment || head_.fresh > kRowSegment); }
  // That query i sees, all of them.
  __device__ int64_t before(int64_t i) const {
    const int64_t n = head_.needs(i);
    return n < head_.fresh ? n / kRowSegment : segments_of(n);
  }
  // That are summed: a state takes them all.
  __device__ int64_t summed() const {
    if (call_.states) return segments_of(head_.fresh);
    return head_.queries > 0 ? before((head_.queries - 1) / kRowSegment * kRowSegment) : 0;
  }
  // S and z of the first n.
  __device__ float* sums(int64_t n) const {
    const int64_t all = 1 + segments_of(head_.most);
    return call_.sums + ((head_.b * sizes_.heads + head_.h) * all + n) * sizes_.head_floats();
  }

 private:
  const Call& call_;
  const Sizes& sizes_;
  const H& head_;
};

// A block's share of a row: queries [from, to), kChunk at a time, and the sums of keys [done, keys).  begun: S and z
// of the keys before, NULL: nothing; store: where those of all keys go in the end, NULL: nowhere.
struct Part {
  int64_t from, to, done, keys;
  const float* begun;
  float* store;
};

// Takes a part, as many keys at a time.  kReads: has it queries?
template <bool kReads, class Tiles, class Work>
__device__ void take_chunks(const Work& work, const Head& head, const Part& part) {
  Tiles tiles(work, head);
  tiles.load_state(part.begun);
  int64_t i = part.from, done = part.done;
  int n = 0;  // queries that are loaded: from i on
  for (;;) {
    int64_t end = part.keys;
    if constexpr (kReads) {
      const int next = static_cast<int>(part.to - i < kChunk ? part.to - i : kChunk);
      if (next > 0) end = head.needs(n > 0 ? i + n - 1 : i);
      if (next > 0 && n == 0 && end - done < kChunk) {
        n = next;
        tiles.load_queries(i, n);
        __syncthreads();
        tiles.read_state();
        continue;
      }
      if (n > 0 && done >= end) {
        __syncthreads();
        tiles.write(i, n);
        i += n;
        n = 0;
        continue;
      }
    }
    if (done >= end) break;
    const int keys = static_cast<int>(end - done < kChunk ? end - done : kChunk);
    tiles.load_keys(done, keys);
    if (kReads && n > 0)
      tiles.weigh(i, n, done);
    else
      __syncthreads();
    tiles.sum(keys);
    __syncthreads();
    done += keys;
  }
  if (part.store) tiles.store_state(part.store);
}

// The same of a map that follows: a tile of keys ends before one that does not suit the scale of those before it, and
// a tile of queries before those that see it.
template <bool kReads, class Tiles, class Work>
__device__ void follow_chunks(const Work& work, const Head& head, const Part& part) {
  Tiles tiles(work, head);
  tiles.load_state(part.begun);
  __syncthreads();
  int64_t i = part.from, done = part.done;
  int most = kChunk;  // keys that may suit the scale
  while ((kReads && i < part.to) || done < part.keys) {
    int n = 0;
    int64_t first_sees = part.keys, end = first_sees;
    if constexpr (kReads) {
      if (i < part.to) end = first_sees = head.needs(i);
      while (n < kChunk && i + n < part.to && head.needs(i + n) - done <= most) end = head.needs(i + n++);
    }
    const int keys = static_cast<int>(end - done < most ? end - done : most);
    if (keys > 0) {
      tiles.load_keys(done, keys);
      __syncthreads();
      const int fit = tiles.fitting(keys);
      __syncthreads();
      if (fit < keys) {
        if (fit > 0 || first_sees <= done)  // the next key would raise the scale of queries that do not see it
          most = fit;
        else
          tiles.raise(done);
        continue;
      }
    }
    if constexpr (kReads) {
      if (n > 0) {
        if constexpr (kEach<typename Work::Map>) {
          tiles.limit(i, n, done);
          __syncthreads();
        }
        tiles.load_queries(i, n);
        __syncthreads();
        tiles.read_state();
        if (keys > 0) tiles.weigh(i, n, done);
        __syncthreads();
        tiles.write(i, n);
      }
    }
    if (keys > 0) tiles.sum(keys);
    __syncthreads();
    done += keys;
    i += n;
    most = kChunk;
  }
  if (!part.store) return;
  if constexpr (kEach<typename Work::Map>) tiles.settle();
  tiles.store_state(part.store);
}

// One way of taking a part: S in shared memory.  kTakesSteps: may rows of few tokens come too?
template <class Work>
struct SharedSums {
  static constexpr int kThreads = linear::kThreads, kBlocks = 3;
  static constexpr bool kTakesSteps = true;
  template <bool kReads>
  __device__ static void take(const Work& work, const Head& head, const Part& part) {
    if constexpr (kFollows<typename Work::Map>)
      follow_chunks<kReads, TilesOf<Work>>(work, head, part);
    else
      take_chunks<kReads, TilesOf<Work>>(work, head, part);
  }
};

// A block per head and segment of queries.
template <class Work, class Way>
static __global__ void __launch_bounds__(Way::kThreads, Way::kBlocks) chunks_kernel(const Work work) {
  Head head(work.call.lengths, work.sizes.heads);
  float* state = work.call.states ? state_of(work.call.states, work.sizes, head) : nullptr;
  if constexpr (Way::kTakesSteps)
    if (state && head.queries <= kSteps && head.fresh <= kSteps) {
      if (blockIdx.y == 0) take_steps<kSteps>(work, head, state);
      return;
    }
  const Segments segments(work.call, work.sizes, head);
  const int64_t from = blockIdx.y * kRowSegment;
  int64_t end = work.call.lengths.queries;
  Part part{from, head.queries, 0, 0, state, nullptr};
  if (segments.any()) {
    if (end > from + kRowSegment) end = from + kRowSegment;
    if (part.to > end) part.to = end;
    const int64_t before = from < part.to ? segments.before(from) : 0;
    part.begun = segments.sums(before);
    part.done = before * kRowSegment < head.fresh ? before * kRowSegment : head.fresh;
    const float* all = segments.sums(segments.summed());
    for (int64_t f = threadIdx.x; state && from == 0 && head.fresh > 0 && f < work.sizes.head_floats();
         f += Way::kThreads)
      state[f] = all[f];
  } else if (from > 0) {
    return;
  } else if (state && head.fresh > 0) {
    part.keys = head.fresh;
    part.store = state;
  }
  if (from < part.to || part.store) Way::template take<true>(work, head, part);
  clear_outputs(work.call, work.sizes, head, from < head.queries ? head.queries : from, end);
}

// A block per head and segment of keys.
template <class Work, class Way>
static __global__ void __launch_bounds__(Way::kThreads, Way::kBlocks) sums_kernel(const Work work) {
  const Head head(work.call.lengths, work.sizes.heads);
  const Segments segments(work.call, work.sizes, head);
  const int64_t from = blockIdx.y * kRowSegment, to = from + kRowSegment;
  if (!segments.any() || blockIdx.y >= segments.summed()) return;
  Way::template take<false>(work, head,
                            {0, 0, from, to < head.fresh ? to : head.fresh, nullptr, segments.sums(blockIdx.y + 1)});
}

// A block per head and feature: a thread has a column of S or, in the last place, z.  Sums of scales of their own come
// to the largest so far.
template <class H>
static __global__ void __launch_bounds__(kMostThreads) prefixes_kernel(const Sizes s, const Summed call) {
  const H head(call.lengths, s.heads);
  const Segments segments(call, s, head);
  if (!segments.any()) return;
  const int64_t f = blockIdx.y, z = static_cast<int64_t>(s.features) * s.e + f, c = z + s.features;
  const float* state = call.states ? state_of(call.states, s, head) : nullptr;
  const bool follows = s.extra > 0;
  const float least = follows && state && state[z] != 0 ? state[c] : kLeast<float>;
  const int64_t summed = segments.summed();
  for (int e = static_cast<int>(threadIdx.x); e <= s.e; e += static_cast<int>(blockDim.x)) {
    const int64_t at = e < s.e ? f * s.e + e : z;
    float sum = state ? state[at] : 0, scale = least;
    segments.sums(0)[at] = sum;
#pragma unroll 1
    for (int64_t n = 1; n <= summed; ++n) {
      float* segment = segments.sums(n);
      float own = segment[at];
      if (follows) {
        const float top = larger(scale, segment[c]);
        sum *= exponential(scale - top);
        own *= exponential(segment[c] - top);
        scale = top;
      }
      sum += own;
      segment[at] = sum;
    }
  }
  __syncthreads();  // all have read the segments' scales
  if (!follows || threadIdx.x > 0) return;
  float scale = least;
#pragma unroll 1
  for (int64_t n = 0; n <= summed; ++n) {
    if (n > 0) scale = larger(scale, segments.sums(n)[c]);
    segments.sums(n)[c] = scale;
  }
}

}  // namespace attnkit::cuda::linear
#endif
