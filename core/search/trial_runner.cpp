#include "core/search/trial_runner.hpp"

#include <attnkit/attnkit.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"
#include "core/search/trial/same_files.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr double open_timeout = 60;
constexpr int noise_repetitions = 5;
const std::string proposal_key = "proposed|";

// The journal keeps of a trial its result, or how it failed, with the limit that it was beyond.
Json entry_of(const TrialReply& reply, const Settings& settings) {
  if (reply.status == TrialReply::ok) {
    Json entry = {{"status", "ok"}, {"result", reply.body}, {"seconds", reply.seconds}};
    if (!reply.host.empty()) entry["host"] = reply.host;
    return entry;
  }
  const std::string kind = reply.status == TrialReply::error ? reply.body.value("kind", "") : "";
  Json entry = {
      {"status", kind == "refused" ? "refused" : "failed"}, {"reason", reply.reason}, {"seconds", reply.seconds}};
  if (!reply.host.empty()) entry["host"] = reply.host;
  if (kind == "memory") entry["memory"] = settings.trial_memory;
  if (reply.status != TrialReply::timed_out) return entry;
  entry["reason"] = "timed out: " + reply.reason;
  entry["timeout"] = settings.trial_timeout;
  return entry;
}

// Of examples of data or test: as many times as long as so many examples of the screening.
double timeout_of(const Json& request, const Settings& settings) {
  const int64_t examples = request.value("end", int64_t{0}) - request.value("begin", int64_t{0});
  return settings.trial_timeout * std::max(1.0, static_cast<double>(examples) / static_cast<double>(settings.screen));
}

// A trial that was beyond a limit is tried again by a search with a higher one.
bool is_final(const Json& entry, const Settings& settings) {
  return entry.value("timeout", settings.trial_timeout) >= settings.trial_timeout &&
         entry.value("memory", settings.trial_memory) >= settings.trial_memory;
}

WorkerCommand on_all_hosts(WorkerCommand command) {
  command.cpu.clear();
  return command;
}

// A worker that times needs no test set; on another machine it compares all files.
WorkerCommand for_timing(WorkerCommand command) {
  if (!command.hosts) command.open["test"] = "";
  return command;
}

bool is_description(const Json& result) {
  const Json& description = result.at("description");
  const auto is_block = [](const Json& block) {
    return block.at("role").is_string() && block.at("layer").is_number_integer() &&
           std::ranges::all_of(block.at("costs"), [](const Json& cost) {
             return cost.at("length").is_number_integer() &&
                    std::ranges::all_of(std::array{"state_bytes", "flops", "step_flops"}, [&](const char* key) {
                      return !cost.contains(key) || cost[key].is_number_unsigned();
                    });
           });
  };
  const auto is_warning = [](const Json& warning) {
    return warning.at("area").is_number_integer() && warning.at("message").is_string();
  };
  return description.at("max_length").is_number_integer() &&
         (!description.contains("max_target") || description["max_target"].is_number_integer()) &&
         description.at("blocks").is_array() && std::ranges::all_of(description["blocks"], is_block) &&
         result.at("warnings").is_array() && std::ranges::all_of(result["warnings"], is_warning);
}

// One length of a cost: times and ratios are above 0, counts are none below it.
bool is_cost(const Json& one, const Json& length) {
  if (one.at("length") != length) return false;
  if (one.contains("refused")) return one["refused"].is_string() && one.size() == 2;
  const bool decodes = one.contains("decode_ratio");
  one.at(decodes ? "decode_ratio" : "prefill_ratio");
  one.at(decodes ? "baseline_decode" : "baseline_prefill");
  if (decodes) one.at("latency");
  for (const auto& [key, value] : one.items()) {
    if (key.ends_with("peak_bytes") && value.is_null()) continue;
    if (value.is_number_float() ? value.get<double>() <= 0 : !value.is_number_unsigned()) return false;
  }
  return true;
}

bool is_costs(const Json& request, const Json& result) {
  const Json& at = result.at("at");
  auto lengths = request["lengths"].get<std::vector<int64_t>>();
  std::ranges::sort(lengths);
  if (!at.is_array() || at.size() != lengths.size()) return false;
  for (size_t i = 0; i < lengths.size(); ++i)
    if (!is_cost(at[i], lengths[i])) return false;
  return !result.contains("real") || result["real"].is_object();
}

