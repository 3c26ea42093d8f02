// The cost of one more token for one mechanism, decoding token by token.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "core/base/buffer.hpp"
#include "core/base/roles.hpp"
#include "hosts/cli/bench/bench.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

constexpr int64_t tokens_per_sample = 8, max_chunk_rows = 512;
constexpr int64_t max_chunk = 1 << 22;    // floats of one port
constexpr const char* exact = "softmax";  // timed beside the mechanism by default
constexpr size_t warm_ups = 3, min_samples = 7, max_samples = 101;
constexpr double budget_seconds = 6;

struct BlockSetup {
  std::string mechanism, options;
  uint32_t role = ATTN_DECODER_SELF, heads = 8, threads = 1;
  int32_t width = 64;
  std::vector<int64_t> contexts;
};

char* bytes_of(Buffer& memory) { return memory.get<char>(0); }

Buffer zeros(uint64_t bytes) {
  Buffer memory;
  std::memset(memory.get<char>(static_cast<int64_t>(std::max<uint64_t>(bytes, 1))), 0, bytes);
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
      memory_.push_back(zeros(static_cast<uint64_t>(size) * t.dtype_bits / 8));
      t.data = bytes_of(memory_.back());
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
  std::vector<Buffer> memory_;
};

struct TokenTiming {
  int64_t context;
  Timing seconds;  // of one token
  attn_info info;  // for a state of exactly the context
};

// A block that has read `context` tokens and is given more, one at a time.
class Decoding {
 public:
  Decoding(std::shared_ptr<const Block> block, std::shared_ptr<Ports> ports, const BlockSetup& setup, int64_t context)
      : context_(context),
        block_(std::move(block)),
        self_(setup.role != ATTN_DECODER_CROSS),
        serial_(setup.threads == 1),
        ports_(std::move(ports)) {
    request_ = request(setup, 1, self_ ? 1 : 0);
    info_ = ask(request_);
    attn_request exact = request_;
    exact.past = context_ - exact.keys;
    at_context_ = ask(exact);
    stride_ = std::max<uint64_t>(info_.state_bytes, 1);
    stride_ = (stride_ + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    check_memory();
    state_ = zeros(stride_);
    scratch_ = zeros(info_.scratch_bytes);
    read_context(setup);
    if (info_.flags & ATTN_REWINDS) return;
    before_ = zeros(stride_);
    std::memcpy(bytes_of(*before_), bytes_of(state_), stride_);
  }

  // Times one token; counts: keeps the time.
  void sample(bool counts) {
    check_interrupt();
    write_token(0);  // the others' turns have emptied the caches
    // Tokens of mechanisms that cannot rewind are taken back outside the clock.
    if (before_) std::memcpy(bytes_of(state_), bytes_of(*before_), stride_);
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < tokens_per_sample; ++i) write_token(i);
    if (counts) samples_.push_back(seconds_since(start) / tokens_per_sample);
  }

  TokenTiming timing() const { return {context_, timing_of(samples_), at_context_}; }

 private:
  int64_t capacity() const { return context_ + (self_ ? tokens_per_sample : 0); }

  attn_request request(const BlockSetup& setup, int64_t queries, int64_t keys) const {
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
      return block_->plan(request);
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

  void read_context(const BlockSetup& setup) {
    const int64_t chunk = std::min(ports_->rows(), context_);
    const attn_request r = request(setup, 0, chunk);
    const uint64_t bytes = ask(r).scratch_bytes;
    Buffer scratch = zeros(bytes);
    for (int64_t seen = 0; seen < context_; seen += chunk) {
      check_interrupt();
      run(r, 0, std::min(chunk, context_ - seen), seen, bytes_of(scratch), bytes);
    }
  }

  // The i-th token after the context.
  void write_token(int64_t i) {
    run(request_, 1, self_ ? 1 : 0, context_ + i, bytes_of(scratch_), info_.scratch_bytes);
  }

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
    r.ports = ports_->get(queries, keys);
    r.q_pos = &at;
    r.k_pos = &seen;
    r.q_total = r.k_total = &total;
    r.state = bytes_of(state_);
    r.state_stride = stride_;
    block_->run(request, r);
  }

  int64_t context_;
  std::shared_ptr<const Block> block_;
  bool self_, serial_;
  std::shared_ptr<Ports> ports_;
  attn_request request_{};
  attn_info info_{}, at_context_{};
  uint64_t stride_ = 0;
  Buffer state_, scratch_;
  std::optional<Buffer> before_;
  std::vector<double> samples_;
};

