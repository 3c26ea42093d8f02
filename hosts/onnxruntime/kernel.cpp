#include "hosts/onnxruntime/kernel.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>

namespace attnkit::ort {

namespace {

// Inputs that are not ports: those of attn_run.
enum PerRow { q_len, k_len, q_pos, k_pos, q_total, k_total, visible, state, n_per_row };
constexpr std::array<const char*, n_per_row> per_row{"q_len",   "k_len",   "q_pos",   "k_pos",
                                                     "q_total", "k_total", "visible", "state"};

template <class... Parts>
[[noreturn]] void fail(int32_t code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(code, text.str());
}

const char* type_name(int type) {
  constexpr std::array<const char*, 17> names{"undefined", "float32", "uint8",     "int8",       "uint16",  "int16",
                                              "int32",     "int64",   "string",    "bool",       "float16", "float64",
                                              "uint32",    "uint64",  "complex64", "complex128", "bfloat16"};
  return type >= 0 && type < static_cast<int>(names.size()) ? names[static_cast<size_t>(type)] : "of another type";
}

// Attributes of a node: one that is there and of another type is no default.
class Attributes {
 public:
  Attributes(const Api& api, const KernelInfo* info) : api_(api), info_(info) {}

  std::optional<int64_t> integer(const char* name) const {
    int64_t value = 0;
    if (ok(api_.attribute_int(info_, name, &value))) return value;
    if (has(name)) fail(ATTN_INVALID, "attribute \"", name, "\" must be an integer");
    return {};
  }

  std::optional<std::string> text(const char* name) const {
    size_t bytes = 0;
    if (ok(api_.attribute_text(info_, name, nullptr, &bytes))) {
      std::string value(bytes, '\0');
      check(api_.attribute_text(info_, name, value.data(), &bytes));
      value.resize(bytes - 1);
      return value;
    }
    if (has(name)) fail(ATTN_INVALID, "attribute \"", name, "\" must be a string");
    return {};
  }

  int32_t size(const char* name, int64_t fallback) const {
    const int64_t value = integer(name).value_or(fallback);
    if (value < 0 || value > std::numeric_limits<int32_t>::max())
      fail(ATTN_INVALID, "attribute \"", name, "\" is ", value, ", possible are 0 to 2^31 - 1");
    return static_cast<int32_t>(value);
  }

 private:
  bool ok(Status* status) const {
    if (status) api_.release_status(status);
    return !status;
  }
  // The runtime has no such question, and fails to list an attribute's integers only where there is none.
  bool has(const char* name) const {
    size_t n = 0;
    return ok(api_.attribute_ints(info_, name, nullptr, &n));
  }

