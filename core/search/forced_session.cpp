#include "core/search/forced_session.hpp"

#include <chrono>
#include <utility>

namespace attnkit::search {
namespace {

using Time = std::chrono::steady_clock::time_point;

// Seconds since `last`, which becomes now.
double lap(Time& last) {
  const Time now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(last, now)).count();
}

double encode(const Model& model, const Facts& facts, const Ids& tokens) {
  const Batch source({&tokens, 1});
  const int64_t width = facts.info.outputs, length = source.length;
  const bool is_class = facts.task == Task::classification;
  std::vector<float> scores(static_cast<size_t>(is_class ? width : length * width));
  const attn_tensor out = is_class ? tensor(scores.data(), {1, width}) : tensor(scores.data(), {1, length, width});
  Time last = std::chrono::steady_clock::now();
  model.forward(source, Batch(), out);
  return lap(last);
}

}  // namespace

ForcedSession::ForcedSession(const Model& model, const Facts& facts, const ForcedTokens& tokens) {
  if (!facts.decoder()) {
    prefill_seconds_ = encode(model, facts, tokens.source);
    return;
  }
  Time last = std::chrono::steady_clock::now();
  session_.emplace(model, 1);
  attnkit_session* const self = session_->get();
  // Known before the source is read, so that no prediction decides whether the tokens to come are allowed.
  session_->set_length(static_cast<double>(tokens.prompt.length + static_cast<int64_t>(tokens.steps.size())));
  if (!tokens.source.empty()) session_->read(tokens.source);
  if (tokens.prompt.length > 0) Session::write({&self, 1}, tokens.prompt);
  prefill_seconds_ = lap(last);
}

std::vector<double> ForcedSession::steps(const ForcedTokens& tokens) const {
  std::vector<double> seconds;
  if (!session_) return seconds;
  const Session copy = session_->clone();
  attnkit_session* const self = copy.get();
  const Ids one = {0};
  Batch token({&one, 1});
  Time last = std::chrono::steady_clock::now();
  for (int32_t id : tokens.steps) {
    token.ids[0] = id;
    Session::write({&self, 1}, token);
    seconds.push_back(lap(last));
  }
  return seconds;
}

}  // namespace attnkit::search
