#include "hosts/cli/stream/setup.hpp"

#include <filesystem>
#include <stdexcept>

#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {
namespace {

std::shared_ptr<const stream::Policy> policy_of(const Arguments& arguments) {
  if (!arguments.has("policy")) return nullptr;
  try {
    return stream::policy_named(arguments.text("policy"));
  } catch (const std::invalid_argument& e) {
    fail(Exit::usage, "--policy {}", e.what());
  }
}

// table: what a model's description has of [stream]; null where the manifest has none.
std::shared_ptr<const stream::Policy> policy_in(const Json& table) {
  if (table.is_null())
    throw Failure(Exit::usage, "who decides between reading and writing? neither --policy nor [stream] says",
                  "--policy wait-k:3 or --policy offline");
  if (table["policy"] == "offline") return std::make_shared<stream::Offline>();
  return std::make_shared<stream::WaitK>(table["k"].get<int64_t>(), table["pre_decision"].get<int64_t>());
}

void check_units(const Model& model, const Arguments& arguments) {
  const bool speech = model.info().sample_rate > 0;
  for (const char* option : {"unit", "word-ms"})
    if (speech && arguments.has(option))
      fail(Exit::usage, "--{} is for texts, this model takes speech: --chunk-ms says what arrives at once", option);
  if (!speech && arguments.has("chunk-ms"))
    fail(Exit::usage, "--chunk-ms is for speech, this model takes text: --unit says what arrives at once");
}

Model open_with_stream(const Runtime& runtime, const Arguments& arguments) {
  const std::string path = arguments.text("MANIFEST");
  // At the end, so that diagnostics name the lines of the file.
  const std::string text = read_file(path) + "\n[stream]\nreplay = " + (arguments.has("replay") ? "true\n" : "false\n");
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  return open_model_text(runtime, path, text, folder);
}

}  // namespace

StreamSetup read_stream_setup(const Arguments& arguments) {
  StreamSetup setup;
  setup.policy = policy_of(arguments);
  setup.unit = static_cast<stream::Unit>(arguments.choice("unit", 0, {"word", "token"}));
  setup.word_seconds = static_cast<double>(arguments.integer("word-ms", 300, 1, 3'600'000)) / 1000;
  setup.chunk_ms = arguments.integer("chunk-ms", 0, 1, 3'600'000);
  setup.limit = static_cast<uint32_t>(arguments.integer("limit", 0, 1, INT32_MAX));
  return setup;
}

Model open_stream_model(const Runtime& runtime, const Arguments& arguments, StreamSetup& setup) {
  Model model = open_model(runtime, arguments);
  if (model.info().kind != ATTNKIT_ENCODER_DECODER)
    fail(Exit::usage, "simultaneous decoding reads a source while it writes a target: an encoder-decoder is needed");
  check_units(model, arguments);
  const Json description = Json::parse(model.describe());
  const Json table = description.value("stream", Json());
  if (!setup.policy) setup.policy = policy_in(table);
  if (!table.is_null() && arguments.has("replay"))
    fail(Exit::usage, "--replay is for manifests without [stream]; this one has it: set replay = true there");
  if (!table.is_null() || setup.policy->name() == "offline") return model;
  return open_with_stream(runtime, arguments);
}

}  // namespace attnkit::cli
