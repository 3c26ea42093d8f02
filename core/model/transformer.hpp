// Layers around a residual stream, and the one walk over them: whole sequences, pieces and decoding steps all run so.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/model/block.hpp"
#include "core/model/layers.hpp"
#include "core/model/workspace.hpp"
#include "core/session/arena.hpp"

namespace attnkit::core {

struct Attention {
  LayerNorm norm;
  std::unique_ptr<Block> block;
};

struct FeedForward {
  LayerNorm norm;
  Dense in, out, gate;  // gate: none, or f(gate x) * in x goes out
};

struct Layer {
  Attention self, cross;  // cross.block is NULL in encoders and decoder-only models
  FeedForward feed_forward;
};

// A block whose attention weights a walk writes, and who sees what every layer put out.
struct Probe {
  uint32_t role = 0;
  int layer = 0;
  float* weights = nullptr;
  // layer: "encoder.self.1", "encoder.ffn.1", "encoder" after the last norm; x: (batch, side.length, D).
  std::function<void(const std::string& layer, const Side& side, const float* x)> show = nullptr;
};

struct Walk {
  const Side &self, &cross;       // the keys of both; self has the queries as well
  const float* memory = nullptr;  // (batch, cross.length, D): what the keys of cross attention are made of
  Aux& aux;
  const Plans* plans = nullptr;  // NULL: made for this walk
  const Probe* probe = nullptr;
};

class Transformer {
 public:
  explicit Transformer(const Manifest& manifest) : manifest_(manifest) {}
  void load(LayerReader& from, const std::string& name, int layers);  // all but the attention

  std::vector<Layer> layers;
  LayerNorm norm;                        // after the last layer of a pre-norm model
  std::shared_ptr<const Device> device;  // where its states are; NULL: on the CPU

  // Runs all layers over x (batch, self.length, D), in place.
  void run(Workspace& ws, const Walk& walk, float* x) const;
  // Plans for runs on states, within these bounds rounded up.  past: the tokens before the run.
  const Plans& plans(Workspace& ws, PlanKind kind, int64_t rows, int64_t tokens, int64_t past) const;
  // The states of all sessions, one for each layer, of self or cross attention.  Any thread.
  Arena& states(bool cross) const;

 private:
  template <class F>
  void residual(Workspace& ws, const LayerNorm& around, float* x, int64_t rows, DeviceType type, F&& f) const;

  const Manifest& manifest_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::map<PlanKey, std::unique_ptr<Plans>> plans_;
  mutable std::once_flag made_[2];
  mutable std::unique_ptr<Arena> states_[2];
};

}  // namespace attnkit::core
