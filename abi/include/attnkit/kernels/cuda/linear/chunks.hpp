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
__host__ __device__ constexpr int64_t segments_of(int64_t rows) { return (rows + kRowSegment - 1) / kRowSegment; }

// The segments of a row's keys.
template <class Work>
class Segments {
 public:
  __device__ Segments(const Work& work, const Head& head) : w_(work), head_(head) {}
  __device__ bool any() const { return w_.call.sums && (head_.queries > kRowSegment || head_.fresh > kRowSegment); }
  // That query i sees, all of them.
  __device__ int64_t before(int64_t i) const {
    const int64_t n = head_.needs(i);
    return n < head_.fresh ? n / kRowSegment : segments_of(n);
  }
  // That are summed: a state takes them all.
  __device__ int64_t summed() const {
    if (w_.call.states) return segments_of(head_.fresh);
    return head_.queries > 0 ? before((head_.queries - 1) / kRowSegment * kRowSegment) : 0;
  }
  // S and z of the first n.
  __device__ float* sums(int64_t n) const {
    const int64_t all = 1 + segments_of(w_.call.lengths.keys);
    return w_.call.sums + ((head_.b * w_.sizes.heads + head_.h) * all + n) * w_.sizes.head_floats();
  }

 private:
  const Work& w_;
  const Head& head_;
};

// The queries of a row from `from` on, kChunk at a time with as many keys; begun: S and z of the first `done` keys,
// NULL: nothing.  state: where all keys go in the end, NULL: nowhere.
template <class Tiles, class Work>
__device__ void take_chunks(const Work& work, const Head& head, int64_t from, const float* begun, int64_t done,
                            float* state) {
  Tiles tiles(work, head);
  tiles.load_state(begun);
  // Keys [done, end) as far as they fit: weighed against queries if these do not all see them, then summed.
  const auto take = [&](int64_t end, const auto& weigh) {
    const int n = static_cast<int>(end - done < kChunk ? end - done : kChunk);
    tiles.load_keys(done, n);
    weigh();
    tiles.sum(n);
    __syncthreads();
    done += n;
  };
  const auto wait = [] { __syncthreads(); };
  for (int64_t i = from; i < head.queries; i += kChunk) {
    const int n = static_cast<int>(head.queries - i < kChunk ? head.queries - i : kChunk);
    const int64_t all_see = head.needs(i), last_sees = head.needs(i + n - 1);
    while (all_see - done >= kChunk) take(all_see, wait);
    tiles.load_queries(i, n);
    __syncthreads();
    tiles.read_state();
    while (done < last_sees) take(last_sees, [&] { tiles.weigh(i, n, done); });
    __syncthreads();
    tiles.write(i, n);
  }
  if (state && head.fresh > 0) {
    while (done < head.fresh) take(head.fresh, wait);
    tiles.store_state(state);
  }
}

// All of a row of a map that follows: a tile of keys ends before one that does not suit the scale of those before it,
// and a tile of queries before those that see it.
template <class Tiles, class Work>
__device__ void follow_chunks(const Work& work, const Head& head) {
  Tiles tiles(work, head);
  float* state = work.call.states ? state_of(work.call, work.sizes, head) : nullptr;
  tiles.load_state(state);
  __syncthreads();
  int64_t done = 0;
  // Loads the next n keys, or as many of them as suit the scale; none: the first does not.
  const auto load = [&](int n) {
    for (;;) {
      tiles.load_keys(done, n);
      __syncthreads();
      const int fit = tiles.fitting(n);
      __syncthreads();
      if (fit == n || fit == 0) return fit;
      n = fit;
    }
  };
  // Sums n keys that were loaded; if there are none the scale comes to suit the next.
  const auto sum = [&](int n) {
    if (n == 0) return tiles.raise(done);
    tiles.sum(n);
    __syncthreads();
    done += n;
  };
  const auto sum_to = [&](int64_t to) {
    while (done < to) sum(load(static_cast<int>(to - done < kChunk ? to - done : kChunk)));
  };
  for (int64_t i = 0; i < head.queries;) {
    const int64_t first_sees = head.needs(i);
    if (first_sees - done > kChunk) sum_to(first_sees - kChunk);
    int n = 1;
    while (n < kChunk && i + n < head.queries && head.needs(i + n) - done <= kChunk) ++n;
    int keys = static_cast<int>(head.needs(i + n - 1) - done);
    if (keys > 0) {
      const int fit = load(keys);
      if (fit < first_sees - done) {
        sum(fit);
        continue;
      }
      while (head.needs(i + n - 1) - done > fit) --n;
      keys = static_cast<int>(head.needs(i + n - 1) - done);
      if (keys > 0 && keys < fit) load(keys);
    }
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
    if (keys > 0) tiles.sum(keys);
    __syncthreads();
    done += keys;
    i += n;
  }
  if (state && head.fresh > 0) {
    sum_to(head.fresh);
    if constexpr (kEach<typename Work::Map>) tiles.settle();
    tiles.store_state(state);
  }
  clear_outputs(work.call, work.sizes, head, head.queries, work.call.lengths.queries);
}

