// Translates while the source arrives, three words behind.   stream MODEL.toml "text"
#include <iostream>

#include "common.hpp"

int main(int, char** argv) {
  const auto [model, ids] = open(argv, true);
  const auto wait_3 = [](const attnkit_stream_view& view) {
    return view.ended || view.read >= 3 + view.written ? ATTNKIT_WRITE : ATTNKIT_READ;
  };
  const auto show = [](const attnkit_stream_event& event) {
    if (event.action == ATTNKIT_WRITE) std::cout << event.read << ' ' << event.written << '\n';
  };
  const attnkit::Ids made = attnkit::Session(model, 1).simulate(ids, {}, wait_3, show);
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
}