  const Api& api_;
  const KernelInfo* info_;
};

uint32_t role_of(const std::string& name) {
  constexpr std::array<const char*, 3> roles{"encoder.self", "decoder.self", "decoder.cross"};
  for (size_t i = 0; i < roles.size(); ++i)
    if (name == roles[i]) return static_cast<uint32_t>(i + 1);
  fail(ATTN_INVALID, "role \"", name, "\": one of encoder.self, decoder.self, decoder.cross is needed");
}

bool is_sequence(const attn_port& port) { return port.kind == ATTN_QUERY || port.kind == ATTN_KEY; }
bool is_written(const attn_port& port) { return port.kind == ATTN_OUTPUT || port.kind == ATTN_AUX_OUT; }

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

std::string shown(const std::vector<int64_t>& shape) {
  std::ostringstream all;
  all << "(";
  for (size_t d = 0; d < shape.size(); ++d) all << (d ? ", " : "") << shape[d];
  all << ")";
  return all.str();
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

// The process's, with the plugins of libattnkit's search path.  Never destroyed: kernels may outlive static objects,
// and plugins stay loaded anyway.  Its threads are not used.
const Runtime& runtime() {
  static const auto* const made = new Runtime(1);
  return *made;
}

// The threads of the session, as plugins see them.
struct Loop {
  const Api& api;
  const Context* context;
  uint32_t workers;

  struct Shared {
    std::atomic<int64_t> next;
    int64_t n, piece;
    attn_task fn;
    uintptr_t arg;

    void work(uint32_t worker) {
      for (int64_t begin; (begin = next.fetch_add(piece)) < n;) fn(arg, begin, std::min(n, begin + piece), worker);
    }
  };

  void parallel_for(int64_t n, int64_t grain, attn_task fn, uintptr_t arg) const {
    if (n <= 0) return;
    const int64_t most = n / std::max<int64_t>(grain, 1), pieces = std::min<int64_t>(most, 4 * workers);
    if (workers == 1 || pieces < 2) return fn(arg, 0, n, 0);
    Shared shared{0, n, n / pieces, fn, arg};
    // A worker is one call of the runtime's loop, whichever thread it is on.
    Status* status = api.parallel_for(
        context, [](void* all, size_t worker) { static_cast<Shared*>(all)->work(static_cast<uint32_t>(worker)); },
        std::min<size_t>(workers, static_cast<size_t>(pieces)), 0, &shared);
    if (!status) return;
    api.release_status(status);  // refused before it began
    shared.work(0);
  }
};

attn_exec exec_of(const Loop& loop, void* scratch, uint64_t bytes) {
  const auto call = [](uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
    reinterpret_cast<const Loop*>(pool)->parallel_for(n, grain, fn, arg);
  };
  return {sizeof(attn_exec), loop.workers, scratch, bytes, 0, reinterpret_cast<uintptr_t>(&loop), call};
}

// f32 as (batch, heads, rows, width); beside: in memory (batch, rows, heads * width).
attn_tensor view(void* data, int64_t batch, int64_t heads, int64_t rows, int64_t width, bool beside = false) {
  const int64_t row = beside ? heads * width : width, head = beside ? width : rows * width;
  return {data, {batch, heads, rows, width}, {heads * rows * width, head, row, 1}, 2, 32, 1, 4, 1, 0};
}

template <class T>
const T* pointer(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

void* Memory::reserve(uint64_t bytes) {
  if (bytes > size_) {
    bytes_.reset();
    size_ = 0;
    bytes_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{ATTN_ALIGN})));
    size_ = bytes;
  }
  return bytes_.get();
}

// The value that the graph gives for one input.
struct Kernel::Given {
  const std::string* name = nullptr;
  void* data = nullptr;
  int type = undefined;
  std::vector<int64_t> shape;

  std::string text() const { return shown(shape); }
  int64_t size() const { return product(shape); }
  double number(int64_t i) const {
    switch (type) {
      case i32:
        return static_cast<const int32_t*>(data)[i];
      case i64:
        return static_cast<double>(static_cast<const int64_t*>(data)[i]);
      case f32:
        return static_cast<const float*>(data)[i];
      default:
        return static_cast<const double*>(data)[i];
    }
  }
  // One for each row, in any shape, or of the shape (batch, rows); a single one is that of all.
  template <class T>
  std::vector<T> numbers(const std::vector<int64_t>& wanted) const {
    const bool integers = type == i32 || type == i64, reals = type == f32 || type == f64;
    if (!integers && (std::is_integral_v<T> || !reals))
      fail(ATTN_INVALID, "input \"", *name, "\" is ", type_name(type), ": int32 or int64 is needed",
           std::is_integral_v<T> ? "" : ", or float32 or float64");
    const int64_t n = product(wanted);
    if (size() != 1 && (wanted.size() == 1 ? size() != n : shape != wanted))
      fail(ATTN_INVALID, "input \"", *name, "\" has shape ", text(), ": ", shown(wanted),
           " is needed, or one number for all");
    std::vector<T> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const double x = number(size() == 1 ? 0 : i);
      if (std::is_integral_v<T> && std::abs(x) > std::numeric_limits<int32_t>::max())
        fail(ATTN_INVALID, "input \"", *name, "\" has ", x, ", which is no int32");
      values[static_cast<size_t>(i)] = static_cast<T>(x);
    }
    return values;
  }
};

// Per-row arrays of a run; empty: none.
struct Kernel::Numbers {
  std::vector<int32_t> q_len, k_len, q_pos, k_pos, visible;
  std::vector<double> q_total, k_total;
};

