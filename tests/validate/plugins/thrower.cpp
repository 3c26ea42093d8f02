// The mechanism of faulty.c behind C++, whose one misdeed is an exception that leaves it, or a symbol that all
// libraries of a process share.
#include <attnkit/plugin.h>

#include <cstring>
#include <stdexcept>

extern "C" int32_t good_main(const attn_host* host, const attn_plugin** plugin, attn_error* err);

namespace {

attn_plugin table;
const attn_plugin* good = nullptr;

// As in faulty.c.
const volatile char misdeed[] = "MISDEED:GOOD\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

bool at(const char* fault) {
  char name[33] = {};
  for (int i = 0; i < 32; ++i) name[i] = misdeed[8 + i];
  return std::strcmp(name, fault) == 0;
}

void destroy(attn_mech* mech) {
  good->destroy(mech);
  throw std::runtime_error("destroyed");
}

}  // namespace

#ifdef UNIQUE
template <class T>
struct Shared {
  static int count;
};
template <class T>
__attribute__((visibility("default"))) int Shared<T>::count = 0;
template struct __attribute__((visibility("default"))) Shared<int>;
#endif

extern "C" int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  if (at("ENTRY_THROWS")) throw std::runtime_error("entered");
  const int32_t code = good_main(host, &good, err);
  table = *good;
  if (at("CREATE_THROWS"))
    table.create = [](const attn_block*, const attn_value*, attn_mech**, const attn_port* const**, uint32_t*,
                      attn_error*) -> int32_t { throw std::runtime_error("created"); };
  if (at("DESTROY_THROWS")) table.destroy = destroy;
  if (at("PLAN_THROWS"))
    table.plan = [](const attn_mech*, const attn_request*, attn_info*, attn_plan**, attn_error*) -> int32_t {
      throw 7;
    };
  if (at("RUN_THROWS"))
    table.run = [](const attn_plan*, const attn_run*, attn_error*) -> int32_t { throw std::bad_alloc(); };
  if (at("BACKWARD_THROWS"))
    table.backward = [](const attn_plan*, const attn_grad*, attn_error*) -> int32_t { throw std::bad_alloc(); };
  *plugin = &table;
  return code;
}
