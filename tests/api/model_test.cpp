// Runtimes and models through attnkit.h.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <attnkit/attnkit.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

const std::string folder = ATTNKIT_MODEL, path = folder + "/model.toml";

std::string manifest() {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Runtime, DescribesItself) {
  const attnkit::Runtime runtime;
  const std::string json = runtime.describe();
  for (const char* part : {"attnkit.runtime/1", "\"softmax\"", "\"skipped\"", "\"search_path\""})
    EXPECT_NE(json.find(part), std::string::npos) << part;
  EXPECT_STREQ(attnkit_version(), "0.1.0");
  EXPECT_EQ(attnkit_abi_minor(), ATTN_ABI_MINOR);
}

TEST(Runtime, RefusesImpossibleOptions) {
  EXPECT_THROW(attnkit::Runtime(100000), attnkit::Error);
  attn_error err{sizeof err, 0, -1, ""};
  attnkit_runtime* runtime = nullptr;
  attnkit_runtime_options options{};
  options.struct_size = sizeof options;
  options.device_type = 3;
  EXPECT_EQ(attnkit_runtime_create(&options, &runtime, &err), ATTN_UNSUPPORTED);
  EXPECT_EQ(runtime, nullptr);
  for (const uint32_t size : {0u, 4u}) {  // no option would be read
    options.struct_size = size;
    EXPECT_EQ(attnkit_runtime_create(&options, &runtime, &err), ATTN_INVALID);
    EXPECT_NE(std::string(err.message).find("options.struct_size"), std::string::npos) << err.message;
  }
  EXPECT_EQ(attnkit_runtime_create(nullptr, nullptr, &err), ATTN_INVALID);
}

TEST(Runtime, OfCudaNeedsVariantsAndADeviceForModels) {
  attn_error err{sizeof err, 0, -1, ""};
  attnkit_runtime* runtime = nullptr;
  attnkit_runtime_options options{};
  options.struct_size = sizeof options;
  options.device_type = 2;
  ASSERT_EQ(attnkit_runtime_create(&options, &runtime, &err), ATTN_OK) << err.message;
  setenv("ATTNKIT_DEVICE_LIBRARY", "/nowhere", 1);
  const int32_t code = attnkit_model_open(runtime, path.c_str(), nullptr, 0, nullptr, &err);
  EXPECT_TRUE(code == ATTN_INVALID || code == ATTN_DEVICE) << code;  // where the build has no variants: the first
  EXPECT_NE(std::string(err.message).find(code == ATTN_DEVICE ? "/nowhere" : "has no variant for this device"),
            std::string::npos)
      << err.message;
  unsetenv("ATTNKIT_DEVICE_LIBRARY");
  attnkit_runtime_destroy(runtime);
}

TEST(Runtime, SmallerOptionsOfAnOlderCallerWork) {
  attnkit_runtime_options options{};
  std::memset(&options, 0x5a, sizeof options);  // fields that such a caller does not have hold anything
  options.struct_size = offsetof(attnkit_runtime_options, plugin_path);
  options.threads = 1;
  attnkit_runtime* runtime = nullptr;
  ASSERT_EQ(attnkit_runtime_create(&options, &runtime, nullptr), ATTN_OK);
  attnkit_runtime_destroy(runtime);
}

TEST(Model, TranslatesAndOutlivesItsRuntime) {
  std::unique_ptr<attnkit::Model> model;
  {
    const attnkit::Runtime runtime;
    model = std::make_unique<attnkit::Model>(runtime, path);
  }
  EXPECT_EQ(model->translate("two hundred and forty-one euros"), "zweihunderteinundvierzig Euro");
  EXPECT_EQ(model->translate("two hundred and forty-one euros", 4), "zweihunderteinundvierzig Euro") << "four beams";
  const attnkit_model_info info = model->info();
  EXPECT_EQ(info.kind, ATTNKIT_ENCODER_DECODER);
  EXPECT_EQ(info.outputs, info.target_vocab);
  EXPECT_GT(info.state_bytes, 0u);
}

