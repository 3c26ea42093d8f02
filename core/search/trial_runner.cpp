#include "core/search/trial_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/base/sha256.hpp"
#include "core/search/failure.hpp"
#include "core/search/trial/data_set.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

constexpr double open_timeout = 60;

// The journal keeps of a trial its result, or how it failed, with the limit that it was beyond.
Json entry_of(const TrialReply& reply, const Settings& settings) {
  if (reply.status == TrialReply::ok) return {{"status", "ok"}, {"result", reply.body}, {"seconds", reply.seconds}};
  const std::string kind = reply.status == TrialReply::error ? reply.body.value("kind", "") : "";
  Json entry = {
      {"status", kind == "refused" ? "refused" : "failed"}, {"reason", reply.reason}, {"seconds", reply.seconds}};
  if (kind == "memory") entry["memory"] = settings.trial_memory;
  if (reply.status != TrialReply::timed_out) return entry;
  entry["reason"] = "timed out: " + reply.reason;
  entry["timeout"] = settings.trial_timeout;
  return entry;
}

// A trial that was beyond a limit is tried again by a search with a higher one.
bool is_final(const Json& entry, const Settings& settings) {
  return entry.value("timeout", settings.trial_timeout) >= settings.trial_timeout &&
         entry.value("memory", settings.trial_memory) >= settings.trial_memory;
}

std::string digest(const std::string& bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

std::string digest_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) fail(Fault::data, "{} cannot be read", path);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) fail(Fault::data, "{} cannot be read", path);
  return digest(bytes);
}

}  // namespace

Json identity_of(const ManifestText& manifest, const Space& space, const Settings& settings,
                 const WorkerCommand& command, const std::vector<LoadedMechanism>& mechanisms, const std::string& cpu) {
  Json identity = {{"version", ATTNKIT_VERSION},
                   {"model", digest(manifest.with(space, space.baseline))},
                   {"data", digest_of_file(settings.data)},
                   {"test", settings.test.empty() ? "" : digest_of_file(settings.test)},
                   {"baseline", id_of(space, space.baseline)},
                   {"repetitions", settings.repetitions},
                   {"threads", settings.threads},
                   {"cpu", cpu}};
  for (const auto& [key, file] : manifest.files())
    identity[key] = digest_of_file((std::filesystem::path(command.open["dir"].get<std::string>()) / file).string());
  for (const LoadedMechanism& mechanism : mechanisms)
    identity["plugin " + mechanism.name] = digest_of_file(mechanism.file);
  return identity;
}

std::string digest_of_recordings(const Settings& settings) {
  std::string all;
  for (const std::string& list : {settings.data, settings.test})
    if (!list.empty())
      for (const std::string& path : recordings_of(list))
        // One that is not there is for a worker to refuse, which says where it is named.
        all += std::filesystem::is_regular_file(path) ? digest_of_file(path) : "none";
  return digest(all);
}

TrialRunner::TrialRunner(const Settings& settings, const Space& space, const ManifestText& manifest,
                         const WorkerCommand& command, Journal& journal, const Host& host)
    : settings_(settings),
      space_(space),
      manifest_(manifest),
      journal_(journal),
      host_(host),
      pool_(command, settings.jobs, open_timeout),
      timing_(command, 1, open_timeout),
      opened_(pool_.open(host.stop)) {
  const int64_t all = opened_["lists"]["data"];
  for (int64_t end = std::min(settings.screen, all); end < all; end *= 2) rungs_.push_back(end);
  rungs_.push_back(all);
}

std::string TrialRunner::toml_of(const Placement& placement, const std::vector<int64_t>& lengths) const {
  return manifest_.with(space_, placement, lengths.empty() ? 0 : std::ranges::max(lengths));
}

