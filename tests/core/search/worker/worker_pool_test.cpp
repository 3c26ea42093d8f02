#include "core/search/worker/worker_pool.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
namespace fs = std::filesystem;

constexpr double patience = 60;  // where no timeout is meant, on a machine that is busy

long count_descriptors() { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); }

class WorkerPoolTest : public testing::Test {
 protected:
  // Whatever a test did: no child, not even a zombie, and no descriptor is left.
  void TearDown() override {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(count_descriptors(), descriptors_);
  }

  std::string file(const std::string& name) const { return folder_ / name; }

  WorkerPool make(int jobs, json open = {{"kind", "open"}}, double open_timeout = patience, uint64_t memory = 0) const {
    return WorkerPool({{ATTNKIT_FAKE_WORKER, "search-worker"}, std::move(open), memory, file("log")}, jobs,
                      open_timeout);
  }

  static std::vector<TrialRequest> requests_of(const std::vector<json>& bodies, double timeout = patience) {
    std::vector<TrialRequest> requests;
    for (const json& body : bodies) requests.push_back({body, timeout, requests.size()});
    return requests;
  }

  // By tag.
  static std::map<size_t, TrialReply> collect(WorkerPool& pool, const std::vector<TrialRequest>& requests) {
    std::map<size_t, TrialReply> replies;
    pool.run(
        requests, [&](TrialReply reply) { EXPECT_TRUE(replies.emplace(reply.tag, reply).second); },
        [] { return false; });
    return replies;
  }

  static Failure failure_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Failure& failure) {
      return failure;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Failure(Fault::usage, "nothing was thrown");
  }

  // A bad request between good ones on one worker: the good ones are served.
  TrialReply reply_to(const json& bad, double timeout = patience) const {
    WorkerPool pool = make(1);
    auto requests = requests_of({{{"kind", "echo"}}, bad, {{"kind", "echo"}}});
    requests[1].timeout_seconds = timeout;
    auto replies = collect(pool, requests);
    EXPECT_EQ(replies.size(), 3u);
    EXPECT_EQ(replies[0].status, TrialReply::ok);
    EXPECT_EQ(replies[2].status, TrialReply::ok) << replies[2].reason;
    return replies[1];
  }

  const TempFolder folder_;
  long descriptors_ = count_descriptors();
};

TEST_F(WorkerPoolTest, OpenReturnsTheFirstWorkersReplyAndKeepsIt) {
  WorkerPool pool = make(1);
  const json opened = pool.open();
  EXPECT_EQ(pool.open(), opened);
  EXPECT_EQ(collect(pool, requests_of({{{"kind", "echo"}}}))[0].body["pid"], opened["pid"]);
  EXPECT_TRUE(collect(pool, {}).empty());
}

TEST_F(WorkerPoolTest, ErrorsAreRepliesAndKeepTheWorker) {
  WorkerPool pool = make(1);
  const auto replies = collect(pool, requests_of({{{"kind", "echo"}}, {{"kind", "refuse"}}, {{"kind", "echo"}}}));
  EXPECT_EQ(replies.at(1).status, TrialReply::error);
  EXPECT_EQ(replies.at(1).body["kind"], "refused");
  EXPECT_EQ(replies.at(1).reason, "no \xEF\xBF\xBD thanks");
  EXPECT_EQ(replies.at(0).body["pid"], replies.at(2).body["pid"]);
}

TEST_F(WorkerPoolTest, WantOfMemoryIsNoFaultOfATrialThatANewWorkerCanRun) {
  WorkerPool pool = make(1);
  const auto leaves = [](int after) { return json{{"kind", "needs_memory"}, {"after", after}}; };
  const auto replies = collect(pool, requests_of({leaves(1), leaves(1), leaves(0), leaves(1)}));
  for (size_t i : {0, 1, 3}) EXPECT_EQ(replies.at(i).status, TrialReply::ok) << i;
  EXPECT_EQ(replies.at(2).status, TrialReply::error);
  EXPECT_EQ(replies.at(2).reason, "full");
  EXPECT_NE(replies.at(0).body["pid"], replies.at(1).body["pid"]);
}

