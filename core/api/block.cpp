// attnkit.h: one mechanism by itself.
#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cmath>
#include <cstring>
#include <set>

#include "core/api/handles.hpp"
#include "core/api/overlap.hpp"
#include "core/base/text.hpp"

using namespace attnkit::core;

namespace {

const Mechanism& of(const attnkit_block* block) {
  require({{block, "block"}});
  return *block->mechanism;
}

const attn_request& checked(const attn_request* request) {
  require({{request, "request"}});
  require_size(*request, "request");
  for (const int64_t bound : {request->batch, request->queries, request->keys, request->past})
    if (bound < 0 || bound > (int64_t{1} << 40)) fail(ATTN_INVALID, "request: bound {} is outside 0 to 2^40", bound);
  if (request->workers < 1 || request->workers > 4096)
    fail(ATTN_INVALID, "request: {} workers, possible are 1 to 4096", request->workers);
  if (request->device_type != 1 && request->device_id < 0)
    fail(ATTN_INVALID, "request: device id {}, devices count from 0", request->device_id);
  return *request;
}

std::shared_ptr<const Plan> plan_of(const attnkit_block* block, const attn_request& request) {
  constexpr size_t max_plans = 16;
  attn_request key = request;
  key.struct_size = sizeof key;
  std::lock_guard lock(block->mutex);
  for (const auto& plan : block->plans)
    if (std::memcmp(&plan->request(), &key, sizeof key) == 0) return plan;
  if (block->plans.size() == max_plans) block->plans.erase(block->plans.begin());
  return block->plans.emplace_back(std::make_shared<const Plan>(of(block).plan(key)));
}

attn_block checked(const attn_block* where) {
  require({{where, "where"}});
  const attn_block block = whole_block(*where);
  if (block.role < ATTN_ENCODER_SELF || block.role > ATTN_DECODER_CROSS)
    fail(ATTN_INVALID, "block.role {}: 1 to 3 are possible", block.role);
  if (block.causal > 1 || (block.causal && block.role == ATTN_DECODER_CROSS))
    fail(ATTN_INVALID, "block.causal {}: 0, or 1 for self attention", block.causal);
  return block;
}

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
      fail(ATTN_INVALID, "port \"{}\" has stride {} in dimension {}: at least {} is needed", port.name, t.stride[d], d,
           d == port.ndim - 1 ? 1 : 0);
  }
  if (t.stride[port.ndim - 1] != 1 && t.shape[port.ndim - 1] > 1)
    fail(ATTN_INVALID, "port \"{}\": the innermost stride must be 1, not {}", port.name, t.stride[port.ndim - 1]);
  // f64 plans have f64 everywhere but in tables.
  const bool typed = port.dtype_bits && (port.kind == ATTN_TABLE || request.dtype_bits != 64);
  const uint8_t code = typed ? port.dtype_code : request.dtype_code,
                bits = typed ? port.dtype_bits : request.dtype_bits;
  if (t.dtype_code != code || t.dtype_bits != bits)
    fail(ATTN_INVALID, "port \"{}\" has element type {}:{}, not {}:{}", port.name, t.dtype_code, t.dtype_bits, code,
         bits);
  if (t.device_type != request.device_type)
    fail(ATTN_INVALID, "port \"{}\" is on device type {}, not {}", port.name, t.device_type, request.device_type);
  if (t.device_type != 1 && t.device_id != request.device_id)
    fail(ATTN_INVALID, "port \"{}\" is on device {}, the request is for device {}", port.name, t.device_id,
         request.device_id);
  if (t.dtype_lanes > 1) fail(ATTN_INVALID, "port \"{}\" has {} lanes an element, not 1", port.name, t.dtype_lanes);
  if (!t.data && !empty && port.kind != ATTN_AUX_IN) fail(ATTN_INVALID, "port \"{}\" has no data", port.name);
  if (bits >= 8 && reinterpret_cast<uintptr_t>(t.data) % (bits / 8u))
    fail(ATTN_INVALID, "the data of port \"{}\" is not aligned to its elements of {} bytes", port.name, bits / 8u);
}

