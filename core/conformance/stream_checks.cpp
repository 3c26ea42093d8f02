// Laws of state: streaming is the whole in pieces, and state is bytes that may be copied, shared, grown and moved.
#include <algorithm>
#include <cstring>
#include <functional>

#include "core/base/child.hpp"
#include "core/base/plugin_process.hpp"
#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

// Bidirectional self attention does not stream; a check of refusals covers it.
constexpr uint32_t kStreams = kDecoder | kCross;

void hold_chunks(const Law& law, int64_t batch, int64_t n, std::initializer_list<int64_t> sizes) {
  Inputs in = law.inputs(batch, n);
  const Array all = law.whole(in, law.with_totals({}, batch, n));
  for (const int64_t chunk : sizes) {
    const std::vector<int64_t> chunks = law.chunks(n, chunk);
    const Array got = law.stream(in, chunks);
    const double off = rms_ratio(got, all);
    hold(off <= law.gate(), "{} rows streamed by {} are {:.2g} from the whole, at most {:.2g}", n, chunk, off,
         law.gate());
    hold(same_bits(got, law.stream(in, chunks)), "{} rows streamed by {} twice give other bits", n, chunk);
  }
}

void chunks(Law& law) {
  law.stream_plan(1, 1, law.keys_for(law.draws_options() ? 151 : 100));
  for (const int64_t usual : {1, 63, 64, 100}) {
    const int64_t n = law.length(usual);
    hold_chunks(law, 2, n, {1, 2, 3, 7, 16, 64, n});
  }
  law.also_narrow([](const Law& narrow) { hold_chunks(narrow, 40, 6, {4}); });
}

void prefill(Law& law) {
  const int64_t n = law.drawn(64, 40, 90), first = law.drawn(37, 1, n - 1);
  law.stream_plan(1, 1, law.keys_for(n));
  Inputs in = law.inputs(2, n);
  std::vector<int64_t> chunks = {first};
  chunks.resize(static_cast<size_t>(n - first + 1), 1);
  const double off = rms_ratio(law.stream(in, chunks), law.whole(in, law.with_totals({}, 2, n)));
  hold(off <= law.gate(), "{} rows at once, then {} one by one, are {:.2g} from the whole, at most {:.2g}", first,
       n - first, off, law.gate());
}

void hold_workers(const Law& law, int64_t batch, int64_t n, std::initializer_list<uint32_t> numbers) {
  Inputs in = law.inputs(batch, n);
  const std::vector<int64_t> chunks = law.chunks(n, 16);
  const Array one = law.stream(in, chunks);
  for (const uint32_t usual : numbers) {
    const uint32_t workers = law.workers(usual);
    hold(same_bits(one, law.stream(in, chunks, workers)), "{} workers give other bits than one", workers);
  }
}

void workers(Law& law) {
  const int64_t n = law.length(64);
  hold_workers(law, law.drawn(4, 1, 6), n, {2, 5, 8});
  law.also_narrow([](const Law& narrow) { hold_workers(narrow, 40, 6, {33}); });
}

void any_layout(Law& law) {
  const int64_t n = law.length(24);
  const std::vector<int64_t> chunks = law.chunks(n, 7);
  Inputs model = law.inputs(2, n);
  const Array out = law.stream(model, chunks);
  for (const auto& [layout, what] :
       {std::pair(Layout::kPlain, "plain (b, head, row)"), std::pair(Layout::kOdd, "unaligned (head, b, row)")}) {
    Inputs in = law.inputs(2, n, 0, layout);
    hold(same_bits(out, law.stream(in, chunks)), "tensors in {} strides give other bits than those of a model", what);
  }
  Inputs shared = law.inputs(2, n, 0, Layout::kOneHead);
  for (size_t p = 0; p < model.arrays.size(); ++p)
    if (is_taken(law.port(p))) model.arrays[p].set([&](auto... at) { return shared.arrays[p].at(at...); });
  hold(same_bits(law.stream(model, chunks), law.stream(shared, chunks)),
       "one head for all of the batch (stride 0) gives other bits than copies of it");
}

