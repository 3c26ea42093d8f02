#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>

#include "hosts/cli/commands/bench.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t tokens_per_sample = 8, longest_chunk = 512;
constexpr int64_t largest_chunk = 1 << 22;  // floats of one port
constexpr size_t warm_ups = 3, fewest_samples = 7, most_samples = 101;
constexpr double budget_seconds = 6;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<char, Free>;

Bytes allocate(uint64_t bytes) {
  const uint64_t whole = (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
  Bytes memory(static_cast<char*>(std::aligned_alloc(ATTN_ALIGN, std::max<uint64_t>(whole, ATTN_ALIGN))));
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 0, whole);
  return memory;
}

// Runs all of a loop on this thread.
void run_here(uintptr_t, int64_t n, int64_t, attn_task task, uintptr_t arg) {
  if (n > 0) task(arg, 0, n, 0);
}

// The tensors of a block's ports for runs of up to `rows` rows, with random content.
class Ports {
 public:
  Ports(const Block& block, int64_t rows) : rows_(rows) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const attn_port* port : block.ports()) {
      const auto index = static_cast<uint32_t>(tensors_.size());
      const bool sequence = port->kind <= ATTN_OUTPUT, stored = port->kind == ATTN_LEARNED || port->kind == ATTN_TABLE;
      attn_tensor t = shaped(*port, sequence ? rows : port->shape[2]);
      const int64_t size = std::max<int64_t>(1, t.shape[0] * t.stride[0]);
      memory_.push_back(allocate(static_cast<uint64_t>(size) * t.dtype_bits / 8));
      t.data = memory_.back().get();
      if (stored) block.fill(index, 1, t);
      if (port->kind <= ATTN_KEY)
        for (int64_t i = 0; i < size; ++i) static_cast<float*>(t.data)[i] = normal(random);
      if (port->kind == ATTN_AUX_IN) t.data = nullptr;  // the mechanism's own start
      kinds_.push_back(port->kind);
      tensors_.push_back(t);
    }
  }

  int64_t rows() const { return rows_; }

  const attn_tensor* get(int64_t queries, int64_t keys) {
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (kinds_[i] <= ATTN_OUTPUT) tensors_[i].shape[2] = kinds_[i] == ATTN_KEY ? keys : queries;
    return tensors_.data();
  }

 private:
  static attn_tensor shaped(const attn_port& port, int64_t rows) {
    attn_tensor t = tensor<float>(nullptr, {});
    t.ndim = port.ndim;
    if (port.dtype_bits) t.dtype_code = port.dtype_code, t.dtype_bits = port.dtype_bits;
    std::copy_n(port.shape, port.ndim, t.shape);
    const bool batched = port.kind != ATTN_LEARNED && port.kind != ATTN_TABLE;
    if (batched) t.shape[0] = 1;
    if (batched) t.shape[2] = rows;
    int64_t stride = 1;
    for (uint32_t d = t.ndim; d-- > 0; stride *= t.shape[d]) t.stride[d] = stride;
    return t;
  }

  int64_t rows_;
  std::vector<attn_tensor> tensors_;
  std::vector<uint32_t> kinds_;
  std::vector<Bytes> memory_;
};

// A block that has seen `context` tokens and is given more, one at a time.
class Decoding {
 public:
  Decoding(const Block& block, Ports& ports, const BenchSetup& setup, int64_t context)
      : context_(context),
        block_(block),
        self_(setup.role != ATTN_DECODER_CROSS),
        serial_(setup.threads == 1),
        ports_(ports) {
    request_ = request(setup, 1, self_ ? 1 : 0);
    info_ = ask(request_);
    attn_request exact = request_;
    exact.past = context_ - exact.keys;
    told_ = ask(exact);
    stride_ = std::max<uint64_t>(info_.state_bytes, 1);
    stride_ = (stride_ + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    check_memory();
    state_ = allocate(stride_);
    scratch_ = allocate(info_.scratch_bytes);
    see(setup);
    if (info_.flags & ATTN_REWINDS) return;
    before_ = allocate(stride_);
    std::memcpy(before_.get(), state_.get(), stride_);
  }

  // Seconds of one token.
  double sample() {
    write(0);  // the others' turns have emptied the caches
    // What mechanisms that cannot rewind have added is taken back outside the clock.
    if (before_) std::memcpy(state_.get(), before_.get(), stride_);
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < tokens_per_sample; ++i) write(i);
    return std::chrono::duration<double>(Clock::now() - start).count() / tokens_per_sample;
  }

  // The answer for a state of exactly the context.
  const attn_info& told() const { return told_; }

 private:
  int64_t capacity() const { return context_ + (self_ ? tokens_per_sample : 0); }

  attn_request request(const BenchSetup& setup, int64_t queries, int64_t keys) const {
    attn_request r{};
    r.struct_size = sizeof r;
    r.flags = ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    r.device_type = 1;
    r.dtype_code = 2;
    r.dtype_bits = 32;
    r.dtype_lanes = 1;
    r.workers = setup.threads;
    r.batch = 1;
    r.queries = queries;
    r.keys = keys;
    r.past = capacity() - keys;
    return r;
  }

  attn_info ask(const attn_request& request) const {
    try {
      return block_.plan(request);
    } catch (const Error& e) {
      fail(Exit::plugin, "{}", e.what());
    }
  }

