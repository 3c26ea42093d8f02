#include "core/conformance/bridge.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "core/conformance/array.hpp"

namespace attnkit::core::conformance {

namespace {

const attn_plugin* cuda = nullptr;
CudaDevice* gpu = nullptr;
const HalfType* (*choose_half)() = nullptr;

struct Mech {
  attn_mech* mech = nullptr;
  const attn_port* const* ports = nullptr;
  uint32_t n_ports = 0;
};

struct Plan {
  const Mech* of = nullptr;
  attn_plan* plan = nullptr;
  attn_request request{};
  attn_info info{};
  const HalfType* half = nullptr;
};

int32_t create(const attn_block* block, const attn_value* values, attn_mech** mech, const attn_port* const** ports,
               uint32_t* n_ports, attn_error* error) {
  auto made = std::make_unique<Mech>();
  const int32_t code = cuda->create(block, values, &made->mech, &made->ports, &made->n_ports, error);
  if (code != ATTN_OK) return code;
  *ports = made->ports;
  *n_ports = made->n_ports;
  *mech = reinterpret_cast<attn_mech*>(made.release());
  return ATTN_OK;
}

void destroy(attn_mech* mech) {
  auto* made = reinterpret_cast<Mech*>(mech);
  if (made) cuda->destroy(made->mech);
  delete made;
}

int32_t fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor, attn_error* error) {
  return cuda->fill(reinterpret_cast<const Mech*>(mech)->mech, port, seed, tensor, error);
}

int32_t plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan, attn_error* error) {
  auto made = std::make_unique<Plan>();
  made->of = reinterpret_cast<const Mech*>(mech);
  std::memcpy(&made->request, request, std::min<size_t>(request->struct_size, sizeof made->request));
  made->request.device_type = request->device_type == 1 ? 2 : 1;  // a host that asks for CUDA gets a refusal
  const bool is_f32 = request->dtype_bits == 32 && request->dtype_code == 2;
  made->half = choose_half && is_f32 ? choose_half() : nullptr;
  if (made->half) made->request.dtype_bits = 16, made->request.dtype_code = made->half->code;
  made->info.struct_size = sizeof made->info;
  const int32_t code = cuda->plan(made->of->mech, &made->request, &made->info, plan ? &made->plan : nullptr, error);
  if (code != ATTN_OK) return code;
  if (info) {
    const uint32_t size = info->struct_size;
    std::memcpy(info, &made->info, std::min<size_t>(size, sizeof *info));
    info->struct_size = size;
  }
  if (plan) *plan = reinterpret_cast<attn_plan*>(made.release());
  return ATTN_OK;
}

void plan_free(attn_plan* plan) {
  auto* made = reinterpret_cast<Plan*>(plan);
  if (made) cuda->plan_free(made->plan);
  delete made;
}

// The device memory of one run, and its stream; freed with it.
class Device {
 public:
  Device() : stream(gpu->make_stream()) {}
  ~Device() {
    gpu->free_stream(stream);
    for (void* p : all_) gpu->release(p);
  }
  Device(const Device&) = delete;
  void* room(uint64_t bytes, size_t alignment) { return all_.emplace_back(gpu->allocate(bytes, alignment)); }
  template <class T>
  T* copy(const T* from, uint64_t bytes, size_t alignment) {
    if (from == nullptr || bytes == 0) return const_cast<T*>(from);
    void* to = room(bytes, alignment);
    gpu->copy_there(to, from, bytes, stream);
    return static_cast<T*>(to);
  }

  const uintptr_t stream;

 private:
  std::vector<void*> all_;
};

