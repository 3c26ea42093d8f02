#include "core/search/journal.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

const json identity = {{"weights_sha256", "aa"}, {"seed", 1}, {"metric", "exact"}, {"step", 0.1}};

json body_of(int i) { return {{"status", "ok"}, {"result", {{"value", i / 3.0}, {"text", "line\nof \"text\" ä"}}}}; }

class JournalTest : public testing::Test {
 protected:
  std::string read() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

  // Makes a journal with keys "0" to "n - 1" and returns its text.
  std::string make(int n) const {
    Journal journal = Journal::create(path_, identity);
    for (int i = 0; i < n; ++i) journal.add(std::to_string(i), body_of(i));
    return read();
  }

  static void expect_holds(const Journal& journal, int n) {
    ASSERT_EQ(journal.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      ASSERT_NE(journal.find(std::to_string(i)), nullptr);
      EXPECT_EQ(*journal.find(std::to_string(i)), body_of(i));
    }
  }

  static std::string message_of(const std::function<void()>& action, Fault fault = Fault::data) {
    try {
      action();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.fault(), fault);
      return failure.what();
    }
    return "nothing was thrown";
  }
  std::string create_message() const {
    return message_of([&] { Journal::create(path_, identity); });
  }
  std::string resume_message(const json& other = identity) const {
    return message_of([&] { Journal::resume(path_, other); });
  }

  const TempFolder folder_;
  std::string path_ = folder_ / "journal.jsonl";
};

TEST_F(JournalTest, ResumeFindsWhatWasAdded) {
  const std::string text = make(5);
  EXPECT_THAT(text, testing::StartsWith("{\"schema\":\"attnkit.search-journal/1\",\"identity\":{"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
  EXPECT_THAT(text, testing::ContainsRegex("\"at\":\"20..-..-..T..:..:..Z\""));
  {
    Journal journal = Journal::resume(path_, identity);
    expect_holds(journal, 5);
    EXPECT_EQ(journal.find("5"), nullptr);
    journal.add("5", body_of(5));
    expect_holds(journal, 6);
  }
  expect_holds(Journal::resume(path_, identity), 6);
  EXPECT_EQ(read().substr(0, text.size()), text);
}

TEST_F(JournalTest, BodiesMayHaveNothingOfTheJournals) {
  const json cost = {{"result", {{"at", {{{"length", 64}}}}}}};
  {
    Journal journal = Journal::create(path_, identity);
    journal.add("cost", cost);
    for (const json& bad : {json({{"key", 1}}), json({{"at", "now"}}), json(3), json()})
      EXPECT_THAT(message_of([&] { journal.add("bad", bad); }, Fault::internal), HasSubstr("must be an object"));
    EXPECT_EQ(journal.size(), 1u);
  }
  EXPECT_EQ(*Journal::resume(path_, identity).find("cost"), cost);
}

TEST_F(JournalTest, TheLaterOfEqualKeysCounts) {
  {
    Journal journal = Journal::create(path_, identity);
    for (const char* key : {"0", "1", "0"}) journal.add(key, body_of(std::string(key) == "0" ? 7 : 1));
    journal.add("0", body_of(0));
    expect_holds(journal, 2);
  }
  expect_holds(Journal::resume(path_, identity), 2);
}

TEST_F(JournalTest, CreateRefusesAnyFileThatHoldsSomething) {
  const std::string text = make(1);
  EXPECT_EQ(create_message(),
            path_ + ": there is a journal already; --resume continues it, --output chooses another folder");
  EXPECT_EQ(read(), text);
  for (const char* other : {"notes", "{\"schema\":\"attnkit.search/1\"", "\n"}) {
    write(other);
    EXPECT_THAT(create_message(), HasSubstr("there is a journal already"));
    EXPECT_EQ(read(), other);
  }
}

TEST_F(JournalTest, AJournalOfProbesAloneCountsAsNone) {
  const std::string first = make(0);
  Journal::resume(path_, identity).add("describe|a", body_of(1));
  Journal::create(path_, identity);
  EXPECT_EQ(read(), first);
  Journal::resume(path_, identity).add("describe|a", body_of(1));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 5);
  Journal::create(path_, identity);
  EXPECT_EQ(read(), first);
  Journal::resume(path_, identity).add("describe|a", body_of(1));
  const std::string damaged = std::string(40, '\0') + "\n";
  write(read() + damaged + damaged);
  EXPECT_THAT(create_message(), HasSubstr("there is a journal already"));
  write(read().substr(0, read().size() - damaged.size()));
  Journal::create(path_, identity);
  EXPECT_EQ(read(), first);
  Journal::resume(path_, identity).add("describe|a", body_of(1));
  Journal::resume(path_, identity).add("quality|a", body_of(2));
  EXPECT_THAT(create_message(), HasSubstr("there is a journal already"));
}

TEST_F(JournalTest, AFirstLineCutAnywhereCountsAsNoJournal) {
  const std::string first = make(0);
  for (size_t length = 0; length < first.size(); ++length) {
    write(first.substr(0, length));
    ASSERT_THAT(resume_message(), HasSubstr("nothing to continue")) << length;
    if (length % 8 != 0 && length + 1 < first.size()) continue;  // every creation waits for the disk
    Journal::create(path_, identity);
    ASSERT_EQ(read(), first) << length;
  }
}

TEST_F(JournalTest, ALastLineCutAnywhereIsRemoved) {
  const std::string whole = make(3);
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t length = last; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    expect_holds(Journal::resume(path_, identity), 2);
    ASSERT_EQ(read(), whole.substr(0, last)) << length;
  }
  write(whole.substr(0, last + 20));
  Journal::resume(path_, identity).add("2", body_of(2));
  expect_holds(Journal::resume(path_, identity), 3);
}

