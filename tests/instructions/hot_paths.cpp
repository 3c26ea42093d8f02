// Runs ten paths that decide how fast attnkit is, one after another, each as a part of its own for callgrind.
#include <valgrind/callgrind.h>

#include <attnkit/attnkit.hpp>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using Path = std::function<void()>;

// Random numbers that the tensor of a port looks at.
struct Numbers {
  std::vector<float> data;
  std::vector<int32_t> ids;
};

// One mechanism, 4 heads of 64, causal: 256 tokens at once, or one behind 256.
class Kernel {
 public:
  enum class Form { whole, step, backward };

  Kernel(const attnkit::Runtime& runtime, const char* mechanism, Form form)
      : form_(form),
        block_(runtime, mechanism, {sizeof(attn_block), ATTN_DECODER_SELF, 1, heads, heads * width, width, 0, 0}) {
    const bool step = form == Form::step;
    const int64_t rows = step ? 1 : length;
    const uint32_t flags = step ? ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL
                                : ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL | (form == Form::backward ? ATTN_TRAIN : 0);
    request_ = {sizeof request_, flags, 1, 0, 2, 32, 1, 1, 1, rows, rows, step ? length : 0};
    const attn_info info = block_.plan(request_);
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (const attn_port* port : block_.ports()) {
      attn_tensor t{};
      t.ndim = port->ndim;
      t.dtype_code = port->dtype_bits ? port->dtype_code : 2;
      t.dtype_bits = port->dtype_bits ? port->dtype_bits : 32;
      t.dtype_lanes = t.device_type = 1;
      std::copy_n(port->shape, port->ndim, t.shape);
      if (port->kind <= ATTN_OUTPUT) t.shape[0] = 1, t.shape[2] = rows;
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
  Kernel(const Kernel&) = delete;

  void operator()() {
    if (form_ == Form::backward)
      block_.backward(request_, {sizeof(attn_grad), 0, &run_, grads_.data()});
    else
      block_.run(request_, run_);
  }

 private:
  static constexpr int64_t length = 256, heads = 4, width = 64;
  struct alignas(ATTN_ALIGN) Line {
    char bytes[ATTN_ALIGN];
  };
  Form form_;
  attnkit::Block block_;
  attn_request request_{};
  attn_run run_{};
  std::vector<std::vector<float>> numbers_, gradients_;
  std::vector<attn_tensor> ports_, grads_;
  std::vector<Line> state_, saved_;
  const double total_ = 2.0 * length;
  const int32_t position_ = length;
};

// Once more than needed: plans, scratch and packed weights are made before anything counts.
void count(const char* name, const Path& path) {
  for (int i = 0; i < 2; ++i) path();
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  path();
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
}

}  // namespace

// hot_paths MODEL REAL_TEXT_MODEL TEXT, folders of samples/models and a text
int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  const attnkit::Runtime runtime(1);
  const std::string folder = argv[1];
  for (const auto& [name, mechanism, form] : {std::tuple{"softmax, 256 tokens", "softmax", Kernel::Form::whole},
                                              {"softmax, one token more", "softmax", Kernel::Form::step},
                                              {"relu, 256 tokens", "relu", Kernel::Form::whole},
                                              {"relu, one token more", "relu", Kernel::Form::step},
                                              {"relu, gradients of 256 tokens", "relu", Kernel::Form::backward},
                                              {"cosformer, 256 tokens", "cosformer", Kernel::Form::whole},
                                              {"leap, one token more", "leap", Kernel::Form::step}}) {
    Kernel kernel(runtime, mechanism, form);
    count(name, [&] { kernel(); });
  }

  const attnkit::Model model(runtime, folder + "/model.toml");
  std::vector<int32_t> source(64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int32_t>(4 + i % 20);
  std::vector<attnkit::Session> sessions;
  std::vector<attnkit_session*> all;
  for (int i = 0; i < 16; ++i) {
    sessions.emplace_back(model, 1).read(source);
    all.push_back(sessions.back().get());
  }
  std::vector<int32_t> tokens(all.size(), 5);
  attn_tensor written = attnkit::tensor(tokens.data(), {16, 1});
  std::vector<float> scores(all.size() * model.info().outputs);
  const attn_tensor logits = attnkit::tensor(scores.data(), {16, 1, model.info().outputs});
  count("16 sessions write a token", [&] {
    if (attnkit_session_write(all.data(), 16, &written, nullptr, &logits, nullptr) != ATTN_OK) std::abort();
  });
  count("a source of 64 tokens is read", [&] { attnkit::Session(model, 1).read(source); });
  const attnkit::Model real(runtime, std::string(argv[2]) + "/model.toml");
  count("a text is tokenized", [&] { real.tokenize(attnkit::Side::source, argv[3]); });
} catch (const std::exception& e) {
  std::fprintf(stderr, "hot_paths: %s\n", e.what());
  return 1;
}
