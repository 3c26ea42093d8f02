// Writes what a model computes into a file of golden activations, and holds the model to it.
//   verify MODEL.toml "text" GOLDEN.safetensors
#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 4) return usage(argv, "MODEL.toml \"text\" GOLDEN.safetensors");
  const auto [model, ids] = open(argv);
  const attnkit::Ids begin{model.info().begin_id}, lengths{static_cast<int32_t>(ids.size())}, one{1};
  std::vector<float> logits(model.info().outputs);
  model.forward(attnkit::Batch({&ids, 1}), attnkit::Batch({&begin, 1}),
                attnkit::tensor(logits.data(), {1, 1, std::ssize(logits)}));

  // safetensors: the bytes of the header, the header, the data of all tensors.
  std::string header, data;
  const auto add = [&](const std::string& name, const auto& values, const std::string& type, const std::string& shape) {
    const size_t at = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
    header += (at ? ",\"" : "{\"") + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(data.size()) + "]}";
  };
  add("source", ids, "I32", "1," + std::to_string(ids.size()));
  add("source_len", lengths, "I32", "1");
  add("target_len", one, "I32", "1");
  add("target", begin, "I32", "1,1");
  add("logits", logits, "F32", "1,1," + std::to_string(logits.size()));
  const uint64_t bytes = header.size() + 1;
  const std::string file = std::string(reinterpret_cast<const char*>(&bytes), 8) + header + '}' + data;
  write(argv[3], std::as_bytes(std::span(file)));

  std::cout << model.verify(argv[3]) << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
