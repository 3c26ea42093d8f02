// Laws of state: streaming is the whole in pieces, and state is bytes that may be copied, shared, grown and moved.
#include <cstring>

#include "conformance/fixture.hpp"

namespace attnkit::test {

class Stream : public Law {
 protected:
  // Skips blocks that refuse to stream.
  void SetUp() override {
    Law::SetUp();
    if (!mech) return;
    ATTNKIT_OR_SKIP(stream_plan(1, 1, 8));
  }
  // Self: appends and reads rows [from, from + count).  Cross: appends that many keys from there.
  Call step(int64_t from, int64_t count, const Arena& arena, int64_t batch, int64_t n) const {
    Call call = with_totals({}, batch, n);
    call.arena = &arena;
    call.q_from = call.k_from = from;
    call.queries = cross() ? 0 : count;
    call.keys = count;
    call.q_pos = call.k_pos = std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(from));
    return call;
  }
  // What the state knows after keys [0, known), as an output: the next row of self, or some queries of cross.
  Array probe(const Planned& plan, Inputs& in, const Arena& arena, int64_t known, int64_t n,
              std::vector<int32_t> slots = {}) const {
    Call call = step(known, cross() ? 0 : 1, arena, in.arrays[mech->output()].batch, n);
    if (cross()) {
      call.q_from = 0;
      call.queries = 4;
      call.q_pos.assign(call.q_pos.size(), 0);
    }
    call.slots = std::move(slots);
    return plan.run(in, call);
  }
};
// Bidirectional self attention does not stream; Refusing covers it.
INSTANTIATE_TEST_SUITE_P(Conformance, Stream, testing::ValuesIn(subjects({Seat::kDecoder, Seat::kCross})), name_of);

class StreamCross : public Stream {};
INSTANTIATE_TEST_SUITE_P(Conformance, StreamCross, testing::ValuesIn(subjects({Seat::kCross})), name_of);

TEST_P(Stream, AnyChunkingEqualsTheWhole) {
  for (const int64_t n : {1, 63, 64, 100}) {
    Inputs in = inputs(2, n);
    const Array all = whole(in, with_totals({}, 2, n));
    for (const int64_t chunk : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{16}, int64_t{64}, n}) {
      const Array got = stream(in, chunks_of(n, chunk));
      EXPECT_LE(rms_ratio(got, all), kGate) << "N " << n << " chunk " << chunk;
      EXPECT_TRUE(same_bits(got, stream(in, chunks_of(n, chunk)))) << "equal splits, N " << n << " chunk " << chunk;
    }
  }
}

TEST_P(Stream, PrefillThenDecodeEqualsTheWhole) {
  Inputs in = inputs(2, 64);
  std::vector<int64_t> chunks = {37};
  for (int i = 37; i < 64; ++i) chunks.push_back(1);
  EXPECT_LE(rms_ratio(stream(in, chunks), whole(in, with_totals({}, 2, 64))), kGate);
}

TEST_P(Stream, DoesNotDependOnWorkers) {
  Inputs in = inputs(4, 64);
  const Array one = stream(in, chunks_of(64, 16));
  for (const uint32_t workers : {2u, 5u}) EXPECT_TRUE(same_bits(one, stream(in, chunks_of(64, 16), workers)));
}

TEST_P(Stream, StaysAccurateOverManySteps) {
  Inputs in = inputs(1, 400);
  EXPECT_LE(rms_ratio(stream(in, chunks_of(400, 1)), whole(in, with_totals({}, 1, 400))), kGate);
}

TEST_P(Stream, StateIsBytesThatMayMove) {
  const int64_t n = 40;
  Inputs in = inputs(1, n);
  const Planned plan = stream_plan(1, n, n);
  const Arena arena(plan.info().state_bytes, 3);
  plan.run(in, step(0, 20, arena, 1, n));
  // Slot 0 to slot 2, through a buffer as a file would be.
  const std::vector<char> saved(arena.row(0), arena.row(0) + arena.stride);
  std::memcpy(arena.row(2), saved.data(), saved.size());
  const Array here = probe(plan, in, arena, 20, n);
  EXPECT_TRUE(same_bits(here, probe(plan, in, arena, 20, n, {2})));
  // Undone by restoring the snapshot, and done again.
  std::memcpy(arena.row(0), saved.data(), saved.size());
  EXPECT_TRUE(same_bits(here, probe(plan, in, arena, 20, n)));
}

TEST_P(Stream, SmallerCapacityIsAPrefixOfLarger) {
  const int64_t n = 40;
  Inputs in = inputs(1, n);
  const Planned small = stream_plan(1, 20, 20), large = stream_plan(1, n, 3 * n);
  ASSERT_LE(small.info().state_bytes, large.info().state_bytes);
  const Arena little(small.info().state_bytes, 1), grown(large.info().state_bytes, 1), big(large.info().state_bytes, 1);
  small.run(in, step(0, 20, little, 1, n));
  large.run(in, step(0, 20, big, 1, n));
  std::memcpy(grown.row(0), little.row(0), little.stride);
  EXPECT_EQ(0, std::memcmp(grown.row(0), big.row(0), little.stride));
  EXPECT_TRUE(same_bits(probe(large, in, grown, 20, n), probe(large, in, big, 20, n)));
}

