// attnkit tokenize: the tokens of texts, as a model takes them.
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
    {"target", nullptr, "with the vocabulary of the decoder; default the encoder's, where there is one"},
    {"output,o", "FILE", "ids, a line per text, written when all are there; default standard output"},
};

Exit tokenize_command(const Arguments& arguments) {
  if (arguments.has("text") == arguments.has("file"))
    fail(Exit::usage, "give either --text TEXT, which may be repeated, or --file FILE (- is standard input)");
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
                        file ? fmt::format("{}:{}", arguments.text("file"), number) : fmt::format("--text {}", number));
    frame(facts, ids);
    lines += fmt::format("{}\n", fmt::join(ids, " "));
    document["results"].push_back({{"input", text}, {"ids", ids}, {"text", model.detokenize(side, ids)}});
  }
  if (arguments.has("output")) {
    write_file(arguments.text("output"), lines);
    lines.clear();
  }
  if (arguments.json() || !arguments.has("output")) print_result(arguments.json(), document, lines);
  return Exit::success;
}

}  // namespace attnkit::cli
