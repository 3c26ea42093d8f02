// Sessions that are saved in one process and go on in another, and sources that grow, through attnkit.h alone.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <regex>

#include "streamed.hpp"

namespace {

TEST(SavedSession, ContinuesBitwiseInAnotherProcess) {
  const Streamed o;
  attnkit::Session session(o.model, 1);
  const attnkit::Ids source = o.source();
  session.read({source.begin(), source.begin() + 3}, false);
  session.read({source.begin() + 3, source.begin() + 5}, false);
  std::string folder = testing::TempDir() + "attnkit-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder.data()));
  const std::string path = folder + "/session";
  const std::vector<std::byte> bytes = session.save();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const std::string command = std::string(ATTNKIT_CONTINUE_SESSION) + " " + path + " > " + path + ".out";
  EXPECT_EQ(0, std::system(command.c_str()));
  const std::vector<std::byte> out = read_bytes(path + ".out");
  EXPECT_EQ(finish(o, session), std::string(reinterpret_cast<const char*>(out.data()), out.size()));
  std::filesystem::remove_all(folder);
}

// golden/session-first.blob: relu in every block, [stream]; three tokens of a source and one of the target.  Written by
// the library of commit 697d4d1, the first that saved sessions.
TEST(SavedSession, OfTheFirstVersionGoesOn) {
  const attnkit::Runtime runtime(1);
  const std::string relu = std::regex_replace(
      Streamed::manifest(), std::regex("\n(\"(en|de)coder\\.[a-z]+\") = \"[a-z]+\""), "\n$1 = \"relu\"");
  const attnkit::Model model(runtime, relu, ATTNKIT_MODEL);
  attnkit::Session session = attnkit::Session::load(model, read_bytes(ATTNKIT_GOLDEN "/session-first.blob"));
  attnkit::Ids source = model.tokenize(attnkit::Side::source, "half past three");
  source.push_back(model.info().end_id);
  session.read({source.begin() + 3, source.end()});
  EXPECT_EQ(model.detokenize(attnkit::Side::target, session.generate()), "halb vier");
}

TEST(SavedSession, WrongUseIsRefused) {
  const Streamed o;
  attn_error err{sizeof err, 0, -1, ""};
  attnkit_session* session = nullptr;
  EXPECT_EQ(attnkit_session_load(o.model.get(), nullptr, 4, &session, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_load(o.model.get(), "nothing", 7, &session, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("no saved session"), std::string::npos) << err.message;
  EXPECT_EQ(attnkit_session_load(nullptr, "nothing", 7, &session, &err), ATTN_INVALID);
  EXPECT_EQ(session, nullptr);
  attnkit_blob* blob = nullptr;
  EXPECT_EQ(attnkit_session_save(nullptr, &blob, &err), ATTN_INVALID);
  EXPECT_EQ(blob, nullptr);
  EXPECT_EQ(attnkit_blob_data(nullptr, nullptr), nullptr);
  attnkit_blob_destroy(nullptr);
}

TEST(GrowingSource, EndsAsOneReadOfItAll) {
  const Streamed o;
  attnkit::Session whole(o.model, 1), grown(o.model, 1);
  const attnkit::Ids source = o.source();
  whole.read(source);
  for (size_t i = 0; i < source.size(); ++i) grown.read({source[i]}, i + 1 == source.size());
  EXPECT_THROW(grown.read({source[0]}), attnkit::Error);
  EXPECT_THROW(grown.read({}), attnkit::Error);
  EXPECT_EQ(whole.generate(), grown.generate());
}

}  // namespace