// The tensor that a LEARNED or TABLE port is filled in.
void check_stored(const attn_port& port, const attn_tensor& t) {
  if (port.kind != ATTN_LEARNED && port.kind != ATTN_TABLE)
    fail(ATTN_INVALID, "port \"{}\" is not stored: only LEARNED and TABLE ports are filled", port.name);
  check_tensor(port, t, cpu_request(0, 1, 0, 0, 0, 0), {});
  const attn_tensor wanted = contiguous(port, nullptr);
  for (int d = 0; d < port.ndim; ++d)
    if (t.stride[d] != wanted.stride[d] && t.shape[d] > 1)
      fail(ATTN_INVALID, "port \"{}\" has stride {} in dimension {}, and is filled contiguously: {}", port.name,
           t.stride[d], d, wanted.stride[d]);
}

// skipped(kind, port): may this one be left out?
template <class Skipped>
void check_tensors(const Mechanism& mechanism, const attn_tensor* tensors, const attn_request& request,
                   const attn_run& run, Skipped&& skipped) {
  for (size_t i = 0; i < mechanism.ports().size(); ++i) {
    try {
      if (!skipped(mechanism.ports()[i]->kind, i)) check_tensor(*mechanism.ports()[i], tensors[i], request, run);
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), static_cast<int32_t>(i));
    }
  }
}

// Checks that outputs share no memory with anything else.
void check_outputs(const Mechanism& mechanism, const attn_tensor* tensors) {
  boost::container::small_vector<UsedTensor, 16> used;
  for (size_t i = 0; i < mechanism.ports().size(); ++i) {
    const attn_port& port = *mechanism.ports()[i];
    const bool written = port.kind == ATTN_OUTPUT || port.kind == ATTN_AUX_OUT;
    used.push_back({&tensors[i], port.name, written ? "the output " : "", written, static_cast<int32_t>(i)});
  }
  check_overlaps({used.data(), used.size()});
}

void check_lengths(const char* name, const int32_t* values, int64_t n, int64_t most) {
  for (int64_t b = 0; values && b < n; ++b)
    if (values[b] < 0 || values[b] > most)
      fail(ATTN_INVALID, "{}[{}] is {}, possible are 0 to {}", name, b, values[b], most);
}

// lens, rows: of each batch row, NULL for all; a row that has any is of no sequence of length 0.
void check_totals(const char* name, const double* values, const int32_t* lens, int64_t n, int64_t rows, bool promised) {
  if (promised && !values) fail(ATTN_INVALID, "the request promised {}, the run has none", name);
  for (int64_t b = 0; values && b < n; ++b) {
    if (!std::isfinite(values[b]) || values[b] < 0)
      fail(ATTN_INVALID, "{}[{}] is {}: must be finite and not negative", name, b, values[b]);
    if (promised && values[b] == 0 && (lens ? lens[b] : rows) > 0)
      fail(ATTN_INVALID, "{}[{}] is 0, and the row has tokens: say how long the whole sequence is", name, b);
  }
}