// Sums and outcomes of so many examples.
bool is_quality(const Json& request, const Json& result) {
  const bool decodes = request["kind"] == "decode";
  const auto outcomes = result.at("outcomes").get<Outcomes>();
  const auto n = static_cast<size_t>(request["end"].get<int64_t>() - request["begin"].get<int64_t>());
  if (outcomes.tokens.size() != n || outcomes.right.size() != n || outcomes.nll.size() != n ||
      outcomes.pairs.size() != (decodes ? n : 0))
    return false;
  for (size_t i = 0; i < n; ++i)
    if (outcomes.right[i] < 0 || outcomes.right[i] > outcomes.tokens[i]) return false;
  QualitySums total;
  for (const auto& sums : result.at("sums").get<std::vector<QualitySums>>()) {
    if (sums.exact < 0 || sums.exact > sums.examples || sums.right < 0 || sums.right > sums.tokens) return false;
    total += sums;
  }
  if (total.examples != static_cast<int64_t>(n)) return false;
  return !decodes || std::ranges::all_of(std::array{"bleu", "bleu_low", "bleu_high"},
                                         [&](const char* key) { return result.at(key).is_number(); });
}

// Is it what the rest of a search takes for a result?  Of a host it need not be.
bool is_result(const Json& request, const Json& result) {
  const std::string kind = request["kind"];
  return kind == "describe" ? is_description(result)
         : kind == "cost"   ? is_costs(request, result)
                            : is_quality(request, result);
}

// The files that a manifest names, and those that its weights' index names beside itself.
std::vector<std::pair<std::string, std::string>> files_of(const ManifestText& manifest, const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> files = manifest.files();
  const auto weights = std::ranges::find(files, "weights.file", &std::pair<std::string, std::string>::first);
  if (weights == files.end() || !weights->second.ends_with(".json")) return files;
  const fs::path index = weights->second;
  std::set<std::string> shards;
  const Json document = Json::parse(std::ifstream(folder / index));
  for (const Json& shard : document.at("weight_map")) shards.insert(shard);
  for (const std::string& shard : shards)
    files.emplace_back("weights.file " + shard, (index.parent_path() / shard).string());
  return files;
}

// The result of a trial, with the host that it ran on where there are several.
Json result_of(const Json& entry) {
  Json result = entry["result"];
  if (entry.contains("host")) result["host"] = entry["host"];
  return result;
}

}  // namespace

Json identity_of(const ManifestText& manifest, const Space& space, const Settings& settings,
                 const WorkerCommand& command, const std::vector<LoadedMechanism>& mechanisms, const std::string& cpu) {
  Json identity = {{"version", ATTNKIT_VERSION},
                   {"model", digest_of(manifest.with(space, space.baseline))},
                   {"data", digest_of_file(settings.data)},
                   {"test", settings.test.empty() ? "" : digest_of_file(settings.test)},
                   {"baseline", id_of(space, space.baseline)},
                   {"repetitions", settings.repetitions},
                   {"threads", settings.threads},
                   {"cpu", cpu},
                   {"program", digest_of_file(command.argv.front())},
                   {"library", digest_of_file(library_file())}};
  const fs::path folder = command.open["dir"].get<std::string>();
  for (const auto& [key, file] : files_of(manifest, folder)) identity[key] = digest_of_file((folder / file).string());
  // Vectors are compared with those of the model as it is.
  if (settings.metric == Metric::cosine) identity["attention"] = digest_of(manifest.attention());
  for (const LoadedMechanism& mechanism : mechanisms)
    identity["plugin " + mechanism.name] = digest_of_file(mechanism.file);
  return identity;
}

Json expectations(const ManifestText& manifest, const Json& open, const Json& identity) {
  Json expects = {{"version", identity.at("version")},
                  {"program", identity.at("program")},
                  {"library", identity.at("library")},
                  {"files", Json::object()},
                  {"plugins", Json::object()}};
  if (identity.contains("recordings")) expects["recordings"] = identity["recordings"];
  for (const auto& [key, file] : files_of(manifest, open.at("dir").get<std::string>()))
    expects["files"][file] = identity.at(key);
  for (const char* list : {"data", "test"})
    if (const std::string file = open.at(list); !file.empty()) expects["files"][file] = identity.at(list);
  const std::string_view prefix = "plugin ";
  for (const auto& [key, value] : identity.items())
    if (key.starts_with(prefix)) expects["plugins"][key.substr(prefix.size())] = value;
  return expects;
}

