// The shared memory that docs/cuda.md predicts from is what launches ask for; its kernels' own arrays are not among it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "cuda/emulator/launches.hpp"
#include "cuda/halves.hpp"
#include "support/training.hpp"

namespace attnkit::test {
namespace {

using Kilobytes = std::set<int>;

// A run of heads of 64 with one head, and the tables' rows of its kernels: words before the table, and a row's
// beginning.
struct Said {
  const char* mechanism;
  bool causal, trains;
  const Type* type;  // NULL: f32
  const char* table;
  std::vector<const char*> rows;
  Settings settings = {};
  int64_t length = 70;
};
void PrintTo(const Said& said, std::ostream* out) { *out << said.table << ", " << said.mechanism; }

std::vector<Said> all_said() {
  const Type *f16 = &all_halves()[0], *bf16 = &all_halves()[1];
  const char *softmax = "Softmax, whole causal", *local = "The same call of `local`",
             *bigbird = "The same call of `bigbird`", *nystromformer = "The same call of `nystromformer`",
             *sums = "Sums in registers, the same call", *shared = "The same in f16 and bf16, on the tensor cores",
             *luna = "Luna, the same shapes", *linformer = "Linformer, bidirectional", *f32 = "f32 (`blocks_kernel`",
             *f16_bf16 = "f16, bf16 (`blocks_kernel`", *gradient = "gradient, f32 (`gradient_kernel`";
  const Settings blocks{{"length", int64_t{4096}}}, rank{{"rank", int64_t{64}}, {"n_max", int64_t{400}}};
  return {
      {"softmax", true, false, nullptr, softmax, {f32}},
      {"softmax", true, true, nullptr, softmax, {f32, gradient}},
      {"local", true, true, nullptr, local, {f32, gradient}},
      {"local", true, false, f16, local, {f16_bf16}},
      {"bigbird", false, true, nullptr, bigbird, {f32, gradient}, blocks},
      {"bigbird", false, false, bf16, bigbird, {f16_bf16}, blocks},
      {"nystromformer", false, false, nullptr, nystromformer, {f32}},
      {"relu", true, false, bf16, sums, {"relu, linear, bf16"}},
      {"relu", true, true, f16, sums, {"relu, linear, f16", "forward (`scan_kernel`)", "reverse (`scan_kernel`)"}},
      {"relu",
       true,
       true,
       bf16,
       sums,
       {"relu, linear, bf16", "sums of keys (`sums_kernel`)", "sums of queries (`scan_sums_kernel`)",
        "forward (`scan_kernel`)", "reverse (`scan_kernel`)"},
       {},
       1030},
      {"cosformer", true, false, f16, sums, {"cosformer, f16"}},
      {"rope_linear", true, false, bf16, sums, {"rope_linear, bf16"}},
      {"leap", true, false, f16, sums, {"leap, f16"}},
      {"latte", true, false, f16, shared, {"latte"}},
      {"performer", true, false, bf16, shared, {"performer, m = 128"}, {{"features", int64_t{128}}}},
      {"luna", true, false, nullptr, luna, {"causal, whole"}},
      {"luna", true, true, nullptr, luna, {"causal, whole", "gradient, causal"}},
      {"luna",
       false,
       true,
       nullptr,
       luna,
       {"bidirectional: pack", "bidirectional: unpack", "gradient, bidirectional: unpack",
        "gradient, bidirectional: pack"}},
      {"linformer", false, true, nullptr, linformer, {"`attend_kernel`", "gradient: `gradient_kernel`"}, rank},
  };
}

Kilobytes read(const Said& said) {
  std::ifstream file(ATTNKIT_CUDA_DOCUMENT);
  const std::string document{std::istreambuf_iterator<char>(file), {}}, unit = " KB |";
  Kilobytes all;
  for (const std::string row : said.rows) {
    const size_t begin = document.find("\n| " + row, document.find(said.table)), end = document.find(unit, begin);
    if (end == std::string::npos) throw std::runtime_error("docs/cuda.md has no row " + row);
    all.insert(std::stoi(document.substr(document.rfind("| ", end) + 2)));
  }
  return all;
}

class SharedMemory : public testing::TestWithParam<Said> {};
INSTANTIATE_TEST_SUITE_P(Cuda, SharedMemory, testing::ValuesIn(all_said()));

TEST_P(SharedMemory, IsThatOfTheDocument) {
  const Said& said = GetParam();
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/" + std::string(said.mechanism) + ".so"),
                       make_block(said.causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, said.causal, 1, 64, 64),
                       said.settings);
  Inputs in(mech, 1, said.length, said.length, 1);
  Call call;
  call.q_total = {static_cast<double>(said.length)};
  std::optional<InType> chosen;
  if (said.type) chosen.emplace(*said.type);
  emulator::take_shared_bytes();
  if (said.trains)
    backward(in, 0, call);
  else
    run_whole(in, 0, call);
  Kilobytes asked;
  for (const size_t bytes : emulator::take_shared_bytes())
    asked.insert(static_cast<int>(std::lround(static_cast<double>(bytes) / 1000)));
  EXPECT_EQ(read(said), asked);
}

}  // namespace
}  // namespace attnkit::test
