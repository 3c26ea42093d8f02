// The bidirectional form of Luna: the context is packed into P, the packed sequence is projected, queries unpack it.
#pragma once
#include "kernels.hpp"

namespace luna {

constexpr int64_t kTile = 64;  // keys whose scores are exponentiated at once

// What a row knows: of the pack softmax the sums of e^(s - m) v, m and the sums of e^(s - m) by head and row of P; then
// keys and, untied, values of the packed sequence; then P for the blocks that follow.
struct Memory {
  float *sums, *largest, *totals, *keys, *values, *p;
  Memory(float* base, const Shape& s) {
    sums = base;
    largest = sums + s.l * s.width();
    totals = largest + s.l * s.pack_heads;
    keys = totals + s.l * s.pack_heads;
    values = s.tied ? keys : keys + s.l * s.width();
    p = values + s.l * s.heads * s.values();
  }
  static int64_t floats(const Shape& s) {
    const int64_t values = s.tied ? 0 : s.l * s.heads * s.e;
    return s.l * (2 * s.width() + 2 * s.pack_heads) + values + (s.contextual ? s.l * s.width() : 0);
  }
};

struct PackJob {
  const Shape& shape;
  const attn_run& run;
  float *scratch, *pq, *packed;  // by worker; by row [l][width]; the same
  int64_t worker_floats;
  char* memory;
  uint64_t stride;
  View<const float> p, q, pk, pv;
  View<float> next, o;
  Dense to_pq, to_k, to_v;
  const float *norm_weight, *norm_bias;
  float pack_scale, scale;

  Memory of(int64_t b) const {
    const int64_t slot = run.state && run.slots ? run.slots[b] : b;
    return {reinterpret_cast<float*>(memory + static_cast<uint64_t>(slot) * stride), shape};
  }
  int64_t known(const Sight& sight) const { return sight.past + sight.fresh; }
  // Rows of P that count.
  int64_t live(const Sight& sight) const {
    return shape.dynamic ? std::min(shape.l, known(sight)) : known(sight) > 0 ? shape.l : 0;
  }
};

// Outputs [16 block, 16 block + 16) of pq.
struct PackQueries {
  const PackJob& job;
  int64_t blocks;
  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t) const {
    const int64_t b = item / blocks, width = job.shape.width(), l = job.shape.l;
    if (Sight(job.run, b, false).fresh == 0) return;
    for (int64_t i = 0; i < l; ++i)
      project(job.p.row(b, 0, i), 1, width, job.to_pq, job.pack_scale, item % blocks * kLanes,
              job.pq + (b * l + i) * width, width);
  }
};

