// Every allocation fails in its turn, alone or with all behind it, from loading a model to a beam search: each call
// says that memory is out, keeps nothing, and works when it is made again.  Calls that write JSON are left out, and of
// those that read it the destructors of nlohmann/json, which allocate; writing loses what an initializer list had made.
#include <attnkit/attnkit.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <regex>
#include <string>
#include <vector>

#include "failing_new.hpp"
#include "functions_of.hpp"

namespace {

using Call = std::function<int32_t(attn_error*)>;

constexpr const char* manifest = R"(schema = "attnkit.model/1"
[model]
name = "small"
kind = "encoder-decoder"
d_model = 8
heads = 2
ffn = 8
max_length = 16
tie_embeddings = true
encoder = { layers = 2, vocab = "vocab.txt" }
decoder = { layers = 2, vocab = "vocab.txt" }
[weights]
seed = 1
[attention]
default = "softmax"
"encoder.self" = "luna"
"decoder.self" = "s4d"
[[attention.override]]
block = "decoder.cross"
layers = 2
use = "relu"
)";

class Failing : public testing::TestWithParam<bool> {
 protected:
  Failing() {
    folder_ = (std::filesystem::temp_directory_path() / "attnkit-XXXXXX").string();
    if (!mkdtemp(folder_.data())) ADD_FAILURE() << "no temporary folder";
    std::ofstream(folder_ + "/vocab.txt") << "<pad>\n<s>\n</s>\n\u2581a\n\u2581b\n\u2581c\n\u2581d\n";
    attnkit_runtime_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;
    EXPECT_EQ(attnkit_runtime_create(&options, &runtime_, nullptr), ATTN_OK);
  }
  ~Failing() override {
    attnkit_runtime_destroy(runtime_);
    std::filesystem::remove_all(folder_);
  }

  // begin makes what the call needs, end destroys all of it and what the call made.
  // Of many calls that are nearly alike every `step`th allocation is enough, but for ATTNKIT_EVERY_ALLOCATION.
  void expect_every_failure(const char* what, const Call& call, const std::function<void()>& begin,
                            const std::function<void()>& end, int64_t step = 1) {
    const auto attempt = [&](int64_t n, attn_error& error) {
      begin();
      goes_on = GetParam();
      failed = false;
      left = n;
      const int32_t code = call(&error);
      left = -1;
      return code;
    };
    attn_error error{};
    error.struct_size = sizeof error;
    ASSERT_EQ(attempt(-1, error), ATTN_OK) << what << ": " << error.message;
    end();
    if (std::getenv("ATTNKIT_EVERY_ALLOCATION")) step = 1;
    int64_t n = 0, refused = 0;
    for (bool whole = false; !whole; n += step) {
      const int64_t before = blocks;
      const int32_t code = attempt(n, error);
      whole = !failed;
      if (code != ATTN_OK) {
        ++refused;
        ASSERT_EQ(code, ATTN_NO_MEMORY) << what << ", allocation " << n << ": " << error.message;
        // A mechanism says it in its own words, and of scratch core says how much it was.
        ASSERT_TRUE(std::regex_search(error.message, std::regex("out of memory|bytes of scratch, more than there is")))
            << error.message;
      }
      end();
      ASSERT_EQ(blocks, before) << what << " keeps memory after allocation " << n;
    }
    EXPECT_GT(refused, 0) << what << " allocates nothing";
    points += n / step - 1;
  }

