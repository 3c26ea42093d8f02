#include "support/runner.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace attnkit::test {

Bytes::Bytes(uint64_t size, int fill)
    : size_(size),
      raw_(static_cast<unsigned char*>(
               std::aligned_alloc(ATTN_ALIGN, (size + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN + 2 * ATTN_ALIGN)),
           std::free) {
  std::memset(raw_.get(), 0xA5, ATTN_ALIGN);
  std::memset(raw_.get() + ATTN_ALIGN, fill, size);
  std::memset(raw_.get() + ATTN_ALIGN + size, 0xA5, ATTN_ALIGN);
}

bool Bytes::intact() const {
  const unsigned char *before = raw_.get(), *after = raw_.get() + ATTN_ALIGN + size_;
  const auto canary = [](unsigned char c) { return c == 0xA5; };
  return std::all_of(before, before + ATTN_ALIGN, canary) && std::all_of(after, after + ATTN_ALIGN, canary);
}

bool is_taken(const attn_port& port) {
  return port.kind == ATTN_QUERY || port.kind == ATTN_KEY || port.kind == ATTN_AUX_IN;
}

bool is_given(const attn_port& port) { return port.kind == ATTN_OUTPUT || port.kind == ATTN_AUX_OUT; }

Inputs::Inputs(const Mechanism& m, int64_t batch, int64_t queries, int64_t keys, uint64_t seed, Layout layout)
    : mech(&m), keys(keys) {
  for (size_t i = 0; i < m.ports().size(); ++i) {
    const attn_port& port = *m.ports()[i];
    if (port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE) {
      arrays.push_back(Array::stored(port));
      const attn_tensor t = arrays.back().tensor();
      attn_error error = empty_error();
      expect_ok(m.plugin().fill(m.get(), static_cast<uint32_t>(i), seed, &t, &error), error);
    } else {
      const bool aux = port.kind == ATTN_AUX_IN || port.kind == ATTN_AUX_OUT;
      const int64_t rows = aux ? port.shape[2] : port.kind == ATTN_KEY ? keys : queries;
      arrays.emplace_back(batch, port.shape[1], rows, port.shape[3], layout);
      if (!is_given(port)) arrays.back().randomize(seed * 1000 + i);
    }
  }
}

attn_request make_request(int64_t batch, int64_t queries, int64_t keys, uint32_t flags, int64_t past,
                          uint32_t workers) {
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

Planned::Planned(const Mechanism& mech, const attn_request& request)
    : mech_(mech), request_(request), plan_(nullptr, mech.plugin().plan_free) {
  info_.struct_size = sizeof info_;
  attn_plan* plan = nullptr;
  attn_error error = empty_error();
  expect_ok(mech.plugin().plan(mech.get(), &request, &info_, &plan, &error), error);
  plan_.reset(plan);
}

namespace {

// Hands pieces of at least grain to threads; `pool` is a pointer to the number of workers.
void parallel_for(uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
  const auto workers = *reinterpret_cast<const uint32_t*>(pool);
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < workers; ++w)
    threads.emplace_back([&, w] {
      for (int64_t begin; (begin = next.fetch_add(grain)) < n;) fn(arg, begin, std::min(begin + grain, n), w);
    });
  for (auto& thread : threads) thread.join();
}

template <class T>
const T* pointer(const std::vector<T>& v) {
  return v.empty() ? nullptr : v.data();
}

}  // namespace

attn_tensor Planned::tensor(Inputs& inputs, size_t port, const Call& call, std::map<std::string, Array>& given) const {
  const attn_port& p = *mech_.ports()[port];
  Array& a = inputs.arrays[port];
  if (is_given(p)) {
    const std::string name = p.kind == ATTN_OUTPUT ? "" : p.name;
    return (given[name] = Array(a.batch, a.heads, p.kind == ATTN_OUTPUT ? call.queries : a.rows, a.width)).tensor();
  }
  if (p.kind == ATTN_KEY) return a.tensor(call.k_from, call.keys);
  if (p.kind == ATTN_QUERY) return a.tensor(call.q_from, call.queries);
  attn_tensor t = a.tensor();
  if (p.kind == ATTN_AUX_IN && call.without_aux) t.data = nullptr;
  return t;
}

Array Planned::run(Inputs& inputs, const Call& call, std::map<std::string, Array>* aux) const {
  const Array& like = inputs.arrays[mech_.output()];
  std::map<std::string, Array> given;
  std::vector<attn_tensor> tensors;
  for (size_t i = 0; i < inputs.arrays.size(); ++i) tensors.push_back(tensor(inputs, i, call, given));
  const Bytes scratch(info_.scratch_bytes, 0xFF);
  const attn_exec exec{
      sizeof exec, call.workers, scratch.data(), info_.scratch_bytes, 0, reinterpret_cast<uintptr_t>(&call.workers),
      parallel_for};
  const std::vector<Array> before = inputs.arrays;
  attn_run r{};
  r.struct_size = sizeof r;
  r.exec = &exec;
  r.batch = like.batch;
  r.queries = call.queries;
  r.keys = call.keys;
  r.ports = tensors.data();
  r.q_len = pointer(call.q_len);
  r.k_len = pointer(call.k_len);
  r.q_pos = pointer(call.q_pos);
  r.k_pos = pointer(call.k_pos);
  r.q_total = pointer(call.q_total);
  r.k_total = pointer(call.k_total);
  r.visible = pointer(call.visible);
  r.slots = pointer(call.slots);
  if (call.arena) {
    r.state = call.arena->bytes.data();
    r.state_stride = call.arena->stride;
  }
  attn_error error = empty_error();
  expect_ok(mech_.plugin().run(plan_.get(), &r, &error), error);
  if (!scratch.intact()) throw std::logic_error("the run wrote beyond its scratch");
  if (call.arena && !call.arena->bytes.intact()) throw std::logic_error("the run wrote beyond the state rows");
  for (size_t i = 0; i < before.size(); ++i)
    if (std::memcmp(before[i].data().data(), inputs.arrays[i].data().data(), before[i].data().size() * 4) != 0)
      throw std::logic_error("the run changed an input");
  Array output = std::move(given.at(""));
  given.erase("");
  if (aux) *aux = std::move(given);
  return output;
}

Array run_whole(Inputs& inputs, uint32_t flags, Call call, uint32_t workers, std::map<std::string, Array>* aux) {
  const Mechanism& mech = *inputs.mech;
  const Array& out = inputs.arrays[mech.output()];
  if (!call.q_total.empty()) flags |= ATTN_KNOWS_Q_TOTAL;
  if (!call.k_total.empty()) flags |= ATTN_KNOWS_K_TOTAL;
  call.queries = out.rows;
  call.keys = inputs.keys;
  call.workers = workers;
  return Planned(mech, make_request(out.batch, out.rows, inputs.keys, flags, 0, workers)).run(inputs, call, aux);
}

}  // namespace attnkit::test