  void check_memory() const {
    const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if (stride_ > memory / 4 || info_.scratch_bytes > memory / 4)
      fail(Exit::usage, "--context {}: needs {} of state and {} of scratch, this machine has {}", context_,
           bytes_text(stride_), bytes_text(info_.scratch_bytes), bytes_text(memory));
  }

  void see(const BenchSetup& setup) {
    const int64_t chunk = std::min(ports_.rows(), context_);
    const attn_request r = request(setup, 0, chunk);
    const uint64_t bytes = ask(r).scratch_bytes;
    const Bytes scratch = allocate(bytes);
    for (int64_t seen = 0; seen < context_; seen += chunk) {
      check_interrupt();
      run(r, 0, std::min(chunk, context_ - seen), seen, scratch.get(), bytes);
    }
  }

  // The i-th token after the context.
  void write(int64_t i) { run(request_, 1, self_ ? 1 : 0, context_ + i, scratch_.get(), info_.scratch_bytes); }

  void run(const attn_request& request, int64_t queries, int64_t keys, int64_t position, void* scratch,
           uint64_t scratch_bytes) {
    const auto at = static_cast<int32_t>(position), seen = static_cast<int32_t>(self_ || keys ? position : context_);
    const double total = static_cast<double>(capacity());
    const attn_exec exec = {sizeof exec, 1, scratch, scratch_bytes, 0, 0, run_here};
    attn_run r{};
    r.struct_size = sizeof r;
    r.exec = serial_ ? &exec : nullptr;
    r.batch = 1;
    r.queries = queries;
    r.keys = keys;
    r.ports = ports_.get(queries, keys);
    r.q_pos = &at;
    r.k_pos = &seen;
    r.q_total = r.k_total = &total;
    r.state = state_.get();
    r.state_stride = stride_;
    block_.run(request, r);
  }

  int64_t context_;
  const Block& block_;
  bool self_, serial_;
  Ports& ports_;
  attn_request request_{};
  attn_info info_{}, told_{};
  uint64_t stride_ = 0;
  Bytes state_, before_, scratch_;
};

Timing timing_of(const Decoding& decoding, int64_t context, std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double q) {
    return samples[static_cast<size_t>(q * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {context,
          quantile(0.5),
          quantile(0.25),
          quantile(0.75),
          samples.size(),
          decoding.told().state_bytes,
          decoding.told().flops};
}

// The library has one code for options that cannot be read and for those that a mechanism refuses.
bool is_no_toml(std::string_view message) {
  return message.starts_with("options ") &&
         (message.find("\": not TOML: ") != std::string_view::npos ||
          message.find(" are not the content of one inline table") != std::string_view::npos);
}

Block make_block(const Runtime& runtime, const BenchSetup& s) {
  const attn_block where = {sizeof(attn_block),
                            s.role,
                            s.role != ATTN_DECODER_CROSS,
                            s.heads,
                            static_cast<int32_t>(s.heads) * s.width,
                            s.width};
  try {
    return Block(runtime, s.mechanism, where, s.options);
  } catch (const Error& e) {
    if (is_no_toml(e.what())) fail(Exit::usage, "--{}", e.what());
    fail(e.code() == ATTN_NO_MEMORY ? Exit::internal : Exit::plugin, "{}", e.what());
  }
}

// One mechanism at all its contexts.
class Mechanism {
 public:
  Mechanism(const Runtime& runtime, const BenchSetup& setup)
      : setup_(setup),
        block_(std::make_unique<Block>(make_block(runtime, setup))),
        ports_(std::make_unique<Ports>(
            *block_, std::clamp<int64_t>(largest_chunk / (int64_t{setup.heads} * setup.width), 1, longest_chunk))),
        samples_(setup.contexts.size()) {
    for (const int64_t context : setup.contexts)
      all_.push_back(std::make_unique<Decoding>(*block_, *ports_, setup, context));
  }

  void sample(size_t context, bool counts) {
    check_interrupt();
    const double seconds = all_[context]->sample();
    if (counts) samples_[context].push_back(seconds);
  }

  std::vector<Timing> timings() {
    std::vector<Timing> timings;
    for (size_t i = 0; i < all_.size(); ++i) timings.push_back(timing_of(*all_[i], setup_.contexts[i], samples_[i]));
    return timings;
  }

 private:
  const BenchSetup& setup_;
  std::unique_ptr<Block> block_;
  std::unique_ptr<Ports> ports_;
  std::vector<std::unique_ptr<Decoding>> all_;
  std::vector<std::vector<double>> samples_;
};

}  // namespace

std::vector<std::vector<Timing>> time_blocks(const Runtime& runtime, const std::vector<BenchSetup>& setups) {
  std::vector<Mechanism> all;
  for (const BenchSetup& setup : setups) all.emplace_back(runtime, setup);
  const Clock::time_point start = Clock::now();
  for (size_t round = 0; round < warm_ups + most_samples; ++round) {
    const bool late = std::chrono::duration<double>(Clock::now() - start).count() > budget_seconds;
    if (late && round >= warm_ups + fewest_samples) break;
    for (size_t c = 0; c < setups.front().contexts.size(); ++c)
      for (Mechanism& mechanism : all) mechanism.sample(c, round >= warm_ups);
  }
  std::vector<std::vector<Timing>> timings;
  for (Mechanism& mechanism : all) timings.push_back(mechanism.timings());
  return timings;
}

}  // namespace attnkit::cli
