// How a run is shared among workers: its items, each computed by one worker in scratch of its own.
#ifndef ATTNKIT_KERNELS_WORK_HPP
#define ATTNKIT_KERNELS_WORK_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// Items [begin, end) of a run, for one worker: the base of a body that dispatch compiles three times.
// Job: what all workers read; it has `run`, and `plan.worker_bytes` of scratch for each of them.
template <class Job>
struct Work {
  const Job& job;
  int64_t begin, end;
  uint32_t worker;

  Work(const Job& j, int64_t from, int64_t to, uint32_t w) : job(j), begin(from), end(to), worker(w) {}
  ATTNKIT_INLINE char* scratch() const {
    return static_cast<char*>(job.run.exec->scratch) + worker * job.plan.worker_bytes;
  }
  ATTNKIT_INLINE float* floats() const { return reinterpret_cast<float*>(scratch()); }
};

// Items that are the heads of all batch rows: calls Body's one<Isa>(b, h).  Job has `shape.heads`.
template <class Body, class Job>
struct HeadWork : Work<Job> {
  using Work<Job>::Work;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const int64_t heads = this->job.shape.heads;
    for (int64_t item = this->begin; item < this->end; ++item)
      static_cast<const Body*>(this)->template one<Isa>(item / heads, item % heads);
  }
};

// Runs Body over n items of about this many flops each.
template <class Body, class Job>
void share(const Job& job, int64_t n, double flops) {
  const auto task = [](uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
    dispatch(Body(*reinterpret_cast<const Job*>(arg), begin, end, worker));
  };
  attnkit::for_each(*job.run.exec, n, flops, task, &job);
}

// Over the heads of all batch rows.
template <class Body, class Job>
void share_heads(const Job& job, double flops) {
  share<Body>(job, job.run.batch * job.shape.heads, flops);
}

}  // namespace attnkit::simd
#endif
