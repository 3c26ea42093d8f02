#include "core/search/trial/same_files.hpp"

#include <attnkit/attnkit.h>
#include <gmock/gmock.h>

#include <fstream>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class SameFilesTest : public testing::Test {
 protected:
  SameFilesTest() {
    for (const char* name : {"weights", "data.tsv", "plugin.so", "program"}) std::ofstream(folder_ / name) << name;
    open_ = {
        {"dir", std::string(folder_ / "")},
        {"data", std::string(folder_ / "data.tsv")},
        {"test", ""},
        {"expects",
         {{"version", attnkit_version()},
          {"program", digest_of("program")},
          {"library", digest_of_file(library_file())},
          {"files", {{"weights", digest_of("weights")}, {std::string(folder_ / "data.tsv"), digest_of("data.tsv")}}},
          {"plugins", {{"relu", digest_of("plugin.so")}}}}}};
  }

  // "": all is well.
  std::string complaint() const {
    try {
      check_expected(open_, folder_ / "program", {{"relu", std::string(folder_ / "plugin.so")}});
    } catch (const Failure& e) {
      EXPECT_EQ(e.fault(), Fault::data);
      return e.what();
    }
    return "";
  }

  const TempFolder folder_;
  json open_;
};

TEST_F(SameFilesTest, WhatIsTheSameIsTaken) {
  EXPECT_EQ(complaint(), "");
  open_.erase("expects");
  EXPECT_EQ(complaint(), "");
}

TEST_F(SameFilesTest, TheFirstDifferenceIsSaid) {
  const json good = open_;
  const auto with = [&](const json::json_pointer& at, const json& value) {
    open_ = good;
    open_["expects"][at] = value;
    return complaint();
  };
  using Pointer = json::json_pointer;
  EXPECT_THAT(with(Pointer("/version"), "9.9"), HasSubstr(", 9.9 where the search is"));
  EXPECT_THAT(with(Pointer("/program"), "1"), StartsWith("the attnkit command is another one here: "));
  EXPECT_THAT(with(Pointer("/library"), "1"), StartsWith("libattnkit is another one here: "));
  EXPECT_THAT(with(Pointer("/files/weights"), "1"),
              StartsWith("a file of the model or its data is another one here: " + std::string(folder_ / "weights") +
                         " has sha256 " + digest_of("weights") + ", the search's 1;"));
  EXPECT_THAT(with(Pointer("/files/more"), "1"), HasSubstr("more cannot be read"));
  EXPECT_THAT(with(Pointer("/plugins/relu"), "1"), StartsWith("the plugin relu is another one here: "));
  EXPECT_THAT(with(Pointer("/plugins/leap"), "1"), StartsWith("there is no plugin leap here"));
  EXPECT_THAT(with(Pointer("/recordings"), "1"), StartsWith("the recordings that "));
}

TEST_F(SameFilesTest, WhatLiesInTheFolderMovesWithIt) {
  json open = {{"dir", "/here/model"},
               {"data", "/here/model/sets/data.tsv"},
               {"test", "/elsewhere/test.tsv"},
               {"expects",
                {{"files",
                  {{"weights", "1"},
                   {"../vocab", "2"},
                   {"/here/model/sets/data.tsv", "3"},
                   {"/elsewhere/test.tsv", "4"},
                   {"/here/model/x", "5"}}}}}};
  const json there = moved(open, "/there");
  EXPECT_EQ(there["dir"], "/there");
  EXPECT_EQ(there["data"], "/there/sets/data.tsv");
  EXPECT_EQ(there["test"], "/elsewhere/test.tsv");
  EXPECT_EQ(there["expects"]["files"], (json{{"weights", "1"},
                                             {"../vocab", "2"},
                                             {"/there/sets/data.tsv", "3"},
                                             {"/elsewhere/test.tsv", "4"},
                                             {"/here/model/x", "5"}}))
      << "an absolute path of the manifest stays, as a worker opens it";
  open.erase("expects");
  open["test"] = "";
  EXPECT_EQ(moved(open, "/there")["test"], "");
}

}  // namespace
}  // namespace attnkit::core::search
