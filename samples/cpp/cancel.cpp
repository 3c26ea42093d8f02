// Ends a call after two tokens; the flag may be set by another thread.   cancel MODEL.toml "text"
#include <atomic>

#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\"");
  const auto [model, ids] = open(argv);
  std::atomic<bool> cancelled = false;
  const auto decide = [&](const attnkit_stream_view& view) {
    return cancelled ? ATTNKIT_STOP : view.ended ? ATTNKIT_WRITE : ATTNKIT_READ;
  };
  const auto observe = [&](const attnkit_stream_event& event) {
    if (event.written == 2) cancelled = true;
  };
  const attnkit::Ids made = attnkit::Session(model, 1).simulate(ids, {}, decide, observe);
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