TrialRunner::TrialRunner(const Settings& settings, const Space& space, const ManifestText& manifest,
                         const WorkerCommand& command, Journal& journal, const Host& host)
    : settings_(settings),
      space_(space),
      manifest_(manifest),
      journal_(journal),
      host_(host),
      timing_(for_timing(command)),
      pool_(on_all_hosts(command), settings.jobs, open_timeout),
      opened_(pool_.open(host.stop)) {
  const int64_t all = opened_["lists"]["data"], first = std::min(settings.screen, all);
  if (settings.effort != Effort::thorough) rungs_.push_back(first);
  if (settings.effort == Effort::standard)
    for (int64_t end = 2 * first; end < all; end *= 2) rungs_.push_back(end);
  if (settings.effort != Effort::quick && (rungs_.empty() || rungs_.back() < all)) rungs_.push_back(all);
  double load = 0;
  noise_.load = getloadavg(&load, 1) == 1 ? load : -1;
}

std::string TrialRunner::toml_of(const Placement& placement, const std::vector<int64_t>& lengths) const {
  return manifest_.with(space_, placement, lengths.empty() ? 0 : std::ranges::max(lengths));
}

void TrialRunner::run(const std::string& stage, WorkerPool& pool, const std::vector<Task>& tasks) {
  Progress progress{stage, 0, tasks.size(), "", ""};
  const auto finish = [&](const Task& task, const Json& entry) {
    if (is_text(entry["status"], "ok")) {
      if (entry.contains("host"))
        task.take(result_of(entry));
      else
        task.take(entry["result"]);
    } else if (task.fail) {
      task.fail(entry["reason"]);
    } else {
      task.record->status = is_text(entry["status"], "refused") ? Record::Status::refused : Record::Status::failed;
      task.record->reason = entry["reason"];
    }
    ++progress.done;
    progress.latest = task.record->id;
    if (best) progress.best = best(*task.record);
    if (host_.progress) host_.progress(progress);
  };
  std::vector<TrialRequest> requests;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Json* entry = journal_.find(tasks[i].key);
    if (entry && is_final(*entry, settings_))
      finish(tasks[i], *entry);
    else
      requests.push_back({tasks[i].request, timeout_of(tasks[i].request, settings_), i,
                          [&request = tasks[i].request](const Json& result) { return is_result(request, result); }});
  }
  const auto done = [&](TrialReply reply) {
    // Whoever stops all processes of a machine or a job stops the workers too; that says nothing of a mechanism.
    if (reply.status == TrialReply::crashed && host_.stop && host_.stop()) return;
    const Json entry = entry_of(reply, settings_);
    journal_.add(tasks[reply.tag].key, entry);
    finish(tasks[reply.tag], entry);
  };
  if (!requests.empty()) pool.run(requests, done, host_.stop);
  if (progress.done < progress.total) throw Failure(Fault::interrupted, "interrupted");
}

void TrialRunner::describe(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int64_t max_length,
                           const std::function<void(Record&, const Json&)>& take) {
  std::vector<Task> tasks;
  for (Record* r : records)
    tasks.push_back({r,
                     fmt::format("{}{}|{}|{}", Journal::probe, r->id, fmt::join(lengths, ","), max_length),
                     {{"kind", "describe"}, {"toml", toml_of(r->placement, {max_length})}, {"lengths", lengths}},
                     [r, &take](const Json& result) { take(*r, result); }});
  run("probing", pool_, tasks);
}

// The same request for teacher forcing and, where BLEU asks for texts, for greedy decoding.
Json TrialRunner::quality_request(const Record& record, const char* split, std::pair<int64_t, int64_t> range) const {
  std::string encoder;
  for (size_t s = 0; s < space_.blocks.size(); ++s)
    if (space_.blocks[s].role == ATTN_ENCODER_SELF) encoder += space_.choice(record.placement[s]).toml + "\n";
  return {{"kind", settings_.metric == Metric::bleu ? "decode" : "quality"},
          {"placement", record.id},
          {"toml", toml_of(record.placement)},
          {"encoder", encoder},
          {"split", split},
          {"begin", range.first},
          {"end", range.second}};
}

