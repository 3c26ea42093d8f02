#include "core/plugin/mechanism.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <string_view>

#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr uint32_t max_ports = 256;
constexpr int64_t max_extent = int64_t{1} << 31;
constexpr size_t max_port_name = 255;

// An exception that crosses the boundary is the plugin's fault; it must not become the host's crash.
template <class Call>
void call(const std::string& name, Call&& body) {
  attn_error err = empty_error();
  int32_t code = ATTN_INTERNAL;
  try {
    code = body(&err);
  } catch (const std::exception& e) {
    fail(ATTN_INTERNAL, "{}: threw an exception across the C boundary ({}): the plugin is faulty", name,
         clean_line(e.what()));
  } catch (...) {
    fail(ATTN_INTERNAL, "{}: threw an exception across the C boundary: the plugin is faulty", name);
  }
  check_plugin(code, err, name);
}

bool is_port_name(const char* s) {
  if (!s) return false;
  const std::string_view name(s, strnlen(s, max_port_name + 1));
  return !name.empty() && name.size() <= max_port_name &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

// attn_port as version 1.0 had it, which every plugin gives at least.
constexpr size_t first_port_size = offsetof(attn_port, shape) + sizeof(attn_port::shape);

// For destroy and plan_free, which cannot report anything: a leak is better than the end of the process.
template <class T>
auto quietly(void (*free)(T*)) {
  return [free](T* p) {
    try {
      free(p);
    } catch (...) {
    }
  };
}

// Beyond this a size is garbage, and wraps when it is rounded up.
constexpr uint64_t max_answer = uint64_t{1} << 62;

void check_answer(const Plugin& plugin, const attn_info& info) {
  const std::pair<const char*, uint64_t> numbers[] = {{"scratch_bytes", info.scratch_bytes},
                                                      {"backward_scratch_bytes", info.backward_scratch_bytes},
                                                      {"saved_bytes", info.saved_bytes},
                                                      {"state_bytes", info.state_bytes},
                                                      {"flops", info.flops},
                                                      {"bytes_read", info.bytes_read},
                                                      {"bytes_written", info.bytes_written}};
  for (const auto& [what, number] : numbers)
    if (number > max_answer)
      fail(ATTN_INTERNAL, "{}: plan answered {} {}, at most {} are possible: the plugin is faulty", plugin.name, what,
           number, max_answer);
  // A plugin of a later minor may know more of them.
  const uint32_t unknown = info.flags & ~(ATTN_REWINDS | ATTN_WITHIN_TOTAL);
  if (unknown && plugin.table.abi_minor <= ATTN_ABI_MINOR)
    fail(ATTN_INTERNAL, "{}: plan answered the flags {:#x}, which its plugin.h lacks: the plugin is faulty",
         plugin.name, unknown);
}

bool is_sequence(const attn_port& p) { return p.kind == ATTN_QUERY || p.kind == ATTN_KEY || p.kind == ATTN_OUTPUT; }

// Bytes and flops are 64-bit numbers: a request that would not fit them is refused, so that no plugin's product wraps.
void check_magnitude(const attn_block& b, const std::vector<const attn_port*>& ports, const attn_request& r) {
  const long double rows = static_cast<long double>(r.batch) * b.heads,
                    keys = static_cast<long double>(r.past) + r.keys + 1;
  const long double d = static_cast<long double>(b.key_width) + 8, e = static_cast<long double>(b.head_width) + 8;
  const long double quadratic = (rows + 1) * (r.queries + 1) * keys * 4 * (d + e);
  const long double linear = (rows + b.heads) * (r.queries + keys) * 8 * d * e * (r.workers + 1);
  // Sizes that options choose (latents, features, rows of an auxiliary sequence) show in the ports.
  long double widest = 0;
  for (const attn_port* p : ports) {
    long double size = is_sequence(*p) ? p->shape[3] * (d + e) : 1;
    for (int i = 0; !is_sequence(*p) && i < p->ndim; ++i) size *= std::max<int64_t>(1, p->shape[i]);
    widest = std::max(widest, size);
  }
  const long double own = (rows + b.heads) * (r.queries + keys + r.workers) * 16 * widest;
  if (quadratic + linear + own > 0x1p62L)
    fail(ATTN_INVALID, "the sizes of this request do not fit 64 bits: lower its bounds or the widths of the block");
}

}  // namespace