void many_steps(Law& law) {
  law.stream_plan(1, 1, law.keys_for(400));
  Inputs in = law.inputs(1, 400);
  const double off = rms_ratio(law.stream(in, chunks_of(400, 1)), law.whole(in, law.with_totals({}, 1, 400)));
  hold(off <= law.gate(), "400 steps of one row are {:.2g} from the whole, at most {:.2g}", off, law.gate());
}

// In one narrow head: 4096 rows of a whole cost their square.
void long_stream(Law& law) {
  constexpr int64_t n = 4096;
  const Law narrow = law.narrow();
  narrow.stream_plan(1, 1, narrow.keys_for(n));
  Inputs in = narrow.inputs(1, n);
  std::vector<int64_t> chunks = {1, 3, 5, 16, 64};
  for (const int64_t rest : chunks_of(n - 89, 509)) chunks.push_back(rest);
  const Array all = narrow.whole(in, narrow.with_totals({}, 1, n));
  const double off = rms_ratio(narrow.stream(in, chunks), all);
  hold(off <= law.gate(), "a stream of {} rows is {:.2g} from the whole, at most {:.2g}", n, off, law.gate());
}

void moves(Law& law) {
  const int64_t n = law.drawn(40, 21, 60);
  Inputs in = law.inputs(1, n);
  const Planned plan = law.stream_plan(1, n, n);
  const Arena arena(plan.info().state_bytes, 3);
  plan.run(in, law.step(0, 20, arena, 1, n));
  // Slot 0 to slot 2, through a buffer as a file would be.
  const std::vector<char> saved(arena.row(0), arena.row(0) + arena.row_bytes);
  std::memcpy(arena.row(2), saved.data(), saved.size());
  const Array here = law.probe(plan, in, arena, 20, n);
  hold(same_bits(here, law.probe(plan, in, arena, 20, n, {2})),
       "a state that was copied to another slot gives other bits");
  std::memcpy(arena.row(0), saved.data(), saved.size());
  hold(same_bits(here, law.probe(plan, in, arena, 20, n)), "a state that was restored gives other bits");
}

void other_process(Law& law) {
  const int64_t n = 40;
  Inputs in = law.inputs(1, n);
  const Planned plan = law.stream_plan(1, n, n);
  const std::string program = plugin_process();
  if (program.empty()) throw NotApplicable{"attnkit-plugin-process is not beside libattnkit"};
  const ChildResult there =
      run_child({program, "state", law.place().file, std::to_string(1u << static_cast<int>(law.place().seat))}, 30);
  const Arena arena(plan.info().state_bytes, 1), moved(plan.info().state_bytes, 1);
  hold(there.ending == ChildResult::ended && there.status == 0 && there.reply.size() == arena.row_bytes,
       "another process {} and gave {} bytes of state of {}", there.text(), there.reply.size(), arena.row_bytes);
  plan.run(in, law.step(0, 20, arena, 1, n));
  std::memcpy(moved.row(0), there.reply.data(), moved.row_bytes);
  hold(same_bits(law.probe(plan, in, arena, 20, n), law.probe(plan, in, moved, 20, n)),
       "a state that another process made gives other bits");
}

// Eight threads, each with a row of one arena.
void at_once(Law& law) {
  const int64_t n = law.drawn(24, 4, 40), step = law.drawn(5, 1, 10);
  std::vector<Inputs> in;
  for (uint64_t salt = 0; salt < 8; ++salt) in.push_back(law.inputs(1, n, salt));
  const Planned plan = law.stream_plan(1, n, law.keys_for(n));
  const auto streamed = [&](const Arena& arena, size_t t) {
    const std::vector<int32_t> slot = {static_cast<int32_t>(t)};
    for (int64_t from = 0; from < n - 1; from += step) {
      Call call = law.step(from, std::min(step, n - 1 - from), arena, 1, n);
      call.slots = slot;
      plan.run(in[t], call);
    }
    return law.probe(plan, in[t], arena, n - 1, n, slot);
  };
  const Arena serial(plan.info().state_bytes, 8), parallel(plan.info().state_bytes, 8);
  std::vector<Array> alone, together(in.size());
  for (size_t t = 0; t < in.size(); ++t) alone.push_back(streamed(serial, t));
  conformance::at_once(in.size(), [&](size_t t) { together[t] = streamed(parallel, t); });
  for (size_t t = 0; t < in.size(); ++t)
    hold(same_bits(alone[t], together[t]), "eight streams at once on one plan differ from one by one");
}