std::string Kernel::place(const Api& api, const KernelInfo* info) {
  size_t bytes = 0;
  std::string name;
  Status* status = api.node_name(info, nullptr, &bytes);
  if (!status && bytes > 1) {
    name.resize(bytes);
    status = api.node_name(info, name.data(), &bytes);
    name.resize(bytes - 1);
  }
  if (status) api.release_status(status);
  return name.empty() ? "attnkit.Block" : "attnkit.Block \"" + name + "\"";
}

Kernel::Kernel(const Api& api, const KernelInfo* info) : api_(api) {
  const Attributes attributes(api, info);
  const auto mechanism = attributes.text("mechanism");
  if (!mechanism) fail(ATTN_INVALID, "attribute \"mechanism\" is missing: the name of a plugin");
  mechanism_ = *mechanism;
  role_ = role_of(attributes.text("role").value_or("encoder.self"));
  capacity_ = attributes.size("capacity", 0);
  const int32_t heads = attributes.size("heads", 0), key_width = attributes.size("key_width", 0);
  if (heads < 1) fail(ATTN_INVALID, "attribute \"heads\" is ", heads, ": 1 or more are needed");
  const int64_t d_model = attributes.size("d_model", int64_t{heads} * key_width);
  if (d_model < 1) fail(ATTN_INVALID, "one of the attributes \"d_model\" and \"key_width\" is needed");
  if (!key_width && d_model % heads) fail(ATTN_INVALID, heads, " heads do not divide d_model ", d_model);
  attn_block where{};
  where.struct_size = sizeof where;
  where.role = role_;
  where.causal = static_cast<uint32_t>(attributes.size("causal", role_ == ATTN_DECODER_SELF));
  where.heads = static_cast<uint32_t>(heads);
  where.d_model = static_cast<int32_t>(d_model);
  where.kv_heads = static_cast<uint32_t>(attributes.size("kv_heads", 0));
  where.key_width = key_width;
  const int64_t width = key_width ? key_width : d_model / heads;
  where.head_width = attributes.size("head_width", width);
  block_ = std::make_unique<Block>(runtime(), mechanism_, where, attributes.text("options").value_or(""));

  const auto ports = block_->ports();
  if (const auto named = attributes.text("names")) {
    std::istringstream words(*named);
    for (std::string word; words >> word;) names_.push_back(word);
  } else {
    for (const attn_port* port : ports)
      if (!is_written(*port) && port->kind != ATTN_AUX_IN) names_.push_back(port->name);
  }
  size_t inputs = 0;
  check(api.node_inputs(info, &inputs));
  if (inputs != names_.size())
    fail(ATTN_INVALID, "the node has ", inputs, " inputs, and ", names_.size(), " are named: \"", listed(names_),
         "\"; name them in the attribute \"names\"");

  input_of_port_.assign(ports.size(), -1);
  output_of_port_.assign(ports.size(), 0);
  input_of_row_.assign(n_per_row, -1);
  size_t outputs = 2;  // behind o and state
  for (size_t p = 0; p < ports.size(); ++p)
    if (is_written(*ports[p])) output_of_port_[p] = ports[p]->kind == ATTN_OUTPUT ? 0 : outputs++;
  if (outputs > 2 + max_carried)
    fail(ATTN_UNSUPPORTED, mechanism_, " carries ", outputs - 2, " sequences, and attnkit.Block at most ", max_carried);
  size_t made = 0;
  check(api.node_outputs(info, &made));
  if (made > outputs)
    fail(ATTN_INVALID, "the node has ", made, " outputs, and ", mechanism_, " gives at most ", outputs,
         ", of which the second is the state: leave out the rest");
  for (size_t i = 0; i < names_.size(); ++i) {
    // A port comes before what else has its name.
    const auto port =
        std::ranges::find_if(ports, [&](const attn_port* p) { return !is_written(*p) && names_[i] == p->name; });
    const auto row = std::ranges::find(per_row, names_[i]);
    if (port == ports.end() && row == per_row.end()) {
      std::vector<std::string> known;
      for (const attn_port* p : ports)
        if (!is_written(*p)) known.push_back(p->name);
      known.insert(known.end(), per_row.begin(), per_row.end());
      fail(ATTN_INVALID, mechanism_, " has no input \"", names_[i], "\": ", listed(known));
    }
    int& input = port != ports.end() ? input_of_port_[static_cast<size_t>(port - ports.begin())]
                                     : input_of_row_[static_cast<size_t>(row - per_row.begin())];
    if (input >= 0) fail(ATTN_INVALID, "input \"", names_[i], "\" is named twice");
    input = static_cast<int>(i);
  }
  for (size_t p = 0; p < ports.size(); ++p)
    if (input_of_port_[p] < 0 && !is_written(*ports[p]) && ports[p]->kind != ATTN_AUX_IN)
      fail(ATTN_INVALID, "port \"", ports[p]->name, "\" of ", mechanism_, " has no input: \"", listed(names_),
           "\" are named");
  const auto has = [&](PerRow row) { return input_of_row_[row] >= 0; };
  const bool self = role_ != ATTN_DECODER_CROSS;
  if (has(state) && !capacity_)
    fail(ATTN_INVALID, "input \"state\" needs the attribute \"capacity\": the most keys that it holds");
  if (has(state) && !has(k_pos) && !(self && has(q_pos)))
    fail(ATTN_INVALID, "input \"state\" needs \"k_pos\": how many keys it holds");

  any_.struct_size = sizeof any_;
  any_.flags = (capacity_ ? ATTN_STREAM : 0) | (has(visible) ? ATTN_PREFIX : 0) |
               (has(q_total) || (self && has(k_total)) ? ATTN_KNOWS_Q_TOTAL : 0) |
               (has(k_total) || (self && has(q_total)) ? ATTN_KNOWS_K_TOTAL : 0);
  any_.device_type = 1;
  any_.dtype_code = 2;
  any_.dtype_bits = 32;
  any_.dtype_lanes = 1;
  any_.workers = std::clamp(std::thread::hardware_concurrency(), 1u, 256u);
  (void)block_->plan(any_);  // can it sit there, at whatever size?
}

