#include "core/search/sampler.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <map>

#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"
#include "core/search/worker/worker.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;

constexpr size_t kMost = 16;   // placements of an answer: a generation of strategy pareto
constexpr int kRepeats = 100;  // answers in a row without a new placement
constexpr int kWait = 100;     // milliseconds between two questions to stop

class Sampler : public Strategy {
 public:
  Sampler(const Space& space, const Settings& settings, std::set<Placement> known, std::string log_path,
          std::function<bool()> stop)
      : space_(space),
        settings_(settings),
        units_(units_of(space, settings.per_layer)),
        size_(size_of(space, settings.per_layer)),
        known_(std::move(known)),
        log_path_(std::move(log_path)),
        stop_(std::move(stop)) {
    std::erase_if(known_, [this](const Placement& p) { return !is_in_space(p); });
  }

  std::vector<Placement> next(std::span<const Outcome> finished) override {
    for (const Outcome& outcome : finished) outcomes_.insert_or_assign(outcome.placement, outcome);
    if (wanted_.empty()) return start();
    for (int i = 0; i < kRepeats && wanted_.size() + known_.size() < limit(); ++i) {
      told_next_ = ask();
      if (told_next_.empty()) break;
      std::vector<Placement> fresh;
      bool is_known = true;
      for (const Placement& placement : told_next_) {
        if (wanted_.contains(placement)) continue;
        const bool was_known = known_.erase(placement) > 0;
        is_known = was_known && is_known;
        // Known ones that are still to come count as well.
        if (!was_known && wanted_.size() + known_.size() >= limit()) continue;
        wanted_.insert(placement);
        fresh.push_back(placement);
      }
      if (!is_known) take_known(fresh);
      if (!fresh.empty()) return fresh;
    }
    std::vector<Placement> rest;
    take_known(rest);
    return rest;
  }

  Seen seen() const override { return {size_, wanted_.size()}; }

 private:
  bool is_in_space(const Placement& placement) const {
    return std::ranges::all_of(units_, [&](Unit unit) { return is_allowed(space_, unit, placement); });
  }

  // The baseline may be none of the space.
  size_t limit() const {
    const auto trials = static_cast<uint64_t>(std::max(settings_.trials, 1));
    return size_ < trials ? size_ + (is_in_space(space_.baseline) ? 0 : 1) : trials;
  }

  std::vector<Placement> start() {
    std::vector<Placement> all = homogeneous(space_), found;
    all.insert(all.begin(), space_.baseline);
    for (Placement& placement : all) {
      if (wanted_.size() == limit() || !wanted_.insert(placement).second) continue;
      known_.erase(placement);
      if (is_in_space(placement)) told_next_.push_back(placement);
      found.push_back(std::move(placement));
    }
    return found;
  }

  void take_known(std::vector<Placement>& batch) {
    for (const Placement& placement : known_) {
      wanted_.insert(placement);
      batch.push_back(placement);
      told_next_.push_back(placement);
    }
    known_.clear();
  }

  std::string name_of(Unit unit) const {
    const BlockId& block = space_.blocks[unit.first];
    return role_name(block.role) + (settings_.per_layer ? fmt::format(".{}", block.layer) : "");
  }

  Json choices_of(Unit unit) const {
    Json choices = Json::array();
    for (int choice : space_.allowed[unit.first]) choices.push_back(space_.choice(choice).label);
    return choices;
  }

  Json json_of(const Placement& placement) const {
    Json told = {{"placement", Json::object()}, {"usable", false}};
    for (Unit unit : units_) told["placement"][name_of(unit)] = space_.choice(placement[unit.first]).label;
    if (const auto at = outcomes_.find(placement); at != outcomes_.end()) {
      const Outcome& o = at->second;
      told["usable"] = o.usable;
      told["rank"] = o.rank ? Json(*o.rank) : Json();
      told.update({{"quality", o.quality}, {"throughput", o.throughput}, {"memory", o.memory}});
    }
    return told;
  }

