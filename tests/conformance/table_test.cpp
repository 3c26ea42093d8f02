// Laws of the table itself: names, docs, ports, options, stored tensors, equal answers to equal questions.
#include <cstring>
#include <set>

#include "conformance/fixture.hpp"

namespace attnkit::test {

class Table : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, Table, testing::ValuesIn(subjects()), name_of);

TEST_P(Table, SaysWhoItIs) {
  const attn_plugin& p = mech->plugin();
  EXPECT_EQ(stem(GetParam().file), p.name);
  EXPECT_EQ(1, p.device_type);
  EXPECT_GE(p.struct_size, sizeof(attn_plugin));
  for (const char* text : {p.summary, p.citation, p.state_revision}) {
    ASSERT_NE(nullptr, text);
    EXPECT_NE('\0', *text);
  }
}

TEST_P(Table, OptionsHaveSchemasThatTheirDefaultsMeet) {
  const attn_plugin& p = mech->plugin();
  std::set<std::string> names;
  for (uint32_t i = 0; i < p.n_options; ++i) {
    const attn_option& o = *p.options[i];
    EXPECT_TRUE(names.insert(o.name).second) << o.name;
    EXPECT_GT(std::strlen(o.doc), 10u) << o.name;
    EXPECT_GE(o.fallback.type, ATTN_INT);
    EXPECT_LE(o.fallback.type, ATTN_TEXT);
    bool found = o.n_choices == 0;
    for (uint32_t c = 0; c < o.n_choices; ++c) found = found || std::string(o.choices[c]) == o.fallback.s;
    EXPECT_TRUE(found) << o.name << ": the default is no choice";
    const double x = o.fallback.type == ATTN_INT ? static_cast<double>(o.fallback.i) : o.fallback.f;
    if (o.fallback.type <= ATTN_FLOAT && o.min != o.max) {
      EXPECT_TRUE(o.min <= x && x <= o.max) << o.name;
    }
  }
}

TEST_P(Table, PortsAreWellFormed) {
  std::set<std::string> names;
  int outputs = 0, sequences = 0;
  for (const attn_port* port : mech->ports()) {
    const std::string name = port->name;
    EXPECT_TRUE(names.insert((port->kind == ATTN_AUX_OUT ? "out " : "") + name).second) << name;
    EXPECT_EQ(std::string::npos, name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_")) << name;
    EXPECT_GT(std::strlen(port->doc), 3u) << name;
    outputs += port->kind == ATTN_OUTPUT;
    sequences += port->kind == ATTN_QUERY || port->kind == ATTN_KEY;
    ASSERT_LE(port->ndim, 4);
    if (port->kind <= ATTN_OUTPUT) {
      EXPECT_EQ(4, port->ndim) << name;
      EXPECT_EQ(0, port->shape[0]) << name;
      EXPECT_EQ(0, port->shape[2]) << name;
      EXPECT_GT(port->shape[3], 0) << name;
    }
    if (port->kind == ATTN_AUX_IN || port->kind == ATTN_AUX_OUT) {
      ASSERT_EQ(4, port->ndim) << name;
      EXPECT_EQ(0, port->shape[0]) << name;
      EXPECT_EQ(1, port->shape[1]) << name;
      EXPECT_GT(port->shape[2], 0) << name;
      EXPECT_GT(port->shape[3], 0) << name;
    }
  }
  EXPECT_EQ(1, outputs);
  EXPECT_GE(sequences, 1);
}

TEST_P(Table, FillsStoredTensorsFromTheSeedAlone) {
  for (size_t i = 0; i < mech->ports().size(); ++i) {
    const attn_port& port = *mech->ports()[i];
    const auto filled = [&](uint64_t seed) {
      Array a = Array::stored(port);
      const attn_tensor t = a.tensor();
      attn_error error = empty_error();
      EXPECT_EQ(ATTN_OK, mech->plugin().fill(mech->get(), static_cast<uint32_t>(i), seed, &t, &error)) << error.message;
      return a;
    };
    if (port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE) {
      ASSERT_TRUE(mech->plugin().fill) << port.name << " is stored and nobody fills it";
      EXPECT_TRUE(same_bits(filled(5), filled(5))) << port.name;
      EXPECT_TRUE(all_finite(filled(5))) << port.name;
    } else if (mech->plugin().fill) {
      float x = 0;
      attn_tensor t{};
      t.data = &x;
      EXPECT_EQ(ATTN_INVALID, mech->plugin().fill(mech->get(), static_cast<uint32_t>(i), 1, &t, nullptr)) << port.name;
    }
  }
}

TEST_P(Table, EqualBlocksGetEqualPorts) {
  const Mechanism again(mech->plugin(), mech->block());
  ASSERT_EQ(mech->ports().size(), again.ports().size());
  for (size_t i = 0; i < mech->ports().size(); ++i) {
    const attn_port &a = *mech->ports()[i], &b = *again.ports()[i];
    EXPECT_STREQ(a.name, b.name);
    EXPECT_EQ(a.kind, b.kind) << a.name;
    EXPECT_EQ(a.flags, b.flags) << a.name;
    EXPECT_EQ(a.dtype_code, b.dtype_code) << a.name;
    EXPECT_EQ(a.dtype_bits, b.dtype_bits) << a.name;
    ASSERT_EQ(a.ndim, b.ndim) << a.name;
    EXPECT_TRUE(std::equal(a.shape, a.shape + a.ndim, b.shape)) << a.name;
  }
}

TEST_P(Table, EqualRequestsGetEqualAnswers) {
  for (const int64_t n : {0, 64}) {
    const attn_request r = make_request(n ? 2 : 0, n, keys_for(n), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL, 0, 2);
    ATTNKIT_OR_SKIP(Planned(*mech, r));
    const Planned a(*mech, r), b(*mech, r);
    EXPECT_EQ(0, std::memcmp(&a.info(), &b.info(), sizeof(attn_info)));
    attn_info asked{};
    asked.struct_size = sizeof asked;
    EXPECT_EQ(ATTN_OK, mech->plugin().plan(mech->get(), &r, &asked, nullptr, nullptr));
    EXPECT_EQ(0, std::memcmp(&a.info(), &asked, sizeof asked)) << "a question without a plan gets the same answer";
    EXPECT_EQ(n == 0, a.info().flops == 0);
    EXPECT_EQ(0u, a.info().state_bytes) << "no state without ATTN_STREAM";
  }
}

TEST_P(Table, AnswersOlderAndNewerHosts) {
  const attn_request r = make_request(1, 8, keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
  ATTNKIT_OR_SKIP(Planned(*mech, r));
  struct {
    attn_request request;
    uint64_t unknown;
  } longer{r, ~uint64_t{0}};
  longer.request.struct_size = sizeof longer;
  attn_info info{};
  info.struct_size = offsetof(attn_info, flops);
  EXPECT_EQ(ATTN_OK, mech->plugin().plan(mech->get(), &longer.request, &info, nullptr, nullptr));
  EXPECT_EQ(0u, info.flops) << "a field that the caller's struct lacks was written";
}

}  // namespace attnkit::test