attn_info Kernel::ask(const attn_request& request) const {
  constexpr size_t most = 16;
  const std::lock_guard lock(mutex_);
  for (const auto& [known, info] : asked_)
    if (std::memcmp(&known, &request, sizeof request) == 0) return info;
  if (asked_.size() == most) asked_.erase(asked_.begin());
  asked_.emplace_back(request, block_->plan(request));
  return asked_.back().second;
}

std::unique_ptr<Workspace> Kernel::workspace() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Workspace>();
  auto found = std::move(idle_.back());
  idle_.pop_back();
  return found;
}

Kernel::Given Kernel::given(const Context* context, int input) const {
  const Value* value = nullptr;
  const auto index = static_cast<size_t>(input);
  check(api_.input(context, index, &value));
  Given found;
  found.name = &names_[index];
  if (!value) fail(ATTN_INVALID, "input \"", *found.name, "\" is absent: leave it out of \"names\" as well");
  Shape* raw = nullptr;
  check(api_.tensor_shape(value, &raw));
  const std::unique_ptr<Shape, void (*)(Shape*)> shape(raw, api_.release_shape);
  check(api_.element_type(raw, &found.type));
  size_t rank = 0;
  check(api_.rank(raw, &rank));
  found.shape.resize(rank);
  check(api_.dimensions(raw, found.shape.data(), rank));
  if (found.type == text) fail(ATTN_INVALID, "input \"", *found.name, "\" holds strings");
  check(api_.tensor_data(const_cast<Value*>(value), &found.data));
  return found;
}

