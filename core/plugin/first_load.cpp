// A file is known again by its path, size, times and inode, so that a start with known files reads one short file; only
// what is not known so is digested, and a digest that is known is not tried again.
#include "core/plugin/first_load.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/base/child.hpp"
#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/first_load_cache.hpp"
#include "core/base/plugin_process.hpp"
#include "core/base/sha256.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr double longest_trial = 10;  // seconds
constexpr uint64_t max_cache = uint64_t{4} << 20;
constexpr size_t max_files = 1000;

std::string key_of(const PluginFile& f) {
  return fmt::format("{}:{}:{}:{}:{}", f.device, f.inode, f.bytes, f.modified, f.path);
}

}  // namespace

// Each line: key, digest, harm, separated by tabs.  Lines of another form count as absent.
std::map<std::string, FirstLoads::Known> FirstLoads::read(const std::string& path) {
  std::map<std::string, Known> known;
  if (path.empty() || ::access(path.c_str(), R_OK) != 0) return known;
  try {
    const std::vector<std::byte> bytes = read_file(path, max_cache);
    for (const std::string& line : split_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()})) {
      std::vector<std::string> parts = split(line, '\t');
      if (parts.size() == 3) known[parts[0]] = {parts[1], parts[2]};
    }
  } catch (const Error&) {
  }
  return known;
}

FirstLoads::FirstLoads() {
  // A program with more rights than its user must not start another one in that user's environment.
  if (getauxval(AT_SECURE) != 0) return;
  program_ = plugin_process();
  cache_ = first_load_cache();
  if (!program_.empty()) known_ = read(cache_);
}

FirstLoads::~FirstLoads() {
  if (found_.empty() || cache_.empty()) return;
  try {
    std::map<std::string, Known> all = read(cache_);
    for (const auto& [key, known] : found_) all[key] = known;
    std::string text;
    size_t left = all.size();
    for (const auto& [key, known] : all)
      // Of too many, those of this search stay.
      if (left-- <= max_files || asked_.count(key)) text += fmt::format("{}\t{}\t{}\n", key, known.digest, known.harm);
    const std::filesystem::path path(cache_);
    std::filesystem::create_directories(path.parent_path());
    std::string temporary = cache_ + ".XXXXXX";
    Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
    if (file.get() < 0) return;
    const bool written = write_all(file.get(), text) == 0 && file.close() == 0;
    if (!written || ::rename(temporary.c_str(), cache_.c_str()) != 0) ::unlink(temporary.c_str());
  } catch (const std::exception&) {
  }
}

void FirstLoads::check(const PluginFile& file) {
  if (program_.empty()) return;
  const std::string key = key_of(file);
  asked_.insert(key);
  auto known = known_.find(key);
  if (known == known_.end()) {
    const std::string digest = sha256_hex(MappedFile::open(file.path)->bytes());
    const auto same =
        std::find_if(known_.begin(), known_.end(), [&](const auto& k) { return k.second.digest == digest; });
    Known now{digest, {}};
    bool lasts = true;
    if (same != known_.end())
      now.harm = same->second.harm;
    else
      lasts = try_out(file, now.harm);
    known = known_.insert({key, now}).first;
    if (lasts && key.find_first_of("\t\n\r") == key.npos) found_[key] = now;
  }
  if (!known->second.harm.empty()) fail(ATTN_INVALID, "{}", known->second.harm);
}

bool FirstLoads::try_out(const PluginFile& file, std::string& harm) const {
  ChildResult ran;
  try {
    ran = run_child({program_, "probe", file.path}, longest_trial, uint64_t{4} << 30);
  } catch (const Error&) {
    return false;  // no process is to be had
  }
  const std::vector<std::string> steps = split_lines(ran.reply);
  if (steps.empty()) return false;  // that program did not even begin
  const bool quiet = (ran.ending == ChildResult::ended || ran.ending == ChildResult::unknown) && ran.status == 0;
  const bool ended = steps.back() == "was unloaded" && quiet, told = !steps.back().starts_with("was ") && quiet;
  if (ended && ran.output.empty()) return true;
  const std::string what = ended  ? fmt::format("printed {}", quote(ran.output))
                           : told ? clean_line(steps.back())
                                  : fmt::format("{} when it {}", ran.text(), clean_line(steps.back()));
  harm =
      fmt::format("is not loaded: tried in a process of its own, it {}; attnkit doctor --rescan tries it again", what);
  // The kernel may have killed it for others' memory.
  return ran.ending != ChildResult::killed || ran.status != SIGKILL;
}

}  // namespace attnkit::core