// One head of the pack attention over the fresh keys of one batch row.
struct Pack {
  const PackJob& job;

  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t worker) const {
    const Shape& s = job.shape;
    const int64_t b = item / s.pack_heads, head = item % s.pack_heads, dp = s.width() / s.pack_heads;
    const Sight sight(job.run, b, false);
    if (sight.fresh == 0) return;
    const Memory memory = job.of(b);
    float *sums = memory.sums + head * dp, *largest = memory.largest + head * s.l, *totals = memory.totals + head * s.l;
    if (sight.past == 0)
      for (int64_t i = 0; i < s.l; ++i) {
        std::fill(sums + i * s.width(), sums + i * s.width() + dp, 0.0f);
        largest[i] = std::numeric_limits<float>::lowest();
        totals[i] = 0;
      }
    float* scores = job.scratch + worker * job.worker_floats;
    float *key = scores + kTile * s.lanes(), *values = key + dp;
    const float* pq = job.pq + b * s.l * s.width() + head * dp;
    for (int64_t t = 0; t < sight.fresh; t += kTile) {
      const int64_t n = std::min(kTile, sight.fresh - t);
      for (int64_t j = 0; j < n; ++j) {
        gather(job.pk, b, t + j, head * dp, dp, key);
        gather(job.pv, b, t + j, head * dp, dp, values + j * dp);
        score(key, pq, s.width(), s.l, dp, scores + j * s.lanes());
      }
      for (int64_t r = 0; r < s.l; r += kLanes)
        rescale(scores + r, n, s.l - r, largest + r, totals + r, sums + r * s.width());
      constexpr int R = Isa::rows / 2;
      int64_t r = 0;
      for (; r + R <= s.l; r += R) add<R>(scores + r, values, n, dp, sums + r * s.width());
      for (; r < s.l; ++r) add<1>(scores + r, values, n, dp, sums + r * s.width());
    }
  }

 private:
  // Numbers [from, from + count) of a row whose heads need not lie beside each other.
  ATTNKIT_INLINE void gather(const View<const float>& view, int64_t b, int64_t j, int64_t from, int64_t count,
                             float* to) const {
    const int64_t d = job.shape.d;
    while (count > 0) {
      const int64_t n = std::min(count, d - from % d);
      std::memcpy(to, view.row(b, from / d, j) + from % d, static_cast<size_t>(n) * sizeof(float));
      from += n;
      to += n;
      count -= n;
    }
  }

  // Scores of n keys and 16 rows of P become e^(s - m), m the largest so far; what was summed shrinks to the new m.
  ATTNKIT_INLINE void rescale(float* scores, int64_t n, int64_t rows, float* largest, float* totals,
                              float* sums) const {
    const int64_t next = job.shape.lanes(), dp = job.shape.width() / job.shape.pack_heads;
    Vec old, total;
    simd::load(largest, rows, old);
    simd::load(totals, rows, total);
    Vec top = old;
    for (int64_t j = 0; j < n; ++j) {
      const Vec x = simd::at(scores + j * next).v;
      top = x > top ? x : top;
    }
    Vec factor = old - top;
    simd::exp(factor);
    total *= factor;
    for (int64_t j = 0; j < n; ++j) {
      Vec x = simd::at(scores + j * next).v - top;
      simd::exp(x);
      simd::at(scores + j * next).v = x;
      total += x;
    }
    simd::store(top, rows, largest);
    simd::store(total, rows, totals);
    for (int64_t r = 0; r < kLanes && r < rows; ++r)
      if (factor[r] != 1)
        for (int64_t c = 0; c < dp; ++c) sums[r * job.shape.width() + c] *= factor[r];
  }

  // Adds weight times value of n keys to R rows.
  template <int R>
  ATTNKIT_INLINE void add(const float* weights, const float* values, int64_t n, int64_t dp, float* sums) const {
    const int64_t next = job.shape.lanes(), width = job.shape.width();
    int64_t c = 0;
    for (; c + kLanes <= dp; c += kLanes) {
      Vec tile[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) tile[r] = simd::at(sums + r * width + c).v;
      for (int64_t j = 0; j < n; ++j) {
        const Vec v = simd::at(values + j * dp + c).v;
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) tile[r] += weights[j * next + r] * v;
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) simd::at(sums + r * width + c).v = tile[r];
    }
    for (; c < dp; ++c)
      for (int r = 0; r < R; ++r)
        for (int64_t j = 0; j < n; ++j) sums[r * width + c] += weights[j * next + r] * values[j * dp + c];
  }
};