// The library has one code for options that cannot be read and for those that a mechanism refuses.
bool is_no_toml(std::string_view message) {
  return message.starts_with("options ") &&
         (message.find("\": not TOML: ") != std::string_view::npos ||
          message.find(" are not the content of one inline table") != std::string_view::npos);
}

Block make_block(const Runtime& runtime, const BlockSetup& s) {
  const attn_block where = {sizeof(attn_block),
                            s.role,
                            s.role != ATTN_DECODER_CROSS,
                            s.heads,
                            static_cast<int32_t>(s.heads) * s.width,
                            s.width,
                            0,
                            0};
  try {
    return Block(runtime, s.mechanism, where, s.options);
  } catch (const Error& e) {
    if (is_no_toml(e.what())) fail(Exit::usage, "--{}", e.what());
    fail(e.code() == ATTN_NO_MEMORY ? Exit::internal : Exit::plugin, "{}", e.what());
  }
}

// For each mechanism its contexts, all timed in turns, so that a drift of the machine meets all of them.
std::vector<std::vector<TokenTiming>> time_blocks(const Runtime& runtime, const std::vector<BlockSetup>& setups) {
  std::vector<std::vector<Decoding>> all;
  for (const BlockSetup& setup : setups) {
    const auto block = std::make_shared<const Block>(make_block(runtime, setup));
    const int64_t rows = std::clamp<int64_t>(max_chunk / (int64_t{setup.heads} * setup.width), 1, max_chunk_rows);
    const auto ports = std::make_shared<Ports>(*block, rows);
    all.emplace_back();
    for (const int64_t context : setup.contexts) all.back().emplace_back(block, ports, setup, context);
  }
  const Clock::time_point start = Clock::now();
  for (size_t round = 0; round < warm_ups + max_samples; ++round) {
    if (round >= warm_ups + min_samples && seconds_since(start) > budget_seconds) break;
    for (size_t c = 0; c < setups.front().contexts.size(); ++c)
      for (std::vector<Decoding>& contexts : all) contexts[c].sample(round >= warm_ups);
  }
  std::vector<std::vector<TokenTiming>> timings;
  for (const std::vector<Decoding>& contexts : all) {
    timings.emplace_back();
    for (const Decoding& decoding : contexts) timings.back().push_back(decoding.timing());
  }
  return timings;
}

// The context from which a mechanism's token costs less than the other's, whose cost grows.
struct Crossover {
  enum Place { below, between, beyond } place;  // the shortest context measured, two of them, the longest
  double context;                               // between: interpolated, both axes logarithmic; else that context
};

// own and other: the same contexts, in any order, at least one.
Crossover crossover_of(std::vector<TokenTiming> own, std::vector<TokenTiming> other) {
  const auto shorter = [](const TokenTiming& a, const TokenTiming& b) { return a.context < b.context; };
  std::sort(own.begin(), own.end(), shorter);
  std::sort(other.begin(), other.end(), shorter);
  // The logarithm of the ratio of costs; its last change of sign counts.
  const auto more = [&](size_t i) { return std::log(other[i].seconds.median / own[i].seconds.median); };
  size_t from = own.size();
  while (from > 0 && more(from - 1) > 0) --from;
  if (from == own.size()) return {Crossover::beyond, static_cast<double>(own.back().context)};
  if (from == 0) return {Crossover::below, static_cast<double>(own.front().context)};
  const double before = more(from - 1), after = more(from);
  const double left = std::log(static_cast<double>(own[from - 1].context));
  const double right = std::log(static_cast<double>(own[from].context));
  return {Crossover::between, std::exp(left + (right - left) * before / (before - after))};
}

// "below 64", "about 130", "beyond 65,536".
std::string text_of(const Crossover& crossover) {
  const char* const places[] = {"below ", "about ", "beyond "};
  return places[crossover.place] + grouped_text(static_cast<uint64_t>(std::lround(crossover.context)));
}

// One more token of a mechanism, and of another one beside it where there is one.
struct BlockResult {
  const BlockSetup& setup;
  std::string against;
  std::vector<TokenTiming> own, other;
};

