// Allocations fail in their turn in a search: in the process that leads it, and in the work of its workers, which a
// search has in processes of their own and this test in its own.  Each ends in words or in the whole result, keeps
// nothing, and leaves a journal that goes on.
//
// ATTNKIT_ALLOCATION_POINTS (default 40): how many allocations of each call, evenly spread, fail; of a whole search,
// which starts processes, a quarter of that.  Left out, and counted: allocations by which nlohmann/json destroys, where
// it may not throw.  Memory is not counted where a failure was within nlohmann/json, which loses what an initializer
// list had made; where one was made in line and so is not seen, that is a block or two.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>

#include "core/search/failure.hpp"
#include "core/search/result.hpp"
#include "core/search/search.hpp"
#include "core/search/trial/trials.hpp"
#include "failing_new.hpp"
#include "functions_of.hpp"
#include "tests/abi/temp_folder.hpp"
#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;

const test::Functions& destroying() {
  static const test::Functions found("json_value7destroy");
  return found;
}
const test::Functions& of_json() {
  static const test::Functions found("8nlohmann");
  return found;
}

bool was_in_json = false;
int64_t spared_points = 0;

bool is_spared() {
  was_in_json |= of_json().are_running();
  if (!destroying().are_running()) return false;
  ++spared_points;
  return true;
}

int64_t points() {
  const char* const asked = std::getenv("ATTNKIT_ALLOCATION_POINTS");
  return asked ? std::atoll(asked) : 40;
}

size_t open_files() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

class FailingSearch : public testing::TestWithParam<bool> {
 protected:
  FailingSearch() {
    EXPECT_FALSE(destroying().empty());
    EXPECT_FALSE(of_json().empty());
    spared = is_spared;
    words.reserve(1 << 12);  // which stays while blocks are counted
  }
  ~FailingSearch() override { spared = nullptr; }

  // act returns what it made, "" where an error in words came of it; after checks what it left.  Allocation n of a
  // whole run fails, for `most` of them.
  void expect_every_failure(const char* what, int64_t most, const std::function<std::string()>& act,
                            const std::function<void(int64_t n)>& after = {}) {
    (void)act();  // what is made once
    const int64_t before_all = made;
    const std::string whole = act();
    ASSERT_NE(whole, "") << what;
    const int64_t count = made - before_all, step = std::max<int64_t>(1, count / most);
    int64_t tried = 0, refused = 0;
    for (int64_t n = 0; n < count; n += step, ++tried) {
      const int64_t blocks_before = blocks;
      const size_t files_before = open_files();
      was_in_json = failed = false;
      goes_on = GetParam();
      left = n;
      const std::string got = act();
      left = -1;
      if (got.empty()) ++refused;
      if (!got.empty()) ASSERT_EQ(got, whole) << what << ", allocation " << n;
      if (!was_in_json) ASSERT_LE(blocks, blocks_before + 2) << what << " keeps memory after allocation " << n;
      ASSERT_EQ(open_files(), files_before) << what << " leaves files open after allocation " << n;
      if (after) after(n);
    }
    EXPECT_GT(refused, 0) << what;
    std::cout << what << ": " << tried << " of " << count << " allocations failed in their turn, " << refused
              << " times with words; " << spared_points << " within a destructor of nlohmann/json were left out\n";
    spared_points = 0;
  }

  // Returns act's result; "" and `words` of what it throws.
  template <class Act>
  std::string result_of(Act&& act) {
    try {
      std::string made = act();
      left = -1;
      return made;
    } catch (const std::bad_alloc&) {
      left = -1;
      words = "out of memory";  // the command's words for it
    } catch (const Failure& e) {
      left = -1;
      words = e.what();
    } catch (const Error& e) {
      left = -1;
      words = e.what();
    }
    EXPECT_NE(words, "");
    return "";
  }

  const TempFolder folder_;
  std::string words;
};