TEST_F(WorkerPoolTest, AWorkerThatTakesTooMuchIsKilled) {
  WorkerPool pool = make(2, {{"kind", "open"}}, patience, uint64_t{64} << 20);
  const json few = {{"kind", "eat"}, {"bytes", 16 << 20}}, many = {{"kind", "eat"}, {"bytes", 256 << 20}};
  const auto replies = collect(pool, requests_of({few, many, few}));
  EXPECT_EQ(replies.at(0).status, TrialReply::ok);
  EXPECT_EQ(replies.at(2).status, TrialReply::ok);
  EXPECT_EQ(replies.at(1).status, TrialReply::error);
  EXPECT_EQ(replies.at(1).body["kind"], "memory");
  EXPECT_EQ(replies.at(1).reason, "needs more than the 64.0 MiB of --trial-memory");
}

TEST_F(WorkerPoolTest, CrashesCostOneTrial) {
  const std::pair<json, const char*> cases[] = {
      {{{"kind", "segv"}}, "killed by signal 11 (Segmentation fault)"},
      {{{"kind", "exit"}}, "ended with code 3"},
      {{{"kind", "half"}}, "ended with code 4"},
      {{{"kind", "no_json"}}, "sent no JSON, but 5 other bytes"},
      {{{"kind", "no_reply"}}, "sent JSON that is no reply"},
      {{{"kind", "wrong_id"}}, "sent a reply to request 999999, not to 3"},
      {{{"kind", "too_long"}}, "sent no JSON, but a line of more than 64 MiB"},
  };
  for (const auto& [request, reason] : cases) {
    const TrialReply reply = reply_to(request);
    EXPECT_EQ(reply.status, TrialReply::crashed);
    EXPECT_THAT(reply.reason, StartsWith(reason));
    EXPECT_EQ(reply.body, nullptr);
  }
}

TEST_F(WorkerPoolTest, AWorkerThatHangsIsKilledInTime) {
  const TrialReply reply = reply_to({{"kind", "hang"}}, 0.3);
  EXPECT_EQ(reply.status, TrialReply::timed_out);
  EXPECT_EQ(reply.reason, "no reply within 0.3 s");
  EXPECT_GE(reply.seconds, 0.3);
}

TEST_F(WorkerPoolTest, AClosedChannelIsACrash) {
  EXPECT_EQ(reply_to({{"kind", "close"}}).reason, "closed its channel without a reply");
}

TEST_F(WorkerPoolTest, WhatPluginsPrintIsNoReply) {
  EXPECT_EQ(reply_to({{"kind", "babble"}}).status, TrialReply::ok);
  EXPECT_EQ(reply_to({{"kind", "twice"}}).status, TrialReply::ok);
}

TEST_F(WorkerPoolTest, AWorkerThatDiesAfterItsReplyIsReplacedSilently) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(reply_to({{"kind", "die_idle"}}).status, TrialReply::ok);
}

TEST_F(WorkerPoolTest, ATrialThatNoWorkerReadsIsTriedOnceMoreAndThenCrashed) {
  WorkerPool pool = make(1, {{"kind", "open"}, {"leave", file("starts")}});
  const auto replies = collect(pool, requests_of({{{"kind", "echo"}}}));
  ASSERT_EQ(replies.at(0).status, TrialReply::crashed);
  EXPECT_EQ(replies.at(0).reason, "ended with code 5");
  EXPECT_EQ(fs::file_size(file("starts")), 2u);
}

TEST_F(WorkerPoolTest, LinesMayHaveMegabytesInBothDirections) {
  WorkerPool pool = make(2);
  const size_t size = 5 << 20;
  auto replies = collect(
      pool, requests_of({{{"kind", "huge"}, {"bytes", size}}, {{"kind", "echo"}, {"text", std::string(size, 'y')}}}));
  EXPECT_EQ(replies[0].body.get<std::string>(), std::string(size, 'x'));
  EXPECT_EQ(replies[1].body["size"], size);
}

TEST_F(WorkerPoolTest, OpenFailsWithTheWorkersReason) {
  const json first = {{"kind", "open"}};
  json refusing = first, crashing = first, hanging = first;
  refusing["refuse"] = true;
  crashing["crash_unless"] = file("nothing");
  hanging["hang"] = true;
  WorkerPool refused = make(1, refusing), crashed = make(1, crashing), late = make(1, hanging, 0.2);
  const Failure refusal = failure_of([&] { refused.open(); });
  EXPECT_EQ(refusal.fault(), Fault::manifest);
  EXPECT_THAT(refusal.what(), HasSubstr("thanks"));
  EXPECT_THAT(failure_of([&] { crashed.open(); }).what(), HasSubstr("killed by signal 11"));
  const Failure lateness = failure_of([&] { late.open(); });
  EXPECT_EQ(lateness.fault(), Fault::internal);
  EXPECT_THAT(lateness.what(), HasSubstr("no reply within 0.2 s; its output is in " + file("log")));
  WorkerPool stopped = make(1, hanging);
  EXPECT_EQ(failure_of([&] { stopped.open([] { return true; }); }).fault(), Fault::interrupted);
}

