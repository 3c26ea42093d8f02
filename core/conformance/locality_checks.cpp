// Laws of who may influence whom: not the future, not padding, not other rows, not other heads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

// The numbers that take the place of a sequence's own.
enum class Other { kNumbers, kNan, kInfinity };
const char* name_of(Other other) {
  constexpr const char* names[] = {"other numbers", "NaN", "infinity"};
  return names[static_cast<int>(other)];
}

bool is_aux(const attn_port& port) { return port.kind == ATTN_AUX_IN; }

// Overwrites rows of the sequences for which `which(port, b, h, i)` holds.
template <class Which>
void overwrite(Inputs& in, Other with, Which which) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  Random random(99);
  for (size_t p = 0; p < in.arrays.size(); ++p) {
    const attn_port& port = *in.mech->ports()[p];
    if (!is_taken(port)) continue;
    Array& a = in.arrays[p];
    const Array old = a;
    a.set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
      const float other = with == Other::kNan ? kNan : with == Other::kInfinity ? kInfinity : random.normal();
      return which(port, b, h, i) ? other : old.at(b, h, i, c);
    });
  }
}

// The whole sequence in f64.
Array64 wide(const Law& law, const Inputs& in) {
  Inputs64 inputs(in);
  const Array& out = in.arrays[law.mech().output()];
  const Call call = law.with_totals({}, out.batch, out.rows);
  return law.may_refuse([&] { return run_whole(inputs, 0, call); });
}

void future(Law& law) {
  const int64_t n = law.length(100);
  Inputs in = law.inputs(2, n);
  const Array out = law.whole(in);
  for (const int64_t usual : {1, 15, 16, 17, 50, 99})
    for (const Other other : {Other::kNumbers, Other::kNan, Other::kInfinity}) {
      const int64_t cut = law.drawn(usual, 1, n);
      Inputs changed = in;
      overwrite(changed, other,
                [cut](const attn_port& port, int64_t, int64_t, int64_t i) { return !is_aux(port) && i >= cut; });
      const Array got = law.whole(changed);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < out.heads; ++h)
          hold(same_bits(out, b, h, got, b, h, cut), "{} from row {} on changes an output before it", name_of(other),
               cut);
    }
  if (!law.mech().plugin().backward) return;
  const Array64 out64 = wide(law, in);
  for (const int64_t usual : {1, 15, 16, 99})
    for (const Other other : {Other::kNan, Other::kInfinity}) {
      const int64_t cut = law.drawn(usual, 1, n);
      Inputs changed = in;
      overwrite(changed, other,
                [cut](const attn_port& port, int64_t, int64_t, int64_t i) { return !is_aux(port) && i >= cut; });
      const Array64 got64 = wide(law, changed);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < out.heads; ++h)
          for (int64_t i = 0; i < cut; ++i)
            for (int64_t c = 0; c < out.width; ++c)
              hold(std::isfinite(got64.at(b, h, i, c)) || !std::isfinite(out64.at(b, h, i, c)),
                   "{} from row {} on reaches row {} of an output in f64", name_of(other), cut, i);
    }
}

// Empty lengths are those of all rows.
int64_t length_of(const std::vector<int32_t>& lengths, int64_t b, int64_t rows) {
  return lengths.empty() ? rows : lengths[static_cast<size_t>(b)];
}

void hold_padding(Law& law, int64_t n, const Call& call) {
  const int64_t m = law.keys_for(n);
  Inputs zero = law.inputs(4, n), nan = zero;
  const auto pad = [&](const attn_port& port, int64_t b, int64_t, int64_t i) {
    return !is_aux(port) && i >= (port.kind == ATTN_KEY ? length_of(call.k_len, b, m) : length_of(call.q_len, b, n));
  };
  overwrite(zero, Other::kNumbers, pad);
  overwrite(nan, Other::kNan, pad);
  const Array out = law.whole(zero, call);
  hold(same_bits(out, law.whole(nan, call)), "what stands in the padding changes the output");
  hold(law.finite(out), "an output is not finite where rows are padded");
  for (int64_t row = 0; row < 4; ++row) {
    // Past its length a row is zero, and before it equals a run that never saw the padding.
    const int64_t queries = length_of(call.q_len, row, n);
    for (int64_t i = queries; i < n; ++i)
      for (int64_t h = 0; h < out.heads; ++h)
        for (int64_t c = 0; c < out.width; ++c)
          hold(out.at(row, h, i, c) == 0, "row {} of an output of length {} is not zero", i, queries);
    Inputs alone = law.inputs_of(1, queries, length_of(call.k_len, row, m));
    for (size_t p = 0; p < alone.arrays.size(); ++p)
      if (is_taken(law.port(p)))
        alone.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return zero.arrays[p].at(row, h, i, c); });
    Call single;
    if (law.causal()) single.q_total = single.k_total = {call.q_total[static_cast<size_t>(row)]};
    const Array got = run_whole(alone, 0, single);
    for (int64_t h = 0; h < out.heads; ++h)
      hold(same_bits(got, 0, h, out, row, h, queries),
           "a row of {} queries and {} keys padded to {} and {} differs from the same row alone", queries, alone.keys,
           n, m);
  }
}

