// The checks of the contract that are the same for every plugin; included by plugin.hpp, not by authors.
#ifndef ATTNKIT_PLUGIN_CHECK_HPP
#define ATTNKIT_PLUGIN_CHECK_HPP

namespace attnkit::check {

inline bool has_bits(uint32_t flags, uint32_t bits) { return (flags & bits) != 0; }

inline void block(const attn_block& b) {
  if (!ATTN_HAS(attn_block, &b, head_width)) throw invalid("attn_block is shorter than its first version");
  if (b.heads == 0 || b.d_model <= 0 || b.head_width <= 0 || b.d_model % static_cast<int64_t>(b.heads) != 0)
    throw invalid("a block of d_model ", b.d_model, ", ", b.heads, " heads and head width ", b.head_width,
                  " is impossible: heads must divide d_model and all be positive");
}

inline void request(const attn_request& r, int32_t device_type) {
  if (!ATTN_HAS(attn_request, &r, past)) throw invalid("attn_request is shorter than its first version");
  if (r.batch < 0 || r.queries < 0 || r.keys < 0 || r.past < 0 || r.workers == 0)
    throw invalid("a request has a negative bound or no worker");
  if (has_bits(r.flags, ATTN_STREAM) && has_bits(r.flags, ATTN_PREFIX))
    throw invalid("ATTN_PREFIX excludes ATTN_STREAM: a stream shows keys by appending them");
  if (has_bits(r.flags, ATTN_TRAIN)) throw unsupported("it has no backward pass yet: run it without ATTN_TRAIN");
  if (r.device_type != device_type)
    throw unsupported("this library runs on device type ", device_type, " and was asked for ", r.device_type,
                      ": load the variant of the mechanism for that device");
}

// Refuses whatever is not f32, for mechanisms that compute nothing else.
inline void only_f32(const attn_request& r) {
  if (r.dtype_code != 2 || r.dtype_bits != 32 || r.dtype_lanes != 1)
    throw unsupported("it computes in f32 only and was asked for ", int{r.dtype_bits}, "-bit elements of DLPack code ",
                      int{r.dtype_code}, ": run this block in f32");
}

inline bool is_sequence(const attn_port& p) { return p.kind <= ATTN_OUTPUT; }

inline bool is_aux(const attn_port& p) { return p.kind == ATTN_AUX_IN || p.kind == ATTN_AUX_OUT; }

inline int64_t rows_of(const attn_port& p, const attn_run& run) { return p.kind == ATTN_KEY ? run.keys : run.queries; }

inline bool fits(const attn_port& p, const attn_tensor& t, const attn_request& r, const attn_run& run) {
  if (t.ndim != p.ndim || t.dtype_lanes != 1 || t.device_type != r.device_type) return false;
  const bool typed = p.dtype_bits != 0;
  if (t.dtype_code != (typed ? p.dtype_code : r.dtype_code) || t.dtype_bits != (typed ? p.dtype_bits : r.dtype_bits))
    return false;
  if (t.stride[t.ndim - 1] != 1 && t.shape[t.ndim - 1] > 1) return false;
  for (uint32_t i = 0; i < t.ndim; ++i) {
    int64_t want = p.shape[i];
    if ((is_sequence(p) || is_aux(p)) && i == 0) want = run.batch;
    if (is_sequence(p) && i == 2) want = rows_of(p, run);
    if (is_aux(p) && i == 2 && want == 0) continue;  // the host knows how many rows there are
    if (t.shape[i] != want) return false;
  }
  const bool empty = is_sequence(p) && (run.batch == 0 || rows_of(p, run) == 0);
  return t.data != nullptr || empty || p.kind == ATTN_AUX_IN;
}

inline void sizes(const attn_request& r, const attn_run& run) {
  const struct {
    const char* name;
    int64_t is, bound;
  } all[] = {{"batch", run.batch, r.batch}, {"queries", run.queries, r.queries}, {"keys", run.keys, r.keys}};
  for (const auto& size : all)
    if (size.is < 0 || size.is > size.bound)
      throw invalid("a run has ", size.is, " ", size.name, " and its plan allows 0 to ", size.bound);
}

inline void memory(const attn_request& r, const attn_info& info, const attn_run& run) {
  const attn_exec* exec = run.exec;
  if (exec == nullptr || exec->workers == 0 || exec->workers > r.workers)
    throw invalid("a run has ", exec ? exec->workers : 0u, " workers and its plan allows 1 to ", r.workers);
  if (exec->scratch_bytes < info.scratch_bytes || (info.scratch_bytes && !exec->scratch) ||
      reinterpret_cast<uintptr_t>(exec->scratch) % ATTN_ALIGN != 0)
    throw invalid("a run brings ", exec->scratch_bytes, " bytes of scratch and its plan needs ", info.scratch_bytes,
                  ", aligned to ", ATTN_ALIGN);
  if (run.batch == 0) return;
  if (has_bits(r.flags, ATTN_STREAM) != (run.state != nullptr))
    throw invalid("a run brings state if and only if its plan was made with ATTN_STREAM");
  if (run.state != nullptr && (run.state_stride < info.state_bytes || run.state_stride % ATTN_ALIGN != 0 ||
                               reinterpret_cast<uintptr_t>(run.state) % ATTN_ALIGN != 0))
    throw invalid("state rows are ", run.state_stride, " bytes apart and need ", info.state_bytes, ", aligned to ",
                  ATTN_ALIGN);
}

// Everything a run must satisfy before a mechanism reads it; costs tens of nanoseconds and writes nothing.
inline void run(const std::vector<const attn_port*>& ports, const attn_request& r, const attn_info& info,
                const attn_run& run) {
  if (!ATTN_HAS(attn_run, &run, saved)) throw invalid("attn_run is shorter than its first version");
  sizes(r, run);
  memory(r, info, run);
  for (size_t i = 0; i < ports.size(); ++i)
    if (!fits(*ports[i], run.ports[i], r, run))
      throw Refusal(ATTN_INVALID,
                    say("the tensor of port \"", ports[i]->name,
                        "\" differs from its declaration in shape, type or device, or its last stride is not 1"),
                    static_cast<int32_t>(i));
  if (run.batch == 0) return;
  if (has_bits(r.flags, ATTN_PREFIX) != (run.visible != nullptr) && run.queries > 0)
    throw invalid("a run brings visible if and only if its plan was made with ATTN_PREFIX");
  if (has_bits(r.flags, ATTN_KNOWS_Q_TOTAL) && run.q_total == nullptr)
    throw invalid("q_total is missing: the plan was made with ATTN_KNOWS_Q_TOTAL");
  if (has_bits(r.flags, ATTN_KNOWS_K_TOTAL) && run.k_total == nullptr)
    throw invalid("k_total is missing: the plan was made with ATTN_KNOWS_K_TOTAL");
}

// Is t a contiguous CPU tensor as port p declares it?  Returns its number of elements, throws if not.
inline int64_t stored(const attn_port& p, const attn_tensor& t) {
  int64_t count = 1;
  bool ok = (p.kind == ATTN_LEARNED || p.kind == ATTN_TABLE) && t.data != nullptr && t.ndim == p.ndim &&
            t.device_type == 1 && t.dtype_code == p.dtype_code && t.dtype_bits == p.dtype_bits;
  for (int i = static_cast<int>(p.ndim) - 1; ok && i >= 0; --i) {
    ok = t.shape[i] == p.shape[i] && (t.stride[i] == count || t.shape[i] == 1);
    count *= p.shape[i];
  }
  if (!ok)
    throw invalid("port \"", p.name, "\" is not stored, or the tensor to fill is not a contiguous CPU one like it");
  return count;
}

}  // namespace attnkit::check
#endif