  static void TearDownTestSuite() {
    std::cout << points << " allocations failed in their turn\n";
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    if (all.test_to_run_count() == all.total_test_count()) EXPECT_GE(points, 10'000);
  }

  attnkit_model* loaded(const std::string& text = manifest) {
    attnkit_model* model = nullptr;
    attn_error error{};
    error.struct_size = sizeof error;
    EXPECT_EQ(attnkit_model_create(runtime_, text.c_str(), folder_.c_str(), nullptr, 0, &model, &error), ATTN_OK)
        << error.message;
    return model;
  }

  std::vector<std::string> mechanisms() const {
    attnkit_text* list = nullptr;
    EXPECT_EQ(attnkit_runtime_list(runtime_, &list, nullptr), ATTN_OK);
    const std::string json = attnkit_text_data(list, nullptr);
    attnkit_text_destroy(list);
    const std::regex name(R"re("name":\s*"([a-z0-9_]+)",\s*"device")re");
    std::vector<std::string> names;
    for (std::sregex_iterator at(json.begin(), json.end(), name), end; at != end; ++at) names.push_back((*at)[1]);
    return names;
  }

  // A call that makes one thing.
  template <class T>
  void expect_every_failure(const char* what, const std::function<int32_t(T**, attn_error*)>& call, void (*destroy)(T*),
                            int64_t step = 1) {
    T* made = nullptr;
    expect_every_failure(
        what, [&](attn_error* error) { return call(&made, error); }, [&] { made = nullptr; }, [&] { destroy(made); },
        step);
  }

  static inline int64_t points = 0;
  std::string folder_;
  attnkit_runtime* runtime_ = nullptr;
};

attn_tensor ids_of(std::vector<int32_t>& ids) {
  attn_tensor t{};
  t.data = ids.data();
  t.shape[0] = 1;
  t.shape[1] = t.stride[0] = static_cast<int64_t>(ids.size());
  t.stride[1] = 1;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  t.ndim = 2;
  t.device_type = 1;
  return t;
}

attn_tensor numbers_of(std::vector<float>& numbers, const std::vector<int64_t>& shape) {
  attn_tensor t{};
  t.data = numbers.data();
  t.ndim = static_cast<uint32_t>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
  }
  t.dtype_code = 2;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  t.device_type = 1;
  return t;
}

TEST_P(Failing, ModelsAreLoaded) {
  attnkit_model* model = nullptr;
  expect_every_failure(
      "load",
      [&](attn_error* error) {
        return attnkit_model_create(runtime_, manifest, folder_.c_str(), nullptr, 0, &model, error);
      },
      [&] { model = nullptr; }, [&] { attnkit_model_destroy(model); });
}

// Layers are packed while a model is loaded, and mapped where they were packed before.
TEST_P(Failing, WeightsOfEveryTypeArePacked) {
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  attnkit_model* made = loaded();
  attnkit_blob* blob = nullptr;
  ASSERT_EQ(attnkit_model_weights(made, &blob, nullptr), ATTN_OK);
  attnkit_model_destroy(made);
  uint64_t bytes = 0;
  const void* const data = attnkit_blob_data(blob, &bytes);
  std::ofstream(folder_ + "/weights.safetensors")
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  attnkit_blob_destroy(blob);
  static const attnkit::test::Functions destroying("json_value7destroy");
  ASSERT_FALSE(destroying.empty());
  spared = [] { return destroying.are_running(); };
  for (const char* type : {"f32", "bf16", "int8", "int4"})
    for (const char* cache : {"", "made anew", "kept"}) {
      const std::string text = std::regex_replace(
          std::string(manifest), std::regex("seed = 1"),
          std::string("file = \"weights.safetensors\"\ntype = \"") + type + (*cache ? "\"\ncache = true" : "\""));
      SCOPED_TRACE(text);
      expect_every_failure(
          type,
          [&](attn_error* error) {
            return attnkit_model_create(runtime_, text.c_str(), folder_.c_str(), nullptr, 0, &made, error);
          },
          [&] {
            made = nullptr;
            if (cache == std::string("made anew")) std::filesystem::remove_all(folder_ + "/attnkit");
          },
          [&] { attnkit_model_destroy(made); }, 61);
    }
  spared = nullptr;
  unsetenv("XDG_CACHE_HOME");
}