// Would the variant get as far as reading what the run names?
bool is_sound(const Plan& plan, const attn_run& run) {
  const attn_request& r = plan.request;
  bool sound = ATTN_HAS(attn_run, &run, saved) && run.exec && run.batch >= 0 && run.batch <= r.batch &&
               run.queries >= 0 && run.queries <= r.queries && run.keys >= 0 && run.keys <= r.keys;
  sound = sound && (run.state != nullptr) == ((r.flags & ATTN_STREAM) != 0);
  for (uint32_t i = 0; sound && i < plan.of->n_ports; ++i) {
    const attn_port& port = *plan.of->ports[i];
    const attn_tensor& t = run.ports[i];
    if (port.kind == ATTN_AUX_IN && t.data == nullptr) continue;
    const bool typed = port.dtype_bits != 0 && (port.kind == ATTN_TABLE || r.dtype_bits != 64);
    const int bits = typed ? port.dtype_bits : plan.half ? 32 : r.dtype_bits;
    sound = t.ndim == port.ndim && t.dtype_bits == bits;
    for (uint32_t d = 0; sound && d < t.ndim; ++d) {
      const int64_t rows = port.kind == ATTN_KEY ? run.keys : run.queries;
      const bool fixed = port.shape[d] != 0 || port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE;
      const int64_t want = fixed ? port.shape[d] : d == 0 ? run.batch : rows;
      sound = t.shape[d] == want;
    }
  }
  return sound;
}

// A tensor of a run in 16 bits on its way: every other one packed as a model has it, the rest with the strides it has.
class Rounded {
 public:
  Rounded(const attn_tensor& given, const HalfType& half, Device& device, bool packed)
      : given_(given), t_(given), half_(half) {
    t_.dtype_code = half.code;
    t_.dtype_bits = 16;
    if (packed) {
      const int64_t width = t_.shape[3], heads = t_.shape[1];
      const int64_t strides[] = {t_.shape[2] * heads * width, width, heads * width, 1};
      std::copy(strides, strides + 4, t_.stride);
    }
    here_.resize(extent(t_) / 2, 0xFFFF);
    for_all([&](int64_t from, int64_t to) {
      here_[static_cast<size_t>(to)] = half_.round(static_cast<const float*>(given_.data)[from]);
    });
    t_.data = device.copy(reinterpret_cast<char*>(here_.data()), extent(t_), packed ? 16 : 2);
  }
  const attn_tensor& tensor() const { return t_; }
  void fetch(uintptr_t stream) { gpu->copy_back(here_.data(), t_.data, extent(t_), stream); }
  void give_back() const {
    for_all([&](int64_t to, int64_t from) {
      static_cast<float*>(given_.data)[to] = half_.widen(here_[static_cast<size_t>(from)]);
    });
  }

 private:
  // Calls f(place in the given tensor, place in this one) for all elements.
  template <class F>
  void for_all(const F& f) const {
    const auto& n = t_.shape;
    const auto place = [](const attn_tensor& t, int64_t b, int64_t h, int64_t i, int64_t c) {
      return b * t.stride[0] + h * t.stride[1] + i * t.stride[2] + c;
    };
    for (int64_t b = 0; b < n[0]; ++b)
      for (int64_t h = 0; h < n[1]; ++h)
        for (int64_t i = 0; i < n[2]; ++i)
          for (int64_t c = 0; c < n[3]; ++c) f(place(given_, b, h, i, c), place(t_, b, h, i, c));
  }
  attn_tensor given_, t_;
  const HalfType& half_;
  std::vector<uint16_t> here_;
};

int32_t device_error(attn_error* error, const std::string& report) {
  if (error && ATTN_HAS(attn_error, error, message)) {
    error->code = ATTN_DEVICE;
    error->where = -1;
    std::snprintf(error->message, sizeof error->message, "%s", report.c_str());
  }
  return ATTN_DEVICE;
}

// Enqueues by `act` on a stream, by way of a graph every other time.
int32_t enqueue(uintptr_t stream, const std::function<int32_t()>& act) {
  static std::atomic<unsigned> calls{0};
  if (++calls % 2 != 0) return act();
  return gpu->through_graph(stream, act);
}

// A run on the device: all that it names, copied there, and the way back.
class Staged {
 public:
  Staged(const Plan& plan, const attn_run& given, const attn_run& here) : plan_(plan), given_(given), run(here) {
    tensors.assign(run.ports, run.ports + plan.of->n_ports);
    for (attn_tensor& t : tensors) t.device_type = t.device_type == 1 ? 2 : 1;
    run.ports = tensors.data();
  }
  bool is_sound() const { return conformance::is_sound(plan_, run); }
  // Do tensors of 16 bits lie as a model has them?
  bool packed() const { return packed_; }

