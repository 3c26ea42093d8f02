#include "core/api/block_check.hpp"

#include <cmath>
#include <set>

namespace attnkit {
namespace {

void check_tensor(const attn_port& port, const attn_tensor& t, const attn_request& request, const attn_run& run) {
  const bool sequence = port.kind == ATTN_QUERY || port.kind == ATTN_KEY || port.kind == ATTN_OUTPUT;
  const bool aux = port.kind == ATTN_AUX_IN || port.kind == ATTN_AUX_OUT;
  if (t.ndim != port.ndim) fail(ATTN_INVALID, "port \"{}\" has {} dimensions, not {}", port.name, t.ndim, port.ndim);
  const int64_t rows = port.kind == ATTN_KEY ? run.keys : run.queries;
  bool empty = false;
  for (int d = 0; d < port.ndim; ++d) {
    int64_t want = port.shape[d];
    if ((sequence || aux) && d == 0) want = run.batch;
    if (sequence && d == 2) want = rows;
    if (t.shape[d] != want)
      fail(ATTN_INVALID, "port \"{}\" has size {} in dimension {}, not {}", port.name, t.shape[d], d, want);
    empty |= want == 0;
    if (t.stride[d] < (d == port.ndim - 1 ? 1 : 0))
      fail(ATTN_INVALID, "port \"{}\" has stride {} in dimension {}", port.name, t.stride[d], d);
  }
  if (t.stride[port.ndim - 1] != 1)
    fail(ATTN_INVALID, "port \"{}\": the innermost stride must be 1, not {}", port.name, t.stride[port.ndim - 1]);
  const uint8_t code = port.dtype_bits ? port.dtype_code : request.dtype_code,
                bits = port.dtype_bits ? port.dtype_bits : request.dtype_bits;
  if (t.dtype_code != code || t.dtype_bits != bits)
    fail(ATTN_INVALID, "port \"{}\" has element type {}:{}, not {}:{}", port.name, t.dtype_code, t.dtype_bits, code,
         bits);
  if (t.device_type != request.device_type)
    fail(ATTN_INVALID, "port \"{}\" is on device type {}, not {}", port.name, t.device_type, request.device_type);
  if (!t.data && !empty && port.kind != ATTN_AUX_IN) fail(ATTN_INVALID, "port \"{}\" has no data", port.name);
}

void check_lengths(const char* name, const int32_t* values, int64_t n, int64_t most) {
  for (int64_t b = 0; values && b < n; ++b)
    if (values[b] < 0 || values[b] > most)
      fail(ATTN_INVALID, "{}[{}] is {}, possible are 0 to {}", name, b, values[b], most);
}

void check_totals(const char* name, const double* values, int64_t n, bool promised) {
  if (promised && !values) fail(ATTN_INVALID, "the request promised {}, the run has none", name);
  for (int64_t b = 0; values && b < n; ++b)
    if (!std::isfinite(values[b]) || values[b] < 0)
      fail(ATTN_INVALID, "{}[{}] is {}: must be finite and not negative", name, b, values[b]);
}

void check_visible(const attn_run& run) {
  for (int64_t b = 0; run.visible && b < run.batch; ++b)
    for (int64_t i = 0, before = 0; i < run.queries; ++i) {
      const int64_t v = run.visible[b * run.queries + i];
      if (v < before || v > run.keys)
        fail(ATTN_INVALID, "visible[{},{}] is {}: must not fall nor exceed the {} keys", b, i, v, run.keys);
      before = v;
    }
}

void check_state(const attn_request& request, const attn_info& info, const attn_run& run) {
  const bool stream = request.flags & ATTN_STREAM;
  if (stream != (run.state != nullptr)) fail(ATTN_INVALID, "state goes with ATTN_STREAM and only with it");
  for (int64_t b = 0; !stream && run.k_pos && b < run.batch; ++b)
    if (run.k_pos[b] != 0)
      fail(ATTN_INVALID, "k_pos[{}] is {}: keys before a run are in its state, and this run has none", b, run.k_pos[b]);
  if (!stream) return;
  if (run.visible) fail(ATTN_INVALID, "visible is for runs without state");
  if (run.state_stride < info.state_bytes || run.state_stride % ATTN_ALIGN)
    fail(ATTN_INVALID, "state_stride {} must be a multiple of {} and at least {}", run.state_stride, ATTN_ALIGN,
         info.state_bytes);
  if (reinterpret_cast<uintptr_t>(run.state) % ATTN_ALIGN)
    fail(ATTN_INVALID, "state is not aligned to {} bytes", ATTN_ALIGN);
  std::set<int32_t> seen;
  for (int64_t b = 0; run.slots && b < run.batch; ++b) {
    if (run.slots[b] < 0) fail(ATTN_INVALID, "slots[{}] is {}", b, run.slots[b]);
    if (!seen.insert(run.slots[b]).second && run.keys > 0)
      fail(ATTN_INVALID, "slots[{}]: rows that append may not share slot {}", b, run.slots[b]);
  }
  const int64_t capacity = request.past + request.keys;
  for (int64_t b = 0; b < run.batch; ++b) {
    const int64_t past = run.k_pos ? run.k_pos[b] : 0, more = run.k_len ? run.k_len[b] : run.keys;
    if (past < 0 || past + more > capacity)
      fail(ATTN_INVALID, "row {}: {} keys after {} exceed the capacity {}", b, more, past, capacity);
  }
}

// A causal query must not ask for a past that the state has gone beyond.
void check_order(const Mechanism& mechanism, const attn_run& run) {
  for (int64_t b = 0; mechanism.block().causal && run.queries > 0 && b < run.batch; ++b) {
    const int64_t query = run.q_pos ? run.q_pos[b] : 0, key = run.k_pos ? run.k_pos[b] : 0;
    if (query + (run.keys == 0 ? 1 : 0) < key)
      fail(ATTN_INVALID, "row {}: a causal query at position {} is behind the {} keys before this run", b, query, key);
  }
}

}  // namespace

void check_run(const Mechanism& mechanism, const Plan& plan, const attn_run& run) {
  const attn_request& request = plan.request();
  if (run.struct_size < sizeof(attn_run))
    fail(ATTN_INVALID, "run.struct_size {} is below {}", run.struct_size, sizeof(attn_run));
  const auto bound = [](const char* name, int64_t value, int64_t most) {
    if (value < 0 || value > most) fail(ATTN_INVALID, "{} {} is outside the request's bound {}", name, value, most);
  };
  bound("batch", run.batch, request.batch);
  bound("queries", run.queries, request.queries);
  bound("keys", run.keys, request.keys);
  if (!run.ports) fail(ATTN_INVALID, "run.ports must not be NULL");
  for (size_t i = 0; i < mechanism.ports().size(); ++i) {
    try {
      check_tensor(*mechanism.ports()[i], run.ports[i], request, run);
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), static_cast<int32_t>(i));
    }
  }
  // Per-row arrays of a CUDA run are device memory, which the host cannot look into.
  if (request.device_type != 1) return;
  const int64_t far = INT32_MAX;
  check_lengths("q_len", run.q_len, run.batch, run.queries);
  check_lengths("k_len", run.k_len, run.batch, run.keys);
  check_lengths("q_pos", run.q_pos, run.batch, far);
  check_lengths("k_pos", run.k_pos, run.batch, far);
  check_totals("q_total", run.q_total, run.batch, request.flags & ATTN_KNOWS_Q_TOTAL);
  check_totals("k_total", run.k_total, run.batch, request.flags & ATTN_KNOWS_K_TOTAL);
  if ((request.flags & ATTN_PREFIX) && !run.visible)
    fail(ATTN_INVALID, "the request promised visible, the run has none");
  check_visible(run);
  check_state(request, plan.info(), run);
  check_order(mechanism, run);
}

}  // namespace attnkit
