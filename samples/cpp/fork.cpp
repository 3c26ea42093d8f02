// One source read once, two continuations.   fork MODEL.toml "text"
#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\"");
  const auto [model, ids] = open(argv);
  attnkit::Session session(model, 1);
  session.read(ids);
  attnkit::Session fork = session.clone();
  for (attnkit::Session* one : {&session, &fork})
    std::cout << model.detokenize(attnkit::Side::target, one->generate()) << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
