#include "core/conformance/stream.hpp"

#include <algorithm>

namespace attnkit::core::conformance {

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

Array streamed(Inputs& in, const Feed& feed, std::map<std::string, Array>* aux) {
  const Array& like = in.arrays[in.mech->output()];
  const bool self = in.mech->block().causal != 0;
  const int64_t batch = like.batch, n = like.rows, m = in.keys, most = std::max(n, m);
  std::vector<int64_t> queries;
  if (!self) queries = feed.queries.empty() ? std::vector<int64_t>{n} : feed.queries;
  const auto largest = [](const std::vector<int64_t>& sizes) { return sizes.empty() ? 0 : std::ranges::max(sizes); };
  const int64_t chunk = std::max(largest(feed.keys), largest(queries));
  const Planned plan(*in.mech, make_request(batch, chunk, chunk, ATTN_STREAM | feed.flags, most - chunk, feed.workers));
  const Arena arena(plan.info().state_bytes, batch);
  const auto rows = static_cast<size_t>(batch);
  Array out(batch, like.heads, n, like.width);
  const std::vector<Array> before = in.arrays;
  Call call;
  call.one_of_many = true;
  call.arena = &arena;
  call.workers = feed.workers;
  if (feed.flags & ATTN_KNOWS_Q_TOTAL) call.q_total.assign(rows, static_cast<double>(n));
  if (feed.flags & ATTN_KNOWS_K_TOTAL) call.k_total.assign(rows, static_cast<double>(m));
  int64_t read = 0, known = 0;
  const auto step = [&](int64_t queries, int64_t keys) {
    call.q_from = read;
    call.queries = queries;
    call.k_from = keys > 0 ? known : 0;
    call.keys = keys;
    call.q_pos.assign(rows, static_cast<int32_t>(read));
    call.k_pos.assign(rows, static_cast<int32_t>(known));
    paste(out, plan.run(in, call, aux), read);
    read += queries;
    known += keys;
  };
  for (const int64_t size : feed.keys) step(self ? size : 0, size);
  for (const int64_t size : queries) step(size, 0);
  if (!same_memory(before, in.arrays)) throw Violation("a run of the stream changed an input");
  return out;
}

}  // namespace attnkit::core::conformance
