// Runs of attend_cudnn.hpp's graph: whole sequences of a plan in f16 or bf16.
//
// A run that fills its plan's bounds, has no lengths and lies as a model has it is cuDNN's alone.  Any other is copied
// into scratch first, padding as zeros, and its output out of it: cuDNN's kernels are made for one size, and what they
// would make of NaN in padding nobody says.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_WHOLE_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_WHOLE_HPP
#include <attnkit/kernels/cuda/attend_cudnn.hpp>
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>

namespace attnkit::cuda::cudnn {

// Between the tensor of a run and [batch][rows][heads][width] in scratch, 16 bits to a number.
struct Copying {
  Rows<uint16_t> outer;
  uint16_t* inner;
  int64_t outer_batch, outer_rows, rows;  // of the run; of scratch
  int heads, width;
  const int32_t *lengths, *keys;  // of the run, NULL: all
};
constexpr int kCopyThreads = 256;

// A block copies one row of all heads; the first of each batch row notes its length, at least 1.
static __global__ void __launch_bounds__(kCopyThreads) pack_kernel(const Copying c, int32_t* lengths) {
  const int64_t b = blockIdx.x / c.rows, i = blockIdx.x % c.rows;
  const int64_t length = b >= c.outer_batch ? 0 : c.lengths ? c.lengths[b] : c.outer_rows;
  uint16_t* to = c.inner + blockIdx.x * static_cast<int64_t>(c.heads) * c.width;
  for (int x = static_cast<int>(threadIdx.x); x < c.heads * c.width; x += kCopyThreads)
    to[x] = i < length ? c.outer.at(b, x / c.width, i)[x % c.width] : uint16_t{0};
  if (lengths && i == 0 && threadIdx.x == 0) lengths[b] = static_cast<int32_t>(length > 0 ? length : 1);
}

// Queries past their length, or without a key, become zeros.
static __global__ void __launch_bounds__(kCopyThreads) unpack_kernel(const Copying c) {
  const int64_t b = blockIdx.x / c.outer_rows, i = blockIdx.x % c.outer_rows;
  const bool real = (!c.lengths || i < c.lengths[b]) && (!c.keys || c.keys[b] > 0);
  const uint16_t* from = c.inner + (b * c.rows + i) * c.heads * c.width;
  for (int x = static_cast<int>(threadIdx.x); x < c.heads * c.width; x += kCopyThreads)
    c.outer.at(b, x / c.width, i)[x % c.width] = real ? from[x] : uint16_t{0};
}

class Whole {
 public:
  // NULL where the request is none of these, where there is no cuDNN, or where it refuses.
  // Errors    Refusal ATTN_DEVICE where there is no device.
  static std::shared_ptr<const Whole> make(const Request& r, const Widths& w, bool causal) {
    const bool whole = !r.streams() && !r.shows_prefixes() && !r.trains();
    const Library* library = check::is_half(r) && whole && r.batch * r.queries * r.keys > 0 ? Library::get() : nullptr;
    if (!library) return nullptr;
    const AttentionShape shape{r.batch, w.heads, w.kv_heads, r.queries,
                               r.keys,  w.d,     w.e,        r.dtype_code == 2 ? kHalf : kBfloat16,
                               causal,  false};
    try {
      return std::make_shared<const Whole>(*library, shape);
    } catch (const NotSupported&) {
      return nullptr;
    }
  }

  Whole(const Library& library, const AttentionShape& shape)
      : shape_(shape), handle_(library), full_(library, handle_, shape), padded_(library, handle_, padded(shape)) {}

  uint64_t scratch_bytes() const { return Layout::measure<Scratch>(*this); }

