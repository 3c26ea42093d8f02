#include "core/plugin/mechanism.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

namespace attnkit {
namespace {

constexpr uint32_t max_ports = 256;
constexpr int64_t max_extent = int64_t{1} << 31;

// An exception that crosses the boundary is the plugin's fault; it must not become the host's crash.
template <class Call>
void call(const std::string& name, Call&& body) {
  attn_error err = empty_error();
  int32_t code = ATTN_INTERNAL;
  try {
    code = body(&err);
  } catch (const std::exception& e) {
    fail(ATTN_INTERNAL, "{}: threw an exception across the C boundary ({}): the plugin is faulty", name, e.what());
  } catch (...) {
    fail(ATTN_INTERNAL, "{}: threw an exception across the C boundary: the plugin is faulty", name);
  }
  check_plugin(code, err, name);
}

bool is_port_name(const char* s) {
  return s && *s &&
         std::string_view(s).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
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

bool is_sequence(const attn_port& p) { return p.kind == ATTN_QUERY || p.kind == ATTN_KEY || p.kind == ATTN_OUTPUT; }

// Bytes and flops are 64-bit numbers: a request that would not fit them is refused, so that no plugin's product wraps.
void check_magnitude(const attn_block& b, const std::vector<const attn_port*>& ports, const attn_request& r) {
  const long double rows = static_cast<long double>(r.batch) * b.heads,
                    keys = static_cast<long double>(r.past) + r.keys + 1;
  const long double d = static_cast<long double>(b.d_model) / b.heads + 8,
                    e = static_cast<long double>(b.head_width) + 8;
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
  self->block_ = block;
  call(plugin.name,
       [&](attn_error* err) { return plugin.table.create(&block, values.data(), &mech, &self->raw_ports_, &n, err); });
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
  const auto faulty = [&](size_t i, const char* what) {
    fail(ATTN_INTERNAL, "{}: port {} {}: the plugin is faulty", plugin_->name, i, what);
  };
  int outputs = 0, inputs = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < ports_.size(); ++i) {
    const attn_port* p = ports_[i];
    if (!p || p->struct_size < first_port_size) faulty(i, "is NULL or too small");
    if (!is_port_name(p->name)) faulty(i, "has no name of [a-z0-9_]");
    // A sequence that a block takes in and gives out again has one name on both sides.
    if (!names.insert((p->kind == ATTN_AUX_OUT ? "out " : "") + std::string(p->name)).second)
      faulty(i, "has the name of another port");
    if (p->kind < ATTN_QUERY || p->kind > ATTN_AUX_OUT) faulty(i, "has an unknown kind");
    if (p->ndim < 1 || p->ndim > 4) faulty(i, "has no 1 to 4 dimensions");
    if (is_sequence(*p) &&
        (p->ndim != 4 || p->shape[1] < 1 || p->shape[1] > max_extent || p->shape[3] < 1 || p->shape[3] > max_extent))
      faulty(i, "is a sequence without heads and width");
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

int Mechanism::port(const char* name) const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (std::string(ports_[i]->name) == name) return static_cast<int>(i);
  return -1;
}

void Mechanism::check(const attn_request& request) const {
  check_magnitude(block_, ports_, request);
  if ((request.flags & ATTN_TRAIN) && !plugin_->table.backward)
    fail(ATTN_UNSUPPORTED, "{}: has no backward pass, so it cannot be trained: run it without gradients",
         plugin_->name);
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
  return result;
}

attn_info Mechanism::ask(const attn_request& request) const {
  check(request);
  attn_info info{};
  info.struct_size = sizeof info;
  call(plugin_->name, [&](attn_error* err) { return plugin_->table.plan(mech_.get(), &request, &info, nullptr, err); });
  return info;
}

void Mechanism::fill(uint32_t port, uint64_t seed, const attn_tensor& tensor) const {
  if (!plugin_->table.fill) fail(ATTN_UNSUPPORTED, "{}: cannot initialise its tensors", plugin_->name);
  call(plugin_->name, [&](attn_error* err) { return plugin_->table.fill(mech_.get(), port, seed, &tensor, err); });
}

}  // namespace attnkit
