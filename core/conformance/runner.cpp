#include "core/conformance/runner.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "core/base/error.hpp"
#include "core/plugin/mechanism.hpp"

namespace attnkit::core::conformance {

Bytes::Bytes(uint64_t size, int fill)
    : size_(size),
      raw_(static_cast<unsigned char*>(
               std::aligned_alloc(ATTN_ALIGN, (size + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN + 2 * ATTN_ALIGN)),
           std::free) {
  if (!raw_)
    throw Violation("it needs " + std::to_string(size) + " bytes of scratch, of state or to save, more than there is");
  std::memset(raw_.get(), 0xA5, ATTN_ALIGN);
  std::memset(raw_.get() + ATTN_ALIGN, fill, size);
  std::memset(raw_.get() + ATTN_ALIGN + size, 0xA5, ATTN_ALIGN);
}

bool Bytes::intact() const {
  const unsigned char *before = raw_.get(), *after = raw_.get() + ATTN_ALIGN + size_;
  const auto canary = [](unsigned char c) { return c == 0xA5; };
  return std::all_of(before, before + ATTN_ALIGN, canary) && std::all_of(after, after + ATTN_ALIGN, canary);
}

constexpr char kBetween = 'A';

Arena::Arena(uint64_t bytes_of_row, int64_t rows)
    : row_bytes(bytes_of_row),
      stride((bytes_of_row + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN + 5 * ATTN_ALIGN),
      bytes(stride * static_cast<uint64_t>(rows - 1) + bytes_of_row, 0),
      rows_(rows) {
  for (int64_t slot = 0; slot < rows - 1; ++slot) std::memset(row(slot) + row_bytes, kBetween, stride - row_bytes);
}

bool Arena::intact() const {
  bool same = bytes.intact();
  for (int64_t slot = 0; slot < rows_ - 1; ++slot)
    same = same && std::all_of(row(slot) + row_bytes, row(slot + 1), [](char c) { return c == kBetween; });
  return same;
}

bool is_taken(const attn_port& port) {
  return port.kind == ATTN_QUERY || port.kind == ATTN_KEY || port.kind == ATTN_AUX_IN;
}

bool is_given(const attn_port& port) { return port.kind == ATTN_OUTPUT || port.kind == ATTN_AUX_OUT; }

template <class Real>
BasicInputs<Real>::BasicInputs(const Mechanism& m, int64_t batch, int64_t queries, int64_t keys, uint64_t seed,
                               Layout layout)
    : mech(&m), keys(keys), of_outputs(layout < Layout::kOneHead ? layout : Layout::kModel) {
  for (size_t i = 0; i < m.ports().size(); ++i) {
    const attn_port& port = *m.ports()[i];
    if (port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE) {
      Array stored = Array::stored(port);
      const attn_tensor t = stored.tensor();
      m.fill(i, seed, t);
      arrays.emplace_back(stored);
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
  return cpu_request(flags, workers, batch, queries, keys, past);
}

Planned::Planned(const Mechanism& mech, const attn_request& request) : mech_(mech), request_(request) {
  info_.struct_size = sizeof info_;
  attn_plan* plan = nullptr;
  attn_error error = empty_error();
  expect_ok(boundary("plan", [&] { return mech.plugin().plan(mech.get(), &request, &info_, &plan, &error); }), error);
  plan_ = std::shared_ptr<attn_plan>(plan, freeing(mech.plugin().plan_free, "plan_free"));
}

Refused refusal(const Mechanism& mech, const attn_request& request) {
  return refusal([&] { Planned(mech, request); });
}

namespace {

// Hands pieces of grain, grain + 1 and grain + 2 by turns to threads, all to the only one; `pool` is a pointer to the
// number of workers.
void parallel_for(uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
  const auto workers = *reinterpret_cast<const uint32_t*>(pool);
  if (n <= 0) return;
  if (workers == 1) return fn(arg, 0, n, 0);
  grain = std::clamp<int64_t>(grain, 1, std::max<int64_t>(n, 1));
  const auto begin = [=](int64_t piece) { return piece * (grain + 1) - (piece % 3 != 0); };
  const auto end = [=](int64_t piece) { return n - begin(piece + 1) < grain ? n : begin(piece + 1); };
  const auto is_there = [=](int64_t piece) { return piece == 0 || n - begin(piece) >= grain; };
  if (Watch* const watch = current_watch()) {
    for (int64_t i = 0; is_there(i); ++i) watch->task(fn, arg, begin(i), end(i), static_cast<uint32_t>(i % workers));
    return;
  }
  std::atomic<int64_t> next{0};
  const auto work = [&](uint32_t w) {
    for (int64_t i; is_there(i = next++);) fn(arg, begin(i), end(i), w);
  };
  std::vector<std::thread> threads;
  try {
    for (uint32_t w = 1; w < workers; ++w) threads.emplace_back(work, w);
  } catch (const std::system_error&) {  // no more of them here: fewer do the same work
  }
  work(0);
  for (auto& thread : threads) thread.join();
}

template <class T>
const T* pointer(const std::vector<T>& v) {
  return v.empty() ? nullptr : v.data();
}

}  // namespace

Exec::Exec(uint64_t scratch_bytes, uint32_t workers, int fill)
    : scratch_(scratch_bytes, fill), exec_{sizeof exec_,  workers, scratch_.data(),
                                           scratch_bytes, 0,       reinterpret_cast<uintptr_t>(&exec_.workers),
                                           parallel_for} {}

template <class Real>
bool same_memory(const std::vector<BasicArray<Real>>& a, const std::vector<BasicArray<Real>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    const size_t size = x.data().size();
    return size == y.data().size() &&
           (size == 0 || std::memcmp(x.data().data(), y.data().data(), size * sizeof(Real)) == 0);
  });
}

template <class Real>
Bound<Real>::Bound(const Planned& plan, BasicInputs<Real>& inputs, const Call& call)
    : outputs(inputs.arrays.size()),
      saved(plan.info().saved_bytes, 0xFF),
      plan_(plan),
      inputs_(inputs),
      call_(call),
      exec_(plan.info().scratch_bytes, call.workers, call.scratch_fill) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const attn_port& port = *plan.mech().ports()[i];
    BasicArray<Real>& a = inputs.arrays[i];
    if (is_given(port)) {
      const int64_t rows = port.kind == ATTN_OUTPUT ? call.queries : a.rows;
      outputs[i] = BasicArray<Real>(a.batch, a.heads, rows, a.width, inputs.of_outputs);
      tensors_.push_back(outputs[i].tensor());
    } else if (port.kind == ATTN_QUERY || port.kind == ATTN_KEY) {
      const bool key = port.kind == ATTN_KEY;
      tensors_.push_back(a.tensor(key ? call.k_from : call.q_from, key ? call.keys : call.queries));
    } else {
      tensors_.push_back(a.tensor());
      if (port.kind == ATTN_AUX_IN && call.without_aux) tensors_.back().data = nullptr;
    }
  }
  run_.struct_size = sizeof run_;
  run_.exec = exec_.get();
  run_.batch = inputs.arrays[plan.mech().output()].batch;
  run_.queries = call_.queries;
  run_.keys = call_.keys;
  run_.ports = tensors_.data();
  run_.q_len = pointer(call_.q_len);
  run_.k_len = pointer(call_.k_len);
  run_.q_pos = pointer(call_.q_pos);
  run_.k_pos = pointer(call_.k_pos);
  run_.q_total = pointer(call_.q_total);
  run_.k_total = pointer(call_.k_total);
  run_.visible = pointer(call_.visible);
  run_.slots = pointer(call_.slots);
  if (call_.arena) {
    run_.state = call_.arena->bytes.data();
    run_.state_stride = call_.arena->stride;
  }
  if (plan.request().flags & ATTN_TRAIN) run_.saved = saved.data();
}

template <class Real>
void Bound<Real>::call_plugin(const attn_run& run) {
  attn_error error = empty_error();
  const int32_t code = boundary("run", [&] { return plan_.mech().plugin().run(plan_.get(), &run, &error); });
  if (code != ATTN_OK) throw RefusedRun(code, error.where, message_of(error));
}

void* Copies::add_bytes(const std::string& what, void* from, uint64_t bytes, uint64_t alignment) {
  if (from == nullptr) return nullptr;
  fences.push_back(std::make_unique<Fence>(what, bytes, alignment));
  std::memcpy(fences.back()->data(), from, bytes);
  origins_.push_back({from, bytes});
  return fences.back()->data();
}

std::vector<attn_tensor> Copies::add(const char* what, const Mechanism& mech, const attn_tensor* tensors) {
  std::vector<attn_tensor> copied(tensors, tensors + mech.ports().size());
  for (size_t i = 0; i < copied.size(); ++i) {
    attn_tensor& t = copied[i];
    t.data = add(std::string(what) + mech.ports()[i]->name, static_cast<char*>(t.data), extent(t), t.dtype_bits / 8);
  }
  return copied;
}

void Copies::copy_back() const {
  for (size_t i = 0; i < fences.size(); ++i) std::memcpy(origins_[i].first, fences[i]->data(), origins_[i].second);
}

FencedRun::FencedRun(const Mechanism& mech, const attn_run& of, const Call& call, uint64_t saved_bytes)
    : tensors(copies.add("port ", mech, of.ports)), exec(*of.exec), run(of) {
  const auto array = [&](const char* what, const auto& from) {
    return copies.add(what, pointer(from), from.size() * sizeof(from[0]), alignof(decltype(from[0])));
  };
  exec.scratch = copies.add("scratch", static_cast<char*>(exec.scratch), exec.scratch_bytes, ATTN_ALIGN);
  run.exec = &exec;
  run.ports = tensors.data();
  run.q_len = array("q_len", call.q_len);
  run.k_len = array("k_len", call.k_len);
  run.q_pos = array("q_pos", call.q_pos);
  run.k_pos = array("k_pos", call.k_pos);
  run.q_total = array("q_total", call.q_total);
  run.k_total = array("k_total", call.k_total);
  run.visible = array("visible", call.visible);
  run.slots = array("slots", call.slots);
  if (call.arena)
    run.state = copies.add("state", static_cast<char*>(call.arena->bytes.data()), call.arena->bytes.size(), ATTN_ALIGN);
  run.saved = copies.add("saved", static_cast<char*>(run.saved), saved_bytes, ATTN_ALIGN);
}

template <class Real>
void Bound<Real>::run() {
  std::vector<BasicArray<Real>> before;
  if (!call_.one_of_many) before = inputs_.arrays;
  if (call_.fenced) {
    const FencedRun fenced(plan_.mech(), run_, call_, saved.size());
    within(fenced.copies.fences, "run", [&] { call_plugin(fenced.run); });
    fenced.copies.copy_back();
  } else if (call_.later) {
    const Later exec(*run_.exec);
    Later run(run_);
    run.known.exec = &exec.known;
    call_plugin(run.known);
  } else {
    call_plugin(run_);
  }
  if (!exec_.intact()) throw Violation("the run wrote beyond its scratch");
  if (!saved.intact()) throw Violation("the run saved beyond its room");
  if (call_.arena && !call_.arena->intact()) throw Violation("the run wrote beside the state rows");
  for (const BasicArray<Real>& output : outputs)
    if (!output.gaps_intact()) throw Violation("the run wrote past the rows of an output");
  if (!call_.one_of_many && !same_memory(before, inputs_.arrays)) throw Violation("the run changed an input");
}

template <class Real>
BasicArray<Real> Planned::run(BasicInputs<Real>& inputs, const Call& call,
                              std::map<std::string, BasicArray<Real>>* aux) const {
  Bound<Real> bound(*this, inputs, call);
  bound.run();
  for (size_t i = 0; i < bound.outputs.size() && aux; ++i)
    if (mech_.ports()[i]->kind == ATTN_AUX_OUT) (*aux)[mech_.ports()[i]->name] = bound.outputs[i];
  return bound.outputs[mech_.output()];
}

template <class Real>
attn_request whole_request(const BasicInputs<Real>& inputs, uint32_t flags, Call& call, uint32_t workers) {
  const BasicArray<Real>& out = inputs.arrays[inputs.mech->output()];
  if (!call.q_total.empty()) flags |= ATTN_KNOWS_Q_TOTAL;
  if (!call.k_total.empty()) flags |= ATTN_KNOWS_K_TOTAL;
  call.queries = out.rows;
  call.keys = inputs.keys;
  call.workers = workers;
  attn_request request = make_request(out.batch, out.rows, inputs.keys, flags, 0, workers);
  request.dtype_bits = 8 * sizeof(Real);
  return request;
}

template <class Real>
BasicArray<Real> run_whole(BasicInputs<Real>& inputs, uint32_t flags, Call call, uint32_t workers,
                           std::map<std::string, BasicArray<Real>>* aux) {
  const attn_request request = whole_request(inputs, flags, call, workers);
  return Planned(*inputs.mech, request).run(inputs, call, aux);
}

#define ATTNKIT_INSTANTIATE(Real)                                                                                   \
  template struct BasicInputs<Real>;                                                                                \
  template class Bound<Real>;                                                                                       \
  template bool same_memory(const std::vector<BasicArray<Real>>&, const std::vector<BasicArray<Real>>&);            \
  template BasicArray<Real> Planned::run(BasicInputs<Real>&, const Call&, std::map<std::string, BasicArray<Real>>*) \
      const;                                                                                                        \
  template attn_request whole_request(const BasicInputs<Real>&, uint32_t, Call&, uint32_t);                         \
  template BasicArray<Real> run_whole(BasicInputs<Real>&, uint32_t, Call, uint32_t,                                 \
                                      std::map<std::string, BasicArray<Real>>*);
ATTNKIT_INSTANTIATE(float)
ATTNKIT_INSTANTIATE(double)

}  // namespace attnkit::core::conformance
