// Refusals of every kind.   errors MODEL.toml "text"
#include <iostream>

#include "common.hpp"

template <class F>
void show(F f) try {
  f();
} catch (const attnkit::Error& e) {
  switch (e.code()) {
    case ATTN_INVALID:
      std::cout << "invalid, " << e.diagnostics().size() << " diagnostics: ";
      break;
    case ATTN_UNSUPPORTED:
      std::cout << "unsupported: ";
      break;
    default:
      std::cout << "not the caller's fault: ";  // NO_MEMORY, DEVICE, INTERNAL
  }
  std::cout << e.what() << '\n';
}

int main(int, char** argv) {
  const Opened opened = open(argv);
  const attnkit::Runtime runtime;
  show([&] { attnkit::Model(runtime, "[model]\nkind = 3\n[what]\n", "."); });
  show([&] { opened.model.tokenize(attnkit::Side::source, "zebra"); });
  const attnkit::Block block(runtime, "softmax", {sizeof(attn_block), ATTN_ENCODER_SELF, 0, 1, 8, 8});
  show([&] { block.plan({sizeof(attn_request), ATTN_STREAM, 1, 0, 2, 32, 1, 64, 1, 1, 1, 0}); });
}
