// Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE]]
#include <attnkit/attnkit.hpp>
#include <iostream>

int main(int argc, char** argv) try {
  const attnkit::Model model(attnkit::Runtime(), argv[1]);
  attnkit::Ids prompt = model.tokenize(attnkit::Side::target, argv[2]), made;
  if (const int32_t begin = model.info().begin_id; begin >= 0) prompt.insert(prompt.begin(), begin);
  size_t shown = 0;
  const auto show = [&](bool all) {
    const std::string text = model.detokenize(attnkit::Side::target, made);
    // A character may take several tokens; until the last of them it is U+FFFD.
    if (!all && text.ends_with("\xEF\xBF\xBD")) return;
    std::cout << text.substr(shown) << std::flush;
    shown = text.size();
  };
  attnkit_sample_options options{};
  options.limit = argc > 3 ? std::stoi(argv[3]) : 64;
  options.temperature = argc > 4 ? std::stod(argv[4]) : 0.8;
  options.top_p = 0.95;
  options.seed = 1;
  attnkit::Session(model, 1).sample(prompt, options, [&](int32_t id) {
    made.push_back(id);
    show(false);
    return false;
  });
  show(true);
  std::cout << '\n';
} catch (const attnkit::Error& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
