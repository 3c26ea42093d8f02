// What whole-sequence runs and sessions share: workspaces, layers, checks, lengths.
#include "core/model/model.hpp"

#include <algorithm>

namespace attnkit {

Model::Lease Model::lease() const { return Lease(*this); }

const Vocabulary* Model::vocabulary(bool target) const {
  const std::optional<Vocabulary>& v = target ? target_vocabulary_ : source_vocabulary_;
  return v ? &*v : nullptr;
}

void Model::check_ids(const Ids& ids, bool target) const {
  const char* side = target ? "target" : "source";
  const Vocabulary* vocab = vocabulary(target);
  if (!vocab) fail(ATTN_INVALID, "this model has no {} side", side);
  if (ids.batch < 0 || ids.length < 0 || (ids.batch > 0 && ids.length > 0 && !ids.data))
    fail(ATTN_INVALID, "{}: no ids", side);
  if (ids.length > manifest_.max_length)
    fail(ATTN_INVALID, "{}: {} tokens are more than max_length {}", side, ids.length, manifest_.max_length);
  for (int64_t b = 0; b < ids.batch; ++b) {
    const int64_t n = ids.lens ? ids.lens[b] : ids.length;
    if (n < 0 || n > ids.length)
      fail(ATTN_INVALID, "{}: row {} has length {}, possible are 0 to {}", side, b, n, ids.length);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t id = ids.data[b * ids.stride + i];
      if (id < 0 || id >= vocab->size())
        fail(ATTN_INVALID, "{}: row {} position {}: id {} is outside the vocabulary of {} tokens", side, b, i, id,
             vocab->size());
    }
  }
}

void Model::embed(const Transformer& stack, const Ids& ids, const int32_t* position, float* x) const {
  const int64_t d = manifest_.d_model;
  for (int64_t b = 0; b < ids.batch; ++b) {
    const int64_t n = ids.lens ? ids.lens[b] : ids.length;
    for (int64_t i = 0; i < ids.length; ++i, x += d) {
      if (i < n)
        stack.embedding.row(ids.data[b * ids.stride + i], (position ? position[b] : 0) + i, x);
      else
        std::fill(x, x + d, 0.0f);
    }
  }
}

template <class F>
void Model::residual(ModelWorkspace& ws, const LayerNorm& norm, float* x, int64_t rows, F&& f) const {
  const int64_t n = rows * manifest_.d_model;
  float* y = ws.y.get<float>(n);
  if (manifest_.norm == Norm::pre) {
    float* normed = ws.normed.get<float>(n);
    norm.apply(x, normed, rows);
    f(normed, y);
    add(x, y, n);
  } else {
    f(x, y);
    add(x, y, n);
    norm.apply(x, x, rows);
  }
}

void Model::feed_forward(ModelWorkspace& ws, const FeedForward& ffn, float* x, int64_t rows) const {
  const int64_t d = manifest_.d_model, width = manifest_.ffn;
  residual(ws, ffn.norm, x, rows, [&](const float* in, float* out) {
    float* hidden = ws.hidden.get<float>(rows * width);
    ffn.in.apply(runtime_->threads, in, d, hidden, width, rows);
    activate(manifest_.activation, hidden, rows * width);
    ffn.out.apply(runtime_->threads, hidden, width, out, d, rows);
  });
}

void Model::finish(const Transformer& stack, float* x, int64_t rows) const {
  if (manifest_.norm == Norm::pre) stack.norm.apply(x, x, rows);
}

void Model::attend(ModelWorkspace& ws, const Attention& attention, float* x, BlockCall call, const Plan* plan,
                   const Probe* probe) const {
  const Block& block = *attention.block;
  const int64_t rows = call.batch * call.queries;
  residual(ws, attention.norm, x, rows, [&](const float* in, float* out) {
    call.input = in;
    if (!call.context) call.context = in;
    call.out = out;
    if (probe && probe->role == block.choice().role && probe->layer == block.choice().layer)
      block.attention(runtime_->threads, ws.block, call, probe->weights);
    if (plan)
      block.run(runtime_->threads, ws.block, *plan, call);
    else
      block.run(runtime_->threads, ws.block,
                block.plan_whole(runtime_->threads.workers(), call.batch, call.queries, call.keys), call);
  });
}

void Model::logits(const float* x, int64_t rows, float* out) const {
  head_.apply(runtime_->threads, x, head_.inputs(), out, head_.outputs(), rows);
}

}  // namespace attnkit
