#include "core/search/trial/data_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/search/failure.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core::search {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const Model& sample() {
  static const Runtime runtime(1, ATTNKIT_PLUGIN_FOLDER);
  static const Model model(runtime, std::string(ATTNKIT_SAMPLE) + "/model.toml");
  return model;
}

const TaskFacts& translation() {
  static const TaskFacts facts = facts_of(sample());
  return facts;
}

TaskFacts of_task(Task task) {
  TaskFacts facts = translation();
  facts.task = task;
  if (task == Task::classification) facts.info.outputs = 3;
  return facts;
}

DataSet read(const std::string& text, const TaskFacts& facts = translation()) {
  return DataSet(TemporaryFile(text).path(), sample(), facts);
}

std::string failure(const std::string& text, const TaskFacts& facts = translation()) {
  try {
    read(text, facts);
  } catch (const Failure& e) {
    EXPECT_EQ(e.fault(), Fault::data);
    return e.what();
  }
  return "no failure";
}

TEST(DataSet, EveryPrefixIsSpreadOverTheFile) {
  for (size_t n : {0, 1, 2, 3, 10, 89, 100, 1000, 2000, 2001}) {
    const std::vector<size_t> order = spread(n);
    std::vector<size_t> sorted = order, all(n);
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), size_t{0});
    ASSERT_EQ(sorted, all);
    for (size_t prefix = 1; prefix <= n; ++prefix)
      for (size_t tenth = 0; tenth < 10; ++tenth) {
        const auto inside = std::count_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(prefix),
                                          [&](size_t i) { return i * 10 >= tenth * n && i * 10 < (tenth + 1) * n; });
        ASSERT_NEAR(static_cast<double>(inside), static_cast<double>(prefix) / 10, 3) << n << " " << prefix;
      }
  }
}

TEST(DataSet, PairsAreReadAsTheModelTakesThem) {
  const DataSet data = read("the seventeenth\tder siebzehnte\n");
  ASSERT_EQ(data.size(), 1u);
  Ids source = sample().tokenize(Side::source, "the seventeenth"),
      wanted = sample().tokenize(Side::target, "der siebzehnte");
  EXPECT_EQ(data[0].words, static_cast<int64_t>(source.size()));
  Ids target = wanted;
  target.insert(target.begin(), translation().info.begin_id);
  source.push_back(translation().info.end_id);
  wanted.push_back(translation().info.end_id);
  EXPECT_EQ(data[0].source, source);
  EXPECT_EQ(data[0].target, target);
  EXPECT_EQ(data[0].wanted, wanted);
}

TEST(DataSet, OtherTasksTakeTextsOrClasses) {
  const Ids tokens = sample().tokenize(Side::target, "der dritte");
  const DataSet continued = read("der dritte", of_task(Task::continuation));
  EXPECT_TRUE(continued[0].source.empty());
  EXPECT_EQ(continued[0].target.front(), translation().info.begin_id);
  EXPECT_EQ(continued[0].wanted.back(), translation().info.end_id);
  EXPECT_EQ(continued[0].wanted.size(), tokens.size() + 1);
  const DataSet labelled = read("the third", of_task(Task::labelling));
  EXPECT_TRUE(labelled[0].target.empty());
  EXPECT_EQ(labelled[0].source, labelled[0].wanted);
  const DataSet classified = read("the third\t2", of_task(Task::classification));
  EXPECT_EQ(classified[0].wanted, Ids{2});
  EXPECT_EQ(classified[0].source, labelled[0].source);
}

TEST(DataSet, LinesMayEndWithCrLfAndBeginWithAMark) {
  const DataSet plain = read("the third\tder dritte\nthe seventeenth\tder siebzehnte\n");
  const DataSet other = read("\ufeffthe third\tder dritte\r\nthe seventeenth\tder siebzehnte\r\n");
  ASSERT_EQ(plain.size(), 2u);
  ASSERT_EQ(other.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plain[i].source, other[i].source);
    EXPECT_EQ(plain[i].wanted, other[i].wanted);
    EXPECT_EQ(plain[i].line, other[i].line);
  }
}

