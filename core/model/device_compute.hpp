// The operations of a walk on a device: its weights there, and for each thread of control a stream, the arrays of rows
// and the graphs of decoding steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/device/device.hpp"
#include "core/model/compute.hpp"

namespace attnkit::core {

// A model's tensors on a device, found by where they are on the host.  Immutable once all were added: any thread.
class DeviceTensors {
 public:
  explicit DeviceTensors(std::shared_ptr<const Device> device) : device_(std::move(device)), stream_(*device_) {}
  // Throw Error (ATTN_UNSUPPORTED): weights of a type that devices do not multiply, or beyond it.  tf32: of weights in
  // f32.
  void add(const Dense& layer, bool tf32);
  // Layers of the same inputs: their weights one behind the other, so that one product serves all.
  void add_together(const std::vector<const Dense*>& layers, bool tf32);
  void add(std::span<const std::byte> bytes);
  void add(const LayerNorm& norm);
  void add(const Embedding& embedding);  // after all dense layers, with one of which it may share its table
  void add(const Rotary& rotary, int64_t max_length);
  void wait() const { stream_.wait(); }  // until all are there

  const std::shared_ptr<const Device>& device() const { return device_; }
  const DeviceDense& dense(const Dense& layer) const;
  const DeviceDense* together(const std::vector<const Dense*>& layers) const;  // NULL: each is by itself
  const void* at(const void* tensor) const;
  const float* table(const Embedding& embedding) const;  // (vocabulary, width)
  const float* floats(const std::vector<float>& tensor) const {
    return tensor.empty() ? nullptr : static_cast<const float*>(at(tensor.data()));
  }

 private:
  void* upload(const void* key, std::span<const std::byte> bytes);
  const void* pack(const void* key, DeviceType type, const std::vector<float>& numbers);
  DeviceDense add_all(const std::vector<const Dense*>& layers, DeviceType type);

  std::shared_ptr<const Device> device_;
  Stream stream_;
  std::unordered_map<const void*, DeviceMemory> memory_;
  std::unordered_map<const DenseWeights*, DeviceDense> dense_;
  std::map<std::vector<const DenseWeights*>, DeviceDense> together_;
};

// The results of a decoding step on a device beside its scores.
struct StepResult {
  enum Kind { scores, best, top } kind = scores;
  int64_t count = 0;  // top
  auto operator<=>(const StepResult&) const = default;
};

class DeviceCompute final : public Compute, public BufferMemory {
 public:
  explicit DeviceCompute(std::shared_ptr<const DeviceTensors> tensors);
  // Around all else that a call does: its thread has this device between them, and nothing is under way behind them.
  void begin() { current_.emplace(device_); }
  void end() noexcept;

  BufferMemory* memory() override { return this; }
  void* allocate(size_t bytes) override;
  void release(void* memory) noexcept override;
  uint32_t workers() const override { return 1; }
  attn_exec exec(void* scratch, uint64_t bytes) override;
  void place(std::initializer_list<const Side*> sides, const Ids* ids) override;
  RowArrays rows(const Side& side) const override { return placed_.at(&side); }
  const void* stored(const void* tensor) const override { return tensors_->at(tensor); }
  void norm(const LayerNorm& layer, const float* x, void* y, DeviceType of_y, int64_t rows) override;
  DeviceType takes(const Dense& layer) const override;
  void dense(const Dense& layer, const float* x, float* y, int64_t rows) override;
  void dense_add(const Dense& layer, const void* x, DeviceType of_x, float* y, int64_t rows) override;
  void feed_forward(const Dense* gate, const Dense& in, const Dense& out, const void* x, DeviceType of_x, float* y,
                    int64_t rows, Activation f, Buffer& room) override;
  const void* rounded(const float* x, int64_t n, DeviceType type, Buffer& room) override;
  void project(std::span<const Projection> all, const void* x, DeviceType type, int64_t rows,
               const Side& side) override;
  void embed(const Embedding& layer, const Ids& ids, const Side& side, float* x) override;
  void add(float* x, const void* y, DeviceType of_y, int64_t n) override;
  void normalise_heads(void* o, DeviceType type, int64_t rows, int64_t heads, int64_t width) override;
  void scale(float* x, float by, const std::vector<float>& bias, int64_t rows, int64_t width) override;
  const float* given(const AuxValue& value, Buffer& room) override;
  void take(const float* from, int64_t n, std::vector<float>& to) override;