void TrialRunner::quality(const std::vector<Record*>& records, int64_t examples) {
  std::vector<Task> tasks;
  for (Record* r : records) {
    std::pair<int64_t, int64_t> range;
    for (const int64_t end : rungs_) {
      range = {range.second, end};
      if (end > examples || !r->usable() || r->quality.contains(range)) continue;
      const Json request = quality_request(*r, "data", range);
      tasks.push_back(
          {r, fmt::format("{}|{}|data {}-{}", request["kind"].get<std::string>(), r->id, range.first, range.second),
           request, [r, range](const Json& result) {
             result["sums"].get_to(r->quality[range]);
             r->outcomes.put(static_cast<size_t>(range.first), result["outcomes"]);
           }});
    }
  }
  run("quality", pool_, tasks);
}

// Those that share an encoder are neighbours.
void TrialRunner::test(const std::vector<Record*>& records, const std::vector<Record*>& decoded) {
  const int64_t all = opened_["lists"]["test"];
  std::vector<Record*> ordered = records;
  std::ranges::sort(ordered, {}, [](const Record* r) -> const Placement& { return r->placement; });
  std::vector<Task> tests, tasks;
  for (Record* r : ordered) {
    const Json request = quality_request(*r, "test", {0, all});
    tests.push_back({r, fmt::format("{}|{}|test 0-{}", request["kind"].get<std::string>(), r->id, all), request,
                     [r](const Json& result) { r->test = result["outcomes"]; }});
  }
  for (Record* r : decoded) {
    Json request = quality_request(*r, "test", {0, all});
    request["kind"] = "decode";
    tasks.push_back({r, fmt::format("decode|{}|test 0-{}", r->id, all), request, [r](const Json& result) {
                       r->greedy = result;
                       r->greedy.erase("outcomes");
                     }});
  }
  // A test of bleu is a decoding, which the journal then has.
  if (settings_.metric == Metric::bleu) run("test", pool_, std::exchange(tests, {}));
  tasks.insert(tasks.end(), tests.begin(), tests.end());
  run("test", pool_, tasks);
}

TrialRunner::Task TrialRunner::itself(Record& record, const std::string& key, int block) {
  const std::string toml = toml_of(space_.baseline, {settings_.length});
  const Json request = {{"kind", "cost"},
                        {"toml", toml},
                        {"baseline", toml},
                        {"lengths", {settings_.length}},
                        {"repetitions", settings_.repetitions},
                        {"prefill", false},
                        {"itself", true}};
  return {&record, key, request,
          [this, block](const Json& result) {
            const Json& at = result["at"][0];
            const bool decodes = at.contains("decode_ratio");
            if (at.contains("refused")) return;  // which its own trial says
            noise_.ratios.push_back(at[decodes ? "decode_ratio" : "prefill_ratio"]);
            noise_.speeds.emplace(std::pair(block, result.value("host", "")),
                                  at[decodes ? "baseline_decode" : "baseline_prefill"].get<double>());
          },
          [](const std::string&) {}};
}

void TrialRunner::noise() {
  Record baseline;
  baseline.id = id_of(space_, space_.baseline);
  std::vector<Task> tasks;
  const int hosts = timing_.hosts ? static_cast<int>(timing_.hosts->size()) : 0;
  for (int i = 0; i < std::max(noise_repetitions, 2 * hosts); ++i)
    tasks.push_back(itself(baseline, fmt::format("itself|0|{}|{}", i, settings_.length), 0));
  WorkerPool fresh(timing_, 1, open_timeout);
  run("noise", fresh, tasks);
}

void TrialRunner::block(const std::vector<Record*>& records, Record& baseline, int block) {
  std::vector<Task> tasks;
  const auto add = [&](Record* r) {
    if (!r->usable() || r->blocks.size() > static_cast<size_t>(block)) return;
    const Json request = {{"kind", "cost"},
                          {"toml", toml_of(r->placement, {settings_.length})},
                          {"baseline", toml_of(space_.baseline, {settings_.length})},
                          {"lengths", {settings_.length}},
                          {"repetitions", settings_.repetitions},
                          {"prefill", false}};
    tasks.push_back(
        {r, fmt::format("block|{}|{}|{}", block + 1, r->id, settings_.length), request, [this, r](const Json& result) {
           Json at = result["at"][0];
           if (result.contains("host")) at["host"] = result["host"];
           take_block(*r, at);
         }});
  };
  for (Record* r : records)
    if (r != &baseline) add(r);
  add(&baseline);
  if (tasks.empty()) return;
  // Placements that come later go through blocks that others have had.
  const auto known = noise_.speeds.lower_bound({block + 1, ""});
  if (known == noise_.speeds.end() || known->first.first != block + 1)
    tasks.push_back(itself(baseline, fmt::format("itself|{}|0|{}", block + 1, settings_.length), block + 1));
  std::mt19937_64 random(settings_.seed + static_cast<uint64_t>(block));
  std::ranges::shuffle(tasks, random);
  WorkerPool fresh(timing_, 1, open_timeout);
  run("timing", fresh, tasks);
}

