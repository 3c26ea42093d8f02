// attnkit.h: one mechanism by itself.
#include <algorithm>
#include <cstring>

#include "core/api/block_check.hpp"
#include "core/api/handles.hpp"
#include "core/base/text.hpp"

using namespace attnkit;

namespace {

const Mechanism& of(const attnkit_block* block) {
  require(block, "block");
  return *block->mechanism;
}

const attn_request& checked(const attn_request* request) {
  require(request, "request");
  if (request->struct_size < sizeof(attn_request))
    fail(ATTN_INVALID, "request.struct_size {} is below {}", request->struct_size, sizeof(attn_request));
  for (const int64_t bound : {request->batch, request->queries, request->keys, request->past})
    if (bound < 0 || bound > (int64_t{1} << 40)) fail(ATTN_INVALID, "request: bound {} is outside 0 to 2^40", bound);
  if (request->workers < 1 || request->workers > 4096)
    fail(ATTN_INVALID, "request: {} workers, possible are 1 to 4096", request->workers);
  return *request;
}

Plan plan_of(const attnkit_block* block, const attn_request& request) {
  constexpr size_t most_plans = 16;
  attn_request key = request;
  key.struct_size = sizeof key;
  std::lock_guard lock(block->mutex);
  for (const Plan& plan : block->plans)
    if (std::memcmp(&plan.request(), &key, sizeof key) == 0) return plan;
  if (block->plans.size() == most_plans) block->plans.erase(block->plans.begin());
  block->plans.push_back(of(block).plan(key));
  return block->plans.back();
}

attn_block checked(const attn_block* where) {
  require(where, "where");
  if (where->struct_size < sizeof(attn_block))
    fail(ATTN_INVALID, "block.struct_size {} is below {}", where->struct_size, sizeof(attn_block));
  if (where->role < ATTN_ENCODER_SELF || where->role > ATTN_DECODER_CROSS)
    fail(ATTN_INVALID, "block.role {}: 1 to 3 are possible", where->role);
  if (where->heads < 1 || where->d_model < 1 || where->head_width < 1 ||
      static_cast<uint32_t>(where->d_model) % where->heads)
    fail(ATTN_INVALID,
         "block: {} heads of d_model {} and head width {}: heads must divide d_model, widths must be positive",
         where->heads, where->d_model, where->head_width);
  if (where->causal > 1 || (where->causal && where->role == ATTN_DECODER_CROSS))
    fail(ATTN_INVALID, "block.causal {}: 0, or 1 for self attention", where->causal);
  attn_block block = *where;
  block.struct_size = sizeof(attn_block);
  return block;
}

}  // namespace

int32_t attnkit_block_create(attnkit_runtime* runtime, const char* mechanism, const attn_block* where,
                             const char* options_toml, attnkit_block** block, attn_error* err) {
  return guard(err, [&] {
    require(runtime, "runtime");
    require(mechanism, "mechanism");
    require(block, "block");
    const attn_block checked_where = checked(where);
    const Registry& registry = runtime->runtime->registry;
    const Plugin* plugin = registry.find(mechanism, runtime->runtime->device_type);
    if (!plugin) {
      const std::vector<std::string> names = registry.names(runtime->runtime->device_type);
      fail(ATTN_INVALID, "no mechanism \"{}\" was found{}", mechanism, did_you_mean(mechanism, names));
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
    require(tensor, "tensor");
    const Mechanism& m = of(block);
    if (port >= m.ports().size()) fail(ATTN_INVALID, "port {}: this mechanism has {}", port, m.ports().size());
    m.fill(port, seed, *tensor);
  });
}

int32_t attnkit_block_plan(const attnkit_block* block, const attn_request* request, attn_info* info, attn_error* err) {
  return guard(err, [&] {
    require(info, "info");
    attn_info full = of(block).ask(checked(request));
    full.struct_size = info->struct_size;
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
  });
}

int32_t attnkit_block_run(const attnkit_block* block, const attn_request* request, const attn_run* run,
                          attn_error* err) {
  return guard(err, [&] {
    require(run, "run");
    require(block, "block");
    const Plan plan = plan_of(block, checked(request));
    check_run(of(block), plan, *run);
    if (run->exec) return plan.run(*run);
    Buffer scratch;
    const attn_exec exec = block->runtime->threads.exec(
        scratch.get<char>(static_cast<int64_t>(plan.info().scratch_bytes)), plan.info().scratch_bytes);
    if (exec.workers > request->workers)
      fail(ATTN_INVALID, "request.workers {} is below the runtime's {} threads", request->workers, exec.workers);
    attn_run with_exec = *run;
    with_exec.exec = &exec;
    plan.run(with_exec);
  });
}

int32_t attnkit_block_backward(const attnkit_block* block, const attn_request* request, const attn_grad* grad,
                               attn_error* err) {
  return guard(err, [&] {
    require(grad, "grad");
    require(grad->run, "grad.run");
    require(grad->run->exec, "grad.run.exec");
    require(block, "block");
    const Plan plan = plan_of(block, checked(request));
    check_run(of(block), plan, *grad->run);
    plan.backward(*grad);
  });
}