// Refuses rows that a plan with ATTN_WITHIN_TOTAL must not get.
void check_within(const attn_run& run) {
  for (int64_t b = 0; run.q_total && b < run.batch; ++b) {
    const int64_t end = (run.q_pos ? run.q_pos[b] : 0) + (run.q_len ? run.q_len[b] : run.queries);
    if (static_cast<double>(end) > run.q_total[b])
      fail(ATTN_INVALID, "row {}: query {} is beyond q_total {:g}, and the mechanism allows none beyond", b, end,
           run.q_total[b]);
  }
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
  if (!stream && run.slots) fail(ATTN_INVALID, "slots are places in a state, and this run has none: leave them NULL");
  if (!stream) return;
  if (run.visible) fail(ATTN_INVALID, "visible is for runs without state, and this one streams: leave it NULL");
  if (run.state_stride < info.state_bytes || run.state_stride % ATTN_ALIGN)
    fail(ATTN_INVALID, "state_stride {} must be a multiple of {} and at least {}", run.state_stride, ATTN_ALIGN,
         info.state_bytes);
  if (reinterpret_cast<uintptr_t>(run.state) % ATTN_ALIGN)
    fail(ATTN_INVALID, "state is not aligned to {} bytes", ATTN_ALIGN);
  // Mostly they rise, and then none comes twice.
  bool rises = true;
  for (int64_t b = 0; run.slots && b < run.batch; ++b) {
    if (run.slots[b] < 0) fail(ATTN_INVALID, "slots[{}] is {}: slots are counted from 0", b, run.slots[b]);
    rises &= b == 0 || run.slots[b - 1] < run.slots[b];
  }
  std::set<int32_t> seen;
  for (int64_t b = 0; !rises && run.keys > 0 && b < run.batch; ++b)
    if (!seen.insert(run.slots[b]).second)
      fail(ATTN_INVALID, "slots[{}]: rows that append may not share slot {}", b, run.slots[b]);
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

// The checks that the contract puts on the host before a run reaches a plugin.  Throws Error (ATTN_INVALID) naming the
// argument.
void check_run(const Mechanism& mechanism, const Plan& plan, const attn_run& run) {
  const attn_request& request = plan.request();
  require_size(run, "run");
  const auto bound = [](const char* name, int64_t value, int64_t most) {
    if (value < 0 || value > most) fail(ATTN_INVALID, "{} {} is outside the request's bound {}", name, value, most);
  };
  bound("batch", run.batch, request.batch);
  bound("queries", run.queries, request.queries);
  bound("keys", run.keys, request.keys);
  if (!run.ports) fail(ATTN_INVALID, "run.ports must not be NULL");
  check_tensors(mechanism, run.ports, request, run, [](uint32_t, size_t) { return false; });
  check_outputs(mechanism, run.ports);
  if ((request.flags & ATTN_TRAIN) && plan.info().saved_bytes && run.batch > 0 && !run.saved)
    fail(ATTN_INVALID, "run.saved must not be NULL under ATTN_TRAIN: the plan saves {} bytes", plan.info().saved_bytes);
  if ((request.flags & ATTN_TRAIN) && reinterpret_cast<uintptr_t>(run.saved) % ATTN_ALIGN)
    fail(ATTN_INVALID, "run.saved is not aligned to {} bytes", ATTN_ALIGN);
  // Per-row arrays of a CUDA run are device memory, which the host cannot look into.
  if (request.device_type != 1) return;
  const int64_t far = INT32_MAX;
  check_lengths("q_len", run.q_len, run.batch, run.queries);
  check_lengths("k_len", run.k_len, run.batch, run.keys);
  check_lengths("q_pos", run.q_pos, run.batch, far);
  check_lengths("k_pos", run.k_pos, run.batch, far);
  check_totals("q_total", run.q_total, run.q_len, run.batch, run.queries, request.flags & ATTN_KNOWS_Q_TOTAL);
  // The keys of self attention are of that sequence too.
  if (mechanism.block().role != ATTN_DECODER_CROSS)
    check_totals("q_total", run.q_total, run.k_len, run.batch, run.keys, request.flags & ATTN_KNOWS_Q_TOTAL);
  check_totals("k_total", run.k_total, run.k_len, run.batch, run.keys, request.flags & ATTN_KNOWS_K_TOTAL);
  if (plan.info().flags & ATTN_WITHIN_TOTAL) check_within(run);
  if ((request.flags & ATTN_PREFIX) && !run.visible)
    fail(ATTN_INVALID, "the request promised visible, the run has none");
  if (run.visible && run.queries > 0 && !(request.flags & ATTN_PREFIX))
    fail(ATTN_INVALID, "visible goes with ATTN_PREFIX and only with it");
  check_visible(run);
  check_state(request, plan.info(), run);
  check_order(mechanism, run);
}

void check_grads(const Mechanism& mechanism, const attn_request& request, const attn_grad& grad) {
  require_size(grad, "grad");
  if (!(request.flags & ATTN_TRAIN)) fail(ATTN_INVALID, "a gradient needs a request with ATTN_TRAIN");
  if (!grad.grads) fail(ATTN_INVALID, "grad.grads must not be NULL");
  const auto skipped = [&](uint32_t kind, size_t i) {
    return kind != ATTN_OUTPUT && kind != ATTN_AUX_OUT && !grad.grads[i].data;
  };
  check_tensors(mechanism, grad.grads, request, *grad.run, skipped);
  std::vector<UsedTensor> used;
  for (size_t i = 0; i < mechanism.ports().size(); ++i) {
    const attn_port& port = *mechanism.ports()[i];
    const bool given = port.kind == ATTN_OUTPUT || port.kind == ATTN_AUX_OUT;
    const auto index = static_cast<int32_t>(i);
    used.push_back({&grad.run->ports[i], port.name, "", false, index});
    if (port.kind != ATTN_TABLE) used.push_back({&grad.grads[i], port.name, "the gradient of ", !given, index});
  }
  check_overlaps(used);
}

void check_exec(const attn_request& request, const attn_exec& exec, uint64_t scratch_bytes) {
  require_size(exec, "exec");
  if (exec.workers < 1 || exec.workers > request.workers)
    fail(ATTN_INVALID, "exec.workers {}: the request allows 1 to {}", exec.workers, request.workers);
  if (exec.scratch_bytes < scratch_bytes)
    fail(ATTN_INVALID, "exec.scratch_bytes {} is below the {} that the plan needs", exec.scratch_bytes, scratch_bytes);
  if (scratch_bytes > 0 && !exec.scratch) fail(ATTN_INVALID, "exec.scratch must not be NULL");
  if (scratch_bytes > 0 && reinterpret_cast<uintptr_t>(exec.scratch) % ATTN_ALIGN)
    fail(ATTN_INVALID, "exec.scratch is not aligned to {} bytes", ATTN_ALIGN);
  if (request.device_type == 1 && !exec.parallel_for) fail(ATTN_INVALID, "exec.parallel_for must not be NULL");
}

// The library has no streams and no memory but the CPU's.
void require_exec(const attn_request& request, const attn_exec* exec) {
  if (request.device_type != 1) require({{exec, "run.exec of a device other than the CPU"}});
}

// run(exec) with the caller's exec, or with the runtime's threads and `scratch_bytes` of scratch where it brings none.
template <class Run>
void with_exec(const attnkit_block& block, const Plan& plan, const attn_exec* given, uint64_t scratch_bytes,
               Run&& run) {
  if (given) {
    check_exec(plan.request(), *given, scratch_bytes);
    return run(given);
  }
  // A small scratch stays with the thread, whose next call allocates nothing.  It is taken meanwhile: a run that this
  // one's threads begin finds none.
  constexpr uint64_t most_kept = 8 << 20;
  static thread_local Buffer kept;
  Buffer scratch;
  std::swap(scratch, kept);
  const attn_exec exec = block.runtime->threads.exec(plan.scratch(scratch, scratch_bytes), scratch_bytes);
  if (exec.workers > plan.request().workers)
    fail(ATTN_INVALID, "request.workers {} is below the runtime's {} threads", plan.request().workers, exec.workers);
  run(&exec);
  if (scratch.bytes() <= most_kept) std::swap(scratch, kept);
}

}  // namespace

