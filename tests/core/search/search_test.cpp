#include "core/search/search.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "core/search/failure.hpp"
#include "core/search/result.hpp"
#include "tests/abi/temp_folder.hpp"
#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

// Whole searches of a made-up space; see synthetic_worker.cpp.
class SearchTest : public testing::Test {
 protected:
  SearchTest() {
    settings_.lengths = {64, 512, 4096};
    settings_.length = 512;
    settings_.rank = Rank::throughput;
    settings_.finalists = 2;
    command_ = {{ATTNKIT_SYNTHETIC_WORKER, "search-worker"},
                {{"kind", "open"}, {"lists", 100}, {"mischief", json::array()}},
                0,
                folder_ / "log"};
  }

  void mischief(const json& what) { command_.open["mischief"].push_back(what); }

  // One layer, three roles, so many choices; 'a' everywhere is the baseline.
  const Search& search(int choices, bool resume = false) {
    search_.reset();
    journal_.reset();
    const std::string path = folder_ / "journal.jsonl";
    journal_.emplace(resume ? Journal::resume(path, json::object()) : Journal::create(path, json::object()));
    search_.emplace(settings_, space_of(1, choices), manifest_, command_, *journal_, host_);
    search_->run();
    return *search_;
  }

  nlohmann::ordered_json placement(const std::string& id) const {
    const auto document = result_document(*search_);
    for (const auto& p : document["placements"])
      if (p["id"] == id) return p;
    return {};
  }

  size_t count(const std::string& prefix) const {
    size_t n = 0;
    for (const auto& [key, body] : journal_->trials()) n += key.starts_with(prefix);
    return n;
  }

  const Journal& journal() const { return *journal_; }

  const TempFolder folder_;
  Settings settings_;
  WorkerCommand command_;
  Host host_{[this](const Progress& p) { progress_.push_back(p); }, {}};
  std::vector<Progress> progress_;

 private:
  const ManifestText manifest_{"[model]\nmax_length = 512\n[attention]\n"};
  std::optional<Journal> journal_;
  std::optional<Search> search_;
};

const std::string best = "encoder.self=c decoder.self=c decoder.cross=c";

TEST_F(SearchTest, FindsTheBest) {
  const Search& found = search(3);
  ASSERT_TRUE(found.winner());
  EXPECT_EQ(found.winner()->id, best);
  EXPECT_EQ(found.ranking().size(), 27u);
  EXPECT_EQ(found.top().size(), 1u);
  EXPECT_EQ(found.noise().ratios.size(),
            5 + found.noise().speeds.size() - 1);  // once a block, however many go through it
  EXPECT_EQ(found.winner()->costs.size(), 3u);
  bool wavers = false;
  for (const Ranked& ranked : found.ranking()) {
    std::vector<double> latencies;
    for (const json& block : ranked.record->blocks) latencies.push_back(block["latency"]);
    if (latencies.empty()) continue;
    wavers |= latencies.back() != median(latencies);
    EXPECT_EQ(ranked.record->costs.at(512)["latency"], median(latencies));
  }
  EXPECT_TRUE(wavers) << "the median is not the latest block";
  EXPECT_TRUE(found.winner()->untimed.empty());
  EXPECT_FALSE(placement(best)["cost"].contains("untimed"));
  const auto noise = result_document(found)["noise"];
  EXPECT_EQ(noise["ratio_low"], 1) << "the baseline takes as long as itself";
  EXPECT_EQ(noise["ratio_high"], 1);
  EXPECT_TRUE(placement(best)["to_winner"].is_null());
  EXPECT_EQ(placement("encoder.self=c decoder.self=c decoder.cross=b")["to_winner"]["lists"], 100);
  EXPECT_EQ(count("cost|" + best), 2u);  // the lengths up to the ranked one, the one beyond
}