// The port's view of an input: rows of all heads beside each other, (B, rows, heads * width), are as good as
// (B, heads, rows, width).
attn_tensor Kernel::tensor(const Given& in, const attn_port& port) const {
  attn_tensor t{in.data, {}, {}, 0, 0, 1, 0, 1, 0};
  switch (in.type) {
    case f32:
      t.dtype_code = 2, t.dtype_bits = 32;
      break;
    case f64:
      t.dtype_code = 2, t.dtype_bits = 64;
      break;
    case i32:
      t.dtype_code = 0, t.dtype_bits = 32;
      break;
    case i64:
      t.dtype_code = 0, t.dtype_bits = 64;
      break;
    default:
      break;
  }
  const bool real = port.kind != ATTN_TABLE && port.kind != ATTN_LEARNED;
  if (!t.dtype_bits || (real && in.type != f32))
    fail(ATTN_UNSUPPORTED, "input \"", port.name, "\" is ", type_name(in.type),
         ": attnkit.Block computes in float32; put a Cast before it");
  const size_t rank = in.shape.size();
  if (is_sequence(port)) {
    const int64_t heads = port.shape[1], width = port.shape[3];
    if (rank == 3 && in.shape[2] == heads * width) return view(in.data, in.shape[0], heads, in.shape[1], width, true);
    if (rank == 4 && in.shape[1] == heads && in.shape[3] == width)
      return view(in.data, in.shape[0], heads, in.shape[2], width);
    fail(ATTN_INVALID, "input \"", port.name, "\" has shape ", in.text(), ": (batch, ", heads, ", rows, ", width,
         ") or (batch, rows, ", heads * width, ") is needed");
  }
  if (rank != port.ndim)
    fail(ATTN_INVALID, "input \"", port.name, "\" has shape ", in.text(), ": ", port.ndim, " dimensions are needed");
  t.ndim = port.ndim;
  int64_t stride = 1;
  for (size_t d = rank; d-- > 0; stride *= std::max<int64_t>(in.shape[d], 1)) {
    t.shape[d] = in.shape[d];
    t.stride[d] = stride;
  }
  return t;
}

Kernel::Numbers Kernel::numbers(const Context* context, int64_t batch, int64_t queries) const {
  Numbers found;
  const auto read = [&](PerRow own, PerRow other, auto& values, const std::vector<int64_t>& wanted) {
    // In self attention queries and keys are one sequence: what is given for one counts for both.
    const bool both = role_ != ATTN_DECODER_CROSS && input_of_row_[own] < 0;
    const int index = input_of_row_[both ? other : own];
    if (index < 0) return;
    using Values = std::remove_reference_t<decltype(values)>;
    values = given(context, index).template numbers<typename Values::value_type>(wanted);
  };
  read(q_len, k_len, found.q_len, {batch});
  read(k_len, q_len, found.k_len, {batch});
  read(q_pos, k_pos, found.q_pos, {batch});
  read(k_pos, q_pos, found.k_pos, {batch});
  read(q_total, k_total, found.q_total, {batch});
  read(k_total, q_total, found.k_total, {batch});
  read(visible, visible, found.visible, {batch, queries});
  return found;
}

void* Kernel::output(Context* context, size_t index, const std::vector<int64_t>& shape) const {
  size_t outputs = 0;
  check(api_.outputs(context, &outputs));
  if (index >= outputs) return nullptr;
  Value* value = nullptr;
  check(api_.output(context, index, shape.data(), shape.size(), &value));
  if (!value) return nullptr;
  void* data = nullptr;
  check(api_.tensor_data(value, &data));
  return data;
}

void* Kernel::state_after(Context* context, const Numbers& rows, int64_t batch, int64_t stride, Memory& own) const {
  const auto bytes = static_cast<size_t>(batch * stride);
  void* after = output(context, 1, {batch, stride});
  if (!after) after = own.reserve(std::max<size_t>(bytes, 1));
  const auto empty = [&] {
    const auto seen = std::ranges::find_if(rows.k_pos, [](int32_t n) { return n > 0; });
    if (seen != rows.k_pos.end())
      fail(ATTN_INVALID, "\"k_pos\" says that the state holds ", *seen,
           " keys, and it is empty: give the state that the run before gave, or 0");
    return std::memset(after, 0, bytes);
  };
  if (input_of_row_[state] < 0) return empty();
  const Given before = given(context, input_of_row_[state]);
  if (before.type == u8 && before.shape == std::vector<int64_t>{batch, 0}) return empty();
  if (before.type != u8 || before.shape != std::vector{batch, stride})
    fail(ATTN_INVALID, "input \"state\" is ", type_name(before.type), " ", before.text(), ": uint8 (", batch, ", ",
         stride, ") is needed, the state that a node with the same attributes gave, or (", batch,
         ", 0), the empty one");
  // A caller may bind one buffer to both.
  return before.data == after ? after : std::memmove(after, before.data, bytes);
}

