// Files that no process of this user has loaded yet are tried in a process of their own before they are loaded in this
// one: a plugin that crashes, hangs, ends the process or prints while it is loaded costs itself, not its host.
#pragma once

#include <map>
#include <set>
#include <string>

#include "core/plugin/plugin_file.hpp"

namespace attnkit::core {

// The knowledge of one search for plugins.  Belongs to one thread.
class FirstLoads {
 public:
  // Reads what is kept.
  FirstLoads();
  // Keeps what was found, beside what other processes kept meanwhile.  What cannot be written is found again.
  ~FirstLoads();
  FirstLoads(const FirstLoads&) = delete;

  // Throws Error (ATTN_INVALID), with a sentence to follow the path, for a file that did harm when it was tried.  One
  // that cannot be tried, for want of the program that does it, passes.
  void check(const PluginFile& file);

  // The program that tries files; empty: there is none, and files are loaded untried.
  const std::string& program() const { return program_; }

 private:
  struct Known {
    std::string digest, harm;  // harm: the sentence, or empty
  };
  static std::map<std::string, Known> read(const std::string& path);
  // True when the result is worth keeping.
  bool try_out(const PluginFile& file, std::string& harm) const;

  std::string program_, cache_;
  std::map<std::string, Known> known_, found_;  // by key_of
  std::set<std::string> asked_;                 // keys of this search
};

}  // namespace attnkit::core