void grows(Law& law) {
  const int64_t known = law.drawn(20, 2, 40), n = 2 * known;
  Inputs in = law.inputs(1, n);
  const Planned small = law.stream_plan(1, known, known), large = law.stream_plan(1, n, 3 * n);
  hold(small.info().state_bytes <= large.info().state_bytes, "{} keys need {} bytes of state and {} need {}", known,
       small.info().state_bytes, 3 * n, large.info().state_bytes);
  const Arena little(small.info().state_bytes, 1), grown(large.info().state_bytes, 1), big(large.info().state_bytes, 1);
  small.run(in, law.step(0, known, little, 1, n));
  large.run(in, law.step(0, known, big, 1, n));
  std::memcpy(grown.row(0), little.row(0), little.row_bytes);
  hold(std::memcmp(grown.row(0), big.row(0), little.row_bytes) == 0,
       "the state for {} keys is no prefix of that for {}", known, 3 * n);
  hold(same_bits(law.probe(large, in, grown, known, n), law.probe(large, in, big, known, n)),
       "a state that was grown gives other bits");
}

void apart(Law& law) {
  const int64_t n = law.length(20);
  Inputs in = law.inputs(2, n);
  const Planned plan = law.stream_plan(2, n, n);
  const Array all = law.whole(in, law.with_totals({}, 2, n));
  const Arena arena(plan.info().state_bytes, 2);
  int64_t known = 0;
  for (const int64_t chunk : law.chunks(n, 6)) {
    Call append = law.step(known, chunk, arena, 2, n);
    append.queries = 0;
    plan.run(in, append);
    known += chunk;
    Call read = law.step(known, 0, arena, 2, n);
    read.k_from = 0;
    read.q_from = known - 1;
    read.queries = 1;
    read.q_pos.assign(2, static_cast<int32_t>(known - 1));
    const Array got = plan.run(in, read);
    Ratio ratio;
    for (int64_t b = 0; b < got.batch; ++b)
      for (int64_t h = 0; h < got.heads; ++h)
        for (int64_t c = 0; c < got.width; ++c) ratio.add(got.at(b, h, 0, c), all.at(b, h, known - 1, c));
    hold(ratio() <= law.gate(),
         "the query after {} keys, which were appended without one, is {:.2g} from the whole, at most {:.2g}", known,
         ratio(), law.gate());
  }
}

void own_positions(Law& law) {
  const int64_t n = law.drawn(24, 5, 40);
  Inputs in = law.inputs(3, n);
  const Planned plan = law.stream_plan(3, n, n);
  const Arena together(plan.info().state_bytes, 3);
  Call call = law.step(0, n, together, 3, n);
  call.k_len = {0, static_cast<int32_t>(law.drawn(3, 0, n)), static_cast<int32_t>(law.drawn(5, 0, n))};
  if (!law.cross()) call.q_len = call.k_len;
  const Array first = plan.run(in, call);
  for (int64_t b = 0; b < 3; ++b) {
    Inputs one = law.inputs(1, n);
    for (size_t p = 0; p < one.arrays.size(); ++p)
      if (is_taken(law.port(p)))
        one.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return in.arrays[p].at(b, h, i, c); });
    const Arena alone(plan.info().state_bytes, 1);
    const int64_t taken = call.k_len[static_cast<size_t>(b)];
    const Array got = plan.run(one, law.step(0, taken, alone, 1, n));
    for (int64_t h = 0; h < first.heads && !law.cross(); ++h)
      hold(same_bits(got, 0, h, first, b, h, taken), "a row that takes {} of {} differs from the row alone", taken, n);
    hold(std::memcmp(alone.row(0), together.row(b), alone.row_bytes) == 0,
         "the state of a row that takes {} of {} differs from that of the row alone", taken, n);
  }
}

