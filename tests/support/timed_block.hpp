#pragma once

#include <attnkit/attnkit.hpp>
#include <random>
#include <string>
#include <vector>

namespace attnkit {

// One block of self attention with heads of 64 and its numbers, to be run again and again: `length` tokens at once,
// their gradients, or one token behind so many.  One thread at a time.
class TimedBlock {
 public:
  enum class Form { whole, step, backward };

  // Throws Error: what the mechanism refuses.
  TimedBlock(const Runtime& runtime, const std::string& mechanism, Form form, int64_t length, uint32_t heads,
             uint32_t workers = 1, bool causal = true)
      : form_(form),
        block_(runtime, mechanism, self_attention(heads, causal)),
        total_(2.0 * static_cast<double>(length)),
        position_(static_cast<int32_t>(length)) {
    const bool step = form == Form::step;
    const int64_t rows = step ? 1 : length;
    const uint32_t flags = step ? ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL
                                : ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL | (form == Form::backward ? ATTN_TRAIN : 0);
    request_ = {sizeof request_, flags, 1, 0, 2, 32, 1, workers, 1, rows, rows, step ? length : 0};
    const attn_info info = block_.plan(request_);
    flops_ = info.flops;
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (const attn_port* port : block_.ports()) {
      attn_tensor t{};
      t.ndim = port->ndim;
      t.dtype_code = port->dtype_bits ? port->dtype_code : 2;
      t.dtype_bits = port->dtype_bits ? port->dtype_bits : 32;
      t.dtype_lanes = t.device_type = 1;
      std::copy_n(port->shape, port->ndim, t.shape);
      for (uint32_t d = 0; d < t.ndim; ++d)
        if (t.shape[d] == 0) t.shape[d] = d == 0 ? 1 : rows;
      int64_t size = 1;
      for (uint32_t d = t.ndim; d-- > 0; size *= t.shape[d]) t.stride[d] = size;
      for (auto* all : {&numbers_, &gradients_}) {
        std::vector<float>& data = all->emplace_back(static_cast<size_t>(size));
        for (float& x : data) x = uniform(random);
      }
      t.data = numbers_.back().data();
      ports_.push_back(t);
      if (port->kind == ATTN_LEARNED || port->kind == ATTN_TABLE)
        block_.fill(static_cast<uint32_t>(ports_.size() - 1), 1, t);
      t.data = gradients_.back().data();
      grads_.push_back(t);
    }
    run_.struct_size = sizeof run_;
    run_.batch = 1;
    run_.queries = run_.keys = rows;
    run_.ports = ports_.data();
    run_.q_total = run_.k_total = &total_;
    if (step) {
      state_.resize(info.state_bytes / sizeof(Line) + 1);
      run_.q_pos = run_.k_pos = &position_;
      run_.state = state_.data();
      run_.state_stride = state_.size() * sizeof(Line);
    }
    if (form == Form::backward) {
      saved_.resize(info.saved_bytes / sizeof(Line) + 1);
      run_.saved = saved_.data();
      block_.run(request_, run_);
    }
  }
  TimedBlock(const TimedBlock&) = delete;

  // Of one run, as the mechanism declares them; a multiply-add is two.
  double flops() const { return static_cast<double>(flops_); }

  void operator()() {
    if (form_ == Form::backward)
      block_.backward(request_, {sizeof(attn_grad), 0, &run_, grads_.data()});
    else
      block_.run(request_, run_);
  }

 private:
  static attn_block self_attention(uint32_t heads, bool causal) {
    const auto all = static_cast<int32_t>(heads) * width;
    return {sizeof(attn_block), causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, causal, heads, all, width, 0, 0};
  }
  static constexpr int32_t width = 64;
  struct alignas(ATTN_ALIGN) Line {
    char bytes[ATTN_ALIGN];
  };
  Form form_;
  Block block_;
  attn_request request_{};
  attn_run run_{};
  std::vector<std::vector<float>> numbers_, gradients_;
  std::vector<attn_tensor> ports_, grads_;
  std::vector<Line> state_, saved_;
  const double total_;
  const int32_t position_;
  uint64_t flops_;
};

}  // namespace attnkit
