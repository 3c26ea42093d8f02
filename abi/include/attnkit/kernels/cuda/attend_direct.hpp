// A row against keys and values that come from memory straight into registers, by the threads of a block.
//
// This is the token that a session decodes: nothing takes time but the reading of its keys, so all that counts are
// bytes on their way.  Lanes in teams, a lane for four columns, take every so-manyth key; kAhead keys and values of a
// team are asked for together, and no barrier stands between them.  Each team keeps a max, a sum and a mix, added up at
// the end.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_DIRECT_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_DIRECT_HPP
#include <attnkit/kernels/cuda/attend_tile.hpp>

namespace attnkit::cuda::attend {

constexpr int kDirect = 1;  // rows of a batch row that come here

// Whether few queries have kernels of their own: f64 is for checks of gradients, and decodes nothing.
template <class T, class Reach>
constexpr bool kDecodes = Reach::kDecodes && sizeof(T) <= sizeof(float);

template <class T, class Reach>
class Direct {
  using Real = RealOf<T>;
  static constexpr int kRows = kDirect, kAhead = 4;

 public:
  static __host__ __device__ bool takes(const Sizes& s) {
    return kDecodes<T, Reach> && s.group() <= kDirect && s.d % 4 == 0 && s.e % 4 == 0 && s.d <= 128 && s.e <= 128;
  }
  static uint64_t bytes(const Sizes& s) { return uint64_t{kWarps * kRows} * (s.e + 2) * sizeof(Real); }

  __device__ Direct(const Work<T, Reach>& work, int64_t b, int kv, const Sight& sight)
      : w_(work), sight_(sight), b_(b), kv_(kv) {
    SharedParts parts;
    o_ = parts.take<Real>(kWarps * kRows * size().e);
    max_of_ = parts.take<Real>(kWarps * kRows);
    sum_of_ = parts.take<Real>(kWarps * kRows);
    const int wider = size().d > size().e ? size().d : size().e;
    while (lanes_ * 4 < wider) lanes_ *= 2;
    column_ = lane() % lanes_ * 4;
  }

  // All `rows`, with the keys of one span alone if they are to be left in part.
  __device__ void operator()(int rows, int span, Real* part) {
    const int group = size().group();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      q_[r] = mix_[r] = {};
      max_[r] = lowest<Real>();
      sum_[r] = 0;
      begin_[r] = end_[r] = 0;
      if (r >= rows) continue;
      const int64_t i = r / group;
      if constexpr (Reach::kNear) begin_[r] = static_cast<int>(w_.reach.begin(sight_, i));
      end_[r] = static_cast<int>(w_.reach.end(sight_, i));
      if (column_ < size().d) q_[r] = load_four(w_.q.at(b_, head(r), i) + column_, 4, w_.by_four);
    }
    int from = begin_[0], to = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) to = end_[r] > to ? end_[r] : to;
    if (part) {
      from = from > span * kSpan ? from : span * kSpan;
      to = to < (span + 1) * kSpan ? to : (span + 1) * kSpan;
    }
    // Which keys go together does not depend on where they lie: only the last rounds, with any of this run, look.
    const int step = kAhead * (kThreads / lanes_), past = static_cast<int>(sight_.past < to ? sight_.past : to);
    const int kept = past == to ? to : past > from ? from + (past - from) / step * step : from;
    const float* state = w_.states ? w_.states.row(b_) + static_cast<int64_t>(kv_) * (size().d + size().e) : nullptr;
    const auto of_state = [&](int key, Four<Real>& k, Four<Real>& v) {
      const float* token = state + w_.reach.place(key) * size().token() + column_;
      if (column_ < size().d) k = in_real(*as<const Four<float>>(token));
      if (column_ < size().e) v = in_real(*as<const Four<float>>(token + size().d));
    };
    walk(from, kept, of_state);
    walk(kept > from ? kept : from, to, [&](int key, Four<Real>& k, Four<Real>& v) {
      if (key < past) return of_state(key, k, v);
      const int64_t j = key - sight_.past;
      if (column_ < size().d) k = load_four(w_.k.at(b_, kv_, j) + column_, 4, w_.by_four);
      if (column_ < size().e) v = load_four(w_.v.at(b_, kv_, j) + column_, 4, w_.by_four);
    });
    gather();
    __syncthreads();
    write(rows, part);
    __syncthreads();  // the next span writes over these
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int head(int r) const { return kv_ * size().group() + r % size().group(); }
  __device__ static Four<Real> in_real(const Four<float>& x) { return {x.x, x.y, x.z, x.w}; }
  __device__ bool sees(int r, int key) const { return key >= begin_[r] && key < end_[r]; }