TEST(DataSet, CountsLinesThatStoodThereBefore) {
  EXPECT_EQ(read("the third\tder dritte\nthe seventeenth\tder siebzehnte\n").repeated(), 0u);
  EXPECT_EQ(read("the third\tder dritte\nthe third\tder dritte\nthe third\tder siebzehnte\nthe third\tder dritte\n")
                .repeated(),
            2u);
}

TEST(DataSet, TheSampleIsReadInTheOrderOfTheSearch) {
  const std::string path = std::string(ATTNKIT_SAMPLE) + "/dev.tsv";
  const DataSet data(path, sample(), translation());
  ASSERT_EQ(data.size(), 2000u);
  const std::vector<size_t> order = spread(2000);
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i].line, order[i] + 1);
  EXPECT_EQ(data.place_of(0), path + ":1");
}

TEST(DataSet, BucketsEndWithTheirBounds) {
  const std::vector<int64_t> bounds = {12, 25};
  EXPECT_EQ(bucket_of(bounds, 1), 0u);
  EXPECT_EQ(bucket_of(bounds, 12), 0u);
  EXPECT_EQ(bucket_of(bounds, 13), 1u);
  EXPECT_EQ(bucket_of(bounds, 26), 2u);
  EXPECT_EQ(bucket_of({}, 26), 0u);
}

TEST(DataSet, ErrorsNameTheLine) {
  const std::string good = "the third\tder dritte\n";
  EXPECT_THAT(failure(""), HasSubstr("is empty"));
  EXPECT_THAT(failure(good + "the third\n"),
              AllOf(StartsWith(testing::TempDir() + "attnkit-"), HasSubstr(":2: has no tab")));
  EXPECT_THAT(failure(good + "the\tthird\tder\n"), HasSubstr(":2: has more than one tab"));
  EXPECT_THAT(failure(good + "\tder dritte\n"), HasSubstr(":2: the input is empty"));
  EXPECT_THAT(failure(good + "the third\t \n"), HasSubstr(":2: the reference is empty"));
  EXPECT_THAT(failure(good + good + "the \xff\tder dritte\n"), HasSubstr(":3: the input: the text is not UTF-8"));
  EXPECT_THAT(failure(good + "the third\tder \u4e09\n"), HasSubstr(":2: the reference: the vocabulary cannot spell"));
  EXPECT_THAT(failure(good + std::string("the\0third\tder dritte\n", 21)), HasSubstr(":2: the input"));
  std::string longer = "the third";
  for (int i = 0; i < 600; ++i) longer += " the";
  EXPECT_THAT(failure(longer + "\tder dritte\n"), HasSubstr(":1: the input has"));
  EXPECT_THAT(failure(longer + "\tder dritte\n"), HasSubstr("max_length is 512"));
  TaskFacts short_targets = translation();
  short_targets.max_target = 6;
  short_targets.forced = {3, 4};
  EXPECT_THAT(failure("the third\tder dritte der dritte\n", short_targets),
              AllOf(HasSubstr("the reference has 4 tokens and needs 3 more for <s> or </s> and what [decode] forces;"),
                    HasSubstr("max_length of the decoder is 6: shorten it")));
  EXPECT_THAT(failure("the third the third\tder dritte\n", short_targets), Not(HasSubstr("max_length")));
  EXPECT_THAT(failure("\n", of_task(Task::continuation)), HasSubstr(":1: the text is empty"));
  for (const char* wrong : {"3", "-1", "1x", "", "\xff"})
    EXPECT_THAT(failure("the third\t" + std::string(wrong), of_task(Task::classification)),
                HasSubstr("possible are the integers 0 to 2"));
  EXPECT_THROW(DataSet("/nowhere/x.tsv", sample(), translation()), Failure);
  EXPECT_THROW(DataSet("/", sample(), translation()), Failure);
}

}  // namespace
}  // namespace attnkit::core::search
