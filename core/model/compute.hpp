// The operations of a walk over layers: on the CPU, or on a device where all tensors of the walk lie.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "core/device/table.hpp"
#include "core/model/layers.hpp"
#include "core/model/rotary.hpp"
#include "core/model/workspace.hpp"

namespace attnkit::core {

// The vectors of a Side where the tensors lie.
struct RowArrays {
  const int32_t *lengths = nullptr, *positions = nullptr, *slots = nullptr;
  const double* totals = nullptr;
};

// The model's steps behind a projection into heads.
struct HeadSteps {
  const LayerNorm* norm;       // of each head; NULL: none
  const Rotary* rotary;        // NULL: none
  int64_t made, heads, width;  // heads that are projected, and as many as these become by repeating each
  int64_t max_length;          // padding behind a row's end may stand beyond
};

struct Projection {
  const Dense* layer;
  void* y;
  HeadSteps steps;
};

// For one thread of control.  Tensors are contiguous and row by row, in f32 but where a type is said: around attention
// on a device they may be bf16 or f16.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual BufferMemory* memory() { return nullptr; }  // of buffers; NULL: the host's
  virtual uint32_t workers() const = 0;               // of plans
  virtual attn_exec exec(void* scratch, uint64_t bytes) = 0;

  // Said before a walk: the sides that it sees, and the ids that it embeds or NULL.  Sides stay as they are until then.
  virtual void place(std::initializer_list<const Side*> sides, const Ids* ids) = 0;
  virtual RowArrays rows(const Side& side) const = 0;
  virtual const void* stored(const void* tensor) const = 0;  // a block's LEARNED or TABLE tensor

  virtual void norm(const LayerNorm& layer, const float* x, void* y, DeviceType of_y, int64_t rows) = 0;
  // Of inputs that a layer need not round.
  virtual DeviceType takes(const Dense& layer) const = 0;
  // y = W x + b, or y += W x + b
  virtual void dense(const Dense& layer, const float* x, float* y, int64_t rows) = 0;
  virtual void dense_add(const Dense& layer, const void* x, DeviceType of_x, float* y, int64_t rows) = 0;
  // y += out (f(gate x) * in x), or out f(in x) where there is no gate; y may be x.
  virtual void feed_forward(const Dense* gate, const Dense& in, const Dense& out, const void* x, DeviceType of_x,
                            float* y, int64_t rows, Activation f, Buffer& room) = 0;
  // x in that type: x itself in f32, else rounded in `room`.
  virtual const void* rounded(const float* x, int64_t n, DeviceType type, Buffer& room) = 0;
  virtual void project(std::span<const Projection> all, const void* x, DeviceType type, int64_t rows,
                       const Side& side) = 0;
  // The ids that were placed, of the rows of `side`.
  virtual void embed(const Embedding& layer, const Ids& ids, const Side& side, float* x) = 0;
  virtual void add(float* x, const void* y, DeviceType of_y, int64_t n) = 0;
  virtual void normalise_heads(void* o, DeviceType type, int64_t rows, int64_t heads, int64_t width) = 0;
  virtual void scale(float* x, float by, const std::vector<float>& bias, int64_t rows, int64_t width) = 0;

  // A sequence between blocks, which lies on the host: where the walk's tensors lie, in `room` if it has to be copied.
  virtual const float* given(const AuxValue& value, Buffer& room) = 0;
  virtual void take(const float* from, int64_t n, std::vector<float>& to) = 0;
};

class HostCompute final : public Compute {
 public:
  explicit HostCompute(Threads& threads) : threads_(threads) {}
  uint32_t workers() const override { return threads_.workers(); }
  attn_exec exec(void* scratch, uint64_t bytes) override { return threads_.exec(scratch, bytes); }
  void place(std::initializer_list<const Side*>, const Ids*) override {}
  RowArrays rows(const Side& side) const override;
  const void* stored(const void* tensor) const override { return tensor; }
  void norm(const LayerNorm& layer, const float* x, void* y, DeviceType of_y, int64_t rows) override;
  DeviceType takes(const Dense&) const override { return DeviceType::f32; }
  void dense(const Dense& layer, const float* x, float* y, int64_t rows) override;
  void dense_add(const Dense& layer, const void* x, DeviceType of_x, float* y, int64_t rows) override;
  void feed_forward(const Dense* gate, const Dense& in, const Dense& out, const void* x, DeviceType of_x, float* y,
                    int64_t rows, Activation f, Buffer& room) override;
  const void* rounded(const float* x, int64_t, DeviceType, Buffer&) override { return x; }
  void project(std::span<const Projection> all, const void* x, DeviceType type, int64_t rows,
               const Side& side) override;
  void embed(const Embedding& layer, const Ids& ids, const Side& side, float* x) override;
  void add(float* x, const void* y, DeviceType of_y, int64_t n) override;
  void normalise_heads(void* o, DeviceType type, int64_t rows, int64_t heads, int64_t width) override;
  void scale(float* x, float by, const std::vector<float>& bias, int64_t rows, int64_t width) override;
  const float* given(const AuxValue& value, Buffer& room) override;
  void take(const float* from, int64_t n, std::vector<float>& to) override;

 private:
  void project(const Projection& one, const float* x, int64_t rows, const Side& side);
  int64_t rows_together(int64_t width) const;

  Threads& threads_;
};

}  // namespace attnkit::core