  void run(const char* name, const attn_run& r, const QkvPorts& ports, float scale) const {
    Layout layout(r.exec->scratch);
    const Scratch s(layout, *this);
    const auto of = [&](Port port) { return View<uint16_t>(r, port); };
    if (fills(r) && lies_well(of(ports.q), shape_.heads, shape_.queries, shape_.d) &&
        lies_well(of(ports.k), shape_.kv_heads, shape_.keys, shape_.d) &&
        lies_well(of(ports.v), shape_.kv_heads, shape_.keys, shape_.e) &&
        lies_well(of(ports.o), shape_.heads, shape_.queries, shape_.e)) {
      enqueue(full_, r,
              {of(ports.q).data, of(ports.k).data, of(ports.v).data, of(ports.o).data, nullptr, nullptr, s.workspace},
              scale);
      return;
    }
    const auto copy = [&](Port port, uint16_t* inner, bool keys, int64_t width) {
      return Copying{of(port),
                     inner,
                     r.batch,
                     keys ? r.keys : r.queries,
                     keys ? shape_.keys : shape_.queries,
                     static_cast<int>(keys ? shape_.kv_heads : shape_.heads),
                     static_cast<int>(width),
                     keys ? r.k_len : r.q_len,
                     r.k_len};
    };
    const auto pack = [&](const Copying& c, int32_t* lengths) {
      launch(name, pack_kernel, {dim3(static_cast<unsigned>(shape_.batch * c.rows)), kCopyThreads}, *r.exec, c,
             lengths);
    };
    pack(copy(ports.q, s.q, false, shape_.d), s.queries);
    pack(copy(ports.k, s.k, true, shape_.d), s.keys);
    pack(copy(ports.v, s.v, true, shape_.e), nullptr);
    enqueue(padded_, r, {s.q, s.k, s.v, s.o, s.queries, s.keys, s.workspace}, scale);
    launch(name, unpack_kernel, {dim3(static_cast<unsigned>(r.batch * r.queries)), kCopyThreads}, *r.exec,
           copy(ports.o, s.o, false, shape_.e));
  }

 private:
  struct Scratch {
    uint16_t *q, *k, *v, *o;
    int32_t *queries, *keys;
    char* workspace;
    Scratch(Layout& layout, const Whole& w) {
      const AttentionShape& s = w.shape_;
      q = layout.take<uint16_t>(s.batch * s.queries * s.heads * s.d);
      k = layout.take<uint16_t>(s.batch * s.keys * s.kv_heads * s.d);
      v = layout.take<uint16_t>(s.batch * s.keys * s.kv_heads * s.e);
      o = layout.take<uint16_t>(s.batch * s.queries * s.heads * s.e);
      queries = layout.take<int32_t>(s.batch);
      keys = layout.take<int32_t>(s.batch);
      workspace =
          layout.take<char>(static_cast<int64_t>(std::max(w.full_.workspace_bytes(), w.padded_.workspace_bytes())));
    }
  };

  static AttentionShape padded(AttentionShape shape) {
    shape.padded = true;
    return shape;
  }
  bool fills(const attn_run& r) const {
    return r.q_len == nullptr && r.k_len == nullptr && r.batch == shape_.batch && r.queries == shape_.queries &&
           r.keys == shape_.keys;
  }
  static bool lies_well(const View<uint16_t>& rows, int64_t heads, int64_t count, int64_t width) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.head == width && rows.next == heads * width &&
           rows.batch == count * heads * width;
  }
  // A handle has one stream at a time: runs of one plan take turns in enqueueing.
  void enqueue(const AttentionPlan& plan, const attn_run& r, const AttentionPlan::Tensors& tensors, float scale) const {
    struct Turn {
      std::atomic_flag& taken;
      explicit Turn(std::atomic_flag& flag) : taken(flag) {
        while (taken.test_and_set(std::memory_order_acquire)) taken.wait(true);
      }
      ~Turn() {
        taken.clear(std::memory_order_release);
        taken.notify_one();
      }
    } const turn(enqueueing_);
    plan.run(handle_, r.exec->stream, tensors, scale);
  }

  AttentionShape shape_;
  Handle handle_;
  AttentionPlan full_, padded_;
  mutable std::atomic_flag enqueueing_;
};

}  // namespace attnkit::cuda::cudnn
#endif