  void from_host(float* to, const float* from, int64_t n) { stream_.from_host(to, from, bytes_of<float>(n)); }
  void to_host(float* to, const float* from, int64_t n);
  const float* fetched(const float* from, int64_t n);  // the numbers, until the next call
  void wait() { stream_.wait(); }
  // After this nothing is under way, whatever went wrong before.
  void settle() noexcept;

  // Runs `enqueue`, the step of so many rows that gives `result`: at first as it is, then as a graph.  states: changes
  // with the addresses of states.
  template <class F>
  void replay(int64_t rows, const StepResult& result, uint64_t states, F&& enqueue) {
    const std::pair now(allocations_, states);
    if (graphs_.size() > most_graphs || graphs_of_ != now) graphs_.clear();
    Step& step = graphs_[{rows, result}];
    if (step.graph) return stream_.launch(step.graph);
    if (step.ran) {
      step.graph = stream_.capture(enqueue);
      return stream_.launch(step.graph);
    }
    enqueue();
    graphs_of_ = {allocations_, states};
    if (graphs_of_ != now) graphs_.clear();
    graphs_[{rows, result}].ran = true;
  }
  // The best ids, or the highest scores, of `rows` rows: room for them, before the scores, behind which nothing may
  // refuse; enqueued, then brought to the host.
  void reserve(const StepResult& result, int64_t rows);
  void enqueue(const StepResult& result, const float* scores, int64_t rows, int64_t outputs);
  StepResult::Kind kind() const { return norms_.empty() ? StepResult::best : StepResult::top; }  // of what was fetched
  int32_t best(int64_t row) const { return ids_[static_cast<size_t>(row)]; }  // below 0: a score is NaN
  std::vector<Ranked> top(int64_t row) const;                                 // ids as that of best
  const std::vector<float>& norms() const { return norms_; }                  // (rows)
  void fetch();

 private:
  static constexpr size_t most_graphs = 64;
  struct Step {
    bool ran = false;
    Stream::Graph graph{nullptr, nullptr};
  };
  template <class T>
  static uint64_t bytes_of(int64_t n) {
    return static_cast<uint64_t>(n) * sizeof(T);
  }
  void project(const Projection& one, const void* x, DeviceType type, int64_t rows, const Side& side);
  void dense(const DeviceDense& layer, const void* x, DeviceType of_x, void* y, DeviceType of_y, int64_t rows,
             DeviceActivation f, bool add);
  const void* inner(const Dense* gate, const Dense& in, const void* x, DeviceType of_x, float* hidden, DeviceType type,
                    int64_t rows, Activation f);
  DeviceRotary turns_of(const Rotary& rotary, int64_t max_length) const;

  std::shared_ptr<const DeviceTensors> tensors_;
  const Device* device_;
  std::optional<CurrentDevice> current_;
  Stream stream_;
  PinnedMemory pinned_;  // what `arrays_` was filled from
  PinnedMemory seen_;    // what came from the device
  bool in_flight_ = false;
  uint64_t allocations_ = 0;
  std::vector<char> packed_;
  uint64_t placed_bytes_ = 0;
  char* placed_to_ = nullptr;
  std::map<const Side*, RowArrays> placed_;
  const int32_t* placed_ids_ = nullptr;
  std::map<std::pair<int64_t, StepResult>, Step> graphs_;
  std::pair<uint64_t, uint64_t> graphs_of_{};
  Buffer arrays_{this}, scratch_{this}, heads_{this}, inner_{this}, results_{this};
  std::vector<int32_t> ids_;
  std::vector<float> top_, norms_;
};

// A place for the host to write what belongs to x: x itself, or `room`.
float* on_host(const Workspace& ws, float* x, int64_t n, std::vector<float>& room);
// The numbers at x as the host may read them.
const float* seen_by_host(const Workspace& ws, const float* x, int64_t n, std::vector<float>& room);

}  // namespace attnkit::core