  // The keys of [from, to): all lanes of a warp go as often round.
  template <class Load>
  __device__ void walk(int from, int to, const Load& load) {
    const int teams = kThreads / lanes_, team = static_cast<int>(threadIdx.x) / lanes_;
#pragma unroll 1
    for (; from < to; from += kAhead * teams) {
      Four<Real> k[kAhead], v[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int key = from + u * teams + team;
        k[u] = v[u] = {};
        if (key < to) load(key, k[u], v[u]);
      }
      Real s[kRows][kAhead];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int u = 0; u < kAhead; ++u) s[r][u] = dot(q_[r], k[u], Real{0});
      for (int bits = lanes_ / 2; bits > 0; bits /= 2)
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int u = 0; u < kAhead; ++u) s[r][u] += __shfl_xor_sync(kAll, s[r][u], bits);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        Real most = max_[r];
        bool seen[kAhead];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int key = from + u * teams + team;
          seen[u] = key < to && sees(r, key);
          s[r][u] *= w_.scale;
          if (seen[u]) most = larger(s[r][u], most);  // a NaN is never the max, its own weight carries it
        }
        mix_[r] = scaled(mix_[r], exponential(max_[r] - most));
        Real sum = 0;
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const Real weight = exponential(s[r][u] - most);
          if (!seen[u]) continue;
          sum += weight;
          add(mix_[r], weight, v[u]);
        }
        sum_[r] = fused(sum_[r], exponential(max_[r] - most), sum);
        max_[r] = most;
      }
    }
  }
  __device__ static Four<Real> scaled(const Four<Real>& x, Real by) { return {x.x * by, x.y * by, x.z * by, x.w * by}; }
  // Over the teams of a warp.
  __device__ Real sum_of_teams(Real x) const {
    for (int bits = lanes_; bits < 32; bits *= 2) x += __shfl_xor_sync(kAll, x, bits);
    return x;
  }

  // Adds the teams of a warp up, into shared memory.
  __device__ void gather() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Real most = max_[r];
      for (int bits = lanes_; bits < 32; bits *= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
      const Real by = exponential(max_[r] - most), sum = sum_of_teams(sum_[r] * by);
      Four<Real> mix = scaled(mix_[r], by);
      mix = {sum_of_teams(mix.x), sum_of_teams(mix.y), sum_of_teams(mix.z), sum_of_teams(mix.w)};
      const int at = warp() * kRows + r;
      if (lane() < lanes_ && column_ < size().e) as<Four<Real>>(o_ + (at * size().e + column_))[0] = mix;
      if (lane() == 0) {
        max_of_[at] = most;
        sum_of_[at] = sum;
      }
    }
  }

  // Adds the warps up.
  __device__ void write(int rows, Real* part) const {
    for (int x = static_cast<int>(threadIdx.x); x < rows * size().e; x += kThreads) {
      const int r = x / size().e, e = x % size().e;
      Real most = lowest<Real>(), total = 0, mixed = 0;
      for (int w = 0; w < kWarps; ++w) most = larger(most, static_cast<Real>(max_of_[w * kRows + r]));
      for (int w = 0; w < kWarps; ++w) {
        const Real by = exponential(max_of_[w * kRows + r] - most);
        total = fused(by, static_cast<Real>(sum_of_[w * kRows + r]), total);
        mixed = fused(by, static_cast<Real>(o_[(w * kRows + r) * size().e + e]), mixed);
      }
      if (part) {
        Real* to = part + static_cast<int64_t>(r) * (size().e + 2);
        to[2 + e] = mixed;
        if (e > 0) continue;
        to[0] = most;
        to[1] = total;
      } else {
        const int64_t i = r / size().group();
        bool any = w_.reach.end(sight_, i) > 0;
        if constexpr (Reach::kNear) any = w_.reach.end(sight_, i) > w_.reach.begin(sight_, i);
        w_.o.at(b_, head(r), i)[e] = narrowed<T>(any ? mixed * reciprocal(total) : 0);
        if (w_.lse && e == 0) w_.lse[(b_ * size().heads + head(r)) * w_.lengths.queries + i] = most + logarithm(total);
      }
    }
  }

  const Work<T, Reach>& w_;
  const Sight& sight_;
  const int64_t b_;
  const int kv_;
  int lanes_ = 1, column_;  // of a team; the lane's columns
  Four<Real> q_[kRows], mix_[kRows];
  Real max_[kRows], sum_[kRows];
  int begin_[kRows], end_[kRows];
  Shared<Real> o_, max_of_, sum_of_;
};

}  // namespace attnkit::cuda::attend
#endif
