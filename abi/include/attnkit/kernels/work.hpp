// Shares a run among workers: its items, each computed by one worker in scratch of its own.
//
// A body is called as body(isa, begin, end, scratch), or per head as body(isa, b, h, scratch), isa being one of simd's,
// by which it is compiled three times: its operator() is a template marked ATTNKIT_INLINE, or a generic lambda marked
// __attribute__((always_inline)), and so is all that it calls.
#ifndef ATTNKIT_KERNELS_WORK_HPP
#define ATTNKIT_KERNELS_WORK_HPP
#include <attnkit/kernels/simd.hpp>
#include <attnkit/plugin.hpp>

namespace attnkit::simd {

// Items [begin, end) of a body, for one worker.
template <class Body>
struct Piece {
  const Body& body;
  int64_t begin, end;
  void* scratch;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    body(Isa{}, begin, end, scratch);
  }
};

// The cost of one item.
struct Each {
  double flops;
  uint64_t scratch_bytes;  // of each worker
};

// Runs body over n items.  Real: what it computes in; doubles by the baseline alone.
template <class Real = float, class Body>
void for_items(const attn_run& run, int64_t n, const Each& each, const Body& body) {
  struct Job {
    const attn_run& run;
    const Each& each;
    const Body& body;
  };
  const auto task = [](uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
    const auto& job = *reinterpret_cast<const Job*>(arg);
    dispatch_real<Real>(
        Piece<Body>{job.body, begin, end, static_cast<char*>(job.run.exec->scratch) + worker * job.each.scratch_bytes});
  };
  const Job job{run, each, body};
  attnkit::for_each(*run.exec, n, each.flops, task, &job);
}

// Runs body over the heads of all batch rows.
template <class Real = float, class Body>
void for_heads(const attn_run& run, int64_t heads, const Each& each, const Body& body) {
  const auto items = [&](auto isa, int64_t begin, int64_t end, void* scratch) __attribute__((always_inline)) {
    for (int64_t item = begin; item < end; ++item) body(isa, item / heads, item % heads, scratch);
  };
  for_items<Real>(run, run.batch * heads, each, items);
}

// Returns the heads of queries of one item where a head of keys is read and summed once for its whole group: the
// group, but for runs that append to no state and have fewer groups than workers.
inline int64_t heads_together(const attn_run& run, const Widths& w) {
  const bool appends = run.state != nullptr && run.keys > 0;
  return appends || run.batch * w.kv_heads >= static_cast<int64_t>(run.exec->workers) ? w.group() : 1;
}

}  // namespace attnkit::simd
#endif