// The packed sequence of one batch row, and P' = LN(packed + P): rows that do not count are zeros.
struct Finish {
  const PackJob& job;
  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t b, uint32_t) const {
    const Shape& s = job.shape;
    const Sight sight(job.run, b, false);
    if (sight.fresh == 0) return;
    const Memory memory = job.of(b);
    const int64_t width = s.width(), dp = width / s.pack_heads, live = job.live(sight);
    for (int64_t i = 0; i < s.l; ++i) {
      float* y = job.packed + (b * s.l + i) * width;
      for (int64_t c = 0; c < width; ++c) y[c] = memory.sums[i * width + c] / memory.totals[c / dp * s.l + i];
      if (s.contextual && i < live) normalise(y, job.p.row(b, 0, i), memory.p + i * width);
    }
    if (s.contextual) std::fill(memory.p + live * width, memory.p + s.l * width, 0.0f);
  }

 private:
  ATTNKIT_INLINE void normalise(const float* y, const float* p, float* out) const {
    const int64_t width = job.shape.width();
    double mean = 0, square = 0;
    for (int64_t c = 0; c < width; ++c) mean += double{y[c]} + p[c];
    mean /= static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) {
      const double x = (double{y[c]} + p[c]) - mean;
      square += x * x;
    }
    const double factor = 1 / std::sqrt(square / static_cast<double>(width) + 1e-5);
    for (int64_t c = 0; c < width; ++c)
      out[c] = static_cast<float>(((double{y[c]} + p[c]) - mean) * factor) * job.norm_weight[c] + job.norm_bias[c];
  }
};

// Sixteen outputs of the keys or values of the packed sequence.
struct PackedKeys {
  const PackJob& job;
  int64_t key_blocks, blocks;
  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t) const {
    const Shape& s = job.shape;
    const int64_t b = item / blocks, block = item % blocks;
    if (Sight(job.run, b, false).fresh == 0) return;
    const Memory memory = job.of(b);
    const float* packed = job.packed + b * s.l * s.width();
    if (block < key_blocks)
      project(packed, s.l, s.width(), job.to_k, 1, block * kLanes, memory.keys, s.width());
    else
      project(packed, s.l, s.width(), job.to_v, 1, (block - key_blocks) * kLanes, memory.values, s.heads * s.e);
  }
};

// One head of the queries of one batch row; head 0 also hands on P.
struct Unpack {
  const PackJob& job;
  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t worker) const {
    const Shape& s = job.shape;
    const int64_t b = item / s.heads, h = item % s.heads, e = s.values();
    const Sight sight(job.run, b, false);
    const Memory memory = job.of(b);
    const int64_t live = job.live(sight);
    float* weights = job.scratch + worker * job.worker_floats;
    for (int64_t i = 0; i < job.run.queries; ++i) {
      float* o = job.o.row(b, h, i);
      if (i >= sight.queries || live == 0) {
        std::memset(o, 0, static_cast<size_t>(e) * sizeof(float));
        continue;
      }
      score(job.q.row(b, h, i), memory.keys + h * s.d, s.width(), live, s.d, weights);
      const float sum = exponentiate(weights, live, job.scale);
      mix(weights, memory.values + h * e, s.heads * e, live, sum, e, o);
    }
    for (int64_t i = 0; s.contextual && h == 0 && i < s.l; ++i) {
      float* row = job.next.row(b, 0, i);
      if (job.known(sight) > 0)
        std::memcpy(row, memory.p + i * s.width(), static_cast<size_t>(s.width()) * sizeof(float));
      else
        std::memset(row, 0, static_cast<size_t>(s.width()) * sizeof(float));
    }
  }
};

inline void run_pack(const PackJob& job) {
  const Shape& s = job.shape;
  const attn_run& run = job.run;
  const attn_exec& exec = *run.exec;
  const auto rows = static_cast<double>(s.l * s.width());
  if (run.keys > 0) {
    const auto blocks_of = [](int64_t width) { return (width + kLanes - 1) / kLanes; };
    const int64_t keys = blocks_of(s.width()), values = s.tied ? 0 : blocks_of(s.heads * s.e);
    each(exec, run.batch * keys, 2 * kLanes * rows, PackQueries{job, keys});
    each(exec, run.batch * s.pack_heads, 4 * static_cast<double>(run.keys) * rows / static_cast<double>(s.pack_heads),
         Pack{job});
    each(exec, run.batch, 10 * rows, Finish{job});
    each(exec, run.batch * (keys + values), 2 * kLanes * rows, PackedKeys{job, keys, keys + values});
  }
  each(exec, run.batch * s.heads, static_cast<double>(2 * run.queries * s.l * (s.d + s.values())), Unpack{job});
}

}  // namespace luna
