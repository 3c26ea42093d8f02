// An inventory: versions, a model's tensors, attention weights, a gradient.   inspect MODEL.toml "text"
#include <iostream>

#include "common.hpp"

int main(int, char** argv) {
  std::cout << "version " << attnkit::version() << ", ABI 1." << attnkit::abi_minor() << '\n';
  const auto [model, ids] = open(argv);
  std::cout << "safetensors: " << (static_cast<char>(model.weights().at(8)) == '{') << '\n';

  const attnkit::Ids begin{model.info().begin_id};
  std::vector<float> weights(4 * ids.size());  // (4 heads, 1 query, keys)
  model.attention(ATTN_DECODER_CROSS, 1, ids, begin, attnkit::tensor(weights.data(), {4, 1, int64_t(ids.size())}));
  float sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) sum += weights[i];
  std::cout << "weights sum to one: " << (sum > 0.999f && sum < 1.001f) << '\n';

  attnkit::Session rows(model, 2);
  const std::vector<uint32_t> swapped{1, 0};
  rows.read(ids);
  rows.reorder(swapped);

  const attnkit::Runtime runtime(1);
  const attnkit::Block block(runtime, "relu", {sizeof(attn_block), ATTN_DECODER_SELF, 1, 1, 1, 1});
  float q[] = {1, 1, 1}, k[] = {1, 3, 4}, v[] = {10, 20, 40}, o[3], given[] = {0, 0, 1}, dv[3];
  const auto column = [](float* data) { return attnkit::tensor(data, {1, 1, 3, 1}); };
  const attn_tensor ports[] = {column(q), column(k), column(v), column(o)},
                    grads[] = {{}, {}, column(dv), column(given)};
  const attn_request request{sizeof request, ATTN_TRAIN, 1, 0, 2, 32, 1, 1, 1, 3, 3, 0};
  alignas(ATTN_ALIGN) std::byte saved[4096];
  attn_run run{};
  run.struct_size = sizeof run;
  run.batch = 1;
  run.queries = run.keys = 3;
  run.ports = ports;
  run.saved = saved;
  if (block.plan(request).saved_bytes > sizeof saved) return 1;
  block.run(request, run);
  block.backward(request, {sizeof(attn_grad), 0, &run, grads});
  std::cout << "gradient " << dv[0] << ' ' << dv[1] << ' ' << dv[2] << '\n';
}