attn_block whole_block(const attn_block& given) {
  constexpr uint32_t first_size = offsetof(attn_block, head_width) + sizeof(attn_block::head_width);
  if (given.struct_size < first_size)
    fail(ATTN_INVALID, "block.struct_size {} is below {}", given.struct_size, first_size);
  attn_block b{};
  std::memcpy(&b, &given, std::min<size_t>(given.struct_size, sizeof b));
  b.struct_size = sizeof b;
  if (b.heads < 1 || b.d_model < 1 || b.head_width < 1 || b.key_width < 0 ||
      (b.key_width == 0 && static_cast<uint32_t>(b.d_model) % b.heads != 0))
    fail(ATTN_INVALID,
         "block: {} heads of d_model {} and head width {}: heads must divide d_model, widths must be positive", b.heads,
         b.d_model, b.head_width);
  if (b.kv_heads == 0) b.kv_heads = b.heads;
  if (b.heads % b.kv_heads != 0) fail(ATTN_INVALID, "block: kv_heads {} does not divide heads {}", b.kv_heads, b.heads);
  if (b.key_width == 0) b.key_width = static_cast<int32_t>(static_cast<uint32_t>(b.d_model) / b.heads);
  if (int64_t{b.heads} * b.key_width > INT32_MAX)
    fail(ATTN_INVALID, "block: {} heads of width {} are wider than {}", b.heads, b.key_width, INT32_MAX);
  return b;
}

std::vector<OptionValue> default_options(const Plugin& plugin) {
  std::vector<OptionValue> values;
  for (uint32_t i = 0; i < plugin.table.n_options; ++i) {
    const attn_value& v = plugin.table.options[i]->fallback;
    values.push_back({v.type, v.i, v.f, v.type == ATTN_TEXT ? v.s : ""});
  }
  return values;
}

std::vector<attn_value> to_values(const std::vector<OptionValue>& options) {
  std::vector<attn_value> values;
  for (const OptionValue& o : options)
    values.push_back({o.type, 0, o.i, o.f, o.type == ATTN_TEXT ? o.s.c_str() : nullptr});
  return values;
}

attn_tensor contiguous(const attn_port& port, const void* data) {
  attn_tensor t{};
  t.data = const_cast<void*>(data);
  int64_t stride = 1;
  for (int d = port.ndim - 1; d >= 0; --d) {
    t.shape[d] = port.shape[d];
    t.stride[d] = stride;
    stride *= port.shape[d];
  }
  t.dtype_code = port.dtype_code;
  t.dtype_bits = port.dtype_bits;
  t.dtype_lanes = 1;
  t.ndim = port.ndim;
  t.device_type = 1;
  return t;
}

attn_request cpu_request(uint32_t flags, uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t past) {
  attn_request r{};
  r.struct_size = sizeof r;
  r.flags = flags;
  r.device_type = 1;
  r.dtype_code = 2;
  r.dtype_bits = 32;
  r.dtype_lanes = 1;
  r.workers = workers;
  r.batch = batch;
  r.queries = queries;
  r.keys = keys;
  r.past = past;
  return r;
}

char* Plan::scratch(Buffer& memory, uint64_t bytes) const {
  try {
    return memory.get<char>(static_cast<int64_t>(bytes));
  } catch (const std::bad_alloc&) {
    fail(ATTN_NO_MEMORY, "{}: needs {} bytes of scratch, more than there is: shorten the input or lower the batch",
         mechanism_->plugin().name, bytes);
  }
}

void Plan::run(const attn_run& run) const {
  const Plugin& p = mechanism_->plugin();
  call(p.name, [&](attn_error* err) { return p.table.run(plan_.get(), &run, err); });
}

void Plan::backward(const attn_grad& grad) const {
  const Plugin& p = mechanism_->plugin();
  if (!p.table.backward) fail(ATTN_UNSUPPORTED, "{}: has no backward pass", p.name);
  call(p.name, [&](attn_error* err) { return p.table.backward(plan_.get(), &grad, err); });
}

