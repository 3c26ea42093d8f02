// Shows errors.   errors MODEL.toml "text" [FOLDER]
// FOLDER: where fails.so of samples/failing_plugin is, for an error of every class; absolute.
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
    case ATTN_NO_MEMORY:
      std::cout << "no memory: ";
      break;
    case ATTN_DEVICE:
      std::cout << "device: ";
      break;
    case ATTN_INTERNAL:
      std::cout << "internal: ";
  }
  std::cout << e.what() << '\n';
}

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\" [FOLDER]");
  const Opened opened = open(argv);
  const attnkit::Runtime runtime;
  show([&] { attnkit::Model(runtime, "[model]\nkind = 3\n[what]\n", "."); });
  show([&] { opened.model.tokenize(attnkit::Side::source, "zebra"); });
  const attn_block where{sizeof(attn_block), ATTN_ENCODER_SELF, 0, 1, 8, 8};
  const attnkit::Block block(runtime, "softmax", where);
  show([&] { block.plan({sizeof(attn_request), ATTN_STREAM, 1, 0, 2, 32, 1, 64, 1, 1, 1, 0}); });
  if (argc < 4) return 0;
  const attnkit::Runtime failing(0, argv[3]);
  for (int code = ATTN_INVALID; code <= ATTN_INTERNAL; ++code)
    show([&] { attnkit::Block(failing, "fails", where, "code = " + std::to_string(code)); });
} catch (const std::exception& e) {
  return failed(e);
}
