// Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]
#include <algorithm>
#include <charconv>

#include "common.hpp"

// The number from 0 that is all of a text.
template <class T>
T number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw std::runtime_error(text + ": give a number from 0 that is not too large");
  return value;
}

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\" [TOKENS [TEMPERATURE [STOP]]]");
  const attnkit::Model model(attnkit::Runtime(), argv[1]);
  attnkit::Ids prompt = model.tokenize(attnkit::Side::target, argv[2]), made;
  if (const int32_t begin = model.info().begin_id; begin >= 0) prompt.insert(prompt.begin(), begin);
  const std::string stop = argc > 5 ? argv[5] : "";
  size_t shown = 0;
  const auto show = [&](bool all) {
    const std::string text = model.detokenize(attnkit::Side::target, made);
    // A character may take several tokens; until the last of them it is U+FFFD.  So may the stop, which is not shown.
    if (!all && text.ends_with("\xEF\xBF\xBD")) return;
    size_t end = stop.empty() ? std::string::npos : text.find(stop);
    if (end == std::string::npos)
      end = text.size() - (all || stop.empty() ? 0 : std::min(text.size(), stop.size() - 1));
    if (end <= shown) return;
    std::cout << text.substr(shown, end - shown) << std::flush;
    shown = end;
  };
  attnkit_sample_options options{};
  options.limit = argc > 3 ? number<int32_t>(argv[3]) : 64;
  options.temperature = argc > 4 ? number<double>(argv[4]) : 0.8;
  options.top_p = 0.95;
  options.seed = 1;
  const char* const stops[] = {stop.c_str()};
  options.stops = stops;
  options.n_stops = !stop.empty();
  attnkit::Session(model, 1).sample(prompt, options, [&](int32_t id) {
    made.push_back(id);
    show(false);
    return false;
  });
  show(true);
  std::cout << '\n';
} catch (const std::exception& e) {
  return failed(e);
}
