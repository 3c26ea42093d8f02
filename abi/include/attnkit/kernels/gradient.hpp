// Common to backward passes: the type that a plan computes in, how their work is shared, transposed rows, and
// gradients of LEARNED ports.
//
// Their code is compiled once and leaves the arithmetic to simd::product and in_vectors, which choose instructions at
// run time: compiled three times as a whole, as runs are, it would take minutes.
#ifndef ATTNKIT_KERNELS_GRADIENT_HPP
#define ATTNKIT_KERNELS_GRADIENT_HPP
#include <attnkit/kernels/pack.hpp>
#include <attnkit/kernels/work.hpp>

namespace attnkit {

// Calls body with a zero of the type that a plan computes in.
template <class Body>
void with_real(bool is_f64, const Body& body) {
  if (is_f64)
    body(double{});
  else
    body(float{});
}

// Is this run one of an f64 plan?  output: a port of the plan's type.
inline bool is_f64(const attn_run& run, Port output) { return output.of(run.ports).dtype_bits == 64; }

// Runs f, a generic lambda of simd's Isa marked __attribute__((always_inline)), compiled for the machine's
// instructions.
template <class F>
struct InVectors {
  const F& f;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    f(Isa{});
  }
};
template <class Real, class F>
void in_vectors(const F& f) {
  simd::dispatch_real<Real>(InVectors<F>{f});
}

// Calls body(item, scratch) for n items; scratch: of the worker.
template <class Body>
void for_each_item(const attn_run& run, int64_t n, const simd::Each& each, const Body& body) {
  struct Job {
    const attn_run& run;
    uint64_t bytes;
    const Body& body;
  };
  const auto task = [](uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
    const auto& job = *reinterpret_cast<const Job*>(arg);
    for (int64_t item = begin; item < end; ++item)
      job.body(item, static_cast<char*>(job.run.exec->scratch) + worker * job.bytes);
  };
  const Job job{run, each.scratch_bytes, body};
  for_each(*run.exec, n, each.flops, task, &job);
}

// Calls body(b, h, scratch) for the heads of all batch rows.
template <class Body>
void for_each_head(const attn_run& run, int64_t heads, const simd::Each& each, const Body& body) {
  for_each_item(run, run.batch * heads, each,
                [&](int64_t item, void* scratch) { body(item / heads, item % heads, scratch); });
}

// to[f][i] = rows[i][f] for i < n and f < d, at to + f * next + i.  next: whole lanes of n at least, for what stands
// behind the n is overwritten up to a whole vector.
template <class Real>
void transpose_rows(const Real* rows, int64_t row, int64_t n, int64_t d, Real* to, int64_t next) {
  if constexpr (sizeof(Real) == sizeof(float))
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      simd::pack_keys<decltype(isa)>(
          n, d, [&](int64_t i) __attribute__((always_inline)) { return rows + i * row; }, to, next);
    });
  else
    for (int64_t i = 0; i < n; ++i)
      for (int64_t f = 0; f < d; ++f) to[f * next + i] = rows[i * row + f];
}

// The gradients of LEARNED ports as sums by (batch row, head), which are added up in the order of the rows: no number
// of workers changes a bit of them.
class Learned {
 public:
  // floats: of all heads, or, when each head has its own part of the tensor, of one.
  void add(Port port, int64_t floats, bool by_head) { parts_.push_back({port, floats, by_head}); }
  // Numbers of one (batch row, head): the ports one after another.
  int64_t floats() const {
    int64_t all = 0;
    for (const Part& part : parts_) all += part.floats;
    return all;
  }
  // Adds `sums`, [batch][heads][floats()], to the gradients that are not skipped.
  template <class Real>
  void collect(const attn_grad& grad, int64_t heads, const Real* sums) const {
    const int64_t each = floats();
    for (const Part& part : parts_) {
      const attn_tensor t = part.port.of(grad.grads);
      for (int64_t h = 0; t.data && h < heads; ++h)
        for (int64_t i = 0; i < part.floats; ++i) {
          Real sum = 0;
          for (int64_t b = 0; b < grad.run->batch; ++b) sum += sums[(b * heads + h) * each + i];
          *element<Real>(t, (part.by_head ? h * part.floats : 0) + i) += sum;
        }
      sums += part.floats;
    }
  }

 private:
  struct Part {
    Port port;
    int64_t floats;
    bool by_head;
  };
  // The i-th element of a tensor in the order of its dimensions.
  template <class Real>
  static Real* element(const attn_tensor& t, int64_t i) {
    Real* at = static_cast<Real*>(t.data);
    for (uint32_t n = t.ndim; n-- > 0; i /= t.shape[n]) at += i % t.shape[n] * t.stride[n];
    return at;
  }
  std::vector<Part> parts_;
};

}  // namespace attnkit
#endif
