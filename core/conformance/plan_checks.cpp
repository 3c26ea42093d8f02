// Laws of create and plan: mechanisms as a host takes them, answers that are possible and the same each time.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "core/conformance/fence.hpp"
#include "core/conformance/law.hpp"
#include "core/plugin/loader.hpp"
#include "core/plugin/mechanism.hpp"

namespace attnkit::core::conformance {

namespace {

constexpr uint32_t kTotals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;

// The plugin as core knows it: all that core checks of its answers is checked.
Plugin hosted(const std::string& file) {
  const attn_plugin table = check_table(&load_here(file), this_host());
  return {table.name, file, table};
}

std::vector<OptionValue> values_of(const Plugin& plugin, const Settings& settings) {
  std::vector<OptionValue> values = default_options(plugin);
  for (uint32_t i = 0; i < plugin.table.n_options; ++i) {
    const auto it = settings.find(plugin.table.options[i]->name);
    if (it == settings.end()) continue;
    if (const auto* n = std::get_if<int64_t>(&it->second)) values[i].i = *n;
    if (const auto* f = std::get_if<double>(&it->second)) values[i].f = *f;
    if (const auto* b = std::get_if<bool>(&it->second)) values[i].i = *b;
    if (const auto* s = std::get_if<std::string>(&it->second)) values[i].s = *s;
  }
  return values;
}

// Runs act.  True unless it was refused as unsupported; every other failure breaks the law.
template <class Act>
bool takes(Act&& act, std::string& words) {
  try {
    act();
    return true;
  } catch (const Error& e) {
    if (e.code() != ATTN_UNSUPPORTED && e.code() != ATTN_INVALID) throw Violation(e.what());
    words = e.what();
    return false;
  }
}

// In that place, or in one instead of it; NULL where all are refused.
std::shared_ptr<const core::Mechanism> created(const Plugin& plugin, const Place& place, std::string& words) {
  std::shared_ptr<const core::Mechanism> mech;
  const auto make = [&](const attn_block& block) {
    return takes([&] { mech = core::Mechanism::create(plugin, block, values_of(plugin, place.settings)); }, words);
  };
  make(place.block);
  for (const Place& other : instead_of(place))
    if (mech == nullptr) make(other.block);
  return mech;
}

void create(const Trial& trial) {
  const Plugin plugin = hosted(trial.file);
  std::string words;
  int made = 0;
  for (const Place& place : places_of(trial, "create", kAnywhere)) made += created(plugin, place, words) != nullptr;
  hold(made > 0, "it refuses every block: {}", words);
}

void destroy(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  boundary("destroy", [&] { plugin.destroy(nullptr); });
  boundary("plan_free", [&] { plugin.plan_free(nullptr); });
  for (int i = 0; i < 100; ++i) {
    attn_mech* mech = nullptr;
    const attn_port* const* ports = nullptr;
    uint32_t n = 0;
    std::vector<attn_value> values;
    for (uint32_t o = 0; o < plugin.n_options; ++o) values.push_back(plugin.options[o]->fallback);
    const int32_t code = boundary(
        "create", [&] { return plugin.create(&law.mech().block(), values.data(), &mech, &ports, &n, nullptr); });
    hold(code == ATTN_OK, "it was created {} times and then refused with code {}", i, code);
    boundary("destroy", [&] { plugin.destroy(mech); });
  }
}

// The requests that a host may make of a block: each of these runs, or is refused in words.
std::vector<attn_request> requests(const attn_block& block) {
  const bool causal = block.causal != 0;
  std::vector<attn_request> all;
  for (const uint32_t flags : {0u, kTotals, uint32_t{ATTN_KNOWS_Q_TOTAL}, uint32_t{ATTN_KNOWS_K_TOTAL}})
    for (const int64_t n : {0, 1, 64, 4096}) {
      all.push_back(make_request(2, n, n, flags, 0, 3));
      all.push_back(make_request(1, 1, 1, flags | ATTN_STREAM, n, 1));
      if (!causal) all.push_back(make_request(2, n, n, flags | ATTN_PREFIX, 0, 1));
    }
  return all;
}

void answers(const Trial& trial) {
  const Plugin plugin = hosted(trial.file);
  std::string words;
  bool planned = false;
  const auto ask_all = [&](const Place& place) {
    const auto mech = created(plugin, place, words);
    if (mech == nullptr) return false;
    bool took = false;
    for (attn_request r : requests(place.block)) {
      const bool taken = takes([&] { mech->plan(r); }, words);
      took |= taken && r.queries > 0;
      takes([&] { mech->ask(r); }, words);
      if (!plugin.table.backward || (r.flags & ATTN_STREAM)) continue;
      r.flags |= ATTN_TRAIN;
      for (const uint8_t bits : {32, 64}) {
        r.dtype_bits = bits;
        takes([&] { mech->plan(r); }, words);
      }
    }
    return took;
  };
  for (const Place& place : places_of(trial, "plan", kAnywhere)) {
    bool took = ask_all(place);
    for (const Place& other : instead_of(place)) took = took || ask_all(other);
    planned |= took;
  }
  hold(planned, "it refuses every request that has rows: {}", words);
}

void equal_answers(Law& law) {
  for (const int64_t n : {0, 64}) {
    const attn_request r = make_request(n ? 2 : 0, n, law.keys_for(n), kTotals, 0, 2);
    const Planned a = law.may_refuse([&] { return Planned(law.mech(), r); });
    const Planned b(law.mech(), r);
    hold(std::memcmp(&a.info(), &b.info(), sizeof(attn_info)) == 0, "equal requests get other answers");
    attn_info asked{};
    asked.struct_size = sizeof asked;
    const int32_t code =
        boundary("plan", [&] { return law.mech().plugin().plan(law.mech().get(), &r, &asked, nullptr, nullptr); });
    hold(code == ATTN_OK && std::memcmp(&a.info(), &asked, sizeof asked) == 0,
         "a question without a plan gets another answer than one with a plan (code {})", code);
    hold(a.info().state_bytes == 0, "it needs {} bytes of state without ATTN_STREAM", a.info().state_bytes);
  }
}

void costs(Law& law) {
  for (const int64_t n : {0, 64}) {
    const attn_request r = make_request(n ? 2 : 0, n, law.keys_for(n), kTotals, 0, 2);
    const attn_info info = law.may_refuse([&] { return Planned(law.mech(), r); }).info();
    hold(n > 0 || info.flops == 0, "a run of no query and no key is said to cost {} flops", info.flops);
    // A mechanism may copy.
    hold(n == 0 || info.flops + info.bytes_read + info.bytes_written > 0,
         "a run of {} queries is said to cost no flops and to read and write nothing", n);
  }
}

void other_minors(Law& law) {
  const attn_request r = make_request(1, 8, law.keys_for(8), kTotals);
  law.may_refuse([&] { Planned(law.mech(), r); });
  const Later longer(r);
  attn_info info{};
  info.struct_size = offsetof(attn_info, flops);
  const int32_t code = boundary(
      "plan", [&] { return law.mech().plugin().plan(law.mech().get(), &longer.known, &info, nullptr, nullptr); });
  hold(code == ATTN_OK, "it refuses a request that a later minor made longer, with code {}", code);
  hold(info.flops == 0 && info.bytes_read == 0 && info.bytes_written == 0,
       "plan writes fields that the caller's attn_info lacks");
}

// Creates it in a block of another size than this version's, and compares the ports.
void hold_block_is_taken(Law& law, const attn_block* block, const char* what, const Fences& fences) {
  const attn_plugin& plugin = law.mech().plugin();
  std::vector<attn_value> values;
  for (uint32_t o = 0; o < plugin.n_options; ++o) values.push_back(plugin.options[o]->fallback);
  attn_mech* mech = nullptr;
  const attn_port* const* ports = nullptr;
  uint32_t n = 0;
  int32_t code = ATTN_OK;
  within(fences, "create", [&] {
    code = boundary("create", [&] { return plugin.create(block, values.data(), &mech, &ports, &n, nullptr); });
  });
  hold(code == ATTN_OK, "it refuses {}, with code {}", what, code);
  bool same = n == law.mech().ports().size();
  for (uint32_t i = 0; same && i < n; ++i)
    same = std::equal(ports[i]->shape, ports[i]->shape + 4, law.port(i).shape) && ports[i]->kind == law.port(i).kind;
  freeing(plugin.destroy, "destroy")(mech);
  hold(same, "{} gets other ports than this version's", what);
}

void other_blocks(Law& law) {
  const attn_block& block = law.mech().block();
  const Later later(block);
  hold_block_is_taken(law, &later.known, "a block of a later minor", {});
  if (law.mech().plugin().oldest_host_minor > 0) return;
  constexpr uint32_t size = offsetof(attn_block, kv_heads);
  Fences fences;
  fences.push_back(std::make_unique<Fence>("attn_block of minor 0", size, alignof(attn_block)));
  auto* const first = static_cast<attn_block*>(fences[0]->data());
  std::memcpy(static_cast<void*>(first), &block, size);
  first->struct_size = size;
  hold_block_is_taken(law, first, "a block of minor 0", fences);
}

// Numbers of a plan that wrap become small.
void huge(const Trial& trial) {
  const Plugin plugin = hosted(trial.file);
  for (const Place& place : places_of(trial, "huge", kAnywhere, Draws::one)) {
    std::string words;
    const auto mech = created(plugin, place, words);
    if (mech == nullptr) continue;
    for (const uint32_t flags : {0u, uint32_t{ATTN_STREAM}, uint32_t{ATTN_TRAIN}}) {
      const bool streams = flags == ATTN_STREAM, cross = place.seat == Seat::kCross;
      attn_info before{};
      for (int64_t n = 1024; n <= int64_t{1} << 40; n *= 2) {
        const int64_t queries = streams || cross ? 1 : n, keys = streams ? 1 : n;
        attn_info info{};
        if (!takes([&] { info = mech->ask(make_request(1, queries, keys, flags | kTotals, streams ? n : 0, 1)); },
                   words))
          continue;
        for (const auto& [what, now, last] :
             {std::tuple("bytes of scratch", info.scratch_bytes, before.scratch_bytes),
              {"bytes of scratch of backward", info.backward_scratch_bytes, before.backward_scratch_bytes},
              {"saved bytes", info.saved_bytes, before.saved_bytes},
              {"bytes of state", info.state_bytes, before.state_bytes},
              {"flops", info.flops, before.flops},
              {"bytes read", info.bytes_read, before.bytes_read},
              {"bytes written", info.bytes_written, before.bytes_written}})
          hold(now >= last / 2, "{}: {} keys take {} {}, and half as many {}: does a product wrap?", place.text(), n,
               now, what, last);
        before = info;
      }
    }
  }
}

void state_grows(Law& law) {
  uint64_t before = 0;
  for (const int64_t keys : {1, 2, 17, 100, 1000}) {
    const uint64_t bytes = law.stream_plan(1, 1, keys).info().state_bytes;
    hold(bytes >= before, "the state needs {} bytes for {} keys and more for fewer", bytes, keys);
    before = bytes;
    const attn_request reads = make_request(1, 1, 0, ATTN_STREAM | kTotals, keys);
    const uint64_t read = law.may_refuse([&] { return Planned(law.mech(), reads); }).info().state_bytes;
    hold(read <= bytes, "the state of {} keys needs {} bytes where runs append and {} where they only read", keys,
         bytes, read);
  }
}

constexpr Check all[] = {
    {"plan", "create", "it can be created somewhere, with ports that a host can fill, and refuses in words elsewhere",
     create, nullptr, kAnywhere, Draws::options, true},
    {"plan", "destroy", "it can be created and destroyed a hundred times, and NULL can be freed", nullptr, destroy,
     kAnywhere, Draws::none},
    {"plan", "answers", "it plans something, with sizes that are possible, and refuses the rest in words", answers,
     nullptr, kAnywhere, Draws::options, true},
    {"plan", "equal_answers", "equal requests get equal answers, with a plan and without", nullptr, equal_answers},
    {"plan", "costs", "no rows cost nothing, and some cost something", nullptr, costs},
    {"plan", "other_minors", "longer requests are taken, and no field past the caller's struct is written", nullptr,
     other_minors},
    {"plan", "other_blocks", "blocks as minor 0 had them are taken, and longer ones of later minors", nullptr,
     other_blocks, kAnywhere, Draws::none},
    {"plan", "huge", "requests of up to 2^40 keys are refused in words or answered with numbers that do not wrap", huge,
     nullptr},
    {"plan", "state_grows", "the state needs no fewer bytes for more keys", nullptr, state_grows, kDecoder | kCross},
};

}  // namespace

const std::span<const Check> plan_checks = all;

}  // namespace attnkit::core::conformance