TEST_F(WorkerPoolTest, OneCrashInOpenIsForgivenTwoAreNot) {
  WorkerPool forgiven = make(1, {{"kind", "open"}, {"crash_unless", file("first")}});
  EXPECT_EQ(collect(forgiven, requests_of({{{"kind", "echo"}}}))[0].status, TrialReply::ok);

  WorkerPool pool = make(1, {{"kind", "open"}, {"crash_after", file("second")}});
  std::vector<TrialReply> replies;
  const Failure failure = failure_of([&] {
    pool.run(
        requests_of({{{"kind", "segv"}}, {{"kind", "echo"}}}), [&](TrialReply reply) { replies.push_back(reply); },
        [] { return false; });
  });
  EXPECT_EQ(failure.fault(), Fault::internal);
  EXPECT_EQ(std::string(failure.what()),
            "a search worker failed while it opened the model, twice in a row: killed by signal 11 (Segmentation "
            "fault); its output is in " +
                file("log"));
  ASSERT_EQ(replies.size(), 1u);
  fs::remove(file("second"));
  EXPECT_EQ(collect(pool, requests_of({{{"kind", "echo"}}}))[0].status, TrialReply::ok);
}

TEST_F(WorkerPoolTest, StopFinishesWhatRunsAndStartsNothing) {
  WorkerPool pool = make(2);
  const std::vector<json> bodies = {{{"kind", "meet"}, {"touch", file("a")}, {"wait", file("go")}},
                                    {{"kind", "echo"}},
                                    {{"kind", "meet"}, {"touch", file("b")}, {"wait", file("go")}},
                                    {{"kind", "echo"}}};
  std::vector<size_t> tags;
  int questions = 0;
  pool.run(
      requests_of(bodies), [&](const TrialReply& reply) { tags.push_back(reply.tag); },
      [&] {
        ++questions;
        if (!fs::exists(file("a")) || !fs::exists(file("b"))) return false;
        std::ofstream(file("go")) << "go";
        return true;
      });
  EXPECT_THAT(tags, testing::UnorderedElementsAre(0u, 2u));
  EXPECT_GT(questions, 1);
  EXPECT_EQ(collect(pool, requests_of({{{"kind", "echo"}}}))[0].status, TrialReply::ok);

  pool.run(
      requests_of({{{"kind", "echo"}}}), [](const TrialReply&) { FAIL(); }, [] { return true; });
}

TEST_F(WorkerPoolTest, ThrowingFromDoneKillsTheWorkers) {
  WorkerPool pool = make(2);
  const auto requests = requests_of({{{"kind", "echo"}}, {{"kind", "hang"}}});
  EXPECT_THROW(pool.run(
                   requests, [](const TrialReply&) { throw std::length_error("full"); }, [] { return false; }),
               std::length_error);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(collect(pool, requests_of({{{"kind", "echo"}}}))[0].status, TrialReply::ok);
}

// Request i of one share and of the other wait for each other, so that no worker runs ahead and steals.
TEST_F(WorkerPoolTest, SharesAreContiguous) {
  WorkerPool pool = make(2);
  std::vector<json> bodies;
  for (int i = 0; i < 10; ++i)
    bodies.push_back({{"kind", "meet"},
                      {"touch", file("met" + std::to_string(i))},
                      {"wait", file("met" + std::to_string((i + 5) % 10))}});
  std::map<int, std::vector<size_t>> by_worker;
  pool.run(requests_of(bodies), [&](const TrialReply& reply) { by_worker[reply.body["pid"]].push_back(reply.tag); },
           {});
  ASSERT_EQ(by_worker.size(), 2u);
  for (const auto& [pid, tags] : by_worker)
    EXPECT_THAT(tags, testing::AnyOf(ElementsAre(0, 1, 2, 3, 4), ElementsAre(5, 6, 7, 8, 9)));
}

