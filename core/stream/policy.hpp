// Policies of a simultaneous translator: to read on or to write.
#pragma once

#include <attnkit/attnkit.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace attnkit::core::stream {

enum class Action : uint32_t { read = ATTNKIT_READ, write = ATTNKIT_WRITE };
// Units of the source read, tokens of the target written, and whether the source has ended.
using View = attnkit_stream_view;

class Policy {
 public:
  virtual ~Policy() = default;
  virtual Action decide(const View& view) const = 0;
  virtual std::string name() const = 0;  // as policy_named takes it
};

// Token i of the target, counted from 1, is written once (k + i - 1) units of `step` were read, or all (Ma et al. 2019;
// step: the fixed pre-decision of Ma et al. 2020).
class WaitK : public Policy {
 public:
  // Throws std::invalid_argument: below 1 or above 1048576.
  explicit WaitK(int64_t k, int64_t step = 1);
  Action decide(const View& view) const override;
  std::string name() const override;

 private:
  int64_t k_, step_;
};

// Everything is read before anything is written.
class Offline : public Policy {
 public:
  Action decide(const View& view) const override { return view.ended ? Action::write : Action::read; }
  std::string name() const override { return "offline"; }
};

// "wait-k:3", "wait-k:3:7" (k, then pre-decision) or "offline".  Throws std::invalid_argument saying what is wrong.
std::unique_ptr<const Policy> policy_named(std::string_view text);

}  // namespace attnkit::core::stream
