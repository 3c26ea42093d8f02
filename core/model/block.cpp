#include "core/model/block.hpp"

#include <algorithm>

#include "core/model/layers.hpp"

namespace attnkit {
namespace {

// (B, heads, rows, width) over rows that are `stride` floats apart.
attn_tensor sequence(const float* data, int64_t batch, int64_t heads, int64_t rows, int64_t width, int64_t stride) {
  attn_tensor t{};
  t.data = const_cast<float*>(data);
  const int64_t shape[4] = {batch, heads, rows, width}, strides[4] = {rows * stride, width, stride, 1};
  std::copy(shape, shape + 4, t.shape);
  std::copy(strides, strides + 4, t.stride);
  t.dtype_code = 2;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  t.ndim = 4;
  t.device_type = 1;
  return t;
}

}  // namespace

void Block::project(Threads& threads, Workspace& workspace, const BlockCall& call,
                    std::vector<attn_tensor>& tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const attn_port& port = *mechanism_->ports()[i];
    const int64_t heads = port.shape[1], width = port.shape[3];
    switch (port.kind) {
      case ATTN_QUERY:
      case ATTN_KEY: {
        const bool query = port.kind == ATTN_QUERY;
        const int64_t rows = query ? call.queries : call.keys;
        const float* x = query ? call.input : call.context;
        if (port.flags & ATTN_RAW) {
          tensors[i] = sequence(x, call.batch, 1, rows, d_model_, d_model_);
          break;
        }
        float* y = workspace.ports[i].get<float>(call.batch * rows * heads * width);
        if (rows > 0) projections_[i].apply(threads, x, d_model_, y, heads * width, call.batch * rows);
        tensors[i] = sequence(y, call.batch, heads, rows, width, heads * width);
        break;
      }
      case ATTN_OUTPUT:
        tensors[i] = sequence(workspace.ports[i].get<float>(call.batch * call.queries * heads * width), call.batch,
                              heads, call.queries, width, heads * width);
        break;
      case ATTN_LEARNED:
      case ATTN_TABLE:
        tensors[i] = contiguous(port, stored_[i].raw.empty() ? static_cast<const void*>(stored_[i].f32.data())
                                                             : static_cast<const void*>(stored_[i].raw.data()));
        break;
      default:
        bind_aux(workspace, call, i, tensors[i]);
    }
  }
}

void Block::bind_aux(Workspace& workspace, const BlockCall& call, size_t i, attn_tensor& tensor) const {
  const attn_port& port = *mechanism_->ports()[i];
  if (!call.aux)
    fail(ATTN_UNSUPPORTED,
         "{}: \"{}\" carries the sequence \"{}\" from block to block, so it cannot run by itself: run the model", path_,
         choice_.mechanism, port.name);
  const int64_t rows = port.shape[2], width = port.shape[3];
  if (port.kind == ATTN_AUX_OUT) {
    tensor = sequence(workspace.ports[i].get<float>(call.batch * rows * width), call.batch, 1, rows, width, width);
    return;
  }
  const auto value = call.aux->find(std::string_view(port.name));
  if (value == call.aux->end() || value->second.rows == 0) {
    tensor = sequence(nullptr, call.batch, 1, rows, width, width);
    return;
  }
  if (value->second.rows != rows || value->second.width != width)
    fail(ATTN_UNSUPPORTED, "{}: \"{}\" wants the sequence \"{}\" as {}x{}, the block before gives {}x{}", path_,
         choice_.mechanism, port.name, rows, width, value->second.rows, value->second.width);
  tensor = sequence(value->second.data.data(), call.batch, 1, rows, width, width);
}

attn_run Block::bind(const BlockCall& call, const std::vector<attn_tensor>& tensors, const attn_exec& exec) const {
  attn_run run{};
  run.struct_size = sizeof run;
  run.exec = &exec;
  run.batch = call.batch;
  run.queries = call.queries;
  run.keys = call.keys;
  run.ports = tensors.data();
  run.q_len = call.q_len;
  run.k_len = call.k_len;
  run.q_pos = call.q_pos;
  run.k_pos = call.k_pos;
  run.q_total = totals_ & ATTN_KNOWS_Q_TOTAL ? call.q_total : nullptr;
  run.k_total = totals_ & ATTN_KNOWS_K_TOTAL ? call.k_total : nullptr;
  run.state = call.state;
  run.state_stride = call.state_stride;
  run.slots = call.slots;
  return run;
}

