// How long the target of a source will be, as [length] says: what mechanisms that need the whole length are told.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/buffer.hpp"
#include "core/manifest/manifest.hpp"
#include "core/base/threads.hpp"
#include "core/model/vocabulary.hpp"

namespace attnkit {

// One source as far as it is there.
struct SourceSoFar {
  const int32_t* ids = nullptr;  // may be NULL where needs_ids() says no
  const float* rows = nullptr;   // (length, D), the encoder's output; may be NULL where needs_rows() says no
  int64_t length = 0;
};

// What one thread of control needs to predict.
struct LengthBuffers {
  Buffer x, y;
};

// Immutable: any thread.
class Length {
 public:
  virtual ~Length() = default;
  // Positions of the target, </s> included; positive, perhaps no whole number.  Depends on nothing but this source.
  virtual double predict(Threads& threads, LengthBuffers& buffers, const SourceSoFar& source) const = 0;
  virtual bool needs_ids() const { return false; }
  virtual bool needs_rows() const { return false; }
  // Adds what there is to tell about it.
  virtual void describe(nlohmann::ordered_json& to) const = 0;
  // Equal exactly where predictions are.
  const std::string& identity() const { return identity_; }

 protected:
  explicit Length(std::string identity) : identity_(std::move(identity)) {}

 private:
  std::string identity_;
};

// "ratio": the key of the manifest; "none" without [length].
const char* predict_name(Predict predict);

// What the manifest says; source: the vocabulary, NULL without an encoder.  NULL where nothing is predicted, or after a
// diagnostic.  Throws Stopped.
std::unique_ptr<const Length> make_length(const Manifest& manifest, const Vocabulary* source, Diagnostics& diagnostics);

}  // namespace attnkit