TEST_P(Failing, SessionsReadAndWrite) {
  attnkit_model* const model = loaded();
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, made(16);
  const attn_tensor text = ids_of(source);
  attnkit_session *session = nullptr, *other = nullptr;
  attnkit_blob* blob = nullptr;
  uint64_t n = 0;
  for (const uint32_t rows : {1u, 3u}) {
    const auto create = [&](attn_error* error) { return attnkit_session_create(model, rows, &session, error); };
    const auto read = [&](attn_error* error) { return attnkit_session_read(session, &text, 1, error); };
    const auto generate = [&](attn_error* error) {
      return attnkit_session_generate(session, 8, made.data(), &n, error);
    };
    const auto end = [&] {
      attnkit_session_destroy(session);
      attnkit_session_destroy(other);
      attnkit_blob_destroy(blob);
      session = other = nullptr;
      blob = nullptr;
    };
    // A call that failed works afterwards, in the same session or a fresh one, and gives the same.
    const auto begun = [&] {
      EXPECT_EQ(create(nullptr), ATTN_OK);
      EXPECT_EQ(read(nullptr), ATTN_OK);
    };
    begun();
    ASSERT_EQ(generate(nullptr), ATTN_OK);
    const std::vector<int32_t> expected(made.begin(), made.begin() + static_cast<int64_t>(n));
    end();
    expect_every_failure(
        "create", create, [] {}, end);
    expect_every_failure(
        "read", read, [&] { ASSERT_EQ(create(nullptr), ATTN_OK); }, end);
    expect_every_failure("generate", generate, begun, end);
    expect_every_failure(
        "clone", [&](attn_error* error) { return attnkit_session_clone(session, &other, error); }, begun, end);
    expect_every_failure(
        "save", [&](attn_error* error) { return attnkit_session_save(session, &blob, error); }, begun, end);
    expect_every_failure(
        "load",
        [&](attn_error* error) {
          uint64_t bytes = 0;
          const void* const data = attnkit_blob_data(blob, &bytes);
          return attnkit_session_load(model, data, bytes, &other, error);
        },
        [&] {
          begun();
          ASSERT_EQ(attnkit_session_save(session, &blob, nullptr), ATTN_OK);
        },
        end);
    begun();
    EXPECT_EQ(generate(nullptr), ATTN_OK);
    EXPECT_EQ(std::vector<int32_t>(made.begin(), made.begin() + static_cast<int64_t>(n)), expected);
    end();
  }
  attnkit_model_destroy(model);
}

TEST_P(Failing, RowsAreReorderedAllAtOnce) {
  attnkit_model* const model = loaded();
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, target = {1, 3, 4, 1, 4, 5, 1, 5, 6, 1, 6, 3};
  const attn_tensor text = ids_of(source);
  attn_tensor tokens = ids_of(target);
  tokens.shape[0] = 4;
  tokens.shape[1] = tokens.stride[0] = 3;
  const uint32_t parents[] = {3, 3, 3, 0};
  attnkit_session* session = nullptr;
  int32_t said = ATTN_OK;
  const auto saved = [&] {
    attnkit_blob* blob = nullptr;
    EXPECT_EQ(attnkit_session_save(session, &blob, nullptr), ATTN_OK);
    uint64_t bytes = 0;
    const auto* const data = static_cast<const char*>(attnkit_blob_data(blob, &bytes));
    std::string all(data, bytes);
    attnkit_blob_destroy(blob);
    return all;
  };
  const auto begin = [&] {
    ASSERT_EQ(attnkit_session_create(model, 4, &session, nullptr), ATTN_OK);
    ASSERT_EQ(attnkit_session_read(session, &text, 1, nullptr), ATTN_OK);
    ASSERT_EQ(attnkit_session_write(&session, 1, &tokens, nullptr, nullptr, nullptr), ATTN_OK);
  };
  begin();
  const std::string before = saved();
  attnkit_session_destroy(session);
  expect_every_failure(
      "reorder", [&](attn_error* error) { return said = attnkit_session_reorder(session, parents, error); }, begin,
      [&] {
        EXPECT_EQ(saved() == before, said != ATTN_OK);
        attnkit_session_destroy(session);
      });
  attnkit_model_destroy(model);
}