TEST_F(WorkerPoolTest, AWorkerWithNothingLeftTakesTheRearHalf) {
  WorkerPool pool = make(2);
  std::vector<json> bodies(10, {{"kind", "echo"}});
  bodies[0] = {{"kind", "meet"}, {"touch", file("begun")}, {"wait", file("end")}};
  bodies[5] = {{"kind", "wait"}, {"wait", file("begun")}};
  std::vector<size_t> order;
  pool.run(requests_of(bodies),
           [&](const TrialReply& reply) {
             order.push_back(reply.tag);
             if (order.size() == 9) std::ofstream(file("end")) << "end";
           },
           {});
  EXPECT_THAT(order, ElementsAre(5, 6, 7, 8, 9, 3, 4, 2, 1, 0));
}

TEST_F(WorkerPoolTest, WorkersDieWithAParentThatIsKilled) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come to this test
  const pid_t helper = fork();
  if (helper == 0) {
    WorkerPool pool = make(2);
    const std::vector<json> bodies = {{{"kind", "meet"}, {"touch", file("a")}, {"wait", file("never")}},
                                      {{"kind", "meet"}, {"touch", file("b")}, {"wait", file("never")}}};
    [&]() noexcept { pool.run(requests_of(bodies), [](const TrialReply&) {}, {}); }();
    _exit(1);
  }
  while ((!fs::exists(file("a")) || !fs::exists(file("b"))) && waitpid(helper, nullptr, WNOHANG) == 0) usleep(1000);
  kill(helper, SIGKILL);
  int ended = 0, status = 0;
  for (; waitpid(-1, &status, 0) > 0; ++ended) EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(ended, 3);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// Machines that are this one: a launcher says which by a variable.
class LaunchedPoolTest : public WorkerPoolTest {
 protected:
  static LaunchedHost fake(const std::string& name) {
    return {name, "FAKE_HOST=" + name + " exec " ATTNKIT_FAKE_WORKER " search-worker -"};
  }

  WorkerPool make(std::vector<LaunchedHost> hosts, int jobs = 1, json open = {{"kind", "open"}}) {
    hosts_ = std::make_shared<std::vector<LaunchedHost>>(std::move(hosts));
    return WorkerPool({{"/nowhere"}, std::move(open), 0, file("log"), hosts_, cpu_}, jobs, patience);
  }

  static std::set<std::string> hosts_of(const std::map<size_t, TrialReply>& replies) {
    std::set<std::string> names;
    for (const auto& [tag, reply] : replies) {
      EXPECT_EQ(reply.status, TrialReply::ok) << tag << ": " << reply.reason;
      if (reply.status != TrialReply::ok) continue;
      EXPECT_EQ(reply.host, reply.body["host"]);
      names.insert(reply.host);
    }
    return names;
  }

  // Trials that end when all of them are under way, each on another worker.
  std::vector<json> meetings(size_t count) {
    std::vector<json> bodies;
    ++round_;
    const auto place = [&](size_t i) { return file(fmt::format("{}-{}", round_, i % count)); };
    for (size_t i = 0; i < count; ++i)
      bodies.push_back({{"kind", "meet"}, {"touch", place(i)}, {"wait", place(i + 1)}});
    return bodies;
  }

  const LaunchedHost& host(size_t i) const { return (*hosts_)[i]; }

  std::shared_ptr<std::vector<LaunchedHost>> hosts_;
  std::string cpu_;
  int round_ = 0;
};

