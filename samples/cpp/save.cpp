// Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE
#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 4) return usage(argv, "MODEL.toml \"text\" FILE");
  const auto [model, ids] = open(argv);
  attnkit::Session session(model, 1);
  session.read(ids);
  attnkit::Ids made = session.generate(1);
  write(argv[3], session.save());

  const std::string saved = contents(argv[3]);
  const attnkit::Ids rest = attnkit::Session::load(model, std::as_bytes(std::span(saved))).generate();
  made.insert(made.end(), rest.begin(), rest.end());
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
