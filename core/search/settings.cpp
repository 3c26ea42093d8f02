#include "core/search/settings.hpp"

namespace attnkit::search {

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = {"ablation", "grid", "pareto"};
  return names;
}

const std::vector<std::string>& rank_names() {
  static const std::vector<std::string> names = {"rcp", "rcp_mem", "quality", "throughput"};
  return names;
}

nlohmann::ordered_json to_document(const Settings& s) {
  nlohmann::ordered_json limits = nlohmann::ordered_json::object();
  if (s.limits.min_quality_ratio) limits["min_quality_ratio"] = *s.limits.min_quality_ratio;
  if (s.limits.max_state) limits["max_state"] = *s.limits.max_state;
  if (s.limits.max_latency) limits["max_latency"] = *s.limits.max_latency;
  return {{"strategy", strategy_names()[static_cast<size_t>(s.strategy)]},
          {"per_layer", s.per_layer},
          {"metric", metric_name(s.metric)},
          {"rank", rank_names()[static_cast<size_t>(s.rank)]},
          {"length", s.length},
          {"lengths", s.lengths},
          {"limits", limits},
          {"exponents",
           {{"throughput", s.weights.throughput}, {"quality", s.weights.quality}, {"memory", s.weights.memory}}},
          {"quality_weight", s.weights.quality_weight},
          {"trials", s.trials},
          {"seed", s.seed},
          {"screen", s.screen},
          {"finalists", s.finalists},
          {"repetitions", s.repetitions},
          {"jobs", s.jobs},
          {"threads", s.threads},
          {"trial_timeout", s.trial_timeout},
          {"trial_memory", s.trial_memory},
          {"data", s.data},
          {"test", s.test}};
}

}  // namespace attnkit::search