// Hosts that are this one: whose processor is theirs, or another.
TEST_F(SearchTest, HostsFindTheSameAndTimingsAreOfOneKindOfProcessor) {
  search(3);
  const auto here = placement(best);
  fs::remove(folder_ / "journal.jsonl");
  const std::string worker = "exec " ATTNKIT_SYNTHETIC_WORKER " search-worker -";
  command_.hosts = std::make_shared<std::vector<LaunchedHost>>(
      std::vector<LaunchedHost>{{"a", worker}, {"other", "FAKE_CPU=other " + worker}, {"b", worker}});
  command_.cpu = "a processor";
  const Search& found = search(3);
  EXPECT_EQ(found.winner()->id, best);
  EXPECT_EQ(placement(best)["quality"], here["quality"]);
  std::set<std::string> timed, others;
  for (const auto& [key, body] : journal().trials()) {
    const bool is_timing = key.starts_with("block|") || key.starts_with("cost|") || key.starts_with("itself|");
    (is_timing ? timed : others).insert(body.at("host"));
  }
  EXPECT_EQ(timed, (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(others.count("other"), 1u);
  const auto throughput = placement(best)["throughput"];
  int blocks = 0;
  for (const auto& [host, count] : throughput["hosts"].items()) {
    EXPECT_TRUE(timed.contains(host));
    blocks += count.get<int>();
  }
  EXPECT_EQ(blocks, throughput["blocks"]);
  EXPECT_EQ((*command_.hosts)[1].opened["cpu"], "other");
  for (const LaunchedHost& host : *command_.hosts) EXPECT_EQ(host.reason, "") << host.name;
  command_.hosts = nullptr;
  EXPECT_EQ(search(3, true).winner()->id, best);  // a journal serves both
}

TEST_F(SearchTest, ACrashBeyondTheRankedLengthTakesNoPlace) {
  mischief({{"kind", "cost"}, {"mechanism", "c"}, {"above", 512}, {"do", "crash"}});
  const Search& found = search(3);
  ASSERT_TRUE(found.winner());
  EXPECT_EQ(found.winner()->id, best);
  EXPECT_EQ(found.winner()->costs.count(64) + found.winner()->costs.count(512), 2u);
  const auto cost = placement(best)["cost"];
  EXPECT_EQ(cost["at"].size(), 2u);
  ASSERT_EQ(cost["untimed"].size(), 1u);
  EXPECT_EQ(cost["untimed"][0]["length"], 4096);
  EXPECT_THAT(cost["untimed"][0]["reason"].get<std::string>(), HasSubstr("killed by signal 11"));
  EXPECT_EQ(found.baseline().costs.size(), 3u);
}

TEST_F(SearchTest, ATimeOutBeyondTheRankedLengthIsTriedAgainWithMoreTime) {
  settings_.trial_timeout = 0.3;
  mischief({{"kind", "cost"}, {"mechanism", "c"}, {"above", 512}, {"do", "hang"}});
  EXPECT_THAT(search(3).winner()->untimed.at(4096), HasSubstr("timed out: no reply within 0.3 s"));
  const size_t trials = count("");
  EXPECT_THAT(search(3, true).winner()->untimed.at(4096), HasSubstr("0.3 s"));
  settings_.trial_timeout = 60;
  command_.open["mischief"] = json::array();
  EXPECT_TRUE(search(3, true).winner()->untimed.empty());
  EXPECT_EQ(count(""), trials);
}

TEST_F(SearchTest, ATrialOfMoreExamplesHasMoreTime) {
  settings_.screen = 25;
  settings_.trial_timeout = 0.3;
  mischief({{"kind", "quality"}, {"mechanism", "c"}, {"above", 50}, {"do", "hang"}});
  search(3);
  EXPECT_THAT(placement(best)["reason"].get<std::string>(), HasSubstr("no reply within 0.6 s")) << "50 examples";
}

TEST_F(SearchTest, ARefusalIsNotedAtOtherLengthsAndCountsAtTheRankedOne) {
  mischief({{"kind", "cost"}, {"mechanism", "c"}, {"above", 512}, {"do", "refuse"}});
  EXPECT_EQ(search(3).winner()->untimed.at(4096), "too long");
  EXPECT_EQ(placement(best)["rank"], 1);
  command_.open["mischief"] = {{{"kind", "cost"}, {"mechanism", "c"}, {"above", 0}, {"do", "refuse"}}};
  fs::remove(folder_ / "journal.jsonl");
  EXPECT_EQ(search(3).winner()->id, "encoder.self=b decoder.self=b decoder.cross=b");
  EXPECT_EQ(placement(best)["status"], "refused");
  EXPECT_EQ(placement(best)["reason"], "too long");
}

TEST_F(SearchTest, ATopGroupThatFailsAfterTheRaceLeavesItToTheOthers) {
  mischief({{"kind", "cost"}, {"mechanism", "c"}, {"prefill", true}, {"do", "crash"}});
  const Search& found = search(3);
  ASSERT_TRUE(found.winner());
  EXPECT_EQ(found.winner()->id, "encoder.self=b decoder.self=b decoder.cross=b");
  EXPECT_EQ(placement(best)["status"], "failed");
  EXPECT_EQ(found.winner()->costs.size(), 3u);
}

// A host may say anything; another one's answers count.
TEST_F(SearchTest, ResultsOfAHostThatCannotBeAreNone) {
  const std::string worker = "exec " ATTNKIT_SYNTHETIC_WORKER " search-worker -";
  for (const char* lie :
       {"description", "blocks", "warnings", "refused", "sums", "pairs", "right", "peak", "length", "ratio"}) {
    fs::remove(folder_ / "journal.jsonl");
    command_.hosts = std::make_shared<std::vector<LaunchedHost>>(
        std::vector<LaunchedHost>{{"liar", std::string("FAKE_LIE=") + lie + " " + worker}, {"good", worker}});
    command_.cpu = "a processor";
    EXPECT_EQ(search(3).winner()->id, best) << lie;
    EXPECT_EQ((*command_.hosts)[0].trouble, "sent a result that is none of this kind of trial") << lie;
  }
}

TEST_F(SearchTest, ThatNothingCouldBeMeasuredIsNoLimit) {
  for (const char* name : {"a", "b"})
    mischief({{"kind", "cost"}, {"mechanism", name}, {"prefill", true}, {"do", "crash"}});
  EXPECT_EQ(search(2).winner(), nullptr);
  EXPECT_THAT(result_document(search(2, true))["answer"]["text"].get<std::string>(),
              testing::AllOf(HasSubstr("No placement could be measured to the end; the first, "),
                             HasSubstr(": killed by signal 11")));
  command_.open["mischief"] = json::array();
  settings_.limits.max_state = 1;
  fs::remove(folder_ / "journal.jsonl");
  search(2);
  EXPECT_EQ(result_document(search(2, true))["answer"]["text"], "No placement is within the limits.");
}

TEST_F(SearchTest, ABaselineThatCannotBeMeasuredIsSaid) {
  mischief({{"kind", "cost"}, {"mechanism", "a"}, {"do", "refuse"}});
  try {
    search(2);
    FAIL();
  } catch (const Failure& e) {
    EXPECT_EQ(e.fault(), Fault::manifest);
    EXPECT_THAT(e.what(), HasSubstr("cannot be measured: too long"));
  }
}

TEST_F(SearchTest, ManyPlacementsAreTriedOnceEach) {
  settings_.finalists = 1;
  search(7);
  EXPECT_EQ(placement("encoder.self=g decoder.self=g decoder.cross=g")["rank"], 1);
  EXPECT_EQ(count("quality|"), 343u);
  std::set<std::string> screened;
  for (const Progress& p : progress_)
    if (p.stage == "timing") screened.insert(p.latest);
  EXPECT_EQ(screened.size(), 343u);
  EXPECT_EQ(progress_.back().best, "throughput 2.80");
}

}  // namespace
}  // namespace attnkit::core::search