  void copy(uint64_t scratch_bytes, bool has_run) {
    rounded_.resize(tensors.size());
    static std::atomic<unsigned> runs{0};
    packed_ = runs++ / 2 % 2 == 0;
    for (size_t i = 0; i < tensors.size() && plan_.half; ++i)
      if (plan_.of->ports[i]->kind <= ATTN_OUTPUT) {
        rounded_[i] = std::make_unique<Rounded>(tensors[i], *plan_.half, device, packed_);
        tensors[i] = rounded_[i]->tensor();
      }
    for (size_t i = 0; i < tensors.size(); ++i) {
      attn_tensor& t = tensors[i];
      if (!rounded_[i]) t.data = device.copy(static_cast<char*>(t.data), extent(t), t.dtype_bits / 8);
    }
    const auto rows = static_cast<uint64_t>(run.batch);
    const auto per_row = [&](auto& p) { p = device.copy(p, rows * sizeof *p, sizeof *p); };
    per_row(run.q_len);
    per_row(run.k_len);
    per_row(run.q_pos);
    per_row(run.k_pos);
    per_row(run.q_total);
    per_row(run.k_total);
    run.visible = device.copy(run.visible, rows * static_cast<uint64_t>(run.queries) * 4, 4);
    run.slots = device.copy(run.slots, rows * 4, 4);
    if (run.state) {
      int64_t last = run.batch - 1;
      for (int64_t b = 0; b < run.batch && given_.slots; ++b)
        last = b ? std::max<int64_t>(last, given_.slots[b]) : given_.slots[0];
      const uint64_t bytes = last < 0 ? 0 : static_cast<uint64_t>(last) * run.state_stride + plan_.info.state_bytes;
      run.state = device.copy(static_cast<char*>(run.state), bytes, ATTN_ALIGN);
    }
    if (run.saved && plan_.info.saved_bytes) {
      if (has_run)
        run.saved = device.copy(static_cast<char*>(run.saved), plan_.info.saved_bytes, ATTN_ALIGN);
      else
        run.saved = device.room(plan_.info.saved_bytes, ATTN_ALIGN);
    }
    exec = *run.exec;
    if (scratch_bytes) exec.scratch = device.room(scratch_bytes, ATTN_ALIGN);
    exec.scratch_bytes = scratch_bytes;
    exec.stream = device.stream;
    exec.pool = 0;
    exec.parallel_for = nullptr;
    run.exec = &exec;
    kept_ = run;
    kept_tensors_ = tensors;
  }

  // Nobody may read the structs once the call has returned.
  void overwrite() {
    std::memset(static_cast<void*>(&exec), 0xCC, sizeof exec);
    std::memset(static_cast<void*>(tensors.data()), 0xCC, tensors.size() * sizeof(attn_tensor));
    std::memset(static_cast<void*>(&run), 0xCC, sizeof run);
  }

  void fetch(void* to, const void* from, uint64_t bytes) { gpu->copy_back(to, from, bytes, device.stream); }
  void fetch_all() {
    for (size_t i = 0; i < kept_tensors_.size(); ++i)
      if (const uint64_t bytes = kept_tensors_[i].data ? extent(kept_tensors_[i]) : 0) {
        if (rounded_[i])
          rounded_[i]->fetch(device.stream);
        else
          fetch(given_.ports[i].data, kept_tensors_[i].data, bytes);
      }
    for (int64_t b = 0; b < kept_.batch && kept_.state; ++b) {
      const uint64_t at = static_cast<uint64_t>(given_.slots ? given_.slots[b] : b) * kept_.state_stride;
      fetch(static_cast<char*>(given_.state) + at, static_cast<char*>(kept_.state) + at, plan_.info.state_bytes);
    }
    if (kept_.saved) fetch(given_.saved, kept_.saved, plan_.info.saved_bytes);
  }
  // Once the stream has run.
  void give_back() const {
    for (size_t i = 0; i < rounded_.size(); ++i)
      if (rounded_[i] && plan_.of->ports[i]->kind == ATTN_OUTPUT) rounded_[i]->give_back();
  }

