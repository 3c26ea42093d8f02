// Every allocation fails in its turn, alone or with all behind it, from loading a model to a beam search: each call
// says that memory is out, keeps nothing, and works when it is made again.
#include <attnkit/attnkit.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace {

// Of this thread: others of the runtime come and go.
thread_local int64_t blocks = 0;
thread_local int64_t left = -1;  // allocations of this thread that succeed before one fails; below 0: all do
thread_local bool goes_on = false, failed = false;

void* allocate(size_t bytes, size_t alignment) {
  if (left == 0) {
    failed = true;
    if (!goes_on) left = -1;
    throw std::bad_alloc();
  }
  if (left > 0) --left;
  void* const p = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (!p) throw std::bad_alloc();
  ++blocks;
  return p;
}

void release(void* p) noexcept {
  if (p) --blocks;
  std::free(p);
}

}  // namespace

__attribute__((noinline)) void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
__attribute__((noinline)) void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
__attribute__((noinline)) void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
__attribute__((noinline)) void operator delete(void* p) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, std::align_val_t) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }

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
  void expect_every_failure(const char* what, const Call& call, const std::function<void()>& begin,
                            const std::function<void()>& end) {
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
    int64_t n = 0, refused = 0;
    for (bool whole = false; !whole; ++n) {
      const int64_t before = blocks;
      const int32_t code = attempt(n, error);
      whole = !failed;
      if (code != ATTN_OK) {
        ++refused;
        ASSERT_EQ(code, ATTN_NO_MEMORY) << what << ", allocation " << n << ": " << error.message;
        // A mechanism says it in its own words.
        ASSERT_NE(std::string(error.message).find("out of memory"), std::string::npos) << error.message;
      }
      end();
      ASSERT_EQ(blocks, before) << what << " keeps memory after allocation " << n;
    }
    EXPECT_GT(refused, 0) << what << " allocates nothing";
    RecordProperty(what, std::to_string(n - 1));
  }

  attnkit_model* loaded() {
    attnkit_model* model = nullptr;
    EXPECT_EQ(attnkit_model_create(runtime_, manifest, folder_.c_str(), nullptr, 0, &model, nullptr), ATTN_OK);
    return model;
  }

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

TEST_P(Failing, ModelsAreLoaded) {
  attnkit_model* model = nullptr;
  expect_every_failure(
      "load",
      [&](attn_error* error) {
        return attnkit_model_create(runtime_, manifest, folder_.c_str(), nullptr, 0, &model, error);
      },
      [&] { model = nullptr; }, [&] { attnkit_model_destroy(model); });
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

INSTANTIATE_TEST_SUITE_P(Allocations, Failing, testing::Bool(),
                         [](const auto& info) { return info.param ? "FromOneOn" : "One"; });

}  // namespace
