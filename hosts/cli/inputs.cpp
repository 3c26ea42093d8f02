#include "inputs.hpp"

#include "core/search/data_set.hpp"
#include "files.hpp"
#include "output.hpp"
#include "text.hpp"

namespace attnkit::cli {
namespace {

std::string place_of(const std::string& file, size_t line) {
  return fmt::format("{}:{}", file == "-" ? "standard input" : file, line);
}

std::vector<std::string> references_of(const Arguments& arguments) {
  if (arguments.has("target") && arguments.has("target-file"))
    fail(Exit::usage, "--target and --target-file exclude each other");
  return arguments.has("target-file") ? read_lines(arguments.text("target-file")) : arguments.texts("target");
}

void check_length(const Input& input, size_t tokens, size_t most, const char* what) {
  if (tokens > most)
    fail(Exit::data, "{}: the {} has {} tokens, <s> or </s> included; the model's max_length is {}: split it",
         input.origin, what, tokens, most);
}

}  // namespace

Facts facts_of(const Model& model) {
  const search::Facts facts = search::facts_of(model);
  Facts all{facts.info, facts.encoder(), facts.decoder(), facts.task == search::Task::classification};
  if (!all.decoder) return all;
  all.asks_for_length = search::asks_for_length(model);
  const Json length = Json::parse(model.describe())["length"];
  all.needs_length = !length.is_null() && !length["needed_by"].empty();
  return all;
}

std::vector<Input> read_inputs(const Arguments& arguments) {
  if (arguments.has("text") == arguments.has("file"))
    fail(Exit::usage, "give either --text TEXT, which may be repeated, or --file FILE (- is standard input)");
  if (arguments.text("file") == "-" && arguments.text("target-file") == "-")
    fail(Exit::usage, "--file and --target-file cannot both be standard input");
  std::vector<Input> inputs;
  const bool from_file = arguments.has("file");
  for (std::string& line : from_file ? read_lines(arguments.text("file")) : arguments.texts("text")) {
    const size_t n = inputs.size() + 1;
    inputs.push_back(
        {std::move(line), from_file ? place_of(arguments.text("file"), n) : fmt::format("--text {}", n), {}, {}, {}});
  }
  if (!arguments.has("target") && !arguments.has("target-file")) return inputs;
  const std::vector<std::string> references = references_of(arguments);
  if (references.size() != inputs.size())
    fail(arguments.has("target-file") || from_file ? Exit::data : Exit::usage,
         "{} references for {} inputs: give one for each", references.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i].reference = references[i];
  return inputs;
}

Ids tokens_of(const Model& model, Side side, const std::string& text, const std::string& origin) {
  try {
    return model.tokenize(side, text);
  } catch (const Error& e) {
    fail(e.code() == ATTN_INVALID ? Exit::data : Exit::internal, "{}: {}", origin, e.what());
  }
}

void tokenize(const Model& model, const Facts& facts, std::vector<Input>& inputs) {
  for (Input& input : inputs) {
    input.ids = tokens_of(model, facts.encoder ? Side::source : Side::target, input.text, input.origin);
    input.ids.insert(facts.encoder ? input.ids.end() : input.ids.begin(),
                     facts.encoder ? facts.info.end_id : facts.info.begin_id);
    check_length(input, input.ids.size(), facts.max_length(), "input");
    if (!input.reference) continue;
    if (!facts.decoder) fail(Exit::usage, "references score models with a decoder; this one has none");
    input.target = tokens_of(model, Side::target, *input.reference, input.origin + ", reference");
    check_length(input, input.target.size() + (facts.encoder ? 1 : input.ids.size()), facts.max_length(), "reference");
  }
}

}  // namespace attnkit::cli