void TrialRunner::run(const std::string& stage, WorkerPool& pool, const std::vector<Task>& tasks) {
  Progress progress{stage, 0, tasks.size(), "", ""};
  const auto finish = [&](const Task& task, const Json& entry) {
    if (entry["status"] == "ok") {
      task.take(entry["result"]);
    } else if (task.fail) {
      task.fail(entry["reason"]);
    } else {
      task.record->status = entry["status"] == "refused" ? Record::Status::refused : Record::Status::failed;
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
      requests.push_back({tasks[i].request, settings_.trial_timeout, i});
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
                     fmt::format("describe|{}|{}|{}", r->id, fmt::join(lengths, ","), max_length),
                     {{"kind", "describe"}, {"toml", toml_of(r->placement, {max_length})}, {"lengths", lengths}},
                     [r, &take](const Json& result) { take(*r, result); }});
  run("probing", pool_, tasks);
}

void TrialRunner::quality(const std::vector<Record*>& records, int64_t examples) {
  if (settings_.metric == Metric::bleu) return decode(records, "data", examples);
  std::vector<Task> tasks;
  for (Record* r : records) {
    std::string encoder;
    for (size_t s = 0; s < space_.blocks.size(); ++s)
      if (space_.blocks[s].role == ATTN_ENCODER_SELF) encoder += space_.choice(r->placement[s]).toml + "\n";
    std::pair<int64_t, int64_t> range;
    for (const int64_t end : rungs_) {
      range = {range.second, end};
      if (end > examples || !r->usable() || r->quality.contains(range)) continue;
      const Json request = {{"kind", "quality"},
                            {"toml", toml_of(r->placement)},
                            {"encoder", encoder},
                            {"begin", range.first},
                            {"end", range.second}};
      tasks.push_back({r, fmt::format("quality|{}|{}-{}", r->id, range.first, range.second), request,
                       [r, range](const Json& result) { result["sums"].get_to(r->quality[range]); }});
    }
  }
  run("quality", pool_, tasks);
}

void TrialRunner::cost(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, Timing timing,
                       int real) {
  const bool prefill = timing != Timing::screen;
  std::vector<Task> tasks;
  for (Record* r : records) {
    if (!r->usable() || (!prefill && r->costs.contains(lengths.front()))) continue;
    const Json request = {
        {"kind", "cost"},     {"toml", toml_of(r->placement, lengths)}, {"baseline", toml_of(space_.baseline, lengths)},
        {"lengths", lengths}, {"repetitions", settings_.repetitions},   {"prefill", prefill},
        {"real", real}};
    tasks.push_back({r, fmt::format("cost|{}|{}|{}{}", r->id, fmt::join(lengths, ","), real, prefill ? "" : "|decode"),
                     request, [this, r](const Json& result) { take_costs(*r, result); }});
    if (timing == Timing::beyond)
      tasks.back().fail = [r, length = lengths.front()](const std::string& reason) { r->untimed[length] = reason; };
  }
  run("cost", timing_, tasks);
}

// A refusal at the ranked length ends a candidate; at another length there is one figure less.
void TrialRunner::take_costs(Record& record, const Json& result) const {
  for (const Json& at : result["at"]) {
    const int64_t length = at["length"];
    const std::string refused = at.value("refused", "");
    if (refused.empty()) {
      record.costs[length] = at;
      record.untimed.erase(length);
    } else if (length == settings_.length) {
      record.status = Record::Status::refused;
      record.reason = refused;
    } else {
      record.untimed[length] = refused;
    }
  }
  if (result.contains("real")) record.real = result["real"];
}

void TrialRunner::decode(const std::vector<Record*>& records, const std::string& split, int64_t examples) {
  const std::string name = fmt::format("{} 0-{}", split, examples);
  std::vector<Task> tasks;
  for (Record* r : records) {
    if (!r->usable() || r->greedy.contains(name)) continue;
    const Json request = {
        {"kind", "decode"}, {"toml", toml_of(r->placement)}, {"split", split}, {"begin", 0}, {"end", examples}};
    tasks.push_back({r, fmt::format("decode|{}|{}", r->id, name), request, [=](const Json& result) {
                       r->greedy[name] = result;
                       r->greedy[name]["lists"] = examples;
                     }});
  }
  run("decoding", pool_, tasks);
}

}  // namespace attnkit::search
