// Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE
#include <iostream>

#include "common.hpp"

int main(int, char** argv) {
  const auto [model, ids] = open(argv);
  attnkit::Session session(model, 1);
  session.read(ids);
  attnkit::Ids made = session.generate(1);
  const std::vector<std::byte> bytes = session.save();
  std::ofstream(argv[3], std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));

  const std::string saved = contents(argv[3]);
  const attnkit::Ids rest = attnkit::Session::load(model, std::as_bytes(std::span(saved))).generate();
  made.insert(made.end(), rest.begin(), rest.end());
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
}