// Rows use the slots that the host says, in any order, and leave the others as they are.
void slots(Law& law) {
  const int64_t n = 24;
  Inputs in = law.inputs(3, n);
  const Planned plan = law.stream_plan(3, n, n);
  const std::vector<int32_t> all = law.order({11, 0, 2, 1, 3, 4, 5, 6, 7, 8, 9, 10});
  const std::vector<int32_t> order(all.begin(), all.begin() + 3);
  const Arena ordered(plan.info().state_bytes, 3), mixed(plan.info().state_bytes, 12);
  const std::vector<int32_t> others(all.begin() + 3, all.end());
  for (const int32_t free : others) std::memset(mixed.row(free), 0x5C, mixed.row_bytes);
  plan.run(in, law.step(0, 20, ordered, 3, n));
  Call call = law.step(0, 20, mixed, 3, n);
  call.slots = order;
  plan.run(in, call);
  hold(same_bits(law.probe(plan, in, ordered, 20, n), law.probe(plan, in, mixed, 20, n, order)),
       "rows in slots {}, {} and {} give other bits than in 0, 1 and 2", order[0], order[1], order[2]);
  for (const int32_t free : others)
    for (uint64_t i = 0; i < mixed.row_bytes; ++i)
      hold(mixed.row(free)[i] == 0x5C, "a run wrote to a slot that none of its rows uses");
}

void shared_slots(Law& law) {
  const int64_t n = 12, m = law.keys_for(n);
  Inputs source = law.inputs(2, n), beams = law.inputs(4, n, 1);
  const Planned plan = law.stream_plan(4, m, m);
  const Arena arena(plan.info().state_bytes, 2);
  plan.run(source, law.step(0, m, arena, 2, n));
  const std::vector<int32_t> order = law.order({1, 0, 1, 1});
  const Array got = law.probe(plan, beams, arena, m, n, order);
  const Arena copies(plan.info().state_bytes, 4);
  for (const int64_t b : {0, 1, 2, 3})
    std::memcpy(copies.row(b), arena.row(order[static_cast<size_t>(b)]), arena.row_bytes);
  hold(same_bits(got, law.probe(plan, beams, copies, m, n)),
       "rows that share a slot differ from rows with copies of it");
}

void empty_runs(Law& law) {
  const int64_t n = 16;
  Inputs in = law.inputs(2, n);
  const Planned plan = law.stream_plan(2, n, n);
  const Arena arena(plan.info().state_bytes, 2);
  plan.run(in, law.step(0, 8, arena, 2, n));
  const std::vector<char> before(arena.row(0), arena.row(1) + arena.row_bytes);
  plan.run(in, law.step(8, 0, arena, 2, n));
  Call masked = law.step(8, 4, arena, 2, n);
  masked.q_len = masked.k_len = {0, 0};
  plan.run(in, masked);
  hold(std::memcmp(before.data(), arena.row(0), before.size()) == 0, "a run that appends nothing changes the state");
}

// Six keys more than are known, and back.  False where it does not say that it rewinds.
bool hold_rewinds(const Law& law, int64_t known) {
  const int64_t n = known + 10, chunk = std::min<int64_t>(n, 500);
  const Planned plan = law.stream_plan(1, chunk, n);
  if ((plan.info().flags & ATTN_REWINDS) == 0) return false;
  Inputs in = law.inputs(1, n), other = law.inputs(1, n, 6);
  for (size_t p = 0; p < in.arrays.size(); ++p)
    if (law.port(p).kind == ATTN_AUX_IN) other.arrays[p] = in.arrays[p];  // constant while a stream lasts
  const Arena straight(plan.info().state_bytes, 1), detour(plan.info().state_bytes, 1);
  for (int64_t from = 0; from < known; from += chunk)
    plan.run(in, law.step(from, std::min(chunk, known - from), straight, 1, n));
  std::memcpy(detour.row(0), straight.row(0), straight.row_bytes);
  plan.run(other, law.step(known, 6, detour, 1, n));
  hold(same_bits(law.probe(plan, in, straight, known, n), law.probe(plan, in, detour, known, n)),
       "it says ATTN_REWINDS, and a run with k_pos {} does not undo what was appended after it", known);
  return true;
}

