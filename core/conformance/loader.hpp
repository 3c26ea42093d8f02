// Loads a plugin the way a host does and makes mechanisms of it, in RAII.
#pragma once
#include <attnkit/plugin.h>

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace attnkit::core::conformance {

// A refusal that came back as a code.
struct Refused : std::runtime_error {
  Refused(int32_t code, int32_t where, const std::string& message)
      : std::runtime_error(message), code(code), where(where) {}
  int32_t code, where;
};

// Of a run or a gradient, which the plan took.
struct RefusedRun : Refused {
  using Refused::Refused;
};

// The contract was broken; the text says how.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A struct as a host of a later minor has it, with a field at its end that plugins of this one do not know.
template <class Known>
struct Later {
  explicit Later(const Known& of) : known(of) { known.struct_size = sizeof *this; }
  Known known;
  uint64_t unknown = ~uint64_t{0};
};

// The words of an error.  Throws Violation where they have no NUL.
std::string message_of(const attn_error& error);

// Throws Refused unless code is ATTN_OK.
void expect_ok(int32_t code, const attn_error& error);

// The refusal of an act; ATTN_OK and no words if there is none.
Refused refusal(const std::function<void()>& act);

// Looks at the process before and after each call into a plugin on this thread.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void before() = 0;
  virtual void after(const char* function) = 0;
  // Does a piece of the work of a run, all of which is then done on this thread.
  virtual void task(attn_task fn, uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
    fn(arg, begin, end, worker);
  }
};
void set_watch(Watch* watch);
Watch* current_watch();

// Calls into a plugin.  Throws Violation when an exception comes out.
template <class Call>
auto boundary(const char* function, Call&& call) -> decltype(call()) {
  Watch* const watch = current_watch();
  const auto guarded = [&] {
    try {
      return call();
    } catch (const std::exception& e) {
      throw Violation(std::string(function) + " threw an exception: " + e.what());
    } catch (...) {
      throw Violation(std::string(function) + " threw an exception");
    }
  };
  if (watch == nullptr) return guarded();
  watch->before();
  if constexpr (std::is_void_v<decltype(call())>) {
    guarded();
    watch->after(function);
  } else {
    const auto result = guarded();
    watch->after(function);
    return result;
  }
}

// For destroy and plan_free, whose exceptions end here: one check calls them by itself.
template <class T>
auto freeing(void (*free)(T*), const char* function) {
  return [free, function](T* p) {
    try {
      boundary(function, [&] { free(p); });
    } catch (...) {
    }
  };
}

// The table of a library; loaded once per process, never unloaded.
const attn_plugin& load(const std::string& path);

using Setting = std::variant<int64_t, double, bool, std::string>;
using Settings = std::map<std::string, Setting>;

class Copies;

// One mechanism in one block.  Throws Refused.
class Mechanism {
 public:
  // given: create gets copies of the block and the values, which are added there.
  Mechanism(const attn_plugin& plugin, const attn_block& block, const Settings& settings = {}, Copies* given = nullptr);
  const attn_plugin& plugin() const { return plugin_; }
  const attn_block& block() const { return block_; }
  attn_mech* get() const { return mech_.get(); }
  // Writes the initial content of a stored port.
  void fill(size_t port, uint64_t seed, const attn_tensor& tensor) const;
  const std::vector<const attn_port*>& ports() const { return ports_; }
  int find(const std::string& name) const;  // -1: no such port
  uint32_t output() const;

 private:
  const attn_plugin& plugin_;
  attn_block block_;
  std::shared_ptr<attn_mech> mech_;
  std::vector<const attn_port*> ports_;
};

attn_block make_block(uint32_t role, bool causal, uint32_t heads, int32_t width, int32_t value_width);

}  // namespace attnkit::core::conformance
