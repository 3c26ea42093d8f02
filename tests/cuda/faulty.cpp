// The CUDA variant of relu as a plugin for a device, with the fault of FAULT, for the test of validate-plugin.
#include <attnkit/plugin.h>

#include <algorithm>
#include <atomic>

#define NONE 0
#define READS_ON_THE_HOST 1
#define OTHER_STREAM 2
#define FORGETS_A_RUN 3
#define WRITES_PAST 4

// The symbol of the variant, renamed.
extern "C" int32_t attn_cuda_main(const attn_host* host, const attn_plugin** plugin, attn_error* error);

namespace {

const attn_plugin* relu = nullptr;
std::atomic<int> runs{0};

int32_t run(const attn_plan* plan, const attn_run* of, attn_error* error) {
  attn_exec exec = *of->exec;
  attn_run faulty = *of;
  faulty.exec = &exec;
  if (FAULT == READS_ON_THE_HOST && static_cast<const volatile float*>(of->ports[0].data)[0] > 1e30f)
    return ATTN_DEVICE;
  if (FAULT == OTHER_STREAM) exec.stream = 0;
  if (FAULT == FORGETS_A_RUN && ++runs > 40) return ATTN_OK;
  attn_tensor ports[4];  // q, k, v, o
  std::copy_n(of->ports, 4, ports);
  if (FAULT == WRITES_PAST) ports[3].data = static_cast<float*>(ports[3].data) + ports[3].stride[2];
  faulty.ports = ports;
  return relu->run(plan, &faulty, error);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t attn_plugin_main_v1(const attn_host* host,
                                                                              const attn_plugin** plugin,
                                                                              attn_error* error) {
  static attn_plugin table;
  const int32_t code = attn_cuda_main(host, &relu, error);
  if (code != ATTN_OK) return code;
  table = *relu;
  table.run = run;
  *plugin = &table;
  return ATTN_OK;
}