  std::vector<Placement> ask() {
    if (!worker_) {
      worker_ = std::make_unique<Worker>(std::vector<std::string>{"/bin/sh", "-c", settings_.sampler}, log_path_,
                                         WorkerProcess::Speaks::standard_files, 0);
      Json units = Json::array();
      for (Unit unit : units_) units.push_back({{"name", name_of(unit)}, {"choices", choices_of(unit)}});
      result_of({{"kind", "open"}, {"version", ATTNKIT_VERSION}, {"seed", settings_.seed}, {"units", units}});
    }
    Json finished = Json::array();
    for (const Placement& placement : told_next_) finished.push_back(json_of(placement));
    const size_t most = std::min(kMost, limit() - wanted_.size());
    const Json result = result_of({{"kind", "next"}, {"most", most}, {"finished", finished}});
    if (!result.is_object() || !result.contains("placements") || !result["placements"].is_array())
      fail_sampler("sent no list \"placements\"");
    if (const size_t sent = result["placements"].size(); sent > most)
      fail_sampler(fmt::format("sent {} placements where {} were asked for", sent, most));
    std::vector<Placement> found;
    for (const Json& proposal : result["placements"])
      if (Placement placement = placement_of(proposal); std::ranges::count(found, placement) == 0)
        found.push_back(std::move(placement));
    return found;
  }

  Placement placement_of(const Json& proposal) const {
    if (!proposal.is_object() || proposal.size() != units_.size())
      fail_sampler(fmt::format("proposed {}, which is no object with the {} names of the space", shortened(proposal),
                               units_.size()));
    Placement placement(space_.blocks.size());
    for (Unit unit : units_) {
      const std::string name = name_of(unit);
      const Json choice = proposal.value(name, Json());
      const std::vector<int>& allowed = space_.allowed[unit.first];
      const auto at = std::ranges::find_if(allowed, [&](int c) { return is_text(choice, space_.choice(c).label); });
      if (at == allowed.end())
        fail_sampler(fmt::format("proposed {} for {}, where the space has {}", shortened(choice), name,
                                 one_line(choices_of(unit))));
      placement = with_choice(std::move(placement), unit, *at);
    }
    return placement;
  }

  static std::string shortened(const Json& value) {
    constexpr size_t longest = 80;
    const std::string text = one_line(value);
    return text.size() <= longest ? text : text.substr(0, longest) + "...";
  }

  Json result_of(Json request) {
    worker_->ask(std::move(request), ++latest_id_, settings_.trial_timeout);
    for (;;) {
      std::optional<TrialReply> reply = worker_->poll();
      if (reply && reply->status == TrialReply::ok) return std::move(reply->body);
      if (stop_ && stop_()) throw Failure(Fault::interrupted, "interrupted");
      if (reply && reply->status == TrialReply::error) fail_sampler(reply->reason);
      if (reply) fail_sampler(reply->reason + "; what it printed is in " + log_path_);
      pollfd file = {worker_->process.socket(),
                     static_cast<short>(worker_->lines.has_unsent() ? POLLIN | POLLOUT : POLLIN), 0};
      ::poll(&file, 1, kWait);
    }
  }

  [[noreturn]] void fail_sampler(const std::string& reason) const {
    throw Failure(Fault::data, fmt::format("--sampler \"{}\": {}", settings_.sampler, reason),
                  "every finished trial is kept: --resume goes on, with this sampler, another or none");
  }

  const Space space_;
  const Settings settings_;
  const std::vector<Unit> units_;
  const uint64_t size_;
  std::set<Placement> known_;         // that were proposed before and not yet by this sampler
  std::set<Placement> wanted_;        // by all batches so far
  std::vector<Placement> told_next_;  // the sampler's latest answer, and what it has to hear beside that
  std::map<Placement, Outcome> outcomes_;
  const std::string log_path_;
  const std::function<bool()> stop_;
  std::unique_ptr<Worker> worker_;
  uint64_t latest_id_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_sampler(const Space& space, const Settings& settings, std::set<Placement> known,
                                       const std::string& log_path, const std::function<bool()>& stop) {
  return std::make_unique<Sampler>(space, settings, std::move(known), log_path, stop);
}

}  // namespace attnkit::core::search