TEST(Model, GivesEveryDiagnosticOfABadManifest) {
  const attnkit::Runtime runtime;
  try {
    attnkit::Model model(runtime, "schema = \"attnkit.model/1\"\n[model]\nname = 3\nheds = 4\n", folder);
    FAIL();
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    EXPECT_GE(e.diagnostics().size(), 2u);
  }
}

TEST(Model, ValidatesWithoutMaking) {
  const attnkit::Runtime runtime;
  attn_error err{sizeof err, 0, -1, ""};
  EXPECT_EQ(attnkit_model_open(runtime.get(), path.c_str(), nullptr, 0, nullptr, &err), ATTN_OK) << err.message;
  EXPECT_EQ(attnkit_model_create(runtime.get(), manifest().c_str(), folder.c_str(), nullptr, 0, nullptr, &err), ATTN_OK)
      << err.message;
  EXPECT_EQ(attnkit_model_open(runtime.get(), "/no/such/file", nullptr, 0, nullptr, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("/no/such/file"), std::string::npos);
  EXPECT_EQ(attnkit_model_open(runtime.get(), folder.c_str(), nullptr, 0, nullptr, &err), ATTN_INVALID) << "a folder";
}

TEST(Model, TokenizeTellsTheRoomItNeeds) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  attn_error err{sizeof err, 0, -1, ""};
  uint64_t n = 0;
  EXPECT_EQ(attnkit_model_tokenize(model.get(), 0, "five euros", nullptr, &n, &err), ATTN_INVALID);
  EXPECT_EQ(n, 2u);
  int32_t ids[2] = {-7, -7};
  n = 1;
  EXPECT_EQ(attnkit_model_tokenize(model.get(), 0, "five euros", ids, &n, &err), ATTN_INVALID);
  EXPECT_EQ(ids[0], -7);
  n = 2;
  EXPECT_EQ(attnkit_model_tokenize(model.get(), 0, "FIVE  euros", ids, &n, &err), ATTN_OK) << err.message;
  EXPECT_EQ(model.detokenize(attnkit::Side::source, ids), "five euros");
  EXPECT_EQ(attnkit_model_tokenize(model.get(), 0, "five florins", ids, &n, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("florins"), std::string::npos) << err.message;
  EXPECT_EQ(attnkit_model_tokenize(model.get(), 2, "five", ids, &n, &err), ATTN_INVALID);
}

TEST(Model, TokenizesWithWhatStandsBeforeATextAndWithoutItsEnd) {
  const attnkit::Runtime runtime;
  const std::string toml =
      "schema = 'attnkit.model/1'\n[model]\nname = 'roberta'\nkind = 'encoder'\nd_model = 32\nheads = 4\nffn = 40\n"
      "max_length = 48\nencoder = { layers = 1, vocab = 'tokenizer.json', tokenizer = 'huggingface' }\n"
      "head = { type = 'embedding', pool = 'mean' }\n[weights]\nseed = 1\n[attention]\ndefault = 'softmax'\n";
  const attnkit::Model model(runtime, toml, ATTNKIT_GOLDEN "/../../import/golden/roberta");
  constexpr int32_t begin = 0, end = 2;  // <s> and </s>
  EXPECT_EQ(model.info().begin_id, begin);
  EXPECT_EQ(model.info().end_id, end);
  const attnkit::Ids ids = model.tokenize(attnkit::Side::source, "hello world");
  ASSERT_GT(ids.size(), 2u);
  EXPECT_EQ(ids.front(), begin);
  EXPECT_NE(ids.back(), end);
}

TEST(Model, ForwardRefusesWrongTensors) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  const attnkit::Batch source(std::vector<attnkit::Ids>{{5, 2}}), target(std::vector<attnkit::Ids>{{1, 6}});
  const int64_t outputs = model.info().outputs;
  std::vector<float> out(static_cast<size_t>(2 * outputs));
  model.forward(source, target, attnkit::tensor(out.data(), {1, 2, outputs}));
  EXPECT_THROW(model.forward(source, target, attnkit::tensor(out.data(), {1, 2, outputs - 1})), attnkit::Error);
  EXPECT_THROW(model.forward(source, attnkit::Batch(), attnkit::tensor(out.data(), {1, 2, outputs})), attnkit::Error);
  attn_tensor wrong = attnkit::tensor(out.data(), {1, 2, outputs});
  wrong.dtype_bits = 16;
  EXPECT_THROW(model.forward(source, target, wrong), attnkit::Error);
  wrong.dtype_bits = 32;
  wrong.dtype_lanes = 4;
  EXPECT_THROW(model.forward(source, target, wrong), attnkit::Error);
  wrong.dtype_lanes = 1;
  wrong.data = reinterpret_cast<char*>(out.data()) + 1;
  EXPECT_THROW(model.forward(source, target, wrong), attnkit::Error);
  attn_error err{sizeof err, 0, -1, ""};
  const attn_tensor right = attnkit::tensor(out.data(), {1, 2, outputs}), to = target.view();
  for (const int broken : {0, 1}) {
    attn_tensor ids = source.view();
    if (broken == 0) ids.data = static_cast<char*>(ids.data) + 1;
    if (broken == 1) ids.dtype_lanes = 2;
    EXPECT_EQ(attnkit_model_forward(model.get(), &ids, nullptr, &to, nullptr, &right, &err), ATTN_INVALID);
    EXPECT_NE(std::string(err.message).find("source"), std::string::npos) << err.message;
  }
  EXPECT_THROW(model.forward(attnkit::Batch(std::vector<attnkit::Ids>{{100000}}), target,
                             attnkit::tensor(out.data(), {1, 2, outputs})),
               attnkit::Error);
  wrong = source.view();
  wrong.shape[1] = int64_t{1} << 40;
  EXPECT_EQ(attnkit_model_forward(model.get(), &wrong, nullptr, &wrong, nullptr, &wrong, nullptr), ATTN_INVALID);
}