// A call of one token that failed, made again, goes on as if nothing had been, or its session says that it is lost.
TEST_P(Failing, OutputsGoOnOrAreRefused) {
  constexpr uint64_t width = 16;
  std::vector<int32_t> sources[] = {{3, 4, 5, 6, 2}, {6, 3, 2}}, ids(2 * width), outputs[2];
  std::vector<uint64_t> lengths(2);
  std::vector<attnkit_session*> all(2), live;
  int32_t said = ATTN_OK;
  attn_error error{};
  error.struct_size = sizeof error;
  const auto call = [&](attn_error* err) {
    return said = attnkit_sessions_generate(live.data(), static_cast<uint32_t>(live.size()), 8, 1, ids.data(), width,
                                            lengths.data(), err);
  };
  const auto take = [&] {
    for (size_t i = live.size(); i-- > 0;) {
      if (lengths[i] == 0) continue;
      const auto first = ids.begin() + static_cast<int64_t>(i * width);
      outputs[live[i] == all[1]].assign(first, first + static_cast<int64_t>(lengths[i]));
      live.erase(live.begin() + static_cast<int64_t>(i));
    }
  };
  const auto go_on = [&](int64_t steps) {
    for (; said == ATTN_OK && steps != 0 && !live.empty(); --steps)
      if (call(&error) == ATTN_OK) take();
  };
  for (const char* name : {"softmax", "relu"})
    for (const uint32_t rows : {1u, 3u}) {
      attnkit_model* const model = loaded(std::regex_replace(std::string(manifest), std::regex("s4d"), name) +
                                          "[decode]\nmin_length = 5\nno_repeat = 2\nrepetition_penalty = 1.3\n");
      const auto begin = [&] {
        for (size_t i = 0; i < 2; ++i) {
          const attn_tensor text = ids_of(sources[i]);
          ASSERT_EQ(attnkit_session_create(model, rows, &all[i], nullptr), ATTN_OK);
          ASSERT_EQ(attnkit_session_read(all[i], &text, 1, nullptr), ATTN_OK);
        }
        live = all;
        said = ATTN_OK;
      };
      const auto end = [&] {
        for (attnkit_session* s : all) attnkit_session_destroy(s);
      };
      begin();
      go_on(-1);
      ASSERT_EQ(said, ATTN_OK) << error.message;
      const std::vector<int32_t> expected[] = {outputs[0], outputs[1]};
      end();
      int32_t lost = 0;
      for (const int64_t before : {0, 1, 3})
        expect_every_failure(
            name, call,
            [&] {
              begin();
              go_on(before);
            },
            [&] {
              if (said == ATTN_OK) take();
              said = ATTN_OK;
              go_on(-1);
              if (said == ATTN_INVALID) {
                ++lost;
                EXPECT_NE(std::string(error.message).find("failed half way"), std::string::npos) << error.message;
              } else {
                EXPECT_EQ(said, ATTN_OK) << error.message;
                for (size_t i = 0; i < 2; ++i) EXPECT_EQ(outputs[i], expected[i]) << name << ", " << rows << " rows";
              }
              end();
            });
      if (name == std::string("softmax")) EXPECT_EQ(lost, 0) << "its states rewind";
      attnkit_model_destroy(model);
    }
}

// Where states rewind a write that failed can be made again; elsewhere its session says that it is lost.
TEST_P(Failing, WritesAreMadeAgainOrRefused) {
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, target = {1, 4, 5};
  std::vector<float> out(3 * 7), expected;
  const attn_tensor from = ids_of(source), to = ids_of(target), logits = numbers_of(out, {1, 3, 7});
  for (const char* name : {"softmax", "relu"}) {
    const std::string text = std::regex_replace(std::string(manifest), std::regex("s4d"), name);
    attnkit_model* model = nullptr;
    attnkit_session* session = nullptr;
    int32_t said = ATTN_OK, again = 0, lost = 0;
    const auto write = [&](attn_error* error) {
      return said = attnkit_session_write(&session, 1, &to, nullptr, &logits, error);
    };
    // A model's first write: memory that its later ones find is not there.
    const auto begin = [&] {
      model = loaded(text);
      ASSERT_EQ(attnkit_session_create(model, 1, &session, nullptr), ATTN_OK);
      ASSERT_EQ(attnkit_session_read(session, &from, 1, nullptr), ATTN_OK);
    };
    const auto end = [&] {
      if (said != ATTN_OK) {
        attn_error error{};
        error.struct_size = sizeof error;
        if (write(&error) == ATTN_OK) {
          ++again;
          EXPECT_EQ(out, expected);
        } else {
          ++lost;
          EXPECT_NE(std::string(error.message).find("failed half way"), std::string::npos) << error.message;
        }
      }
      attnkit_session_destroy(session);
      attnkit_model_destroy(model);
    };
    begin();
    ASSERT_EQ(write(nullptr), ATTN_OK);
    expected = out;
    end();
    expect_every_failure(name, write, begin, end);
    EXPECT_GT(again, 0) << name;
    EXPECT_EQ(lost > 0, name == std::string("relu")) << lost;
  }
}

TEST_P(Failing, RuntimesAreMade) {
  expect_every_failure<attnkit_runtime>(
      "runtime", [](attnkit_runtime** made, attn_error* error) { return attnkit_runtime_create(nullptr, made, error); },
      attnkit_runtime_destroy, 13);
}