std::shared_ptr<const Mechanism> Mechanism::create(const Plugin& plugin, const attn_block& block,
                                                   const std::vector<OptionValue>& options) {
  const std::vector<attn_value> values = to_values(options);
  attn_mech* mech = nullptr;
  uint32_t n = 0;
  std::shared_ptr<Mechanism> self(new Mechanism);
  self->plugin_ = &plugin;
  self->block_ = whole_block(block);
  if (plugin.table.abi_minor < 1)
    self->block_.d_model = static_cast<int32_t>(self->block_.heads) * self->block_.key_width;
  call(plugin.name, [&](attn_error* err) {
    return plugin.table.create(&self->block_, values.data(), &mech, &self->raw_ports_, &n, err);
  });
  if (mech) self->mech_ = std::shared_ptr<attn_mech>(mech, quietly(plugin.table.destroy));
  if (!mech || !self->raw_ports_ || n == 0 || n > max_ports)
    fail(ATTN_INTERNAL,
         "{}: create succeeded without a mechanism or with {} ports (1 to {} are possible): the plugin is faulty",
         plugin.name, n, max_ports);
  self->ports_.assign(self->raw_ports_, self->raw_ports_ + n);
  self->check_ports();
  return self;
}

void Mechanism::check_ports() const {
  const auto faulty = [&](size_t i, const std::string& what) {
    fail(ATTN_INTERNAL, "{}: port {} {}: the plugin is faulty", plugin_->name, i, what);
  };
  int outputs = 0, inputs = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < ports_.size(); ++i) {
    const attn_port* p = ports_[i];
    if (!p || p->struct_size < first_port_size) faulty(i, "is NULL or too small");
    if (!is_port_name(p->name)) faulty(i, "has no name of [a-z0-9_], at most 255 bytes");
    // A sequence that a block takes in and gives out again has one name on both sides.
    if (!names.insert((p->kind == ATTN_AUX_OUT ? "out " : "") + std::string(p->name)).second)
      faulty(i, "has the name of another port");
    if (p->kind < ATTN_QUERY || p->kind > ATTN_AUX_OUT) faulty(i, "has an unknown kind");
    if (p->ndim < 1 || p->ndim > 4) faulty(i, "has no 1 to 4 dimensions");
    const bool is_f32 = p->dtype_code == 2 && p->dtype_bits == 32;
    const bool is_index = p->dtype_code == 0 && (p->dtype_bits == 32 || p->dtype_bits == 64);
    if ((p->kind == ATTN_LEARNED && !is_f32) || (p->kind == ATTN_TABLE && !is_f32 && !is_index))
      faulty(i, fmt::format("has elements of type {}:{}, and is stored as {}", p->dtype_code, p->dtype_bits,
                            p->kind == ATTN_LEARNED ? "f32 (2:32)" : "f32 (2:32), int32 (0:32) or int64 (0:64)"));
    if (p->kind >= ATTN_AUX_IN && (p->ndim != 4 || p->shape[0] != 0 || p->shape[1] != 1 || !is_f32))
      faulty(i, "is an auxiliary sequence and not (0, 1, rows, width) of f32");
    if (is_sequence(*p) &&
        (p->ndim != 4 || p->shape[1] < 1 || p->shape[1] > max_extent || p->shape[3] < 1 || p->shape[3] > max_extent))
      faulty(i, "is a sequence without heads and width");
    // The sequence itself has one head as wide as the model.
    if (p->kind != ATTN_OUTPUT && is_sequence(*p) && (p->flags & ATTN_RAW) &&
        (p->shape[1] != 1 || p->shape[3] != block_.d_model))
      faulty(i, fmt::format("is raw and has {} heads of width {}, not one of d_model {}", p->shape[1], p->shape[3],
                            block_.d_model));
    if (!is_sequence(*p)) {
      int64_t size = 1;
      for (int d = 0; d < p->ndim; ++d) {
        if (p->shape[d] < (p->kind >= ATTN_AUX_IN && d == 0 ? 0 : 1) || p->shape[d] > max_extent)
          faulty(i, "has an impossible shape");
        if (__builtin_mul_overflow(size, std::max<int64_t>(1, p->shape[d]), &size) || size > (int64_t{1} << 40))
          faulty(i, "has an impossible shape");
      }
    }
    outputs += p->kind == ATTN_OUTPUT;
    inputs += p->kind == ATTN_QUERY || p->kind == ATTN_KEY;
  }
  if (outputs != 1 || inputs == 0)
    fail(ATTN_INTERNAL, "{}: has {} outputs and {} inputs, not one and at least one: the plugin is faulty",
         plugin_->name, outputs, inputs);
}

