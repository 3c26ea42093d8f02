#include "core/stream/policy.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "core/base/text.hpp"

namespace attnkit::core::stream {
namespace {

constexpr int64_t largest = 1 << 20;  // as in manifests

void check(int64_t value, const char* what) {
  if (value < 1 || value > largest)
    throw std::invalid_argument(fmt::format("wait-k: {} is {}; it must be 1 to {}", what, value, largest));
}

int64_t number(std::string_view text, std::string_view whole) {
  const auto value = parse_number<int64_t>(text);
  if (!value) throw std::invalid_argument(fmt::format("\"{}\": \"{}\" is no number of units", whole, text));
  return *value;
}

}  // namespace

WaitK::WaitK(int64_t k, int64_t step) : k_(k), step_(step) {
  check(k, "k");
  check(step, "the pre-decision");
}

Action WaitK::decide(const View& view) const {
  return view.ended || view.read >= (k_ + view.written) * step_ ? Action::write : Action::read;
}

std::string WaitK::name() const {
  return step_ == 1 ? fmt::format("wait-k:{}", k_) : fmt::format("wait-k:{}:{}", k_, step_);
}

std::unique_ptr<const Policy> policy_named(std::string_view text) {
  constexpr std::string_view wait = "wait-k:";
  if (text == "offline") return std::make_unique<Offline>();
  if (!text.starts_with(wait))
    throw std::invalid_argument(
        fmt::format("\"{}\" is no policy: wait-k:K, wait-k:K:PRE_DECISION and offline are", text));
  const std::string_view numbers = text.substr(wait.size());
  const size_t colon = numbers.find(':');
  const int64_t k = number(numbers.substr(0, colon), text);
  return std::make_unique<WaitK>(k, colon == std::string_view::npos ? 1 : number(numbers.substr(colon + 1), text));
}

}  // namespace attnkit::core::stream
