#include "core/conformance/law.hpp"

#include <algorithm>
#include <cmath>
#include <latch>
#include <string_view>
#include <thread>

#include "core/conformance/cuda_device.hpp"

namespace attnkit::core::conformance {

namespace {

constexpr uint32_t kRoles[] = {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS};

// Neither width is a multiple of 16, and they differ.
constexpr uint32_t kHeads = 3;
constexpr int32_t kWidth = 24, kValues = 40;

// A number from the seed and a text: each check draws places of its own.
uint64_t mixed(uint64_t seed, std::string_view text) {
  uint64_t hash = seed + 0x9E3779B97F4A7C15u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

template <class T>
T one_of(Random& random, std::initializer_list<T> all) {
  return all.begin()[random.bits() % all.size()];
}

int64_t between(Random& random, int64_t min, int64_t max) {
  return min + static_cast<int64_t>(random.bits() % static_cast<uint64_t>(max - min + 1));
}

// A bound above this is much work.
constexpr int64_t kFarBound = 256;

// Within its bounds; of wide ranges, near the default or, of whole numbers, at a bound.
Setting drawn(const attn_option& o, Random& random) {
  const attn_value& fallback = o.fallback;
  const bool bounded = o.min != o.max;
  if (fallback.type == ATTN_BOOL) return random.bits() % 2 != 0;
  if (fallback.type == ATTN_TEXT)
    return std::string(o.n_choices > 0 ? o.choices[random.bits() % o.n_choices] : fallback.s);
  if (fallback.type == ATTN_INT) {
    const auto near = std::abs(fallback.i) + 4;
    int64_t low = fallback.i - near, high = fallback.i + near;
    if (bounded) {
      const auto least = static_cast<int64_t>(std::ceil(std::max(o.min, -1e15)));
      const auto most = static_cast<int64_t>(std::floor(std::min(o.max, 1e15)));
      const auto bound = one_of<int64_t>(random, {least, most});
      if (random.bits() % 2 != 0 && std::abs(bound) <= kFarBound) return bound;
      low = std::max(low, least), high = std::min(high, most);
    }
    return between(random, low, std::max(low, high));
  }
  const double factor = 0.5 + 1.5 * random.uniform();
  double x = fallback.f * factor;
  if (bounded && o.max - o.min <= 2)
    x = o.min + (o.max - o.min) * random.uniform();
  else if (fallback.f == 0)
    x = bounded && o.min >= 0 ? random.uniform() : 2 * random.uniform() - 1;
  return bounded ? std::clamp(x, o.min, o.max) : x;
}

// Added by minor 1: fewer heads of keys for any plugin, a D that is not d_model / heads for those that know of it.
void reshape(attn_block& block, const attn_plugin& plugin, Random& random) {
  const auto group = one_of<uint32_t>(random, {1, 2, 3, 4, 5, 8});
  if (block.heads % group == 0) block.kv_heads = block.heads / group;
  if (random.bits() % 4 != 0 || plugin.abi_minor < 1) return;
  block.key_width = block.d_model / static_cast<int32_t>(block.heads);
  block.d_model += static_cast<int32_t>(block.heads);
}

// Some of the options, or each.
Settings drawn_settings(const attn_plugin& plugin, Random& random, bool each = false) {
  Settings settings;
  for (uint32_t i = 0; i < plugin.n_options; ++i)
    if (random.bits() % 2 != 0 || each) settings[plugin.options[i]->name] = drawn(*plugin.options[i], random);
  return settings;
}

std::string text_of(const Setting& setting) {
  if (const auto* i = std::get_if<int64_t>(&setting)) return std::to_string(*i);
  if (const auto* f = std::get_if<double>(&setting)) return fmt::format("{}", *f);
  if (const auto* b = std::get_if<bool>(&setting)) return *b ? "true" : "false";
  return '"' + std::get<std::string>(setting) + '"';
}

}  // namespace

const attn_plugin& load_here(const std::string& file) {
  const attn_plugin& plugin = load(file);
  if (plugin.device_type == 1) return plugin;
  std::string why;
  CudaDevice* const device = cuda_device(&why);
  if (device == nullptr) throw NotApplicable{"it computes on CUDA, and there is no device: " + why};
  static const attn_plugin& bridged = bridge(plugin, *device);
  return bridged;
}

const char* name_of(Seat seat) {
  constexpr const char* names[] = {"encoder_self", "decoder_self", "decoder_cross"};
  return names[static_cast<int>(seat)];
}

std::string Place::text() const {
  const int32_t width = block.key_width ? block.key_width : block.d_model / static_cast<int32_t>(block.heads);
  const bool causal_encoder = block.causal != 0 && block.role == ATTN_ENCODER_SELF;
  std::string out =
      fmt::format("{}, {} heads of widths {} and {}", causal_encoder ? "causal encoder_self" : name_of(seat),
                  block.heads, width, block.head_width);
  if (block.kv_heads) out += fmt::format(", {} of keys", block.kv_heads);
  if (block.key_width) out += fmt::format(", d_model {}", block.d_model);
  for (const auto& [name, value] : settings) out += fmt::format(", {} = {}", name, text_of(value));
  return out;
}

std::vector<Place> places_of(const Trial& trial, const std::string& salt, uint32_t roles, Draws draws) {
  std::vector<Place> places;
  std::vector<Seat> seats;
  for (const Seat seat : {Seat::kEncoder, Seat::kDecoder, Seat::kCross})
    if (roles & (1u << static_cast<int>(seat))) seats.push_back(seat);
  for (const Seat seat : seats) {
    const uint32_t role = kRoles[static_cast<int>(seat)];
    places.push_back({trial.file, seat, make_block(role, seat == Seat::kDecoder, kHeads, kWidth, kValues), {}});
  }
  if (roles & kCausalEncoder)
    places.push_back({trial.file, Seat::kDecoder, make_block(ATTN_ENCODER_SELF, true, kHeads, kWidth, kValues), {}});
  Random random(mixed(trial.seed, salt)), shapes(mixed(trial.seed, salt + " shapes")),
      sizes(mixed(trial.seed, salt + " sizes"));
  const int count = draws == Draws::none ? 0 : draws == Draws::one ? std::min(trial.draws, 1) : trial.draws;
  for (int i = 0; i < count; ++i) {
    const size_t drawn = random.bits() % seats.size();
    const Seat seat = seats[drawn];
    if (draws == Draws::one) {
      places.push_back(
          {trial.file, seat, places[drawn].block, drawn_settings(load(trial.file), random, true), 1, true});
      break;
    }
    auto heads = one_of<uint32_t>(random, {1, 2, 3, 4, 5, 8});
    auto width = one_of<int32_t>(random, {1, 2, 4, 7, 8, 16, 24, 33, 64, 80});
    // Many heads are narrow, wide ones few.
    const uint64_t size = sizes.bits() % 8;
    if (size == 0) heads = one_of<uint32_t>(sizes, {16, 32}), width = std::min(width, 8);
    if (size == 1) heads = 1, width = one_of<int32_t>(sizes, {96, 128});
    const int32_t values = random.bits() % 2 ? width : one_of<int32_t>(random, {1, 3, 8, 16, 31, 64});
    const bool causal = seat == Seat::kDecoder;
    const uint32_t role = causal && sizes.bits() % 3 == 0 ? ATTN_ENCODER_SELF : kRoles[static_cast<int>(seat)];
    attn_block block = make_block(role, causal, heads, width, values);
    reshape(block, load(trial.file), shapes);
    Settings settings;
    if (draws == Draws::options) settings = drawn_settings(load(trial.file), random);
    places.push_back({trial.file, seat, block, std::move(settings), 1 + random.bits() % 1000, true});
  }
  for (Place& place : places) place.gate = trial.gate;
  return places;
}

std::vector<Place> instead_of(const Place& place) {
  std::vector<Place> others(2, place);
  attn_block& block = others[0].block;
  block.head_width = block.key_width != 0 ? block.key_width : block.d_model / static_cast<int32_t>(block.heads);
  others[1].block = make_block(block.role, block.causal != 0, 4, 64, 64);
  return others;
}

void at_once(size_t n, const std::function<void(size_t)>& act) {
  std::vector<std::string> broken(n);
  std::vector<std::thread> threads;
  std::latch ready(static_cast<ptrdiff_t>(n));
  for (size_t t = 0; t < n; ++t)
    threads.emplace_back([&, t] {
      ready.arrive_and_wait();
      try {
        act(t);
      } catch (const std::exception& e) {
        broken[t] = e.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const std::string& words : broken) hold(words.empty(), "one of {} calls at once: {}", n, words);
}

Law::Law(const Place& place) : place_(place), shapes_(mixed(place.seed, place.text())) {
  slope_ = drawn(slope_, 2, 4);
  offset_ = drawn(offset_, 3, 9);
  may_refuse([&] { mech_.emplace(load_here(place.file), place.block, place.settings); });
}

Law Law::narrow() const {
  Place place = place_;
  place.block = make_block(place.block.role, causal(), 1, 8, 8);
  return Law(place);
}

int64_t Law::drawn(int64_t fixed, int64_t min, int64_t max) const {
  return place_.is_random ? between(shapes_, min, max) : fixed;
}

std::vector<int64_t> Law::chunks(int64_t n, int64_t size) const {
  std::vector<int64_t> sizes;
  for (int64_t done = 0; done < n; done += sizes.back()) sizes.push_back(std::min(drawn(size, 1, 2 * size), n - done));
  return sizes;
}

std::vector<int32_t> Law::order(std::vector<int32_t> fixed) const {
  if (place_.is_random)
    for (size_t i = fixed.size(); i > 1; --i) std::swap(fixed[i - 1], fixed[shapes_.bits() % i]);
  return fixed;
}

SharedKeys::SharedKeys(const Law& law) {
  constexpr uint32_t heads = 4;
  Place place = law.place();
  place.block = make_block(place.block.role, place.block.causal != 0, heads, kWidth, place.block.head_width);
  place.block.kv_heads = heads;
  repeated = std::make_unique<Law>(place);
  place.block.kv_heads = heads / 2;
  shared = std::make_unique<Law>(place);
  if (!shared->shares_keys()) throw NotApplicable{"it takes a head of keys for each head of queries"};
}

std::pair<Inputs, Inputs> SharedKeys::inputs(int64_t batch, int64_t n) const {
  std::pair<Inputs, Inputs> both{shared->inputs(batch, n), repeated->inputs(batch, n)};
  for (size_t p = 0; p < both.first.arrays.size(); ++p) {
    const Array& from = both.first.arrays[p];
    Array& to = both.second.arrays[p];
    if (from.heads < to.heads)
      to.set([&](int64_t b, int64_t h, int64_t i, int64_t c) { return from.at(b, h / 2, i, c); });
  }
  return both;
}

Call Law::padded(int64_t n) const {
  const int64_t m = keys_for(n);
  const auto some = [&](int64_t fixed, int64_t most) { return static_cast<int32_t>(drawn(fixed, 0, most)); };
  Call call;
  call.q_len = {static_cast<int32_t>(n), some(17, n), 0, some(1, n)};
  call.k_len = cross() ? std::vector<int32_t>{static_cast<int32_t>(m), some(33, m), some(5, m), 0} : call.q_len;
  if (!causal()) return call;
  for (const int32_t length : call.q_len) call.q_total.push_back(std::max(length, 1));
  call.k_total = call.q_total;
  return call;
}

RefusedInWords Law::in_words(const Refused& refused) {
  const std::string words = refused.what();
  hold(dynamic_cast<const RefusedRun*>(&refused) == nullptr, "its plan takes what its run refuses with code {}: {}",
       refused.code, words);
  if (refused.code != ATTN_UNSUPPORTED && refused.code != ATTN_INVALID)
    throw Violation(fmt::format("it failed with code {}: {}", refused.code, words));
  hold(words.size() > 10 && words.find('\n') == std::string::npos,
       "it refuses with code {} and not in words of one line, but with \"{}\"", refused.code, words);
  return {words};
}

bool Law::has(uint32_t kind) const {
  return std::any_of(mech_->ports().begin(), mech_->ports().end(), [=](auto* port) { return port->kind == kind; });
}

bool Law::mixes_heads() const {
  const auto& ports = mech_->ports();
  const attn_block& block = place_.block;
  const int64_t key = block.key_width ? block.key_width : block.d_model / static_cast<int32_t>(block.heads);
  // A learned matrix between all heads of keys or values side by side joins them.
  const auto joined = [&](int64_t n) { return n == block.heads * key || n == block.heads * block.head_width; };
  return std::any_of(ports.begin(), ports.end(), [&](const attn_port* p) {
    if (p->kind == ATTN_LEARNED && p->ndim >= 2 && joined(p->shape[p->ndim - 1]) && joined(p->shape[p->ndim - 2]))
      return true;
    const bool shared =
        p->kind == ATTN_KEY && !(p->flags & ATTN_RAW) && p->shape[1] == static_cast<int64_t>(place_.block.kv_heads);
    return (is_taken(*p) || is_given(*p)) && p->shape[1] != static_cast<int64_t>(place_.block.heads) && !shared;
  });
}

int64_t Law::group() const {
  const auto heads = static_cast<int64_t>(place_.block.heads), kv_heads = static_cast<int64_t>(place_.block.kv_heads);
  if (kv_heads == 0) return 1;
  const auto& ports = mech_->ports();
  const bool any = std::any_of(ports.begin(), ports.end(), [=](const attn_port* p) {
    return p->kind == ATTN_KEY && !(p->flags & ATTN_RAW) && p->shape[1] == kv_heads;
  });
  return any ? heads / kv_heads : 1;
}

Call Law::with_totals(Call call, int64_t batch, int64_t n) const {
  call.q_total.assign(static_cast<size_t>(batch), static_cast<double>(n));
  call.k_total.assign(static_cast<size_t>(batch), static_cast<double>(keys_for(n)));
  return call;
}

Array Law::whole(Inputs& in, Call call, uint32_t workers, uint32_t flags) const {
  const Array& out = in.arrays[mech_->output()];
  if ((causal() || flags != 0) && call.q_total.empty()) {
    call = with_totals(call, out.batch, out.rows);
    flags |= ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  }
  return may_refuse([&] { return run_whole(in, flags, call, workers); });
}

template <class Real>
Training<Real> Law::train(BasicInputs<Real>& in, Call call, uint32_t workers, uint32_t flags) const {
  const Array64 out(in.arrays[mech_->output()]);
  if ((causal() || flags != 0) && call.q_total.empty()) {
    call = with_totals(call, out.batch, out.rows);
    flags |= ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  }
  return may_refuse([&] { return Training<Real>(in, flags, call, workers); });
}
template Training<float> Law::train(Inputs&, Call, uint32_t, uint32_t) const;
template Training<double> Law::train(Inputs64&, Call, uint32_t, uint32_t) const;

Planned Law::stream_plan(int64_t batch, int64_t chunk, int64_t capacity, uint32_t workers) const {
  const uint32_t flags = ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  return may_refuse(
      [&] { return Planned(*mech_, make_request(batch, chunk, chunk, flags, capacity - chunk, workers)); });
}

Array Law::stream(Inputs& in, const std::vector<int64_t>& chunks, uint32_t workers) const {
  const int64_t m = keys_for(in.arrays[mech_->output()].rows);
  Feed feed{chunks, {}, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL, workers};
  if (cross()) {
    feed.queries = chunks;
    int64_t known = 0;
    for (int64_t& keys : feed.keys) known += keys = std::min(keys * 2, m - known);
    feed.keys.push_back(m - known);
  }
  return may_refuse([&] { return streamed(in, feed); });
}

Call Law::step(int64_t from, int64_t count, const Arena& arena, int64_t batch, int64_t n) const {
  Call call = with_totals({}, batch, n);
  call.arena = &arena;
  call.q_from = call.k_from = from;
  call.queries = cross() ? 0 : count;
  call.keys = count;
  call.q_pos = call.k_pos = std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(from));
  return call;
}

Array Law::probe(const Planned& plan, Inputs& in, const Arena& arena, int64_t known, int64_t n,
                 std::vector<int32_t> slots, bool fenced) const {
  Call call = step(known, cross() ? 0 : 1, arena, in.arrays[mech_->output()].batch, n);
  if (cross()) {
    call.q_from = 0;
    call.queries = 4;
    call.q_pos.assign(call.q_pos.size(), 0);
  }
  call.slots = std::move(slots);
  call.fenced = fenced;
  return plan.run(in, call);
}

}  // namespace attnkit::core::conformance
