// Ends a call after two tokens; the flag may be set by another thread.   cancel MODEL.toml "text"
#include <atomic>
#include <iostream>

#include "common.hpp"

int main(int, char** argv) {
  const auto [model, ids] = open(argv);
  std::atomic<bool> cancelled = false;
  const auto decide = [&](const attnkit_stream_view& view) {
    return cancelled ? ATTNKIT_STOP : view.ended ? ATTNKIT_WRITE : ATTNKIT_READ;
  };
  const auto observe = [&](const attnkit_stream_event& event) { cancelled = event.written == 2; };
  const attnkit::Ids made = attnkit::Session(model, 1).simulate(ids, {}, decide, observe);
  std::cout << model.detokenize(attnkit::Side::target, made) << '\n';
}