TEST(Model, TakesTheSidesThatItHasAndNoOther) {
  const attnkit::Runtime runtime(1);
  const std::string decoder = ATTNKIT_MODEL "/../../manifests/language-model.toml";
  const std::string encoder =
      "schema = 'attnkit.model/1'\n[model]\nname = 'encoder'\nkind = 'encoder'\nd_model = 8\nheads = 2\nffn = 8\n"
      "max_length = 8\nencoder = { layers = 1, vocab = 'vocab.txt' }\nhead = { type = 'embedding', pool = 'mean' "
      "}\n"
      "[weights]\nseed = 1\n[attention]\ndefault = 'softmax'\n";
  const std::vector<int32_t> none = {999999, -5, 7}, some = {3, 4, 2};  // none: of no vocabulary
  const attn_tensor wrong = attnkit::tensor(none.data(), {1, 3}), right = attnkit::tensor(some.data(), {1, 3});
  const auto refused = [&](const attnkit::Model& model, const attn_tensor* source, const attn_tensor* target,
                           const std::string& message) {
    std::vector<float> numbers(3 * static_cast<size_t>(model.info().outputs));
    const attn_tensor out = attnkit::tensor(numbers.data(), {1, 3, model.info().outputs});
    attn_error err{sizeof err, 0, -1, ""};
    EXPECT_EQ(attnkit_model_forward(model.get(), source, nullptr, target, nullptr, &out, &err), ATTN_INVALID);
    EXPECT_EQ(err.message, message);
    for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF}) {
      EXPECT_EQ(attnkit_model_attention(model.get(), role, 1, source, target, &out, &err), ATTN_INVALID);
      EXPECT_EQ(err.message, message);
    }
  };
  const attnkit::Model pair(runtime, path);
  refused(pair, nullptr, &right, "source must not be NULL: this model has an encoder");
  refused(pair, &right, nullptr, "target must not be NULL: this model has a decoder");
  const attnkit::Model writes(runtime, decoder);
  refused(writes, &wrong, &right, "source must be NULL: this model has no encoder");
  refused(writes, nullptr, nullptr, "target must not be NULL: this model has a decoder");
  const attnkit::Model reads(runtime, encoder, folder);
  refused(reads, &right, &wrong, "target must be NULL: this model has no decoder");
  refused(reads, nullptr, nullptr, "source must not be NULL: this model has an encoder");
}

