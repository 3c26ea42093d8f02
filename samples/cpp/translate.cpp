#include <attnkit/attnkit.hpp>
#include <iostream>

int main(int argc, char** argv) try {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, argc > 1 ? argv[1] : "samples/models/numbers-en-de/model.toml");
  std::cout << model.translate(argc > 2 ? argv[2] : "two hundred and forty-one euros") << '\n';
} catch (const attnkit::Error& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
