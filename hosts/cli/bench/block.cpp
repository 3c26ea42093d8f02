// The cost of one mechanism: of one more token, decoding token by token, or of whole sequences.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "core/base/buffer.hpp"
#include "core/base/processors.hpp"
#include "core/base/roles.hpp"
#include "hosts/cli/bench/bench.hpp"
#include "hosts/cli/bench/limits.hpp"
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
  bool whole = false;            // sequences, not tokens behind a context
  std::vector<int64_t> lengths;  // of contexts, or of sequences
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

struct BlockTiming {
  int64_t length;
  Timing seconds;  // of one token or sequence
  attn_info info;  // for a state of exactly the context
};

attn_request request_of(const BlockSetup& setup, uint32_t flags, int64_t queries, int64_t keys) {
  attn_request r{};
  r.struct_size = sizeof r;
  r.flags = flags | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  r.device_type = 1;
  r.dtype_code = 2;
  r.dtype_bits = 32;
  r.dtype_lanes = 1;
  r.workers = setup.threads;
  r.batch = 1;
  r.queries = queries;
  r.keys = keys;
  return r;
}

attn_info ask(const Block& block, const attn_request& request) {
  try {
    return block.plan(request);
  } catch (const Error& e) {
    fail(Exit::plugin, "{}", e.what());
  }
}

