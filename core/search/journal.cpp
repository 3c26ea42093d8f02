#include "core/search/journal.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;

constexpr std::string_view schema = "attnkit.search-journal/1";
constexpr size_t listed_differences = 3;
constexpr size_t longest_value = 80;

// The schema comes first, so that a line cut anywhere is known by its beginning.
std::string beginning() { return fmt::format(R"({{"schema":"{}",)", schema); }

bool is_cut_first_line(std::string_view text) {
  const std::string known = beginning();
  const size_t n = std::min(text.size(), known.size());
  return text.find('\n') == text.npos && text.substr(0, n) == std::string_view(known).substr(0, n);
}

Descriptor open_locked(const std::string& path, int flags) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | flags, 0644));
  if (file.get() < 0) fail(Fault::data, "{}: cannot open the journal: {}", path, std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    fail(Fault::data, "{}: a journal must be a regular file", path);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno == EWOULDBLOCK) fail(Fault::data, "{}: another search is writing this journal", path);
  fail(Fault::data, "{}: cannot lock the journal: {}", path, std::strerror(errno));
}

std::string read_all(const std::string& path, int file) {
  std::string text;
  for (char piece[1 << 16];;) {
    const ssize_t n = ::pread(file, piece, sizeof piece, static_cast<off_t>(text.size()));
    if (n == 0) return text;
    if (n > 0) text.append(piece, static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) fail(Fault::data, "{}: cannot read the journal: {}", path, std::strerror(errno));
  }
}

void sync_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system that has no such thing as syncing a folder.
  if (file.get() < 0 || (::fsync(file.get()) != 0 && errno != EINVAL))
    fail(Fault::data, "{}: cannot sync the journal's folder: {}", path, std::strerror(errno));
}

std::string shortened(const json* value) {
  if (!value) return "absent";
  const std::string text = one_line(*value);
  return text.size() <= longest_value ? text : text.substr(0, longest_value) + "...";
}

// "weights_sha256 is A there, B here" for every member that differs.
std::vector<std::string> differences(const json& there, const json& here) {
  std::set<std::string> keys;
  for (const json* side : {&there, &here})
    for (const auto& [key, value] : side->items()) keys.insert(key);
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    const json *a = there.contains(key) ? &there[key] : nullptr, *b = here.contains(key) ? &here[key] : nullptr;
    if (a && b && *a == *b) continue;
    found.push_back(fmt::format("{} is {} there, {} here", key, shortened(a), shortened(b)));
  }
  return found;
}

void check_first_line(const std::string& path, const std::string& line, const json& identity) {
  const json first = json::parse(line, nullptr, false);
  if (!first.is_object() || !first.contains("schema") || !first.value("identity", json()).is_object())
    fail(Fault::data, "{}: this is no journal of a search; --output chooses another folder", path);
  if (!is_text(first["schema"], schema))
    fail(Fault::data, "{}: the journal's schema is {}, this version reads {}; --output chooses another folder", path,
         shortened(&first["schema"]), schema);
  std::vector<std::string> found = differences(first["identity"], json::parse(one_line(identity)));
  if (found.empty()) return;
  if (const size_t n = found.size(); n > listed_differences) {
    found.resize(listed_differences);
    found.push_back(fmt::format("and {} more", n - listed_differences));
  }
  fail(Fault::data, "{}: this journal belongs to another model or other settings: {}; --output chooses another folder",
       path, fmt::join(found, "; "));
}

// The trial's line as an object, or no value when it is damaged.
std::optional<json> trial_of(const std::string& line) {
  json trial = json::parse(line, nullptr, false);
  if (!trial.is_object() || !trial.contains("key") || !trial["key"].is_string()) return std::nullopt;
  return trial;
}

