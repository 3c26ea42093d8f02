// One mechanism by itself: three tokens, causal.
#include <attnkit/attnkit.hpp>
#include <iostream>

int main() {
  const attnkit::Runtime runtime(1);
  const attnkit::Block block(runtime, "relu", {sizeof(attn_block), ATTN_DECODER_SELF, 1, 1, 1, 1});
  float q[] = {1, 1, 1}, k[] = {1, 3, 4}, v[] = {10, 20, 40}, o[3];
  attn_tensor ports[4];  // in the order of block.ports()
  for (float* data : {q, k, v, o})
    ports[data == q ? 0 : data == k ? 1 : data == v ? 2 : 3] = attnkit::tensor(data, {1, 1, 3, 1});
  const attn_request request{sizeof request, 0, 1, 0, 2, 32, 1, 1, 1, 3, 3, 0};
  attn_run run{};
  run.struct_size = sizeof run;
  run.batch = 1;
  run.queries = run.keys = 3;
  run.ports = ports;
  block.run(request, run);
  std::cout << o[0] << ' ' << o[1] << ' ' << o[2] << '\n';
}