void TrialRunner::cost(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, Timing timing,
                       int real) {
  std::vector<Task> tasks;
  for (Record* r : records) {
    if (!r->usable()) continue;
    const Json request = {
        {"kind", "cost"},     {"toml", toml_of(r->placement, lengths)}, {"baseline", toml_of(space_.baseline, lengths)},
        {"lengths", lengths}, {"repetitions", settings_.repetitions},   {"prefill", true},
        {"real", real}};
    tasks.push_back({r, fmt::format("cost|{}|{}|{}", r->id, fmt::join(lengths, ","), real), request,
                     [this, r](const Json& result) { take_costs(*r, result); }});
    if (timing == Timing::beyond)
      tasks.back().fail = [r, length = lengths.front()](const std::string& reason) { r->untimed[length] = reason; };
  }
  WorkerPool fresh(timing_, 1, open_timeout);
  run("cost", fresh, tasks);
}

void TrialRunner::keep_proposals(const std::vector<Record*>& records) {
  for (const Record* r : records) {
    const std::string key = proposal_key + r->id;
    Json choices = Json::array();
    for (const int choice : r->placement) choices.push_back(space_.choice(choice).label);
    if (!journal_.find(key)) journal_.add(key, {{"choices", choices}});
  }
}

std::set<Placement> TrialRunner::proposals() const {
  std::set<Placement> found;
  for (const auto& [key, body] : journal_.trials()) {
    const Json labels = key.starts_with(proposal_key) ? body.value("choices", Json()) : Json();
    Placement placement;
    for (const Json& label : labels)
      for (size_t c = 0; c < space_.choices.size(); ++c)
        if (is_text(label, space_.choices[c].label)) placement.push_back(static_cast<int>(c));
    if (placement.size() == space_.blocks.size()) found.insert(std::move(placement));
  }
  return found;
}

// A refusal at the ranked length ends a candidate.  Ranked are the medians over blocks.
void TrialRunner::take_block(Record& record, const Json& at) const {
  const std::string refused = at.value("refused", "");
  if (!refused.empty()) {
    record.status = Record::Status::refused;
    record.reason = refused;
    return;
  }
  record.blocks.push_back(at);
  Json& cost = record.costs[settings_.length] = at;
  cost.erase("host");  // it is of several
  for (auto& [key, value] : cost.items()) {
    if (!value.is_number_float() && !key.ends_with("_bytes")) continue;
    std::vector<double> values;
    for (const Json& block : record.blocks)
      if (block[key].is_number()) values.push_back(block[key]);
    if (values.empty()) continue;
    if (value.is_number_float())
      value = median(values);
    else
      value = static_cast<int64_t>(median(values));
  }
  for (const char* name : {"decode_ratio", "prefill_ratio"}) {
    if (!cost.contains(name) || record.blocks.size() < 2) continue;
    std::vector<double> ratios;
    for (const Json& block : record.blocks) ratios.push_back(block[name]);
    cost[std::string(name) + "_low"] = quantile(ratios, 0.25);
    cost[std::string(name) + "_high"] = quantile(ratios, 0.75);
  }
}

// At another length than the ranked one a refusal is one figure less.  What is ranked stays as the blocks have it.
void TrialRunner::take_costs(Record& record, const Json& result) const {
  for (const Json& at : result["at"]) {
    const int64_t length = at["length"];
    const std::string refused = at.value("refused", "");
    if (length == settings_.length) {
      Json& ranked = record.costs[length];
      for (const auto& [key, value] : at.items())
        if (refused.empty() && !ranked.contains(key)) ranked[key] = value;
    } else if (refused.empty()) {
      record.costs[length] = at;
      if (result.contains("host")) record.costs[length]["host"] = result["host"];
      record.untimed.erase(length);
    } else {
      record.untimed[length] = refused;
    }
  }
  if (result.contains("real")) record.real = result["real"];
}

}  // namespace attnkit::core::search