// A search that ended before it measured anything leaves a first line and probes, the last perhaps damaged; whatever it
// was for, nothing is lost with them.
bool holds_no_trial(const std::string& text) {
  if (is_cut_first_line(text)) return true;
  if (!text.starts_with(beginning())) return false;
  std::istringstream lines(text.substr(text.find('\n') + 1));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // the end: cut off, as one that resumes has it
    const auto trial = trial_of(line);
    if (!trial) return lines.peek() == EOF;
    if (!(*trial)["key"].get<std::string>().starts_with(Journal::probe)) return false;
  }
  return true;
}

}  // namespace

Journal Journal::create(const std::string& path, const json& identity) {
  Journal journal(path, open_locked(path, O_CREAT));
  if (!holds_no_trial(read_all(path, journal.file_.get())))
    fail(Fault::data, "{}: there is a journal already; --resume continues it, --output chooses another folder", path);
  journal.is_torn_ = true;
  journal.append(beginning() + "\"identity\":" + one_line(identity) + "}\n");
  if (::fsync(journal.file_.get()) != 0)
    fail(Fault::data, "{}: cannot sync the journal: {}", path, std::strerror(errno));
  sync_folder(path);
  return journal;
}

Journal Journal::resume(const std::string& path, const json& identity) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    fail(Fault::data, "{}: there is no journal to continue; leave --resume out", path);
  Journal journal(path, open_locked(path, 0));
  const std::string text = read_all(path, journal.file_.get());
  if (is_cut_first_line(text))
    fail(Fault::data, "{}: the journal is empty, there is nothing to continue; leave --resume out", path);
  journal.load(text, identity);
  return journal;
}

void Journal::load(const std::string& text, const json& identity) {
  size_t begin = 0;
  for (size_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end == text.npos ? end : end - begin);
    if (number == 1) {
      check_first_line(path_, line, identity);
      if (end == text.npos) fail(Fault::data, "{}: this is no journal of a search", path_);
    } else {
      std::optional<json> trial = trial_of(line);
      const bool is_last = end == text.npos || end + 1 == text.size();
      // A power cut can leave an end of line behind bytes that never came; trials can be run again, so the last goes.
      if (is_last && (end == text.npos || !trial)) break;
      if (!trial)
        fail(Fault::data, "{}: line {} of the journal is damaged; remove that line to run its trial again", path_,
             number);
      const std::string key = (*trial)["key"];
      trial->erase("key");
      trial->erase("at");
      trials_[key] = std::move(*trial);
    }
    begin = end + 1;
  }
  end_ = static_cast<off_t>(begin);
  if (begin == text.size()) return;
  if (::ftruncate(file_.get(), end_) != 0)
    fail(Fault::data, "{}: cannot remove the cut last line: {}", path_, std::strerror(errno));
}

const json* Journal::find(const std::string& key) const {
  const auto found = trials_.find(key);
  return found == trials_.end() ? nullptr : &found->second;
}

void Journal::add(const std::string& key, const json& body) {
  if (!body.is_object() || body.contains("key") || body.contains("at"))
    fail(Fault::internal, "{}: a trial's body must be an object without \"key\" and \"at\": {}", path_,
         shortened(&body));
  json line = body;
  line["key"] = key;
  line["at"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  // Nothing behind the write may fail.
  std::map<std::string, json> trial = {{key, body}};
  append(one_line(line) + "\n");
  trials_.erase(key);
  trials_.merge(trial);
}

void Journal::append(const std::string& line) {
  const auto restore = [&] { return ::ftruncate(file_.get(), end_) == 0; };
  int error = is_torn_ && !restore() ? errno : 0;
  if (error == 0) error = write_all(file_.get(), line);
  if (error == 0 && ::fdatasync(file_.get()) != 0) error = errno;
  if (error == 0) {
    is_torn_ = false;
    end_ += static_cast<off_t>(line.size());
    return;
  }
  is_torn_ = !restore();
  const std::string reason = std::strerror(error);
  if (end_ == 0) fail(Fault::data, "{}: cannot write the journal: {}; make room and start again", path_, reason);
  fail(Fault::data,
       "{}: cannot write the journal: {}; the {} trials before are kept; make room and continue with --resume", path_,
       reason, size());
}

}  // namespace attnkit::core::search
