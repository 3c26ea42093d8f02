// One mechanism by itself: three tokens, causal, and the gradient of the last output.
#include "common.hpp"

int main() try {
  const attnkit::Runtime runtime(1);
  const attnkit::Block block(runtime, "relu", {sizeof(attn_block), ATTN_DECODER_SELF, 1, 1, 1, 1});
  float q[] = {1, 1, 1}, k[] = {1, 3, 4}, v[] = {10, 20, 40}, o[3], dv[3], given[] = {0, 0, 1};
  const auto column = [](float* data) { return attnkit::tensor(data, {1, 1, 3, 1}); };
  const attn_tensor ports[] = {column(q), column(k), column(v), column(o)};  // in the order of block.ports()
  const attn_tensor grads[] = {{}, {}, column(dv), column(given)};
  if (block.ports().size() != std::size(ports)) return 1;
  const attn_request request{sizeof request, ATTN_TRAIN, 1, 0, 2, 32, 1, 1, 1, 3, 3, 0};
  alignas(ATTN_ALIGN) std::byte saved[4096];
  if (block.plan(request).saved_bytes > sizeof saved) return 1;
  attn_run run{};
  run.struct_size = sizeof run;
  run.batch = 1;
  run.queries = run.keys = 3;
  run.ports = ports;
  run.saved = saved;
  block.run(request, run);
  block.backward(request, {sizeof(attn_grad), 0, &run, grads});
  std::cout << o[0] << ' ' << o[1] << ' ' << o[2] << '\n';
  return dv[2] == 0.5f ? 0 : 1;  // 4 / (1 + 3 + 4)
} catch (const std::exception& e) {
  return failed(e);
}