int32_t attnkit_block_create(attnkit_runtime* runtime, const char* mechanism, const attn_block* where,
                             const char* options_toml, attnkit_block** block, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}, {mechanism, "mechanism"}, {block, "block"}});
    const attn_block checked_where = checked(where);
    const Registry& registry = runtime->runtime->registry;
    const Plugin* plugin = registry.find(mechanism, runtime->runtime->device_type);
    if (!plugin) {
      if (const SkippedFile* file = registry.skipped(mechanism))
        fail(ATTN_INVALID, "mechanism \"{}\" cannot be used: {}: {}", mechanism, file->path, file->reason);
      if (const Plugin* other = registry.find(mechanism, 3 - runtime->runtime->device_type))
        fail(ATTN_INVALID, "mechanism \"{}\" is here for {} alone: {}", mechanism,
             other->table.device_type == 2 ? "CUDA" : "the CPU", other->path);
      const std::vector<std::string> names = registry.names(runtime->runtime->device_type);
      const std::string hint = did_you_mean(mechanism, names);
      const std::string found = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
      fail(ATTN_INVALID, "no mechanism \"{}\"{}", mechanism, hint.empty() ? "; found: " + found : hint);
    }
    *block = new attnkit_block{
        runtime->runtime, Mechanism::create(*plugin, checked_where, read_options(*plugin, options_toml)), {}, {}};
  });
}

