#include "conformance/fixture.hpp"

namespace attnkit::test {

void Law::SetUp() {
  const uint32_t roles[] = {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS};
  ATTNKIT_OR_SKIP(mech.emplace(
      load(GetParam().file), make_block(roles[static_cast<int>(GetParam().seat)], causal(), kHeads, kWidth, kValues)));
}

Call Law::with_totals(Call call, int64_t batch, int64_t n) const {
  call.q_total.assign(static_cast<size_t>(batch), static_cast<double>(n));
  call.k_total.assign(static_cast<size_t>(batch), static_cast<double>(keys_for(n)));
  return call;
}

Array Law::whole(Inputs& in, Call call, uint32_t workers, uint32_t flags) const {
  const Array& out = in.arrays[mech->output()];
  if ((causal() || flags != 0) && call.q_total.empty()) {
    call = with_totals(call, out.batch, out.rows);
    flags |= ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  }
  return run_whole(in, flags, call, workers);
}

Planned Law::stream_plan(int64_t batch, int64_t chunk, int64_t capacity, uint32_t workers) const {
  const uint32_t flags = ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  return Planned(*mech, make_request(batch, chunk, chunk, flags, capacity - chunk, workers));
}

Array Law::stream(Inputs& in, const std::vector<int64_t>& chunks, uint32_t workers) const {
  const int64_t m = keys_for(in.arrays[mech->output()].rows);
  Feed feed{chunks, {}, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL, workers};
  if (!cross()) return streamed(in, feed);
  feed.queries = chunks;
  int64_t known = 0;
  for (int64_t& keys : feed.keys) known += keys = std::min(keys * 2, m - known);
  feed.keys.push_back(m - known);
  return streamed(in, feed);
}

}  // namespace attnkit::test