// Keys wrap around where only so many are kept, in the narrow block as stream.long has it.
void rewinds(Law& law) {
  bool says = hold_rewinds(law, 10);
  law.also_narrow([&](const Law& narrow) { says |= hold_rewinds(narrow, 4000); });
  if (!says) throw NotApplicable{"it does not say ATTN_REWINDS"};
}

// A host may keep a state where bytes get lost, and hand back others.
void any_state(Law& law) {
  const int64_t n = law.drawn(24, 6, 40), known = n - 2;
  Inputs in = law.inputs(2, n);
  const Planned plan = law.stream_plan(2, n, n);
  const Arena sound(plan.info().state_bytes, 2);
  plan.run(in, law.step(0, known, sound, 2, n));
  const auto after = [&](const std::function<void(char*)>& damage) {
    const Arena arena(plan.info().state_bytes, 2);
    std::memcpy(arena.bytes.data(), sound.bytes.data(), arena.bytes.size());
    damage(arena.row(0));
    Call step = law.step(known, 1, arena, 2, n);
    step.fenced = true;
    plan.run(in, step);
    return law.probe(plan, in, arena, known + 1, n, {}, true);
  };
  const Array other = after([](char*) {});
  Random random(law.place().seed);
  const std::vector<std::pair<const char*, std::function<void(char*)>>> damages = {
      {"random bytes",
       [&](char* row) { std::generate_n(row, sound.row_bytes, [&] { return static_cast<char>(random.bits()); }); }},
      {"bytes 0xff", [&](char* row) { std::memset(row, 0xFF, sound.row_bytes); }},
      {"bytes 0x7f", [&](char* row) { std::memset(row, 0x7F, sound.row_bytes); }},
      {"floats of a million",
       [&](char* row) {
         for (uint64_t at = 0; at + sizeof(float) <= sound.row_bytes; at += sizeof(float)) {
           const float million = 1e6f;
           std::memcpy(row + at, &million, sizeof million);
         }
       }},
      {"a half that was lost",
       [&](char* row) { std::memset(row + sound.row_bytes / 2, 0, sound.row_bytes - sound.row_bytes / 2); }},
  };
  const auto hold_beside = [&](const char* what, const std::function<void(char*)>& damage) {
    Array got;
    try {
      got = after(damage);
    } catch (const RefusedRun&) {
      return;
    }
    for (int64_t h = 0; h < other.heads; ++h)
      hold(same_bits(got, 1, h, other, 1, h, other.rows), "a row beside one whose state is {} gives other bits", what);
  };
  for (const auto& [what, damage] : damages) hold_beside(what, damage);
  if (sound.row_bytes == 0) return;
  for (int i = 0; i < (law.draws_options() ? 8 : 64); ++i)
    hold_beside("sound but for a bit", [&](char* row) {
      const uint64_t bit = random.bits() % (8 * sound.row_bytes);
      row[bit / 8] = static_cast<char>(row[bit / 8] ^ 1 << bit % 8);
    });
}

void growing_source(Law& law) {
  const int64_t n = law.length(20);
  Inputs in = law.inputs(1, n);
  Call prefix;
  for (int i = 0; i < n; ++i)
    prefix.visible.push_back(std::min(2 + (i / 3) * 4, static_cast<int32_t>(law.keys_for(n))));
  const Array offline = law.whole(in, prefix, 1, ATTN_PREFIX);
  const int64_t chunk = std::max<int64_t>(n, 4);  // of keys, which come four at a time
  const Planned plan = law.stream_plan(1, chunk, std::max(law.keys_for(n), chunk));
  const Arena arena(plan.info().state_bytes, 1);
  Array got(1, offline.heads, n, offline.width);
  int32_t known = 0;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t visible = prefix.visible[static_cast<size_t>(i)];
    Call call = law.step(known, visible - known, arena, 1, n);
    call.q_from = i;
    call.queries = 1;
    call.q_pos = {i};
    paste(got, plan.run(in, call), i);
    known = visible;
  }
  const double off = rms_ratio(got, offline);
  hold(off <= law.gate(), "a source that grows is {:.2g} from queries that see prefixes of it, at most {:.2g}", off,
       law.gate());
}