void attnkit_block_destroy(attnkit_block* block) { delete block; }

const attn_port* const* attnkit_block_ports(const attnkit_block* block, uint32_t* n) {
  if (n) *n = block ? static_cast<uint32_t>(block->mechanism->ports().size()) : 0;
  return block ? block->mechanism->raw_ports() : nullptr;
}

int32_t attnkit_block_fill(const attnkit_block* block, uint32_t port, uint64_t seed, const attn_tensor* tensor,
                           attn_error* err) {
  return guard(err, [&] {
    require({{tensor, "tensor"}});
    const Mechanism& m = of(block);
    if (port >= m.ports().size()) fail(ATTN_INVALID, "port {}: this mechanism has {}", port, m.ports().size());
    check_stored(*m.ports()[port], *tensor);
    m.fill(port, seed, *tensor);
  });
}

int32_t attnkit_block_plan(const attnkit_block* block, const attn_request* request, attn_info* info, attn_error* err) {
  return guard(err, [&] {
    require({{info, "info"}});
    require_size(*info, "info", offsetof(attn_info, scratch_bytes));
    attn_info full = of(block).ask(checked(request));
    full.struct_size = info->struct_size;
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
  });
}

int32_t attnkit_block_run(const attnkit_block* block, const attn_request* request, const attn_run* run,
                          attn_error* err) {
  return guard(err, [&] {
    require({{run, "run"}, {block, "block"}});
    const std::shared_ptr<const Plan> kept = plan_of(block, checked(request));
    const Plan& plan = *kept;
    require_exec(plan.request(), run->exec);
    check_run(of(block), plan, *run);
    with_exec(*block, plan, run->exec, plan.info().scratch_bytes, [&](const attn_exec* exec) {
      attn_run ready = *run;
      ready.struct_size = sizeof ready;  // the caller's may be longer
      ready.exec = exec;
      plan.run(ready);
    });
  });
}

int32_t attnkit_block_backward(const attnkit_block* block, const attn_request* request, const attn_grad* grad,
                               attn_error* err) {
  return guard(err, [&] {
    require({{grad, "grad"}});
    require({{grad->run, "grad.run"}, {block, "block"}});
    const std::shared_ptr<const Plan> kept = plan_of(block, checked(request));
    const Plan& plan = *kept;
    require_exec(plan.request(), grad->run->exec);
    check_run(of(block), plan, *grad->run);
    check_grads(of(block), plan.request(), *grad);
    with_exec(*block, plan, grad->run->exec, plan.info().backward_scratch_bytes, [&](const attn_exec* exec) {
      attn_run ready = *grad->run;
      ready.struct_size = sizeof ready;
      ready.exec = exec;
      attn_grad gradient = *grad;
      gradient.struct_size = sizeof gradient;
      gradient.run = &ready;
      plan.backward(gradient);
    });
  });
}
