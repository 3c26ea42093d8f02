// A worker that makes up every figure from the mechanisms in the manifest, and does the mischief it is told to.
//
// The open request: "lists", "mischief": [{"kind", "mechanism", "above": tokens or examples, "prefill": also false,
// "do"}, ...], "seconds" that a trial takes at least.  FAKE_LIE is what it lies about.  The last argument is a
// descriptor, or "-" for standard input and output.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <string>
#include <thread>

#include "core/search/outcomes.hpp"
#include "core/search/worker/channel.hpp"

namespace {

using attnkit::core::search::QualitySums;
using nlohmann::json;

const std::regex role_line("\"(\\w+)\\.(\\w+)\" = \"(\\w+)\"");

// Later letters are faster and worse: by role, 'a' is 0.
double steps_of(const std::string& toml) {
  double steps = 0;
  for (std::sregex_iterator at(toml.begin(), toml.end(), role_line), end; at != end; ++at)
    steps += (*at)[3].str().front() - 'a';
  return steps;
}

json description_of(const json& request) {
  json blocks = json::array();
  const std::string toml = request["toml"];
  for (std::sregex_iterator at(toml.begin(), toml.end(), role_line), end; at != end; ++at) {
    json costs = json::array();
    for (const json& length : request["lengths"]) costs.push_back({{"length", length}, {"state_bytes", 100}});
    blocks.push_back({{"role", (*at)[1].str() + "." + (*at)[2].str()}, {"layer", 1}, {"costs", costs}});
  }
  return {{"description", {{"blocks", blocks}, {"max_length", 512}}}, {"warnings", json::array()}};
}

json quality_of(const json& request) {
  const int64_t begin = request["begin"], end = request["end"];
  const double share = 0.9 - 0.01 * steps_of(request["toml"]);
  QualitySums sums;
  sums.examples = sums.tokens = end - begin;
  sums.exact = sums.right = static_cast<int64_t>(share * static_cast<double>(end - begin));
  attnkit::core::search::Outcomes outcomes;
  outcomes.resize(static_cast<size_t>(end - begin));
  for (int64_t i = 0; i < end - begin; ++i) outcomes.set(static_cast<size_t>(i), 1, i < sums.right, 0.1);
  return {{"sums", {sums}}, {"outcomes", outcomes}};
}

json cost_of(const json& request, const std::string& refused) {
  const double ratio = 1 + 0.1 * steps_of(request["toml"]);
  static int calls = 0;
  const double wavering = 1 + 0.01 * (calls++ % 3);
  json all = json::array();
  for (const json& length : request["lengths"]) {
    if (refused.empty())
      all.push_back({{"length", length},
                     {"decode", 1000 * ratio},
                     {"decode_ratio", request.value("itself", false) ? 1 : ratio},
                     {"baseline_decode", 1000.0},
                     {"decode_ratio_low", ratio},
                     {"decode_ratio_high", ratio},
                     {"latency", 1e-3 / ratio * wavering},
                     {"peak_bytes", 1000},
                     {"baseline_peak_bytes", 1000}});
    else
      all.push_back({{"length", length}, {"refused", refused}});
  }
  return {{"at", all}};
}

bool is_meant(const json& mischief, const json& request) {
  const std::string name = "\"" + mischief.value("mechanism", "") + "\"";
  if (mischief["kind"] != request["kind"] || request["toml"].get<std::string>().find(name) == std::string::npos)
    return false;
  if (request.contains("end")) return request["end"] > mischief.value("above", 0);
  if (!request.contains("prefill")) return true;
  const auto lengths = request["lengths"].get<std::vector<int64_t>>();
  return *std::max_element(lengths.begin(), lengths.end()) > mischief.value("above", 0) &&
         (request["prefill"] || !mischief.value("prefill", false));
}

json answer(const json& request, const json& open) {
  std::string refused;
  for (const json& mischief : open["mischief"]) {
    if (!is_meant(mischief, request)) continue;
    if (mischief["do"] == "crash") {
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
    }
    while (mischief["do"] == "hang") pause();
    refused = "too long";
  }
  if (request["kind"] == "describe") return description_of(request);
  if (request["kind"] == "quality") return quality_of(request);
  return cost_of(request, refused);
}

// A result as FAKE_LIE has it, which cannot be.
json lie(const json& request, json result) {
  const char* const named = std::getenv("FAKE_LIE");
  const std::string what = named ? named : "", kind = request["kind"];
  if (kind == "describe") {
    if (what == "description") result["description"] = json::object();
    if (what == "blocks") result["description"]["blocks"] = {1};
    if (what == "warnings") result["warnings"] = {7};
  } else if (kind == "quality") {
    if (what == "sums") result["sums"][0]["exact"] = 1000000;
    if (what == "pairs") result["outcomes"]["pairs"] = {7};
    if (what == "right") result["outcomes"]["right"][0] = 2;
  } else {
    json& at = result["at"][0];
    if (what == "refused") at["refused"] = 5;
    if (what == "peak") at["peak_bytes"] = "x";
    if (what == "length") at["length"] = 1e300;
    if (what == "ratio") at["decode_ratio"] = -1.0;
  }
  return result;
}

// Of the machine that a launcher says this is.
std::string host_cpu() {
  const char* cpu = std::getenv("FAKE_CPU");
  return cpu ? cpu : "a processor";
}

}  // namespace

int main(int argc, char** argv) {
  using attnkit::core::search::WorkerChannel;
  const std::string last = argv[argc - 1];
  WorkerChannel channel = last == "-" ? WorkerChannel::of_standard_files() : WorkerChannel(std::stoi(last));
  json open;
  while (const auto request = channel.receive()) {
    const json result = open.is_null() ? json{{"lists", {{"data", request->at("lists")}, {"test", 0}}},
                                              {"kind", "decoder"},
                                              {"buckets", json::array()},
                                              {"cpu", host_cpu()}}
                                       : lie(*request, answer(*request, open));
    if (!open.is_null()) std::this_thread::sleep_for(std::chrono::duration<double>(open.value("seconds", 0.0)));
    if (open.is_null()) open = *request;
    channel.send({{"id", request->at("id")}, {"ok", true}, {"result", result}});
  }
}
