// Translates while the source arrives, three tokens behind.   stream MODEL.toml "text"
#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\"");
  const auto [model, ids] = open(argv, true);
  const auto wait_3 = [](const attnkit_stream_view& view) {
    return view.ended || view.read >= 3 + view.written ? ATTNKIT_WRITE : ATTNKIT_READ;
  };
  const auto show = [](const attnkit_stream_event& event) {
    if (event.action == ATTNKIT_WRITE) std::cout << event.read << ' ' << event.written << '\n';
  };
  const attnkit::Ids made = attnkit::Session(model, 1).simulate(ids, {}, wait_3, show);
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