TEST_P(Failing, EveryMechanismIsLoadedAndRuns) {
  const std::vector<std::string> names = mechanisms();
  ASSERT_GE(names.size(), 10u);
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, target = {1, 4, 5};
  std::vector<float> out(3 * 7);
  const attn_tensor from = ids_of(source), to = ids_of(target), logits = numbers_of(out, {1, 3, 7});
  for (const std::string& name : names) {
    const std::string text = std::regex_replace(std::string(manifest), std::regex("luna"), name);
    attnkit_model* model = nullptr;
    if (attnkit_model_create(runtime_, text.c_str(), folder_.c_str(), nullptr, 0, &model, nullptr) != ATTN_OK) continue;
    expect_every_failure<attnkit_model>(
        "load",
        [&](attnkit_model** made, attn_error* error) {
          return attnkit_model_create(runtime_, text.c_str(), folder_.c_str(), nullptr, 0, made, error);
        },
        attnkit_model_destroy, 7);
    expect_every_failure(
        "forward",
        [&](attn_error* error) { return attnkit_model_forward(model, &from, nullptr, &to, nullptr, &logits, error); },
        [] {}, [] {});
    attnkit_model_destroy(model);
  }
}

TEST_P(Failing, WholeModelsAnswer) {
  attnkit_model* const model = loaded();
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, target = {1, 4, 5}, ids(16);
  std::vector<float> out(3 * 7), weights(2 * 3 * 5);
  const attn_tensor from = ids_of(source), to = ids_of(target), logits = numbers_of(out, {1, 3, 7}),
                    attention = numbers_of(weights, {2, 3, 5});
  const auto nothing = [] {};
  attnkit_encoded* encoded = nullptr;
  ASSERT_EQ(attnkit_model_encode(model, &from, nullptr, &encoded, nullptr), ATTN_OK);
  expect_every_failure<attnkit_encoded>(
      "encode",
      [&](attnkit_encoded** made, attn_error* error) {
        return attnkit_model_encode(model, &from, nullptr, made, error);
      },
      attnkit_encoded_destroy);
  expect_every_failure(
      "decode", [&](attn_error* error) { return attnkit_model_decode(model, encoded, &to, nullptr, &logits, error); },
      nothing, nothing);
  expect_every_failure(
      "attention",
      [&](attn_error* error) {
        return attnkit_model_attention(model, ATTN_DECODER_CROSS, 2, &from, &to, &attention, error);
      },
      nothing, nothing);
  expect_every_failure(
      "tokenize",
      [&](attn_error* error) {
        uint64_t n = ids.size();
        return attnkit_model_tokenize(model, 0, "a b c", ids.data(), &n, error);
      },
      nothing, nothing);
  expect_every_failure<attnkit_text>(
      "detokenize",
      [&](attnkit_text** made, attn_error* error) {
        return attnkit_model_detokenize(model, 1, target.data(), target.size(), made, error);
      },
      attnkit_text_destroy);
  attnkit_encoded_destroy(encoded);
  attnkit_model_destroy(model);
}

TEST_P(Failing, SourcesGrow) {
  const std::string text = std::regex_replace(std::regex_replace(std::string(manifest), std::regex("luna|s4d"), "relu"),
                                              std::regex("layers = 2, vocab"), "causal = true, layers = 2, vocab",
                                              std::regex_constants::format_first_only) +
                           "[stream]\nk = 1\n";
  attnkit_model* const model = loaded(text);
  std::vector<int32_t> source = {3, 4, 5, 6, 2}, begun = {3, 4}, rest = {5, 6, 2}, made(16);
  const attn_tensor whole = ids_of(source), first = ids_of(begun), last = ids_of(rest);
  attnkit_session* session = nullptr;
  uint64_t n = 0;
  const auto create = [&] { ASSERT_EQ(attnkit_session_create(model, 1, &session, nullptr), ATTN_OK); };
  const auto read = [&] {
    create();
    ASSERT_EQ(attnkit_session_read(session, &first, 0, nullptr), ATTN_OK);
  };
  const auto end = [&] {
    attnkit_session_destroy(session);
    session = nullptr;
  };
  int32_t said = ATTN_OK;
  expect_every_failure(
      "read first", [&](attn_error* error) { return said = attnkit_session_read(session, &first, 0, error); }, create,
      [&] {
        if (said != ATTN_OK) EXPECT_EQ(attnkit_session_read(session, &first, 0, nullptr), ATTN_OK) << "again";
        end();
      });
  expect_every_failure(
      "read last", [&](attn_error* error) { return attnkit_session_read(session, &last, 1, error); }, read, end);
  attnkit_stream_options options{};
  options.struct_size = sizeof options;
  options.decide = [](uintptr_t, const attnkit_stream_view* view) -> uint32_t {
    return view->read <= view->written && !view->ended ? ATTNKIT_READ : ATTNKIT_WRITE;
  };
  expect_every_failure(
      "simulate",
      [&](attn_error* error) { return attnkit_session_simulate(session, &whole, &options, made.data(), &n, error); },
      create, end);
  attnkit_sample_options sampling{};
  sampling.struct_size = sizeof sampling;
  sampling.limit = 6;
  sampling.temperature = 1;
  sampling.top_p = 0.9;
  sampling.repetition_penalty = 1.1;
  expect_every_failure(
      "sample",
      [&](attn_error* error) { return attnkit_session_sample(session, nullptr, 0, &sampling, made.data(), &n, error); },
      [&] {
        create();
        ASSERT_EQ(attnkit_session_read(session, &whole, 1, nullptr), ATTN_OK);
      },
      end);
  attnkit_model_destroy(model);
}

