// The causal form of Luna, one head of one batch row at a time.
#pragma once
#include "kernels.hpp"

namespace luna {

// What a row knows: pq, then per head the sums of A k^T and, untied, of A v^T, then how many rows of P count.
struct CausalMemory {
  float *pq, *keys, *values, *live;
  CausalMemory(float* base, const Shape& s) {
    pq = base;
    keys = pq + s.l * s.width();
    values = s.tied ? keys : keys + s.l * s.width();
    live = values + s.l * s.heads * s.values();
  }
  static int64_t floats(const Shape& s) { return s.l * (2 * s.width() + (s.tied ? 0 : s.heads * s.e)) + 1; }
};

struct CausalJob {
  const Shape& shape;
  const attn_run& run;
  float* scratch;
  int64_t worker_floats;
  char* memory;
  uint64_t stride;
  bool aux;  // P is a sequence of the run, else the learned one
  View<const float> p, q, k, v, pk;
  View<float> o;
  Dense pq;
  float scale;

  CausalMemory of(int64_t b) const {
    const int64_t slot = run.state && run.slots ? run.slots[b] : b;
    return {reinterpret_cast<float*>(memory + static_cast<uint64_t>(slot) * stride), shape};
  }
};

// Outputs [16 block, 16 block + 16) of pq of a row that begins.
struct Begin {
  const CausalJob& job;
  int64_t blocks;

  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t) const {
    const Shape& s = job.shape;
    const int64_t b = item / blocks, block = item % blocks;
    const Sight sight(job.run, b, true);
    if (sight.past > 0 || sight.fresh == 0) return;
    const CausalMemory memory = job.of(b);
    for (int64_t i = 0; i < s.l; ++i)
      project(job.p.row(b, 0, i), 1, s.width(), job.pq, job.scale, block * kLanes, memory.pq + i * s.width(),
              s.width());
    if (block == 0) *memory.live = static_cast<float>(job.aux && s.dynamic ? live_rows(job.p, b, s.l, s.width()) : s.l);
  }
};

struct Walk {
  const CausalJob& job;

  template <class Isa>
  ATTNKIT_INLINE void operator()(int64_t item, uint32_t worker) const {
    const Shape& s = job.shape;
    const int64_t b = item / s.heads, h = item % s.heads;
    const CausalMemory memory = job.of(b);
    const Sight sight(job.run, b, true);
    Head head{memory.pq + h * s.d, memory.keys + h * s.l * s.d, memory.values + h * s.l * s.values(),
              job.scratch + worker * job.worker_floats};
    if (!job.run.state) {
      std::memset(head.keys, 0, static_cast<size_t>(s.l * s.d) * sizeof(float));
      std::memset(head.values, 0, static_cast<size_t>(s.l * s.values()) * sizeof(float));
    }
    int64_t appended = 0;
    for (int64_t i = 0; i < job.run.queries; ++i) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      for (; seen > 0 && appended < seen - sight.past; ++appended) append(head, b, h, appended);
      const auto live = seen > 0 ? static_cast<int64_t>(*memory.live) : 0;
      if (live > 0)
        read(head, job.q.row(b, h, i), live, static_cast<float>(seen), job.o.row(b, h, i));
      else
        std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(s.values()) * sizeof(float));
    }
    for (; job.run.state && appended < sight.fresh; ++appended) append(head, b, h, appended);
  }

 private:
  struct Head {
    const float* pq;
    float *keys, *values, *weights;
  };

  // A_r = w(pq_r . pk), then A k^T and A v^T are added to the sums.
  ATTNKIT_INLINE void append(const Head& head, int64_t b, int64_t h, int64_t j) const {
    const Shape& s = job.shape;
    score(job.pk.row(b, h, j), head.pq, s.width(), s.l, s.d, head.weights);
    for (int64_t r = 0; r < s.l; r += kLanes) {
      Vec a = simd::at(head.weights + r).v;
      activate(s.map, a);
      simd::at(head.weights + r).v = a;
    }
    add(head.weights, job.k.row(b, h, j), s.d, head.keys);
    if (!s.tied) add(head.weights, job.v.row(b, h, j), s.e, head.values);
  }

  ATTNKIT_INLINE void add(const float* weights, const float* x, int64_t width, float* sums) const {
    for (int64_t r = 0; r < job.shape.l; ++r) {
      float* row = sums + r * width;
      const float a = weights[r];
      int64_t c = 0;
      for (; c + kLanes <= width; c += kLanes) simd::at(row + c).v += a * simd::at(x + c).v;
      for (; c < width; ++c) row[c] += a * x[c];
    }
  }

  // o = (1 / t) softmax((1 / t) scale q . sums of A k^T) sums of A v^T.
  ATTNKIT_INLINE void read(const Head& head, const float* q, int64_t live, float t, float* o) const {
    const Shape& s = job.shape;
    score(q, head.keys, s.d, live, s.d, head.weights);
    const float sum = exponentiate(head.weights, live, job.scale / t);
    mix(head.weights, head.values, s.values(), live, sum * t, s.values(), o);
  }
};

inline void run_causal(const CausalJob& job) {
  const Shape& s = job.shape;
  const attn_run& run = job.run;
  const int64_t blocks = (s.width() + kLanes - 1) / kLanes;
  bool begins = false;
  for (int64_t b = 0; b < run.batch && run.keys > 0; ++b) begins |= Sight(run, b, true).past == 0;
  const auto rows = static_cast<double>(s.l * s.width());
  if (begins) each(*run.exec, run.batch * blocks, 2 * kLanes * rows, Begin{job, blocks});
  const auto steps = static_cast<double>(2 * (run.keys + run.queries) * s.l * (s.d + s.values()));
  each(*run.exec, run.batch * s.heads, steps, Walk{job});
}

}  // namespace luna