Json json_of(const BlockResult& r) {
  const BlockSetup& s = r.setup;
  Json json = {
      {"schema", "attnkit.bench/1"}, {"part", "block"},         {"mechanism", s.mechanism}, {"role", role_name(s.role)},
      {"options", s.options},        {"heads", s.heads},        {"width", s.width},         {"dtype", "f32"},
      {"threads", s.threads},        {"results", Json::array()}};
  for (const TokenTiming& t : r.own) {
    Json result = {{"context", t.context}};
    add_timing(t.seconds, result);
    result.update({{"state_bytes", t.info.state_bytes}, {"flops", t.info.flops}});
    json["results"].push_back(result);
  }
  if (r.other.empty()) return json;
  for (size_t i = 0; i < r.other.size(); ++i) json["results"][i]["against_median_seconds"] = r.other[i].seconds.median;
  const Crossover c = crossover_of(r.own, r.other);
  const char* const places[] = {"below", "between", "beyond"};
  json["against"] = r.against;
  json["crossover"] = {{"place", places[c.place]}, {"context", c.context}, {"text", text_of(c)}};
  return json;
}

std::string text_of(const BlockResult& r) {
  const BlockSetup& s = r.setup;
  const bool beside = !r.other.empty();
  std::string out =
      fmt::format("{} in {}, {} heads of width {}, f32, {}: one more token{}\n", s.mechanism, role_name(s.role),
                  s.heads, s.width, counted_text(s.threads, "thread"), beside ? ", in turns with " + r.against : "");
  std::vector<std::string> head = {">context", ">median", ">quartiles", ">repetitions", ">state", ">flops"};
  if (beside) head.push_back(">" + r.against);
  Table table(head);
  for (size_t i = 0; i < r.own.size(); ++i) {
    const TokenTiming& t = r.own[i];
    std::vector<std::string> row = {std::to_string(t.context),      seconds_text(t.seconds.median),
                                    quartiles_text(t.seconds),      std::to_string(t.seconds.repetitions),
                                    bytes_text(t.info.state_bytes), count_text(static_cast<double>(t.info.flops))};
    if (beside) row.push_back(seconds_text(r.other[i].seconds.median));
    table.add(row);
  }
  out += table.text();
  if (beside)
    out += fmt::format("a token costs less than with {} from a context of: {}\n", r.against,
                       text_of(crossover_of(r.own, r.other)));
  return out;
}

BlockResult time_beside(const Runtime& runtime, const BlockSetup& setup, const Arguments& arguments) {
  BlockSetup other = setup;
  other.mechanism = arguments.text("against", setup.mechanism == exact ? "none" : exact);
  other.options.clear();
  if (other.mechanism != "none") {
    try {
      const auto timings = time_blocks(runtime, {setup, other});
      return {setup, other.mechanism, timings[0], timings[1]};
    } catch (const Failure& e) {
      // It was not asked for, and its state grows where the mechanism's own may not.
      if (arguments.has("against") || e.exit() == Exit::interrupted) throw;
      const BlockResult alone{setup, "", time_blocks(runtime, {setup})[0], {}};
      note(fmt::format("attnkit: not timed beside {}: {}\n", other.mechanism, e.what()));
      return alone;
    }
  }
  return {setup, "", time_blocks(runtime, {setup})[0], {}};
}

BlockSetup setup_of(const Arguments& arguments) {
  if (!arguments.has("block"))
    fail(Exit::usage, "a manifest, or --block MECHANISM, is missing; see \"attnkit bench --help\"");
  BlockSetup s;
  s.mechanism = arguments.text("block");
  s.options = arguments.text("options");
  s.role = all_roles[arguments.choice("role", 1, {std::begin(role_names), std::end(role_names)})];
  s.heads = static_cast<uint32_t>(arguments.integer("heads", 8, 1, 1024));
  s.width = static_cast<int32_t>(arguments.integer("width", 64, 1, 4096));
  s.contexts = arguments.integers("context", {64, 512, 4096}, 1, int64_t{1} << 24);
  s.threads = static_cast<uint32_t>(arguments.integer("threads", 1, 1, 1024));
  return s;
}

}  // namespace

Exit bench_block(const Arguments& arguments) {
  for (const char* option : {"length", "batch", "sessions"})
    if (arguments.has(option)) fail(Exit::usage, "--{} is for a model: name its manifest first", option);
  const BlockSetup setup = setup_of(arguments);
  const BlockResult result = time_beside(open_runtime(arguments, setup.threads), setup, arguments);
  print_result(arguments.json(), json_of(result), text_of(result));
  return Exit::success;
}

}  // namespace attnkit::cli
