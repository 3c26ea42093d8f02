#include "conformance/fixture.hpp"

namespace attnkit::test {

void paste(Array& all, const Array& part, int64_t from) {
  for (int64_t b = 0; b < part.batch; ++b)
    for (int64_t h = 0; h < part.heads; ++h)
      for (int64_t i = 0; i < part.rows; ++i)
        for (int64_t c = 0; c < part.width; ++c) all.at(b, h, from + i, c) = part.at(b, h, i, c);
}

std::vector<int64_t> chunks_of(int64_t n, int64_t size) {
  std::vector<int64_t> chunks;
  for (int64_t done = 0; done < n; done += size) chunks.push_back(std::min(size, n - done));
  return chunks;
}

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
  const Array& like = in.arrays[mech->output()];
  const int64_t n = like.rows, m = keys_for(n), batch = like.batch;
  const Planned plan = stream_plan(batch, std::max(n, m), std::max(n, m), workers);
  const Arena arena(plan.info().state_bytes, batch);
  Array out(batch, like.heads, n, like.width);
  Call call = with_totals({}, batch, n);
  call.arena = &arena;
  call.workers = workers;
  const auto at = [batch](int64_t position) {
    return std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(position));
  };
  const auto step = [&](int64_t q_from, int64_t queries, int64_t k_from, int64_t keys, int64_t known) {
    call.q_from = q_from;
    call.queries = queries;
    call.k_from = k_from;
    call.keys = keys;
    call.q_pos = at(q_from);
    call.k_pos = at(known);
    paste(out, plan.run(in, call), q_from);
  };
  int64_t read = 0, known = 0;
  for (const int64_t chunk : chunks) {
    const int64_t keys = cross() ? std::min(chunk * 2, m - known) : chunk;
    step(read, cross() ? 0 : chunk, known, keys, known);
    known += keys;
    read += cross() ? 0 : chunk;
  }
  if (!cross()) return out;
  if (known < m) step(0, 0, known, m - known, known);
  for (const int64_t chunk : chunks) {
    step(read, chunk, 0, 0, m);
    read += chunk;
  }
  return out;
}

}  // namespace attnkit::test