void Kernel::run(Context* context) const {
  const auto ports = block_->ports();
  std::vector<attn_tensor> tensors(ports.size());
  int64_t batch = -1, queries = -1, keys = -1;
  bool beside = false;  // as the first sequence
  for (size_t p = 0; p < ports.size(); ++p) {
    if (input_of_port_[p] < 0) continue;
    const Given in = given(context, input_of_port_[p]);
    tensors[p] = tensor(in, *ports[p]);
    if (!is_sequence(*ports[p])) continue;
    if (batch < 0) beside = in.shape.size() == 3;
    if (batch < 0) batch = tensors[p].shape[0];
    int64_t& rows = ports[p]->kind == ATTN_QUERY ? queries : keys;
    if (rows < 0) rows = tensors[p].shape[2];
  }
  if (queries < 0) queries = keys;
  if (keys < 0) keys = queries;
  if (capacity_ && keys > capacity_)
    fail(ATTN_INVALID, keys, " keys are more than the capacity ", capacity_,
         ": make the attribute \"capacity\" larger");
  if (!capacity_ && output(context, 1, {batch, 1}))
    fail(ATTN_INVALID, "output 1 is the state, which needs the attribute \"capacity\": the most keys that it holds");
  const Numbers rows = numbers(context, batch, queries);

  attn_request request = any_;
  request.batch = batch;
  request.queries = queries;
  request.keys = keys;
  request.past = capacity_ ? capacity_ - keys : 0;
  const attn_info info = ask(request);
  // Back in the list whatever happens.
  const auto back = [this](Workspace* used) {
    const std::lock_guard lock(mutex_);
    idle_.emplace_back(used);
  };
  const std::unique_ptr<Workspace, decltype(back)> space(workspace().release(), back);
  space->others.resize(ports.size());

  for (size_t p = 0; p < ports.size(); ++p) {
    const attn_port& port = *ports[p];
    const int64_t heads = port.shape[1], width = port.shape[3];
    if (port.kind == ATTN_AUX_IN && input_of_port_[p] < 0) {
      tensors[p] = view(nullptr, batch, heads, port.shape[2], width);
    } else if (is_written(port)) {
      const bool o = port.kind == ATTN_OUTPUT;
      const int64_t n = o ? queries : port.shape[2];
      void* data = output(context, output_of_port_[p],
                          o && beside ? std::vector{batch, n, heads * width} : std::vector{batch, heads, n, width});
      if (!data) data = space->others[p].reserve(static_cast<uint64_t>(batch * heads * n * width) * sizeof(float));
      tensors[p] = view(data, batch, heads, n, width, o && beside);
    }
  }

  attn_run run{};
  run.struct_size = sizeof run;
  run.batch = batch;
  run.queries = queries;
  run.keys = keys;
  run.ports = tensors.data();
  run.q_len = pointer(rows.q_len);
  run.k_len = pointer(rows.k_len);
  run.q_pos = pointer(rows.q_pos);
  run.k_pos = pointer(rows.k_pos);
  run.q_total = pointer(rows.q_total);
  run.k_total = pointer(rows.k_total);
  run.visible = pointer(rows.visible);
  if (capacity_) {
    run.state_stride = (info.state_bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    run.state = state_after(context, rows, batch, static_cast<int64_t>(run.state_stride), space->state);
  }
  const Loop loop{api_, context, request.workers};
  const attn_exec exec =
      exec_of(loop, space->scratch.reserve(std::max<uint64_t>(info.scratch_bytes, 1)), info.scratch_bytes);
  run.exec = &exec;
  block_->run(request, run);
}

}  // namespace attnkit::ort
