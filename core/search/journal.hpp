// The finished trials of a search, in a file that survives kills, full disks and power cuts: a JSON line for each.
#pragma once

#include <sys/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/search/worker/channel.hpp"

namespace attnkit::core::search {

// The first line names the schema and the identity of what is searched; each line after it is a trial:
// {"key":KEY,"at":"2026-11-21T02:21:00Z", ...members of its body}.  The file is locked for as long as the journal
// lives. Belongs to one thread.  All functions throw Failure (data) whose message names the file.
class Journal {
 public:
  // Begins the keys of trials that ask and measure nothing.
  static constexpr std::string_view probe = "describe|";

  // A new journal; a file with no trials but probes counts as none.  The folder is there already.
  // When it returns, file and folder have reached the disk.
  static Journal create(const std::string& path, const nlohmann::json& identity);

  // Goes on with a journal of the same identity.  A last line that was cut or damaged is removed; of trials with the
  // same key the later counts.
  static Journal resume(const std::string& path, const nlohmann::json& identity);

  // The body as it was added; null when there is none.  Valid until the next add.
  const nlohmann::json* find(const std::string& key) const;

  // When it returns, the trial has reached the disk; when it throws, the journal is as before.  The body is an object
  // without "key" and "at"; otherwise Failure (internal).
  void add(const std::string& key, const nlohmann::json& body);

  size_t size() const { return trials_.size(); }
  const std::map<std::string, nlohmann::json>& trials() const { return trials_; }  // bodies by key

 private:
  Journal(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  void append(const std::string& line);
  void load(const std::string& text, const nlohmann::json& identity);

  std::string path_;
  Descriptor file_;
  off_t end_ = 0;         // of the last whole line
  bool is_torn_ = false;  // there are bytes behind end_
  std::map<std::string, nlohmann::json> trials_;
};

}  // namespace attnkit::core::search