TEST_P(Stream, RowsStandAtTheirOwnPositions) {
  const int64_t n = 24;
  Inputs in = inputs(3, n);
  const Planned plan = stream_plan(3, n, n);
  const Arena together(plan.info().state_bytes, 3);
  // Row b takes 0, 3 or 5 rows first, then the rest of 12 up to its length.
  Call call = step(0, n, together, 3, n);
  call.k_len = {0, 3, 5};
  if (!cross()) call.q_len = call.k_len;
  const Array first = plan.run(in, call);
  for (int64_t b = 0; b < 3; ++b) {
    Inputs one(*mech, 1, n, keys_for(n), 1);
    for (size_t p = 0; p < one.arrays.size(); ++p)
      if (is_taken(*mech->ports()[p]))
        one.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return in.arrays[p].at(b, h, i, c); });
    const Arena alone(plan.info().state_bytes, 1);
    const int64_t taken = call.k_len[static_cast<size_t>(b)];
    const Array got = plan.run(one, step(0, taken, alone, 1, n));
    for (int64_t h = 0; h < first.heads && !cross(); ++h) EXPECT_TRUE(same_bits(got, 0, h, first, b, h, taken));
    EXPECT_EQ(0, std::memcmp(alone.row(0), together.row(b), alone.stride)) << "row " << b;
  }
}

TEST_P(StreamCross, RowsShareASlotThatNobodyAppendsTo) {
  const int64_t n = 12, m = keys_for(n);
  Inputs source = inputs(2, n), beams = inputs(4, n, 2);
  const Planned plan = stream_plan(4, m, m);
  const Arena arena(plan.info().state_bytes, 2);
  plan.run(source, step(0, m, arena, 2, n));
  const Array got = probe(plan, beams, arena, m, n, {1, 0, 1, 1});
  const Arena copies(plan.info().state_bytes, 4);
  for (const int64_t b : {0, 1, 2, 3}) std::memcpy(copies.row(b), arena.row(b == 1 ? 0 : 1), arena.stride);
  EXPECT_TRUE(same_bits(got, probe(plan, beams, copies, m, n)));
}

TEST_P(Stream, EmptyRunsChangeNothing) {
  const int64_t n = 16;
  Inputs in = inputs(2, n);
  const Planned plan = stream_plan(2, n, n);
  const Arena arena(plan.info().state_bytes, 2);
  plan.run(in, step(0, 8, arena, 2, n));
  const std::vector<char> before(arena.row(0), arena.row(0) + 2 * arena.stride);
  plan.run(in, step(8, 0, arena, 2, n));
  Call masked = step(8, 4, arena, 2, n);
  masked.q_len = masked.k_len = {0, 0};
  plan.run(in, masked);
  EXPECT_EQ(0, std::memcmp(before.data(), arena.row(0), before.size()));
}

TEST_P(Stream, RewindsIfItSaysSo) {
  const int64_t n = 20;
  Inputs in = inputs(1, n), other = inputs(1, n, 7);
  for (size_t p = 0; p < in.arrays.size(); ++p)
    if (mech->ports()[p]->kind == ATTN_AUX_IN) other.arrays[p] = in.arrays[p];  // constant while a stream lasts
  const Planned plan = stream_plan(1, n, n);
  const Arena straight(plan.info().state_bytes, 1), detour(plan.info().state_bytes, 1);
  plan.run(in, step(0, 10, straight, 1, n));
  plan.run(in, step(0, 10, detour, 1, n));
  plan.run(other, step(10, 6, detour, 1, n));
  const bool same = same_bits(probe(plan, in, straight, 10, n), probe(plan, in, detour, 10, n));
  EXPECT_EQ(same, (plan.info().flags & ATTN_REWINDS) != 0);
}

TEST_P(StreamCross, PrefixesAreAGrowingSource) {
  const int64_t n = 20;
  Inputs in = inputs(1, n);
  Call prefix;
  for (int i = 0; i < n; ++i) prefix.visible.push_back(2 + (i / 3) * 4);
  Array offline;
  ATTNKIT_OR_SKIP(offline = whole(in, prefix, 1, ATTN_PREFIX));
  const Planned plan = stream_plan(1, n, keys_for(n));
  const Arena arena(plan.info().state_bytes, 1);
  Array got(1, offline.heads, n, offline.width);
  int32_t known = 0;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t visible = prefix.visible[static_cast<size_t>(i)];
    Call call = step(known, visible - known, arena, 1, n);
    call.q_from = i;
    call.queries = 1;
    call.q_pos = {i};
    paste(got, plan.run(in, call), i);
    known = visible;
  }
  EXPECT_LE(rms_ratio(got, offline), kGate);
}

}  // namespace attnkit::test