TEST_P(FailingSearch, ItsHead) {
  Settings settings;
  settings.lengths = {64};
  settings.length = 64;
  settings.effort = Effort::quick;
  settings.rank = Rank::throughput;
  settings.finalists = 1;
  const WorkerCommand command{{ATTNKIT_SYNTHETIC_WORKER, "search-worker"},
                              {{"kind", "open"}, {"lists", 100}, {"mischief", json::array()}},
                              0,
                              folder_ / "log"};
  const ManifestText manifest("[model]\nmax_length = 512\n[attention]\n");
  const std::string path = folder_ / "journal.jsonl";
  const Space space = space_of(1, 2);
  const auto searched = [&](bool resume) {
    return result_of([&] {
      const Host host;
      Journal journal = resume ? Journal::resume(path, json::object()) : Journal::create(path, json::object());
      Search search(settings, space, manifest, command, journal, host);
      search.run();
      const json document = result_document(search);
      EXPECT_TRUE(document.contains("placements"));
      return search.winner()->id;
    });
  };
  const std::string best = searched(false);
  const auto anew = [&] {
    ::unlink(path.c_str());
    return searched(false);
  };
  // Whatever was written goes on: one in eight to the end, since that is another search.
  expect_every_failure("search", points() / 4, anew, [&](int64_t n) {
    if (!std::filesystem::exists(path) || std::filesystem::file_size(path) == 0) return;
    if (n % 8 == 0) {
      EXPECT_EQ(searched(true), best) << "after allocation " << n << ": " << words;
    } else {
      EXPECT_NO_THROW((void)Journal::resume(path, json::object())) << "after allocation " << n;
    }
  });
}

constexpr const char* model = R"(schema = "attnkit.model/1"
[model]
name = "small"
kind = "encoder-decoder"
d_model = 8
heads = 2
ffn = 8
max_length = 16
tie_embeddings = true
encoder = { layers = 1, vocab = "vocab.txt" }
decoder = { layers = 1, vocab = "vocab.txt" }
[weights]
seed = 1
[attention]
default = "softmax"
)";

TEST_P(FailingSearch, TheWorkOfItsWorkers) {
  folder_.write("vocab.txt", "<pad>\n<s>\n</s>\n\u2581a\n\u2581b\n\u2581c\n\u2581d\n");
  folder_.write("data.tsv", "a b\tc d\na\td\n");
  const json open = {{"id", 1},
                     {"kind", "open"},
                     {"dir", folder_.path()},
                     {"toml", model},
                     {"threads", 1},
                     {"plugin_path", ATTNKIT_PLUGIN_FOLDER},
                     {"data", folder_ / "data.tsv"}};
  const std::string relu = std::string(model) + "\"encoder.self\" = \"relu\"\n";
  const json describe = {{"id", 2}, {"kind", "describe"}, {"toml", relu}, {"lengths", {8}}},
             quality = {{"id", 3}, {"kind", "quality"}, {"toml", relu}, {"encoder", "e"}, {"begin", 0}, {"end", 2}},
             decode = {{"id", 4}, {"kind", "decode"}, {"toml", relu}, {"split", "data"}, {"begin", 0}, {"end", 2}};
  std::optional<Trials> trials;
  const auto text_of = [&](const json& reply) {
    if (reply["ok"]) return one_line(reply);
    words = reply["error"]["message"].get_ref<const std::string&>();
    return std::string();
  };
  expect_every_failure("open", points(), [&] {
    const std::string got = result_of([&] {
      return text_of(reply_to(open, [&] {
        trials.emplace(open);
        return trials->opened();
      }));
    });
    trials.reset();
    return got;
  });
  for (const auto& [what, request] : {std::pair("describe", describe), {"quality", quality}, {"decode", decode}}) {
    expect_every_failure(what, points(), [&, &asked = request] {
      const std::string got = result_of([&] {
        trials.emplace(open);
        return text_of(trials->answer(asked));
      });
      trials.reset();
      return got;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Allocations, FailingSearch, testing::Bool(),
                         [](const auto& info) { return info.param ? "FromOneOn" : "One"; });

}  // namespace
}  // namespace attnkit::core::search
