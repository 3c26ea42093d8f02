#include "core/search/trial_runner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

constexpr double open_timeout = 60;

// What the journal keeps of a trial: its result, or how it failed, with the limit that it was beyond.
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

}  // namespace

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

std::string TrialRunner::encoder_of(const Record& record) const {
  std::string key;
  for (size_t s = 0; s < space_.sites.size(); ++s)
    if (space_.sites[s].role == ATTN_ENCODER_SELF)
      key += space_.choices[static_cast<size_t>(record.placement[s])].toml + "\n";
  return key;
}

std::string TrialRunner::toml_of(const Record& record, const std::vector<int64_t>& lengths) const {
  return manifest_.with(space_, record.placement,
                        lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
}

void TrialRunner::take(const Task& task, const Json& entry) {
  const std::string status = entry["status"];
  if (status == "ok") return task.take(entry["result"]);
  if (task.fail) return task.fail(entry["reason"]);
  task.record->status = status == "refused" ? Record::Status::refused : Record::Status::failed;
  task.record->reason = entry["reason"];
}

void TrialRunner::run(const std::string& stage, WorkerPool& pool, std::vector<Task> tasks) {
  Progress progress{stage, 0, tasks.size(), "", ""};
  const auto tell = [&](const Task& task) {
    ++progress.done;
    progress.latest = task.record->id;
    if (best) progress.best = best(*task.record);
    if (host_.progress) host_.progress(progress);
  };
  std::vector<TrialRequest> requests;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Json* entry = journal_.find(tasks[i].key);
    if (entry && is_final(*entry, settings_)) {
      take(tasks[i], *entry);
      tell(tasks[i]);
    } else {
      requests.push_back({tasks[i].request, settings_.trial_timeout, i});
    }
  }
  if (!requests.empty())
    pool.run(
        requests,
        [&](TrialReply reply) {
          const Task& task = tasks[reply.tag];
          // Whoever stops all processes of a machine or a job stops the workers too; that says nothing of a mechanism.
          if (reply.status == TrialReply::crashed && host_.stop && host_.stop()) return;
          const Json entry = entry_of(reply, settings_);
          journal_.add(task.key, entry);
          take(task, entry);
          tell(task);
        },
        host_.stop);
  if (progress.done < progress.total) throw Failure(Fault::interrupted, "interrupted");
}

void TrialRunner::describe(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int64_t max_length,
                           const std::function<void(Record&, const Json&)>& take) {
  std::vector<Task> tasks;
  for (Record* r : records)
    tasks.push_back({r,
                     fmt::format("describe|{}|{}|{}", r->id, fmt::join(lengths, ","), max_length),
                     {{"kind", "describe"}, {"toml", toml_of(*r, {max_length})}, {"lengths", lengths}},
                     [r, &take](const Json& result) { take(*r, result); },
                     {}});
  run("probing", pool_, std::move(tasks));
}

void TrialRunner::quality(const std::vector<Record*>& records, int64_t lists) {
  if (settings_.metric == Metric::bleu) return decode(records, "data", lists);
  std::vector<Task> tasks;
  for (Record* r : records) {
    int64_t begin = 0;
    for (const int64_t end : rungs_) {
      const std::pair range(begin, end);
      if (end > lists) break;
      begin = end;
      if (!r->usable() || r->quality.count(range) > 0) continue;
      tasks.push_back(
          {r,
           fmt::format("quality|{}|{}-{}", r->id, range.first, range.second),
           {{"kind", "quality"},
            {"toml", toml_of(*r, {})},
            {"encoder", encoder_of(*r)},
            {"begin", range.first},
            {"end", range.second}},
           [r, range](const Json& result) { r->quality[range] = result["sums"].get<std::vector<QualitySums>>(); },
           {}});
    }
  }
  run("quality", pool_, std::move(tasks));
}

// What refuses the length that is ranked is no candidate; at another length there is one figure less.
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

TrialRunner::Task TrialRunner::cost_task(Record* r, const std::vector<int64_t>& lengths, int real, bool prefill) const {
  Record baseline;
  baseline.placement = space_.baseline;
  const Json request = {
      {"kind", "cost"},     {"toml", toml_of(*r, lengths)},         {"baseline", toml_of(baseline, lengths)},
      {"lengths", lengths}, {"repetitions", settings_.repetitions}, {"prefill", prefill},
      {"real", real}};
  return {r,
          fmt::format("cost|{}|{}|{}{}", r->id, fmt::join(lengths, ","), real, prefill ? "" : "|decode"),
          request,
          [this, r](const Json& result) { take_costs(*r, result); },
          {}};
}

void TrialRunner::screen_cost(const std::vector<Record*>& records, int64_t length) {
  std::vector<Task> tasks;
  for (Record* r : records)
    if (r->usable() && r->costs.count(length) == 0) tasks.push_back(cost_task(r, {length}, 0, false));
  run("cost", timing_, std::move(tasks));
}

void TrialRunner::cost(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int real) {
  std::vector<Task> tasks;
  for (Record* r : records)
    if (r->usable()) tasks.push_back(cost_task(r, lengths, real, true));
  run("cost", timing_, std::move(tasks));
}

void TrialRunner::cost_beyond(const std::vector<Record*>& records, int64_t length) {
  std::vector<Task> tasks;
  for (Record* r : records) {
    if (!r->usable()) continue;
    tasks.push_back(cost_task(r, {length}, 0, true));
    tasks.back().fail = [r, length](const std::string& reason) { r->untimed[length] = reason; };
  }
  run("cost", timing_, std::move(tasks));
}

void TrialRunner::decode(const std::vector<Record*>& records, const std::string& split, int64_t lists) {
  std::vector<Task> tasks;
  for (Record* r : records) {
    const std::string name = fmt::format("{} 0-{}", split, lists);
    if (!r->usable() || r->greedy.count(name) > 0) continue;
    tasks.push_back({r,
                     fmt::format("decode|{}|{}", r->id, name),
                     {{"kind", "decode"}, {"toml", toml_of(*r, {})}, {"split", split}, {"begin", 0}, {"end", lists}},
                     [r, name, lists](const Json& result) {
                       r->greedy[name] = result;
                       r->greedy[name]["lists"] = lists;
                     },
                     {}});
  }
  run("decoding", pool_, std::move(tasks));
}

}  // namespace attnkit::search
