// Loads a plugin the way a host does and makes mechanisms of it, in RAII.
#pragma once
#include <attnkit/plugin.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace attnkit::test {

// A refusal that came back as a code.
struct Refused : std::runtime_error {
  Refused(int32_t code, int32_t where, const std::string& message)
      : std::runtime_error(message), code(code), where(where) {}
  int32_t code, where;
};

// Throws Refused unless code is ATTN_OK.
void expect_ok(int32_t code, const attn_error& error);
attn_error empty_error();

// The table of a library, or of the one with its file name in the folder ATTNKIT_TEST_PLUGINS of the environment;
// loaded once per process, never unloaded.
const attn_plugin& load(const std::string& given);

using Setting = std::variant<int64_t, double, bool, std::string>;
using Settings = std::map<std::string, Setting>;

// One mechanism in one block.  Throws Refused.
class Mechanism {
 public:
  Mechanism(const attn_plugin& plugin, const attn_block& block, const Settings& settings = {});
  const attn_plugin& plugin() const { return plugin_; }
  const attn_block& block() const { return block_; }
  attn_mech* get() const { return mech_.get(); }
  const std::vector<const attn_port*>& ports() const { return ports_; }
  int find(const std::string& name) const;  // -1: no such port
  uint32_t output() const;

 private:
  const attn_plugin& plugin_;
  attn_block block_;
  std::unique_ptr<attn_mech, void (*)(attn_mech*)> mech_;
  std::vector<const attn_port*> ports_;
};

attn_block make_block(uint32_t role, bool causal, uint32_t heads, int32_t width, int32_t value_width);

}  // namespace attnkit::test