TEST_F(LaunchedPoolTest, EveryHostHasItsWorkersAndWhatTheyPrintIsNoReply) {
  WorkerPool pool = make({fake("a"), fake("b")}, 2);
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(pool.open()["host"], "a");
  EXPECT_LT(seconds_since(begin), 4) << "nobody is waited for when all are open";
  EXPECT_EQ(hosts_of(collect(pool, requests_of(meetings(4)))), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(collect(pool, requests_of({{{"kind", "babble"}}}))[0].status, TrialReply::ok);
  EXPECT_EQ(host(0).trials + host(1).trials, 5u);  // whose worker is ready first gets the next one
  EXPECT_EQ(host(1).opened["host"], "b");
}

TEST_F(LaunchedPoolTest, WhatOneHostLosesAnotherRuns) {
  WorkerPool pool = make({fake("a"), fake("b")});
  collect(pool, requests_of(meetings(2)));  // both are there
  json deadly = {{"kind", "die_on"}, {"host", "a"}, {"deaths", file("deaths")}, {"wait", 1}};
  EXPECT_EQ(hosts_of(collect(pool, requests_of({deadly, deadly}))), std::set<std::string>{"b"});
  EXPECT_EQ(host(0).lost, 1u);
  EXPECT_EQ(host(0).trouble, "ended with code 3");
  EXPECT_EQ(hosts_of(collect(pool, requests_of(meetings(2)))).size(), 2u);  // it may do well with others
  EXPECT_EQ(host(0).reason, "");
  deadly["wait"] = 4;
  EXPECT_EQ(hosts_of(collect(pool, requests_of(std::vector<json>(40, deadly)))), std::set<std::string>{"b"});
  EXPECT_GE(host(0).lost, 4u);
  EXPECT_EQ(host(0).reason,
            "3 trials in a row failed there that another host could run, the last one: ended with code 3");
  EXPECT_EQ(host(1).lost, 0u);
}

TEST_F(LaunchedPoolTest, EveryKindOfNonsenseIsCountedAndLosesNothing) {
  for (const char* kind : {"no_json", "no_reply", "wrong_id", "half", "close", "segv"}) {
    WorkerPool pool = make({fake("a"), fake("b")});
    collect(pool, requests_of(meetings(2)));
    const json odd = {{"kind", "odd_on"}, {"host", "a"}, {"odd", kind}};
    EXPECT_EQ(hosts_of(collect(pool, requests_of(std::vector<json>(20, odd)))), std::set<std::string>{"b"}) << kind;
    EXPECT_EQ(host(0).trials, 1u);
    EXPECT_GE(host(0).lost, 1u);
    EXPECT_FALSE(host(0).trouble.empty()) << kind;
  }
}

TEST_F(LaunchedPoolTest, AResultThatIsNoneIsNoReply) {
  WorkerPool pool = make({fake("a"), fake("b")});
  auto requests = requests_of(meetings(2));
  for (TrialRequest& request : requests)
    request.accepts = [](const json& result) { return result.at("host") == "b" || result.at("nothing") == 1; };
  EXPECT_EQ(hosts_of(collect(pool, requests)), std::set<std::string>{"b"});
  EXPECT_EQ(host(0).trouble, "sent a result that is none of this kind of trial");
}

TEST(SlowTrials, TakeTwiceTheMedianAndASecond) {
  EXPECT_EQ(slow_after({}), 1);
  EXPECT_EQ(slow_after({0.1, 0.2, 0.3}), 1);
  EXPECT_EQ(slow_after({9, 3, 4}), 8);
}

TEST_F(LaunchedPoolTest, ASlowHostHoldsNothingUp) {
  WorkerPool pool = make({fake("a"), fake("b")});
  collect(pool, requests_of(meetings(2)));
  const json slow = {{"kind", "odd_on"}, {"host", "a"}, {"odd", "hang"}};
  EXPECT_EQ(hosts_of(collect(pool, requests_of({slow, slow, slow}))), std::set<std::string>{"b"});
  EXPECT_EQ(host(0).lost, 0u);
  EXPECT_EQ(hosts_of(collect(pool, requests_of({{{"kind", "echo"}}}))).size(), 1u);  // the hanging one is gone
}

TEST_F(LaunchedPoolTest, TheOnlyHostLeftRunsOnceMoreWhatItLost) {
  WorkerPool pool = make({fake("a"), fake("b")}, 1, {{"kind", "open"}, {"refuse_on", "b"}});
  const auto replies = collect(pool, requests_of({{{"kind", "exit"}}, {{"kind", "echo"}}}));
  EXPECT_EQ(replies.at(0).status, TrialReply::crashed);
  EXPECT_EQ(replies.at(1).status, TrialReply::ok);
  EXPECT_NE(host(1).reason, "");
}

TEST_F(LaunchedPoolTest, AMechanismThatCrashesEverywhereCostsItsTrialAndNoHost) {
  WorkerPool pool = make({fake("a"), fake("b")});
  const auto replies = collect(pool, requests_of(std::vector<json>(5, {{"kind", "exit"}})));
  for (const auto& [tag, reply] : replies) EXPECT_EQ(reply.status, TrialReply::crashed) << tag;
  EXPECT_EQ(replies.size(), 5u);
  for (const LaunchedHost& host : *hosts_) EXPECT_EQ(host.reason, "") << host.name;
}

TEST_F(LaunchedPoolTest, HostsThatTalkNonsenseOrRefuseAreLeftOutByName) {
  WorkerPool pool =
      make({fake("a"), {"nonsense", "read -r _ && echo Welcome && sleep 100"}, fake("c"), {"gone", "exit 255"}}, 1,
           {{"kind", "open"}, {"refuse_on", "c"}});
  const auto is_left_out = [&] {
    return std::ranges::count_if(*hosts_, [](const LaunchedHost& h) { return !h.reason.empty(); }) == 3;
  };
  std::set<std::string> served;
  pool.run(
      requests_of(std::vector<json>(60, {{"kind", "wait"}, {"wait", file("go")}})),
      [&](const TrialReply& reply) { served.insert(reply.host); },
      [&] {
        if (is_left_out()) std::ofstream(file("go")) << "go";
        return false;
      });
  EXPECT_EQ(served, std::set<std::string>{"a"});
  std::vector<std::string> reasons;
  for (const LaunchedHost& host : *hosts_) reasons.push_back(host.reason);
  EXPECT_THAT(reasons, ElementsAre("", HasSubstr("sent no JSON, but 7 other bytes"), StartsWith("no "),
                                   HasSubstr("ended with code 255")));
}

TEST_F(LaunchedPoolTest, AHostThatOpensWithNonsenseIsLeftOut) {
  WorkerPool pool = make({fake("a"), fake("b")}, 1, {{"kind", "open"}, {"odd_on", "a"}});
  EXPECT_EQ(pool.open()["host"], "b");
  EXPECT_EQ(hosts_of(collect(pool, requests_of({{{"kind", "echo"}}, {{"kind", "echo"}}}))), std::set<std::string>{"b"});
  EXPECT_THAT(host(0).reason, HasSubstr("sent a result that is none of opening the model"));
}

TEST_F(LaunchedPoolTest, WithoutAHostTheReasonsOfAllAreSaid) {
  WorkerPool pool = make({fake("a"), {"gone", "exit 255"}}, 1, {{"kind", "open"}, {"refuse_on", "a"}});
  const auto reasons =
      AllOf(StartsWith("no host is left: a: no "), HasSubstr("; gone: "), HasSubstr("ended with code"));
  EXPECT_THAT(failure_of([&] {
                collect(pool, requests_of({{{"kind", "echo"}}, {{"kind", "echo"}}}));
              }).what(),
              reasons);
  EXPECT_THAT(failure_of([&] { pool.open(); }).what(), reasons);
  WorkerPool first = make({fake("a"), fake("b")}, 1, {{"kind", "open"}, {"refuse_on", "a"}});
  EXPECT_EQ(first.open()["host"], "b");
  EXPECT_THAT(host(0).reason, StartsWith("no "));
}

TEST_F(LaunchedPoolTest, OnlyHostsWithTheProcessorThatIsAskedFor) {
  cpu_ = "cpu of b";
  WorkerPool pool = make({fake("a"), fake("b")});
  EXPECT_EQ(hosts_of(collect(pool, requests_of(std::vector<json>(9, {{"kind", "echo"}})))), std::set<std::string>{"b"});
  EXPECT_EQ(host(0).reason, "");
  cpu_ = "cpu of c";
  WorkerPool none = make({fake("a"), fake("b")});
  EXPECT_THAT(failure_of([&] {
                collect(none, requests_of({{{"kind", "echo"}}, {{"kind", "echo"}}}));
              }).what(),
              HasSubstr("a: its processor is another one than that of the timings; b: its"));
}

// As ssh leaves a worker of another machine: nobody can kill it, its input ends.
TEST_F(LaunchedPoolTest, AWorkerThatHangsEndsWithItsInput) {
  const std::string pid = file("pid");
  {
    WorkerPool pool = make({{"far", "FAKE_HOST=far setsid " ATTNKIT_FAKE_WORKER " search-worker - | cat"}});
    std::ofstream(pid) << pool.open()["pid"];
    auto requests = requests_of({{{"kind", "hang"}}}, 0.2);
    EXPECT_EQ(collect(pool, requests)[0].status, TrialReply::timed_out);
  }
  pid_t far = 0;
  std::ifstream(pid) >> far;
  ASSERT_GT(far, 1);
  const auto is_alive = [&] {
    std::ifstream status(fmt::format("/proc/{}/stat", far));
    std::string number, name, state;
    return status >> number >> name >> state && state != "Z";
  };
  for (int i = 0; i < 3000 && is_alive(); ++i) usleep(10000);
  EXPECT_FALSE(is_alive());
}

}  // namespace
}  // namespace attnkit::core::search