// A block per head and segment of queries.
template <class Work>
static __global__ void __launch_bounds__(kThreads, 3) chunks_kernel(const Work work) {
  Head head(work.call.lengths, work.sizes.heads);
  float* state = work.call.states ? state_of(work.call, work.sizes, head) : nullptr;
  if (state && head.queries <= kSteps && head.fresh <= kSteps) {
    if (blockIdx.y == 0) take_steps<kSteps>(work, head, state);
    return;
  }
  if constexpr (kFollows<typename Work::Map>) {
    follow_chunks<TilesOf<Work>>(work, head);
  } else {
    const Segments segments(work, head);
    const float* begun = state;
    int64_t from = blockIdx.y * kRowSegment, done = 0, end = work.call.lengths.queries;
    if (segments.any()) {
      if (end > from + kRowSegment) end = from + kRowSegment;
      if (from < head.queries) done = segments.before(from);
      begun = segments.sums(done);
      done = done * kRowSegment < head.fresh ? done * kRowSegment : head.fresh;
      state = nullptr;
    } else if (from > 0) {
      return;
    }
    if (head.queries > end) head.queries = end;
    if (from < head.queries || state) take_chunks<TilesOf<Work>>(work, head, from, begun, done, state);
    clear_outputs(work.call, work.sizes, head, from < head.queries ? head.queries : from, end);
  }
}

// A block per head and segment of keys.
template <class Work>
static __global__ void __launch_bounds__(kThreads, 3) sums_kernel(const Work work) {
  const Head head(work.call.lengths, work.sizes.heads);
  const Segments segments(work, head);
  const int64_t segment = blockIdx.y, from = segment * kRowSegment;
  if (!segments.any() || segment >= segments.summed()) return;
  TilesOf<Work> tiles(work, head);
  tiles.load_state(nullptr);
  const int64_t to = from + kRowSegment < head.fresh ? from + kRowSegment : head.fresh;
  for (int64_t done = from; done < to; done += kChunk) {
    const int n = static_cast<int>(to - done < kChunk ? to - done : kChunk);
    tiles.load_keys(done, n);
    __syncthreads();
    tiles.sum(n);
    __syncthreads();
  }
  tiles.store_state(segments.sums(segment + 1));
}

// A thread per number of a head's sums.
template <class Work>
static __global__ void __launch_bounds__(kThreads) prefixes_kernel(const Work work) {
  const Head head(work.call.lengths, work.sizes.heads);
  const Segments segments(work, head);
  const int64_t f = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (!segments.any() || f >= work.sizes.head_floats()) return;
  float* state = work.call.states ? state_of(work.call, work.sizes, head) + f : nullptr;
  float sum = state ? *state : 0;
  segments.sums(0)[f] = sum;
  const int64_t summed = segments.summed();
  for (int64_t n = 1; n <= summed; ++n) {
    float* at = segments.sums(n) + f;
    sum += *at;
    *at = sum;
  }
  if (state) *state = sum;
}

}  // namespace attnkit::cuda::linear
#endif