 private:
  const Plan& plan_;
  const attn_run& given_;
  attn_run kept_{};
  std::vector<attn_tensor> kept_tensors_;
  std::vector<std::unique_ptr<Rounded>> rounded_;
  bool packed_ = false;

 public:
  Device device;
  attn_run run;
  std::vector<attn_tensor> tensors;
  attn_exec exec{};
};

int32_t run(const attn_plan* handle, const attn_run* given, attn_error* error) {
  const auto& plan = *reinterpret_cast<const Plan*>(handle);
  attn_run here{};
  std::memcpy(&here, given, std::min<size_t>(given->struct_size, sizeof here));
  Staged staged(plan, *given, here);
  if (!staged.is_sound()) return cuda->run(plan.plan, &staged.run, error);
  staged.copy(here.exec->scratch_bytes, false);
  const int32_t code = enqueue(staged.device.stream, [&] {
    const int32_t done = cuda->run(plan.plan, &staged.run, error);
    staged.overwrite();
    return done;
  });
  if (code == ATTN_OK) staged.fetch_all();
  if (const std::string fault = gpu->wait(staged.device.stream); !fault.empty()) return device_error(error, fault);
  if (code == ATTN_OK) staged.give_back();
  return code;
}

int32_t backward(const attn_plan* handle, const attn_grad* given, attn_error* error) {
  const auto& plan = *reinterpret_cast<const Plan*>(handle);
  const bool named = ATTN_HAS(attn_grad, given, grads) && given->run && given->grads;
  if (!named) return cuda->backward(plan.plan, given, error);
  attn_run here{};
  std::memcpy(&here, given->run, std::min<size_t>(given->run->struct_size, sizeof here));
  Staged staged(plan, *given->run, here);
  std::vector<attn_tensor> grads(given->grads, given->grads + plan.of->n_ports);
  for (attn_tensor& t : grads) t.device_type = t.device_type == 1 ? 2 : 1;
  attn_grad grad{sizeof grad, 0, &staged.run, grads.data()};
  if (!staged.is_sound()) return cuda->backward(plan.plan, &grad, error);
  staged.copy(here.exec->scratch_bytes, true);
  std::vector<std::unique_ptr<Rounded>> rounded(grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    attn_tensor& t = grads[i];
    if (plan.half && t.data && plan.of->ports[i]->kind <= ATTN_OUTPUT) {
      rounded[i] = std::make_unique<Rounded>(t, *plan.half, staged.device, staged.packed());
      t = rounded[i]->tensor();
    } else {
      t.data = staged.device.copy(static_cast<char*>(t.data), extent(t), t.dtype_bits / 8);
    }
  }
  const std::vector<attn_tensor> kept = grads;
  const int32_t code = enqueue(staged.device.stream, [&] {
    const int32_t done = cuda->backward(plan.plan, &grad, error);
    staged.overwrite();
    std::memset(static_cast<void*>(grads.data()), 0xCC, grads.size() * sizeof(attn_tensor));
    return done;
  });
  for (size_t i = 0; i < kept.size() && code == ATTN_OK; ++i)
    if (rounded[i])
      rounded[i]->fetch(staged.device.stream);
    else if (given->grads[i].data)
      staged.fetch(given->grads[i].data, kept[i].data, extent(kept[i]));
  if (code == ATTN_OK) staged.fetch_all();
  if (const std::string fault = gpu->wait(staged.device.stream); !fault.empty()) return device_error(error, fault);
  for (size_t i = 0; i < kept.size() && code == ATTN_OK; ++i)
    if (rounded[i] && plan.of->ports[i]->kind != ATTN_OUTPUT) rounded[i]->give_back();
  return code;
}

}  // namespace

const attn_plugin& bridge(const attn_plugin& plugin, CudaDevice& device, const HalfType* (*choose)()) {
  cuda = &plugin;
  gpu = &device;
  choose_half = choose;
  static attn_plugin table;
  table = plugin;
  table.device_type = 1;
  table.create = create;
  table.destroy = destroy;
  table.fill = fill;
  table.plan = plan;
  table.plan_free = plan_free;
  table.run = run;
  if (plugin.backward) table.backward = backward;
  return table;
}

}  // namespace attnkit::core::conformance
