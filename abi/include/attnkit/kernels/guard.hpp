// What mechanisms share besides their kernels: the guard of a denominator, and the refusals all of them make.
#ifndef ATTNKIT_KERNELS_GUARD_HPP
#define ATTNKIT_KERNELS_GUARD_HPP
#include <attnkit/plugin.hpp>
#include <cmath>

namespace attnkit {

// What stands under the fraction instead of the plain sum x of weights: x, x + eps, or max(x, eps).
struct Guard {
  enum Kind { kNone, kAdd, kClamp } kind = kClamp;
  float eps = 0;

  static Option option(const char* fallback) {
    return Option::text("guard", fallback, {"none", "add", "clamp"},
                        "denominator x becomes x (none), x + eps (add) or max(x, eps) (clamp); part of the model");
  }
  static Option eps_option(double fallback) {
    return Option::real("eps", fallback, 0, 1e6, "the guard's epsilon, absolute");
  }
  static Guard from(const Values& values) {
    const auto name = values.text("guard");
    return {name == "none" ? kNone : name == "add" ? kAdd : kClamp, static_cast<float>(values.real("eps"))};
  }
  // NaN stays NaN.
  inline __attribute__((always_inline)) float operator()(float x) const {
    if (kind == kNone) return x;
    if (kind == kAdd) return x + eps;
    return x < eps ? eps : x;
  }
};

// The option of mechanisms that may scale queries by D^-1/2 before their map, and its value for width d.
inline Option scale_option() {
  return Option::text(
      "scale", "none", {"none", "inverse_sqrt"},
      "multiplies queries by 1 (none) or D^-1/2 (inverse_sqrt) first; matters only where the guard bites");
}
inline float scale_from(const Values& values, int64_t d) {
  return values.text("scale") == "inverse_sqrt" ? static_cast<float>(1 / std::sqrt(static_cast<double>(d))) : 1.0f;
}

// Refuses requests that no position-wise f32 mechanism can serve in this block.
inline void check_sight(const attn_block& block, const attn_request& request) {
  check::only_f32(request);
  if (!block.causal && block.role != ATTN_DECODER_CROSS && (request.flags & ATTN_STREAM))
    throw unsupported(
        "bidirectional self attention cannot stream, its queries need keys that have not arrived: make the block "
        "causal "
        "or run whole sequences");
  if (block.causal && (request.flags & ATTN_PREFIX))
    throw unsupported("a causal block already says which keys a query sees: run it without ATTN_PREFIX");
}

// Which keys of one run row b knows and its queries see.  past: in the state; fresh: appended by this run.
struct Sight {
  int64_t queries, fresh, past;
  int64_t q_pos;
  const int32_t* visible;
  bool causal;

  Sight(const attn_run& run, int64_t b, bool is_causal)
      : queries(run.q_len ? run.q_len[b] : run.queries),
        fresh(run.k_len ? run.k_len[b] : run.keys),
        past(run.k_pos ? run.k_pos[b] : 0),
        q_pos(run.q_pos ? run.q_pos[b] : 0),
        visible(run.visible ? run.visible + b * run.queries : nullptr),
        causal(is_causal) {}
  // Number of keys that query i sees, past ones included.
  int64_t seen(int64_t i) const {
    const int64_t all = past + fresh;
    if (visible) return visible[i] < all ? visible[i] : all;
    if (!causal) return all;
    return q_pos + i + 1 < all ? q_pos + i + 1 : all;
  }
};

// Pairs of query and key that one run at the bounds of a request weighs.
inline uint64_t pairs(const attn_request& r, bool causal) {
  const int64_t all = r.past + r.keys;
  const int64_t hidden = causal ? std::min(r.queries, all) : 0;  // query i from the end misses i keys
  return static_cast<uint64_t>(r.batch * (r.queries * all - hidden * (hidden - 1) / 2));
}

inline uint64_t aligned(uint64_t bytes) { return (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN; }

// Runs task over [0, n): inline when all of it takes about as long as waking a thread.  flops: of one item.
inline void for_each(const attn_exec& exec, int64_t n, double flops, attn_task task, const void* arg) {
  constexpr double kWorthAThread = 2e5;
  const auto grain = static_cast<int64_t>(kWorthAThread / std::max(flops, 1.0)) + 1;
  const auto passed = reinterpret_cast<uintptr_t>(arg);
  if (n == 0) return;
  if (exec.workers == 1 || n <= grain)
    task(passed, 0, n, 0);
  else
    exec.parallel_for(exec.pool, n, grain, task, passed);
}

}  // namespace attnkit
#endif