TEST(Model, AttentionNeedsABlockThatIsThere) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  const attnkit::Ids source = {5, 6, 2}, target = {1, 7};
  const attn_tensor s = attnkit::tensor(source.data(), {1, 3}), t = attnkit::tensor(target.data(), {1, 2});
  std::vector<float> weights(4 * 2 * 3, -1);
  const attn_tensor out = attnkit::tensor(weights.data(), {4, 2, 3});
  EXPECT_EQ(attnkit_model_attention(model.get(), ATTN_DECODER_CROSS, 1, &s, &t, &out, nullptr), ATTN_OK);
  for (float w : weights) EXPECT_NE(w, -1);
  EXPECT_EQ(attnkit_model_attention(model.get(), ATTN_DECODER_CROSS, 0, &s, &t, &out, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_attention(model.get(), ATTN_DECODER_CROSS, 4, &s, &t, &out, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_attention(model.get(), 17, 1, &s, &t, &out, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_attention(model.get(), ATTN_DECODER_SELF, 1, &s, &t, &out, nullptr), ATTN_INVALID)
      << "another shape";
  const attn_tensor two = attnkit::tensor(target.data(), {2, 1});
  attn_error err{sizeof err, 0, -1, ""};
  for (const auto& [from, to] : {std::pair(&two, &t), {&s, &two}}) {
    EXPECT_EQ(attnkit_model_attention(model.get(), ATTN_DECODER_CROSS, 1, from, to, &out, &err), ATTN_INVALID);
    EXPECT_NE(std::string(err.message).find("a batch of 2: attention is shown of one input"), std::string::npos)
        << err.message;
  }
}

// A length of 0 would be divided by.
TEST(Model, GivesItsWeightsAsAFile) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  attn_error err{sizeof err, 0, -1, ""};
  attnkit_blob* blob = nullptr;
  ASSERT_EQ(attnkit_model_weights(model.get(), &blob, &err), ATTN_OK) << err.message;
  uint64_t n = 0;
  const char* data = static_cast<const char*>(attnkit_blob_data(blob, &n));
  const std::string copy = testing::TempDir() + "/weights_" + std::to_string(::getpid()) + ".safetensors";
  std::ofstream(copy, std::ios::binary).write(data, static_cast<std::streamsize>(n));
  attnkit_blob_destroy(blob);
  const std::string text =
      std::regex_replace(std::regex_replace(manifest(), std::regex("\nfile = \"[^\"]*\""), "\nfile = \"" + copy + "\""),
                         std::regex("\nsha256 = [^\n]*"), "");
  EXPECT_EQ(attnkit::Model(runtime, text, folder).translate("five euros"), model.translate("five euros"));
  std::remove(copy.c_str());
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  const attnkit::Model here(runtime, manifest(), ".");
  std::filesystem::current_path("/");
  EXPECT_EQ(attnkit_model_weights(here.get(), &blob, &err), ATTN_OK) << err.message;
  attnkit_blob_destroy(blob);
  std::filesystem::current_path(before);
  EXPECT_EQ(attnkit_model_weights(model.get(), nullptr, &err), ATTN_INVALID);
}

TEST(Model, ARowWithoutASourceHasALengthToo) {
  const attnkit::Runtime runtime(1);
  const std::string cosformer =
      std::regex_replace(manifest(), std::regex("\"decoder.self\" = \"[a-z]+\""), "\"decoder.self\" = \"cosformer\"");
  const attnkit::Model model(runtime, cosformer, folder);
  const attnkit::Batch source(std::vector<attnkit::Ids>{{20, 21, 2}, {}}),
      target(std::vector<attnkit::Ids>{{1, 100}, {1, 100}});
  std::vector<float> logits(static_cast<size_t>(2 * 2 * model.info().outputs));
  model.forward(source, target, attnkit::tensor(logits.data(), {2, 2, model.info().outputs}));
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
}

}  // namespace
