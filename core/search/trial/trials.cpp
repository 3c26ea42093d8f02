#include "core/search/trial/trials.hpp"

#include <new>

#include "core/search/failure.hpp"
#include "core/search/trial/greedy_trial.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;

const char* kind_of(const Failure& e) {
  return e.fault() == Fault::data ? "data" : e.fault() == Fault::manifest ? "refused" : "internal";
}

const char* kind_of(const Error& e) {
  if (e.code() == ATTN_NO_MEMORY) return "memory";
  const bool is_refused = e.code() == ATTN_UNSUPPORTED || !e.diagnostics().empty();
  // An internal error while a checked model runs comes from a mechanism or the weights.
  return is_refused ? "refused" : e.code() == ATTN_INTERNAL ? "numerical" : "internal";
}

Json error_of(const char* kind, const char* message) { return {{"kind", kind}, {"message", message}}; }

const char* kind_name(const TaskFacts& facts) {
  return facts.task == Task::translation ? "encoder-decoder" : facts.task == Task::continuation ? "decoder" : "encoder";
}

DataSet read_data(const std::string& path, const Model& model, const TaskFacts& facts, const ReadAudio& read_audio) {
  return path.empty() ? DataSet() : DataSet(path, model, facts, read_audio);
}

bool is_test(const Json& request) {
  const std::string split = request.value("split", "data");
  if (split != "data" && split != "test") fail(Fault::usage, "split \"{}\": possible are data and test", split);
  return split == "test";
}

}  // namespace

Json reply_to(const Json& request, const std::function<Json()>& work) {
  Json reply = {{"id", Json()}, {"ok", false}};
  if (request.is_object() && request.contains("id")) reply["id"] = request["id"];
  try {
    reply["result"] = work();
    reply["ok"] = true;
  } catch (const std::bad_alloc&) {
    reply["error"] = error_of("memory", "out of memory");
  } catch (const Error& e) {
    reply["error"] = error_of(kind_of(e), e.what());
  } catch (const Failure& e) {
    reply["error"] = error_of(kind_of(e), e.what());
  } catch (const std::exception& e) {
    reply["error"] = error_of("internal", e.what());
  }
  return reply;
}

Trials::Trials(const Json& open, const ReadAudio& read_audio)
    : dir_(open.at("dir")),
      runtime_(open.value("threads", 1u), open.value("plugin_path", "")),
      own_toml_(open.at("toml")),
      facts_(facts_of(model_of(own_toml_))),
      data_(open.at("data").get<std::string>(), *model_, facts_, read_audio),
      test_(read_data(open.value("test", ""), *model_, facts_, read_audio)),
      bounds_(length_bounds(data_)),
      quality_(data_, facts_, bounds_),
      test_quality_(test_, facts_, bounds_),
      cost_(runtime_, dir_, data_, facts_) {}

Json Trials::opened() const {
  return {{"lists", {{"data", data_.size()}, {"test", test_.size()}}},
          {"repeated", data_.repeated()},
          {"kind", kind_name(facts_)},
          {"gpu", facts_.gpu},
          {"buckets", bounds_}};
}

// Trials of one placement follow each other, so the latest model is the one asked for next.
const Model& Trials::model_of(const std::string& toml) {
  if (model_ && toml == toml_) return *model_;
  model_.reset();
  model_.emplace(runtime_, toml, dir_);
  toml_ = toml;
  return *model_;
}

Json Trials::describe(const Json& request) const {
  std::vector<Diagnostic> warnings;
  const Model model(runtime_, request.at("toml").get<std::string>(), dir_, &warnings);
  Json result = {{"description", Json::parse(model.describe(request.at("lengths").get<std::vector<int64_t>>()))},
                 {"warnings", Json::array()}};
  for (const Diagnostic& w : warnings)
    result["warnings"].push_back({{"code", w.code}, {"area", w.area}, {"message", w.message}, {"help", w.help}});
  return result;
}

Json Trials::quality(const Json& request) {
  QualityTrial& trial = is_test(request) ? test_quality_ : quality_;
  const size_t begin = request.at("begin"), end = request.at("end");
  if (trial.lacks_vectors(begin, end)) trial.compare_with(model_of(own_toml_), begin, end);
  const Measured measured = trial.run(model_of(request.at("toml")), request.value("encoder", ""), begin, end);
  return {{"sums", measured.sums}, {"outcomes", measured.outcomes}, {"decoded", measured.decoded}};
}

// Decodes the examples of which a pass over whole sequences is not sure.
Json Trials::greedy(const Json& request) {
  const size_t begin = request.at("begin"), end = request.at("end");
  const Model& model = model_of(request.at("toml"));
  std::vector<bool> sure;
  if (facts_.task == Task::translation && !facts_.has_rules)
    sure = (is_test(request) ? test_quality_ : quality_).run(model, request.value("encoder", ""), begin, end).sure;
  const Greedy g = decode(model, facts_, is_test(request) ? test_ : data_, bounds_, begin, end, sure);
  return {{"sums", g.sums},
          {"outcomes", g.outcomes},
          {"bleu", g.bleu},
          {"bleu_low", g.bleu_interval.low},
          {"bleu_high", g.bleu_interval.high},
          {"tokens", g.tokens}};
}

Json Trials::answer(const Json& request) {
  return reply_to(request, [&]() -> Json {
    const std::string kind = request.at("kind");
    if (kind == "describe") return describe(request);
    if (kind == "decode") return greedy(request);
    if (kind == "quality") return quality(request);
    if (kind != "cost") fail(Fault::usage, "request \"{}\": possible are describe, quality, decode and cost", kind);
    // One model less in memory, whose caches would be in the way of the figures.
    model_.reset();
    return cost_.run({request.at("toml"), request.at("baseline"), request.at("lengths").get<std::vector<int64_t>>(),
                      request.value("repetitions", 5), request.value("real", size_t{0}), request.value("prefill", true),
                      request.value("itself", false)});
  });
}

}  // namespace attnkit::core::search
