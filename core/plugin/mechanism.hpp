// A plugin's mechanism and its plans as C++ values: owned, checked, failing by exception.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit::core {

class Mechanism;

// A block as this build's plugin.h has it, whatever the caller's: kv_heads and key_width are what 0 stands for.  Throws
// Error (ATTN_INVALID): impossible sizes, a struct_size below that of minor 0.
attn_block whole_block(const attn_block& given);

// A value of an option.
struct OptionValue {
  uint32_t type = 0;  // ATTN_INT, ...
  int64_t i = 0;
  double f = 0;
  std::string s;
  bool operator==(const OptionValue&) const = default;
};

// Returns the plugin's own values, in the order of its schema.
std::vector<OptionValue> default_options(const Plugin& plugin);
// Returns the ABI form, which borrows the strings of options.
std::vector<attn_value> to_values(const std::vector<OptionValue>& options);

// A mechanism ready for runs within a request.  Keeps its mechanism alive.  Immutable: any thread.
class Plan {
 public:
  const attn_info& info() const { return info_; }
  const attn_request& request() const { return request_; }
  // Memory for `bytes` of scratch.  Throws Error (ATTN_NO_MEMORY) naming the mechanism.
  char* scratch(Buffer& memory, uint64_t bytes) const;
  void run(const attn_run& run) const;         // throws Error, the message opened by the mechanism's name
  void backward(const attn_grad& grad) const;  // throws Error

 private:
  friend class Mechanism;
  std::shared_ptr<const Mechanism> mechanism_;
  std::shared_ptr<attn_plan> plan_;
  attn_request request_{};
  attn_info info_{};
};

class Mechanism : public std::enable_shared_from_this<Mechanism> {
 public:
  // Creates it and checks its ports (kinds, shapes, names, one OUTPUT).  Throws Error.  A plugin of minor 0 is given
  // heads times the width of keys as d_model, the one from which it makes its D.
  static std::shared_ptr<const Mechanism> create(const Plugin& plugin, const attn_block& block,
                                                 const std::vector<OptionValue>& options);

  const Plugin& plugin() const { return *plugin_; }
  const attn_block& block() const { return block_; }  // as the plugin has it, kv_heads and key_width never 0
  const std::vector<const attn_port*>& ports() const { return ports_; }
  const attn_port* const* raw_ports() const { return raw_ports_; }
  int port(const char* name) const;  // index or -1
  // The heads that it takes of the block's keys and values: kv_heads where it shares them, else those of queries.
  int64_t key_heads() const;

  Plan plan(const attn_request& request) const;
  attn_info ask(const attn_request& request) const;  // the answer without a plan
  void fill(uint32_t port, uint64_t seed, const attn_tensor& tensor) const;

 private:
  Mechanism() = default;
  void check_ports() const;
  void check(const attn_request& request) const;
  const Plugin* plugin_ = nullptr;
  attn_block block_{};
  std::shared_ptr<attn_mech> mech_;
  const attn_port* const* raw_ports_ = nullptr;
  std::vector<const attn_port*> ports_;
};

// A LEARNED or TABLE tensor of that port at data, on the CPU.
attn_tensor contiguous(const attn_port& port, const void* data);

// A request for f32 on the CPU.
attn_request cpu_request(uint32_t flags, uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t past);

}  // namespace attnkit::core