void Block::run(Threads& threads, Workspace& workspace, const Plan& plan, const BlockCall& call) const {
  if (call.batch == 0 || (call.queries == 0 && call.keys == 0)) return;
  if (workspace.ports.size() < projections_.size()) workspace.ports.resize(projections_.size());
  std::vector<attn_tensor>& tensors = workspace.tensors;
  tensors.assign(projections_.size(), attn_tensor{});
  project(threads, workspace, call, tensors);
  const uint64_t scratch = plan.info().scratch_bytes;
  const attn_exec exec = threads.exec(workspace.scratch.get<char>(static_cast<int64_t>(scratch)), scratch);
  plan.run(bind(call, tensors, exec));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (mechanism_->ports()[i]->kind != ATTN_AUX_OUT) continue;
    const attn_tensor& t = tensors[i];
    const float* data = static_cast<const float*>(t.data);
    const std::string_view name = mechanism_->ports()[i]->name;
    auto at = call.aux->find(name);
    if (at == call.aux->end()) at = call.aux->try_emplace(std::string(name)).first;
    at->second.data.assign(data, data + call.batch * t.shape[2] * t.shape[3]);
    at->second.rows = t.shape[2];
    at->second.width = t.shape[3];
  }
  if (call.queries == 0) return;
  const attn_port& port = *mechanism_->ports()[output_];
  float* o = static_cast<float*>(tensors[output_].data);
  const int64_t rows = call.batch * call.queries, width = port.shape[1] * port.shape[3];
  if (out_raw_) {
    std::copy(o, o + rows * d_model_, call.out);
    return;
  }
  if (head_norm_) normalise_heads(o, rows, port.shape[1], port.shape[3]);
  out_.apply(threads, o, width, call.out, d_model_, rows);
}

void Block::attention(Threads& threads, Workspace& workspace, const BlockCall& call, float* weights) const {
  const int v = mechanism_->port("v");
  if (v < 0 || mechanism_->ports()[v]->kind != ATTN_KEY)
    fail(ATTN_UNSUPPORTED, "{}: \"{}\" has no values \"v\" whose weights could be shown", path_, choice_.mechanism);
  if (workspace.ports.size() < projections_.size()) workspace.ports.resize(projections_.size());
  const Plan plan = plan_whole(threads.workers(), 1, call.queries, call.keys);
  const int64_t heads = mechanism_->ports()[v]->shape[1], width = mechanism_->ports()[v]->shape[3];
  const uint64_t scratch = plan.info().scratch_bytes;
  const attn_exec exec = threads.exec(workspace.scratch.get<char>(static_cast<int64_t>(scratch)), scratch);
  std::vector<attn_tensor> tensors(projections_.size());
  project(threads, workspace, call, tensors);
  const attn_port& out = *mechanism_->ports()[output_];
  if (out.shape[1] != heads || out.shape[3] != width)
    fail(ATTN_UNSUPPORTED, "{}: the output of \"{}\" is not shaped like its values, so its weights cannot be read off",
         path_, choice_.mechanism);
  float* values = workspace.ports[v].get<float>(call.keys * heads * width);
  const float* o = static_cast<const float*>(tensors[output_].data);
  // Each pass shows the weights of `width` keys: their values are the unit vectors, all others zero.
  for (int64_t first = 0; first < call.keys; first += width) {
    std::fill(values, values + call.keys * heads * width, 0.0f);
    const int64_t n = std::min(width, call.keys - first);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t h = 0; h < heads; ++h) values[((first + j) * heads + h) * width + j] = 1.0f;
    plan.run(bind(call, tensors, exec));
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < call.queries; ++i)
        std::copy(o + (i * heads + h) * width, o + (i * heads + h) * width + n,
                  weights + (h * call.queries + i) * call.keys + first);
  }
}

}  // namespace attnkit