TEST_P(Failing, SpeechIsHeard) {
  const std::string text =
      std::regex_replace(std::string(manifest), std::regex("encoder = .*"),
                         "encoder = { layers = 1, features = { type = \"fbank\", sample_rate = 8000, bins = 8, "
                         "window_ms = 25, shift_ms = 10 "
                         "}, frontend = { type = \"conv\", layers = 1, kernel = 3, stride = 2, channels = 4 } }",
                         std::regex_constants::format_first_only);
  attnkit_model* const model = loaded(std::regex_replace(text, std::regex("tie_embeddings = true\n"), ""));
  std::vector<float> samples(1600), frames(18 * 8);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<float>(i % 40) / 40 - 0.5f;
  const attn_tensor sound = numbers_of(samples, {1, 1600}), rows = numbers_of(frames, {1, 18, 8});
  uint64_t n = 0;
  attnkit_session* session = nullptr;
  expect_every_failure(
      "features", [&](attn_error* error) { return attnkit_model_features(model, &sound, &rows, &n, error); }, [] {},
      [] {});
  expect_every_failure(
      "read speech", [&](attn_error* error) { return attnkit_session_read(session, &sound, 1, error); },
      [&] { ASSERT_EQ(attnkit_session_create(model, 1, &session, nullptr), ATTN_OK); },
      [&] { attnkit_session_destroy(session); });
  attnkit_model_destroy(model);
}

TEST_P(Failing, BlocksRun) {
  constexpr int64_t rows = 5, heads = 2, width = 4;
  const attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, heads, heads * width, width, 0, 0};
  const attn_request request = {sizeof request, 0, 1, 0, 2, 32, 1, 64, 1, rows, rows, 0};
  for (const char* name : {"softmax", "relu"}) {
    expect_every_failure<attnkit_block>(
        "block",
        [&](attnkit_block** made, attn_error* error) {
          return attnkit_block_create(runtime_, name, &where, nullptr, made, error);
        },
        attnkit_block_destroy);
    attnkit_block* block = nullptr;
    ASSERT_EQ(attnkit_block_create(runtime_, name, &where, nullptr, &block, nullptr), ATTN_OK);
    std::vector<float> data(4 * rows * heads * width, 0.5f);
    std::vector<attn_tensor> ports;
    for (int64_t i = 0; i < 4; ++i)
      ports.push_back({data.data() + i * rows * heads * width,
                       {1, heads, rows, width},
                       {rows * heads * width, width, heads * width, 1},
                       2,
                       32,
                       1,
                       4,
                       1,
                       0});
    attn_run run{};
    run.struct_size = sizeof run;
    run.batch = 1;
    run.queries = run.keys = rows;
    run.ports = ports.data();
    attnkit_block* fresh = nullptr;
    const auto begin = [&] {
      ASSERT_EQ(attnkit_block_create(runtime_, name, &where, nullptr, &fresh, nullptr), ATTN_OK);
    };
    const auto end = [&] { attnkit_block_destroy(fresh); };
    expect_every_failure(
        "run", [&](attn_error* error) { return attnkit_block_run(fresh, &request, &run, error); }, begin, end);
    ASSERT_EQ(attnkit_block_run(block, &request, &run, nullptr), ATTN_OK);
    left = 0;
    const int32_t again = attnkit_block_run(block, &request, &run, nullptr);
    left = -1;
    EXPECT_EQ(again, ATTN_OK) << name << ": the next run allocates nothing";
    attnkit_block_destroy(block);
  }
}

INSTANTIATE_TEST_SUITE_P(Allocations, Failing, testing::Bool(),
                         [](const auto& info) { return info.param ? "FromOneOn" : "One"; });

}  // namespace