TEST_F(JournalTest, DamageInTheMiddleIsRefusedAtTheEndRemoved) {
  const std::string whole = make(4);
  const size_t second = whole.find('\n') + 1, third = whole.find('\n', second) + 1;
  for (const char* damage : {"", "{", "[1]", "{\"at\":1}", "{\"key\":3}", "\xff"}) {
    const std::string bad = whole.substr(0, third) + damage + "\n";
    const std::string middle = bad + whole.substr(third);
    write(middle);
    EXPECT_EQ(resume_message(), path_ + ": line 3 of the journal is damaged; remove that line to run its trial again");
    EXPECT_EQ(read(), middle);
    write(bad);
    expect_holds(Journal::resume(path_, identity), 1);
    EXPECT_EQ(read(), whole.substr(0, third));
  }
}

TEST_F(JournalTest, AnotherIdentityIsNamed) {
  make(1);
  json other = identity;
  other["weights_sha256"] = "bb";
  EXPECT_EQ(resume_message(other), path_ +
                                       ": this journal belongs to another model or other settings: weights_sha256 is "
                                       "\"aa\" there, \"bb\" here; --output chooses another folder");
  other.update({{"seed", 2}, {"rank", std::string(200, 'r')}});
  other.erase("metric");
  other.erase("step");
  EXPECT_THAT(resume_message(other), HasSubstr("exact\" there, absent here; rank is absent there, \"rrr"));
  EXPECT_THAT(resume_message(other), HasSubstr("seed is 1 there, 2 here; and 2 more; --output"));
}

TEST_F(JournalTest, OtherFilesAreNoJournals) {
  EXPECT_THAT(resume_message(), HasSubstr("there is no journal to continue"));
  for (const char* text : {"hello\n", "hello", "{}\n", "[]\n", "\n"}) {
    write(text);
    EXPECT_THAT(resume_message(), HasSubstr("this is no journal of a search")) << text;
    EXPECT_EQ(read(), text);
  }
  write("{\"schema\":\"attnkit.search-journal/2\",\"identity\":{}}\n");
  EXPECT_THAT(resume_message(), HasSubstr("schema is \"attnkit.search-journal/2\", this version reads "));
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(create_message(), HasSubstr("regular file"));
  path_ = folder_ / "no/journal";
  EXPECT_THAT(create_message(), HasSubstr("/no/journal: cannot open the journal: No such file"));
}

// Lets no file of this process grow over some bytes.
class FileLimit {
 public:
  explicit FileLimit(size_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(JournalTest, AFullDiskKeepsWhatWasThere) {
  Journal journal = Journal::create(path_, identity);
  for (int i = 0; i < 2; ++i) journal.add(std::to_string(i), body_of(i));
  const std::string before = read();
  for (size_t room : {0, 1, 30}) {  // bytes: the write fails, or is short
    const FileLimit limit(before.size() + room);
    EXPECT_EQ(message_of([&] { journal.add("2", body_of(2)); }),
              path_ +
                  ": cannot write the journal: File too large; the 2 trials before are kept; make room and continue "
                  "with --resume");
    EXPECT_EQ(read(), before);
    EXPECT_EQ(journal.find("2"), nullptr);
  }
  journal.add("2", body_of(2));
  expect_holds(journal, 3);
}

TEST_F(JournalTest, AFullDiskAtTheStartLeavesNoJournal) {
  {
    const FileLimit limit(10);
    EXPECT_EQ(create_message(), path_ + ": cannot write the journal: File too large; make room and start again");
  }
  EXPECT_EQ(read(), "");
  make(1);
}

// Runs action in a child that writes bytes for this end of a pipe to read.
class Child {
 public:
  explicit Child(const std::function<void(int pipe)>& action) {
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0) ADD_FAILURE() << "no pipe";
    pid_ = fork();
    if (pid_ == 0) [&]() noexcept { action(ends[1]), _exit(0); }();
    close(ends[1]);
    reader_ = Descriptor(ends[0]);
  }
  ~Child() { end(); }
  void end() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  // Waits for a byte; false when the child has ended and all are read.
  bool hear() const { return ::read(reader_.get(), std::array<char, 1>().data(), 1) == 1; }

 private:
  pid_t pid_ = -1;
  Descriptor reader_;
};

void tell(int pipe) {
  if (::write(pipe, "x", 1) != 1) _exit(1);
}

TEST_F(JournalTest, OneWriterAtATime) {
  const std::string message = path_ + ": another search is writing this journal";
  Child other([&](int pipe) {
    const Journal journal = Journal::create(path_, identity);
    tell(pipe);
    pause();
  });
  ASSERT_TRUE(other.hear());
  EXPECT_EQ(create_message(), message);
  EXPECT_EQ(resume_message(), message);
  other.end();
  Journal journal = Journal::resume(path_, identity);
  EXPECT_EQ(resume_message(), message);
  const Journal moved = std::move(journal);
  EXPECT_EQ(resume_message(), message);
}

TEST_F(JournalTest, AKillLosesAtMostTheTrialInHand) {
  Child writer([&](int pipe) {
    Journal journal = Journal::create(path_, identity);
    for (int i = 0;; ++i, tell(pipe)) journal.add(std::to_string(i), body_of(i));
  });
  int added = 0;
  while (added < 30 && writer.hear()) ++added;
  writer.end();
  while (writer.hear()) ++added;
  EXPECT_GE(added, 30);
  const Journal journal = Journal::resume(path_, identity);
  const int found = static_cast<int>(journal.size());
  EXPECT_TRUE(found == added || found == added + 1) << found << " of " << added;
  expect_holds(journal, found);
}

}  // namespace
}  // namespace attnkit::core::search