int64_t Mechanism::key_heads() const {
  int64_t heads = block_.heads;
  for (const attn_port* p : ports_)
    if (p->kind == ATTN_KEY && !(p->flags & ATTN_RAW) && p->shape[1] == block_.kv_heads) heads = block_.kv_heads;
  return heads;
}

int Mechanism::port(const char* name) const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (std::string(ports_[i]->name) == name) return static_cast<int>(i);
  return -1;
}

void Mechanism::check(const attn_request& request) const {
  constexpr uint32_t known = ATTN_STREAM | ATTN_TRAIN | ATTN_PREFIX | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  if (request.flags & ~known)
    fail(ATTN_INVALID, "request.flags {:#x} are not those of plugin.h, the sum of which is {:#x}",
         request.flags & ~known, known);
  if (request.dtype_lanes > 1 || request.dtype_bits == 0 || request.dtype_bits % 8)
    fail(ATTN_INVALID, "request: elements of {} bits and {} lanes, possible are whole bytes and 1 lane",
         request.dtype_bits, request.dtype_lanes);
  if (request.past > 0 && !(request.flags & ATTN_STREAM))
    fail(ATTN_INVALID, "request.past {} without ATTN_STREAM: keys before a run are in its state", request.past);
  if ((request.flags & ATTN_PREFIX) && (request.flags & ATTN_STREAM))
    fail(ATTN_INVALID, "ATTN_PREFIX excludes ATTN_STREAM: a stream shows keys by appending them");
  if ((request.flags & ATTN_PREFIX) && block_.causal)
    fail(ATTN_UNSUPPORTED, "a causal block already says which keys a query sees: run it without ATTN_PREFIX");
  if (request.device_type != plugin_->table.device_type)
    fail(ATTN_UNSUPPORTED, "{}: computes on device type {} and was asked for {}: load its variant for that device",
         plugin_->name, plugin_->table.device_type, request.device_type);
  if ((request.flags & ATTN_TRAIN) && !plugin_->table.backward)
    fail(ATTN_UNSUPPORTED, "{}: has no backward pass, so it cannot be trained: run it without gradients",
         plugin_->name);
  if ((request.flags & ATTN_TRAIN) && (request.flags & ATTN_STREAM))
    fail(ATTN_UNSUPPORTED, "gradients are of whole sequences: plan without ATTN_STREAM to train");
  check_magnitude(block_, ports_, request);
}

Plan Mechanism::plan(const attn_request& request) const {
  check(request);
  Plan result;
  result.mechanism_ = shared_from_this();
  result.request_ = request;
  result.info_.struct_size = sizeof(attn_info);
  attn_plan* plan = nullptr;
  call(plugin_->name,
       [&](attn_error* err) { return plugin_->table.plan(mech_.get(), &request, &result.info_, &plan, err); });
  if (!plan) fail(ATTN_INTERNAL, "{}: plan succeeded without a plan: the plugin is faulty", plugin_->name);
  result.plan_ = std::shared_ptr<attn_plan>(plan, quietly(plugin_->table.plan_free));
  check_answer(*plugin_, result.info_);
  return result;
}

attn_info Mechanism::ask(const attn_request& request) const {
  check(request);
  attn_info info{};
  info.struct_size = sizeof info;
  call(plugin_->name, [&](attn_error* err) { return plugin_->table.plan(mech_.get(), &request, &info, nullptr, err); });
  check_answer(*plugin_, info);
  return info;
}

void Mechanism::fill(uint32_t port, uint64_t seed, const attn_tensor& tensor) const {
  if (!plugin_->table.fill) fail(ATTN_UNSUPPORTED, "{}: cannot initialise its tensors", plugin_->name);
  call(plugin_->name, [&](attn_error* err) { return plugin_->table.fill(mech_.get(), port, seed, &tensor, err); });
}

}  // namespace attnkit::core