void shared_keys(Law& law) {
  const SharedKeys both(law);
  const std::vector<int64_t> steps = {1, 1, 3, 17, 38};
  both.shared->stream_plan(1, 38, law.keys_for(60));  // which it may refuse
  auto [shared, repeated] = both.inputs(1, 60);
  const Array out = both.shared->stream(shared, steps);
  hold(same_bits(out, both.shared->stream(shared, steps, 5)), "5 workers give other bits than one");
  const double error = rms_ratio(out, both.repeated->stream(repeated, steps));
  hold(error <= law.gate(), "keys that heads share are off by {:.1e} from keys that are repeated", error);
}

constexpr Check all[] = {
    {"stream", "chunks", "any split of a stream equals the whole, and equal splits give equal bits", nullptr, chunks,
     kStreams, Draws::blocks},
    {"stream", "prefill", "a prompt at once, then row by row, equals the whole", nullptr, prefill, kStreams,
     Draws::blocks},
    {"stream", "apart", "keys appended without a query, and queries read without a key, equal the whole", nullptr,
     apart, kDecoder, Draws::blocks},
    {"stream", "workers", "no bit of a stream depends on the number of workers", nullptr, workers, kStreams},
    {"stream", "layout", "no bit of a stream depends on the strides and the alignment of tensors", nullptr, any_layout,
     kStreams},
    {"stream", "many_steps", "400 steps stay as accurate as one", nullptr, many_steps, kStreams, Draws::none},
    {"stream", "long", "4096 rows stay as accurate as one", nullptr, long_stream, kStreams, Draws::none},
    {"stream", "at_once", "streams at once on one plan are as one by one", nullptr, at_once, kStreams},
    {"stream", "other_process", "a state may be moved to another process", nullptr, other_process, kStreams,
     Draws::none},
    {"stream", "moves", "state is bytes that may be copied, saved and restored", nullptr, moves, kStreams},
    {"stream", "grows", "the state of a small capacity is a prefix of that of a larger one", nullptr, grows, kStreams},
    {"stream", "own_positions", "each row of a run takes as many keys as it has", nullptr, own_positions, kStreams},
    {"stream", "slots", "rows use the slots that they are given, in any order, and no other", nullptr, slots, kStreams},
    {"stream", "shared_slots", "rows may share a slot that nobody appends to", nullptr, shared_slots, kCross},
    {"stream", "shared_keys", "a head of keys for several heads of queries is as good as one repeated for each",
     nullptr, shared_keys, kStreams, Draws::none},
    {"stream", "empty_runs", "a run that appends nothing leaves the state as it is", nullptr, empty_runs, kStreams},
    {"stream", "rewinds", "where it says ATTN_REWINDS it rewinds", nullptr, rewinds, kStreams, Draws::none},
    {"stream", "any_state",
     "whatever the bytes of a state, a run ends, touches nothing else and leaves other rows as they are", nullptr,
     any_state, kStreams},
    {"stream", "growing_source", "a source that grows equals queries that see prefixes of it", nullptr, growing_source,
     kCross, Draws::blocks},
};

}  // namespace

const std::span<const Check> stream_checks = all;

std::string state_of(const std::string& file, uint32_t role) {
  const auto state = [](const Place& place) -> std::string {
    const Law law(place);
    const int64_t n = 40;
    Inputs in = law.inputs(1, n);
    const Planned plan = law.stream_plan(1, n, n);
    const Arena arena(plan.info().state_bytes, 1);
    plan.run(in, law.step(0, 20, arena, 1, n));
    return {arena.row(0), arena.row_bytes};
  };
  const Place place = places_of({file}, "", role, Draws::none).at(0);
  try {
    return state(place);
  } catch (const RefusedInWords&) {
    for (const Place& other : instead_of(place)) {
      try {
        return state(other);
      } catch (const RefusedInWords&) {
      }
    }
    throw;
  }
}

}  // namespace attnkit::core::conformance
