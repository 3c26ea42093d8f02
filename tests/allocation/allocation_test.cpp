// Decoding allocates nothing per token once a session has met its largest step.
#include "tests/allocation/counted_new.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

// On one thread, with weights from a seed, which every mechanism has.
std::shared_ptr<const Model> seeded(const std::string& attention) {
  TinyModel tiny;
  tiny.attention = attention;
  tiny.tail = "[length]\npredict = \"ratio\"\nalpha = 0.9\n";
  std::string text = tiny.manifest();
  const std::string file = "file = \"w.safetensors\"";
  text.replace(text.find(file), file.size(), "seed = 1");
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  auto model = Model::load(runtime(1), text, folder.path(), diagnostics);
  EXPECT_TRUE(model) << all_messages(diagnostics);
  return model;
}

class Allocation : public testing::TestWithParam<std::string> {};

TEST_P(Allocation, NonePerToken) {
  const auto model = seeded("default = \"" + GetParam() + "\"\n");
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Session*> pointers;
  const std::vector<int32_t> source = {3, 4, 5, 2};
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(std::make_unique<Session>(model, 1));
    sessions.back()->read(ids_of(source));
    pointers.push_back(sessions.back().get());
  }
  const int32_t tokens[] = {1, 5, 7};
  std::vector<float> logits(3 * static_cast<size_t>(model->outputs()));
  const Ids ids{tokens, 1, 3, 1, nullptr};
  for (int i = 0; i < 3; ++i) Session::write(pointers, ids, logits.data());
  const int64_t before = allocations;
  for (int i = 0; i < 20; ++i) Session::write(pointers, ids, i % 2 ? logits.data() : nullptr);
  EXPECT_EQ(allocations - before, 0);
  const int64_t counted = allocations;
  const Session fresh(model, 1);
  EXPECT_GT(allocations, counted) << "the counter sees what core allocates";
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, Allocation, testing::Values("softmax", "relu", "cosformer", "leap", "luna"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnkit::test
