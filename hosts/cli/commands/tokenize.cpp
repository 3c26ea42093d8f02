// attnkit tokenize: the tokens of texts, as a model takes them, and the texts of tokens.
#include <algorithm>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options tokenize_options = {
    {"text", "TEXT", "a text; may be repeated", true},
    {"file", "FILE", "texts, one per line; - is standard input"},
    {"decode", "IDS", "the other way: the text of ids with spaces or commas between them; may be repeated", true},
    {"target", nullptr, "with the vocabulary of the decoder; default the encoder's, where there is one"},
    {"output,o", "FILE",
     "ids, or with --decode texts, a line for each, written when all are there; default standard output"},
};

namespace {

Ids ids_of(std::string text) {
  std::ranges::replace(text, ',', ' ');
  Ids ids;
  for (const std::string& part : split(text, ' ')) {
    if (part.empty()) continue;
    const auto id = parse_number<int32_t>(part);
    if (!id)
      fail(Exit::usage, "--decode: {} is no id; ids are integers with spaces or commas between them", quote(part));
    ids.push_back(*id);
  }
  return ids;
}

// The text of each id alone.
std::vector<std::string> pieces_of(const Model& model, Side side, const Ids& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(model.detokenize(side, Ids{id}));
  return pieces;
}

}  // namespace

Exit tokenize_command(const Arguments& arguments) {
  if (arguments.has("text") + arguments.has("file") + arguments.has("decode") != 1)
    fail(Exit::usage,
         "give either --text TEXT or --decode IDS, which may be repeated, or --file FILE (- is standard input)");
  check_output(arguments);
  const Model model = open_model(open_runtime(arguments), arguments);
  const Facts facts = facts_of(model);
  if (arguments.has("target") && !facts.decoder()) fail(Exit::usage, "--target: this model has no decoder");
  const Side side = arguments.has("target") || !facts.encoder() ? Side::target : Side::source;
  if (side == Side::source && facts.speech) fail(Exit::usage, "the source of this model is speech: it has no tokens");
  const bool file = arguments.has("file");
  Json document = {{"schema", "attnkit.tokens/1"}, {"results", Json::array()}};
  std::string lines;
  size_t number = 0;
  for (const std::string& text : file ? read_lines(arguments.text("file")) : arguments.texts("text")) {
    check_interrupt();
    ++number;
    Ids ids = tokens_of(model, side, text,
                        file ? place_of(arguments.text("file"), number) : fmt::format("--text {}", number));
    frame(facts, ids);
    lines += fmt::format("{}\n", fmt::join(ids, " "));
    document["results"].push_back({{"input", text},
                                   {"ids", ids},
                                   {"pieces", pieces_of(model, side, ids)},
                                   {"text", model.detokenize(side, ids)}});
  }
  for (const std::string& given : arguments.texts("decode")) {
    const Ids ids = ids_of(given);
    const std::string text = model.detokenize(side, ids);
    lines += clean_line(text) + "\n";
    document["results"].push_back(
        {{"input", given}, {"ids", ids}, {"pieces", pieces_of(model, side, ids)}, {"text", text}});
  }
  if (arguments.has("output")) {
    write_file(arguments.text("output"), lines);
    lines.clear();
  }
  if (arguments.json() || !arguments.has("output")) print_result(arguments.json(), document, lines);
  return Exit::success;
}

}  // namespace attnkit::cli