void check_memory(const char* option, int64_t length, uint64_t state, uint64_t scratch) {
  const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (state > memory / 4 || scratch > memory / 4)
    fail(Exit::usage, "--{} {}: needs {} of state and {} of scratch, this machine has {}", option, length,
         bytes_text(state), bytes_text(scratch), bytes_text(memory));
}

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
    info_ = ask(*block_, request_);
    attn_request exact = request_;
    exact.past = context_ - exact.keys;
    at_context_ = ask(*block_, exact);
    stride_ = std::max<uint64_t>(info_.state_bytes, 1);
    stride_ = (stride_ + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    check_memory("context", context_, stride_, info_.scratch_bytes);
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

  BlockTiming timing() const { return {context_, timing_of(samples_), at_context_}; }
  static int64_t rows(const BlockSetup& setup) {
    return std::clamp<int64_t>(max_chunk / (int64_t{setup.heads} * setup.width), 1, max_chunk_rows);
  }

 private:
  int64_t capacity() const { return context_ + (self_ ? tokens_per_sample : 0); }

  attn_request request(const BlockSetup& setup, int64_t queries, int64_t keys) const {
    attn_request r = request_of(setup, ATTN_STREAM, queries, keys);
    r.past = capacity() - keys;
    return r;
  }

  void read_context(const BlockSetup& setup) {
    const int64_t chunk = std::min(ports_->rows(), context_);
    const attn_request r = request(setup, 0, chunk);
    const uint64_t bytes = ask(*block_, r).scratch_bytes;
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

// A block on whole sequences: as many queries as keys, without a state.
class Sequence {
 public:
  Sequence(std::shared_ptr<const Block> block, std::shared_ptr<Ports> ports, const BlockSetup& setup, int64_t length)
      : length_(length),
        block_(std::move(block)),
        serial_(setup.threads == 1),
        ports_(std::move(ports)),
        request_(request_of(setup, 0, length, length)),
        info_(ask(*block_, request_)) {
    check_memory("length", length, 0, info_.scratch_bytes);
    scratch_ = zeros(info_.scratch_bytes);
    repeats_ = static_cast<int>(std::clamp<uint64_t>(min_flops / std::max<uint64_t>(info_.flops, 1), 1, 1000));
  }

  void sample(bool counts) {
    check_interrupt();
    run();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < repeats_; ++i) run();
    if (counts) samples_.push_back(seconds_since(start) / repeats_);
  }

  BlockTiming timing() const { return {length_, timing_of(samples_), info_}; }
  static int64_t rows(const BlockSetup& setup) { return *std::max_element(setup.lengths.begin(), setup.lengths.end()); }

 private:
  static constexpr uint64_t min_flops = 2'000'000;  // of a sample

  void run() {
    const auto total = static_cast<double>(length_);
    const attn_exec exec = {sizeof exec, 1, bytes_of(scratch_), info_.scratch_bytes, 0, 0, run_here};
    attn_run r{};
    r.struct_size = sizeof r;
    r.exec = serial_ ? &exec : nullptr;
    r.batch = 1;
    r.queries = r.keys = length_;
    r.ports = ports_->get(length_, length_);
    r.q_total = r.k_total = &total;
    block_->run(request_, r);
  }

  int64_t length_;
  std::shared_ptr<const Block> block_;
  bool serial_;
  std::shared_ptr<Ports> ports_;
  attn_request request_;
  attn_info info_;
  Buffer scratch_;
  int repeats_;
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
                            s.role == ATTN_DECODER_SELF || (s.role == ATTN_ENCODER_SELF && !s.whole),
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

// For each mechanism its lengths, all timed in turns, so that a drift of the machine meets all of them.
template <class Timed>
std::vector<std::vector<BlockTiming>> time_all(const Runtime& runtime, const std::vector<BlockSetup>& setups) {
  std::vector<std::vector<Timed>> all;
  for (const BlockSetup& setup : setups) {
    const auto block = std::make_shared<const Block>(make_block(runtime, setup));
    const auto ports = std::make_shared<Ports>(*block, Timed::rows(setup));
    all.emplace_back();
    for (const int64_t length : setup.lengths) all.back().emplace_back(block, ports, setup, length);
  }
  const Clock::time_point start = Clock::now();
  for (size_t round = 0; round < warm_ups + max_samples; ++round) {
    if (round >= warm_ups + min_samples && seconds_since(start) > budget_seconds) break;
    for (size_t i = 0; i < setups.front().lengths.size(); ++i)
      for (std::vector<Timed>& lengths : all) lengths[i].sample(round >= warm_ups);
  }
  std::vector<std::vector<BlockTiming>> timings;
  for (const std::vector<Timed>& lengths : all) {
    timings.emplace_back();
    for (const Timed& timed : lengths) timings.back().push_back(timed.timing());
  }
  return timings;
}

std::vector<std::vector<BlockTiming>> time_blocks(const Runtime& runtime, const std::vector<BlockSetup>& setups) {
  return setups.front().whole ? time_all<Sequence>(runtime, setups) : time_all<Decoding>(runtime, setups);
}

// The length from which a mechanism's token or sequence costs less than the other's, whose cost grows.
struct Crossover {
  enum Place { below, between, beyond } place;  // the shortest length measured, two of them, the longest
  double length;                                // between: interpolated, both axes logarithmic; else that length
};

// own and other: the same lengths, in any order, at least one.
Crossover crossover_of(std::vector<BlockTiming> own, std::vector<BlockTiming> other) {
  const auto shorter = [](const BlockTiming& a, const BlockTiming& b) { return a.length < b.length; };
  std::sort(own.begin(), own.end(), shorter);
  std::sort(other.begin(), other.end(), shorter);
  // The logarithm of the ratio of costs; its last change of sign counts.
  const auto more = [&](size_t i) { return std::log(other[i].seconds.median / own[i].seconds.median); };
  size_t from = own.size();
  while (from > 0 && more(from - 1) > 0) --from;
  if (from == own.size()) return {Crossover::beyond, static_cast<double>(own.back().length)};
  if (from == 0) return {Crossover::below, static_cast<double>(own.front().length)};
  const double before = more(from - 1), after = more(from);
  const double left = std::log(static_cast<double>(own[from - 1].length));
  const double right = std::log(static_cast<double>(own[from].length));
  return {Crossover::between, std::exp(left + (right - left) * before / (before - after))};
}

// "below 64", "about 130", "beyond 65,536".
std::string text_of(const Crossover& crossover) {
  const char* const places[] = {"below ", "about ", "beyond "};
  return places[crossover.place] + grouped_text(static_cast<uint64_t>(std::lround(crossover.length)));
}

// A mechanism, and another one beside it where there is one.
struct BlockResult {
  const BlockSetup& setup;
  std::string against;
  std::vector<BlockTiming> own, other;

  const char* length() const { return setup.whole ? "length" : "context"; }
  // Of a sequence operations a second, of a token bytes of its state a second.
  double rate(const BlockTiming& t) const {
    return static_cast<double>(setup.whole ? t.info.flops : t.info.state_bytes) / t.seconds.median;
  }
};

// The limit of each length: multiply-adds for sequences, reading memory of the state's size for tokens.
std::vector<double> limits_of(const BlockResult& r) {
  if (r.setup.whole) return std::vector<double>(r.own.size(), arithmetic_limit(r.setup.threads));
  std::vector<double> limits;
  for (const BlockTiming& t : r.own) limits.push_back(reading_limit(r.setup.threads, t.info.state_bytes));
  return limits;
}

Json json_of(const BlockResult& r, const std::vector<double>& limits) {
  const BlockSetup& s = r.setup;
  Json json = {{"schema", "attnkit.bench/1"},
               {"part", s.whole ? "sequence" : "block"},
               {"mechanism", s.mechanism},
               {"role", role_name(s.role)},
               {"options", s.options},
               {"heads", s.heads},
               {"width", s.width},
               {"dtype", "f32"},
               {"threads", s.threads},
               {"results", Json::array()}};
  for (size_t i = 0; i < r.own.size(); ++i) {
    const BlockTiming& t = r.own[i];
    Json result = {{r.length(), t.length}};
    add_timing(t.seconds, result);
    result.update({{"state_bytes", t.info.state_bytes}, {"flops", t.info.flops}});
    const char* const rate = s.whole ? "flops_per_second" : "state_bytes_per_second";
    result.update({{rate, r.rate(t)}, {std::string("limit_") + rate, limits[i]}, {"share", r.rate(t) / limits[i]}});
    json["results"].push_back(result);
  }
  if (r.other.empty()) return json;
  for (size_t i = 0; i < r.other.size(); ++i) json["results"][i]["against_median_seconds"] = r.other[i].seconds.median;
  const Crossover c = crossover_of(r.own, r.other);
  const char* const places[] = {"below", "between", "beyond"};
  json["against"] = r.against;
  json["crossover"] = {{"place", places[c.place]}, {r.length(), c.length}, {"text", text_of(c)}};
  return json;
}

std::string text_of(const BlockResult& r, const std::vector<double>& limits) {
  const BlockSetup& s = r.setup;
  const bool beside = !r.other.empty();
  std::string out =
      fmt::format("{} in {}, {} heads of width {}, f32, {}: {}{}\n", s.mechanism, role_name(s.role), s.heads, s.width,
                  counted_text(s.threads, "thread"), s.whole ? "whole sequences" : "one more token",
                  beside ? ", in turns with " + r.against : "");
  std::vector<std::string> head = {std::string(">") + r.length(), ">median", ">quartiles", ">repetitions"};
  if (!s.whole) head.push_back(">state");
  head.insert(head.end(), {">flops", s.whole ? ">flops a second" : ">state a second", ">of the limit"});
  if (beside) head.push_back(">" + r.against);
  Table table(head);
  for (size_t i = 0; i < r.own.size(); ++i) {
    const BlockTiming& t = r.own[i];
    std::vector<std::string> row = {std::to_string(t.length), seconds_text(t.seconds.median), quartiles_text(t.seconds),
                                    std::to_string(t.seconds.repetitions)};
    if (!s.whole) row.push_back(bytes_text(t.info.state_bytes));
    row.push_back(count_text(static_cast<double>(t.info.flops)));
    row.push_back(s.whole ? count_text(r.rate(t)) : bytes_text(static_cast<uint64_t>(r.rate(t))));
    row.push_back(fmt::format("{:.0f} %", 100 * r.rate(t) / limits[i]));
    if (beside) row.push_back(seconds_text(r.other[i].seconds.median));
    table.add(row);
  }
  out += table.text();
  out += s.whole ? fmt::format("the limit: {} flops a second, multiply-adds of {}\n", count_text(limits.front()),
                               counted_text(s.threads, "thread"))
                 : fmt::format("the limit: reading memory of the state's size, {} a second at {} {}\n",
                               bytes_text(static_cast<uint64_t>(limits.back())), r.length(), r.own.back().length);
  if (beside)
    out += fmt::format("a {} costs less than with {} from a {} of: {}\n", s.whole ? "sequence" : "token", r.against,
                       r.length(), text_of(crossover_of(r.own, r.other)));
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
  s.whole = arguments.has("length");
  if (s.whole && arguments.has("context"))
    fail(Exit::usage, "--context is for one more token and --length for whole sequences: give one of them");
  s.lengths = arguments.integers(s.whole ? "length" : "context", {64, 512, 4096}, 1, int64_t{1} << 24);
  s.threads = static_cast<uint32_t>(arguments.integer("threads", 1, 0, 1024));
  if (s.threads == 0) s.threads = usable_processors();
  return s;
}

}  // namespace

Exit bench_block(const Arguments& arguments) {
  for (const char* option : {"batch", "sessions"})
    if (arguments.has(option)) fail(Exit::usage, "--{} is for a model: name its manifest first", option);
  if (device_type(arguments) > 1)
    fail(Exit::usage, "--device: single blocks are timed on the CPU here; docs/cuda.md has the benchmarks of a GPU");
  const BlockSetup setup = setup_of(arguments);
  const BlockResult result = time_beside(open_runtime(arguments, setup.threads), setup, arguments);
  const std::vector<double> limits = limits_of(result);
  print_result(arguments.json(), json_of(result, limits), text_of(result, limits));
  return Exit::success;
}

}  // namespace attnkit::cli