void padding(Law& law) {
  const int64_t n = law.length(40);
  Call call = law.padded(n);
  hold_padding(law, n, call);
  if (!law.cross()) return;
  call.q_len.clear();
  hold_padding(law, n, call);
}

void hold_batch_rows(const Law& law, int64_t n, const std::vector<int32_t>& order) {
  const auto rows = static_cast<int64_t>(order.size());
  Inputs in = law.inputs(rows, n);
  const Array out = law.whole(in);
  Inputs permuted = in;
  for (size_t p = 0; p < in.arrays.size(); ++p)
    if (is_taken(law.port(p)))
      permuted.arrays[p].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
        return in.arrays[p].at(order[static_cast<size_t>(b)], h, i, c);
      });
  const Array got = law.whole(permuted);
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t h = 0; h < out.heads; ++h)
      hold(same_bits(got, b, h, out, order[static_cast<size_t>(b)], h, n),
           "a row of {} gives other bits in another order of rows", rows);
}

void batch_rows(Law& law) {
  hold_batch_rows(law, law.length(33), law.order({2, 0, 3, 1}));
  std::vector<int32_t> backwards(40);
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  law.also_narrow([&](const Law& narrow) { hold_batch_rows(narrow, 5, backwards); });
}

void rows_and_heads(Law& law) {
  const int64_t n = law.length(33);
  Inputs in = law.inputs(3, n);
  const Array out = law.whole(in);
  const bool mixes = law.mixes_heads();
  for (const Other other : {Other::kNumbers, Other::kNan, Other::kInfinity}) {
    Inputs changed = in;
    overwrite(changed, other,
              [mixes](const attn_port&, int64_t b, int64_t h, int64_t) { return b == 1 && (mixes || h == 0); });
    const Array got = law.whole(changed);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t h = 0; h < out.heads; ++h)
        if (b != 1 || (h >= law.group() && !mixes))
          hold(same_bits(got, b, h, out, b, h, n), "{} in row 1, head 0 changes row {}, head {}", name_of(other), b, h);
  }
}

void hold_visible(const Law& law, int64_t n, const Call& call) {
  const int64_t m = law.keys_for(n);
  Inputs in = law.inputs(2, n), changed = in;
  overwrite(changed, Other::kNan, [&](const attn_port& port, int64_t b, int64_t, int64_t i) {
    const int64_t seen =
        std::min<int64_t>(call.visible[static_cast<size_t>(b * n + n - 1)], length_of(call.k_len, b, m));
    return port.kind == ATTN_KEY && i >= seen;
  });
  const Array out = law.whole(in, call, 1, ATTN_PREFIX);
  hold(law.finite(out), "an output is not finite where queries see prefixes");
  hold(same_bits(out, law.whole(changed, call, 1, ATTN_PREFIX)), "keys that no query sees change the output");
  hold(out.at(0, 0, 0, 0) == 0.0f, "a query that sees nothing gives no zero row");
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = length_of(call.q_len, b, n); i < n; ++i)
      for (int64_t h = 0; h < out.heads; ++h)
        hold(out.at(b, h, i, 0) == 0, "row {} of an output of length {} is not zero where queries see prefixes", i,
             call.q_len[static_cast<size_t>(b)]);
}

void visible(Law& law) {
  const int64_t n = law.length(20), m = law.keys_for(n);
  const auto most = static_cast<int32_t>(std::max<int64_t>(m - 3, 0));
  Call call;
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < n; ++i) call.visible.push_back(std::min<int32_t>(most, (i / 4) * (3 + b)));
  hold_visible(law, n, call);
  call.q_len = {static_cast<int32_t>(n), static_cast<int32_t>(n - n / 3)};
  call.k_len = law.cross()
                   ? std::vector<int32_t>{static_cast<int32_t>(m), static_cast<int32_t>(std::min<int64_t>(m, 5))}
                   : call.q_len;
  hold_visible(law, n, call);
}

constexpr Check all[] = {
    {"locality", "future", "in a causal block no row reaches an output before it", nullptr, future,
     kDecoder | kCausalEncoder},
    {"locality", "padding", "padding changes nothing, and gives rows of zeros", nullptr, padding},
    {"locality", "batch_rows", "batch rows are independent of each other and of their order", nullptr, batch_rows},
    {"locality", "rows_and_heads", "a batch row and head keep their numbers, NaN and infinity to themselves", nullptr,
     rows_and_heads},
    {"locality", "visible", "with ATTN_PREFIX a query reads the keys that it sees alone", nullptr, visible,
     kEncoder | kCross},
};

}  // namespace

const std::span<const Check> locality_checks = all;

}  // namespace attnkit::core::conformance
