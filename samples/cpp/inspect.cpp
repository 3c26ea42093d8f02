// Lists versions, plugins, a model's parts and tensors, initial tensors of a block, frames of speech.
//   inspect MODEL.toml "text" SPEECH_MODEL.toml
#include "common.hpp"

void print_schema(const std::string& json) {
  const size_t schema = json.find("attnkit.");
  std::cout << json.substr(schema, json.find('"', schema) - schema) << (json.size() > 100 ? ", full\n" : ", empty\n");
}

int main(int argc, char** argv) try {
  if (argc < 4) return usage(argv, "MODEL.toml \"text\" SPEECH_MODEL.toml");
  std::cout << "version " << attnkit::version() << ", ABI 1." << attnkit::abi_minor() << '\n';
  const attnkit::Runtime runtime;
  print_schema(runtime.list());
  print_schema(runtime.describe());
  const attnkit::Model model(runtime, argv[1]);
  print_schema(model.describe({16, 256}));
  print_schema(attnkit::Session(model).describe());
  std::cout << "safetensors: " << (static_cast<char>(model.weights().at(8)) == '{') << '\n';

  const attn_block where{sizeof where, ATTN_DECODER_CROSS, 0, 4, 32, 8};
  const attnkit::Block block(runtime, "leap", where, "factor = 2");
  uint32_t learned = 0;
  while (block.ports()[learned]->kind != ATTN_LEARNED || block.ports()[learned]->ndim != 2) ++learned;
  const attn_port& port = *block.ports()[learned];
  std::vector<float> initial(port.shape[0] * port.shape[1]);
  block.fill(learned, 7, attnkit::tensor(initial.data(), {port.shape[0], port.shape[1]}));
  std::cout << port.name << " is filled: " << (initial[0] != 0) << '\n';

  const attnkit::Model speech(runtime, argv[3]);
  const std::vector<float> second(speech.info().sample_rate);
  std::cout << "a second is " << speech.features(second).size() / speech.info().features << " frames\n";
} catch (const std::exception& e) {
  return failed(e);
}
