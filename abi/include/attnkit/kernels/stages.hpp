// Heads whose work comes in stages, each a loop over pieces that do not depend on each other.  With fewer heads than
// workers they share the pieces of one head after the other, else whole heads: the same bits either way.
#ifndef ATTNKIT_KERNELS_STAGES_HPP
#define ATTNKIT_KERNELS_STAGES_HPP
#include <attnkit/kernels/work.hpp>

namespace attnkit::simd {

// Bytes of scratch: of a head, for all its stages, and of a worker by itself, for one stage.
struct Staged {
  uint64_t head_bytes, own_bytes;
  template <class HeadParts, class OwnParts, class... Argument>
  static Staged measure(const Argument&... arguments) {
    return {Layout::measure<HeadParts>(arguments...), Layout::measure<OwnParts>(arguments...)};
  }
  uint64_t worker_bytes() const { return head_bytes + own_bytes; }
};

// Whole heads [begin, end); or pieces [begin, end) of one stage of one head, whose memory is `shared`.
template <class Head, class Job>
struct Stages {
  const Job& job;
  int64_t heads;
  uint64_t head_bytes;
  char* shared = nullptr;
  int64_t item = 0;
  int stage = 0;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa isa, int64_t begin, int64_t end, void* scratch) const {
    char* own = static_cast<char*>(scratch) + head_bytes;
    for (int64_t i = shared ? item : begin; i < (shared ? item + 1 : end); ++i) {
      const Head head(job, i / heads, i % heads, shared ? shared : scratch);
      for (int s = shared ? stage : 0; s < (shared ? stage + 1 : head.stages()); ++s)
        head(isa, s, shared ? begin : 0, shared ? end : head.pieces(s), own);
    }
  }
};

// A Head computes one head.  Every worker makes its own; memory is what they share:
//   Head(const Job&, int64_t b, int64_t h, void* memory);
//   int stages() const;                    0: there is nothing to do
//   int64_t pieces(int stage) const;
//   template <class Isa> void operator()(Isa, int stage, int64_t begin, int64_t end, void* own) const;
// flops: of a head.
template <class Head, class Job>
void for_stages(const attn_run& run, int64_t heads, double flops, const Staged& bytes, const Job& job) {
  const int64_t items = run.batch * heads;
  Stages<Head, Job> stages{job, heads, bytes.head_bytes};
  if (run.exec->workers == 1 || items >= static_cast<int64_t>(run.exec->workers)) {
    for_items(run, items, {flops, bytes.worker_bytes()}, stages);
    return;
  }
  stages.shared = static_cast<char*>(run.exec->scratch);
  for (stages.item = 0; stages.item < items; ++stages.item) {
    const Head head(job, stages.item / heads, stages.item % heads, stages.shared);
    for (stages.stage = 0; stages.stage < head.stages(); ++stages.stage) {
      const int64_t pieces = head.pieces(stages.stage);
      const double each = flops / static_cast<double>(head.stages() * std::max<int64_t>(pieces, 1));
      for_items(run, pieces, {each, bytes.own_bytes}, stages);
    }
  }
}

}  // namespace attnkit::simd
#endif
