// Runs of attend_cudnn.hpp's graphs: whole sequences of a plan in f16 or bf16, and their gradients.
//
// A call that fills its plan's bounds, has no lengths and lies as a model has it is cuDNN's alone.  Any other is copied
// into scratch first, padding as zeros, and its results out of it: cuDNN's kernels are made for one size, and what they
// would make of NaN in padding nobody says.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_WHOLE_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_WHOLE_HPP
#include <atomic>
#include <attnkit/kernels/cuda/attend_cudnn.hpp>
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>
#include <optional>

namespace attnkit::cuda::cudnn {

// Between the tensor of a run and [batch][rows][heads][width] in scratch, 16 bits to a number.
struct Copying {
  Rows<uint16_t> outer;
  uint16_t* inner;
  int64_t outer_batch, outer_rows, rows;  // of the run; of scratch
  int heads, width;
  const int32_t *lengths, *others;  // of the run: of these rows, and of those on the other side; NULL: all
  int64_t other_rows;               // of the run
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

// Rows past their length, or without one on the other side, become zeros.
static __global__ void __launch_bounds__(kCopyThreads) unpack_kernel(const Copying c) {
  const int64_t b = blockIdx.x / c.outer_rows, i = blockIdx.x % c.outer_rows;
  const bool real = (!c.lengths || i < c.lengths[b]) && (c.others ? c.others[b] : c.other_rows) > 0;
  const uint16_t* from = c.inner + (b * c.rows + i) * c.heads * c.width;
  for (int x = static_cast<int>(threadIdx.x); x < c.heads * c.width; x += kCopyThreads)
    c.outer.at(b, x / c.width, i)[x % c.width] = real ? from[x] : uint16_t{0};
}

struct RowLengths {
  int32_t *queries, *keys;
};
// Of runs that fill their bounds: all rows.
static __global__ void __launch_bounds__(kCopyThreads)
    fill_kernel(const RowLengths to, int64_t batch, int32_t queries, int32_t keys) {
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (b >= batch) return;
  to.queries[b] = queries;
  to.keys[b] = keys;
}

class Whole {
 public:
  // NULL where the request is none of these, where there is no cuDNN, or where it refuses.
  // Errors    Refusal ATTN_DEVICE where there is no device.
  static std::shared_ptr<const Whole> make(const Request& r, const Widths& w, bool causal) {
    const bool whole = !r.streams() && !r.shows_prefixes();
    const Library* library = check::is_half(r) && whole && r.batch * r.queries * r.keys > 0 ? Library::get() : nullptr;
    // 9.10.0 and 9.10.1 are known to be wrong in 16 bits.
    if (!library || (library->version() >= 91000 && library->version() < 91002)) return nullptr;
    const AttentionShape shape{r.batch, w.heads, w.kv_heads, r.queries,
                               r.keys,  w.d,     w.e,        r.dtype_code == 2 ? kHalf : kBfloat16,
                               causal,  false,   r.trains()};
    try {
      return std::make_shared<const Whole>(*library, shape);
    } catch (const NotSupported&) {
      return nullptr;
    }
  }

  Whole(const Library& library, const AttentionShape& shape)
      : shape_(shape), handle_(library), full_(library, handle_, shape), padded_(library, handle_, padded(shape)) {
    // Without lengths its gradients have been NaN for some numbers of keys.
    if (shape.trains) gradient_.emplace(library, handle_, padded(shape));
    clears_sums_ = library.version() < 90600;  // later ones begin them themselves
  }

  uint64_t scratch_bytes() const { return Layout::measure<Scratch>(*this); }
  // l of every query.
  uint64_t saved_bytes() const {
    return aligned(static_cast<uint64_t>(shape_.batch * shape_.heads * shape_.queries) * sizeof(float));
  }
  uint64_t backward_scratch_bytes() const { return Layout::measure<GradientScratch>(*this); }

  void run(const char* name, const attn_run& r, const QkvPorts& ports, float scale) const {
    Layout layout(r.exec->scratch);
    const Scratch s(layout, *this);
    const Sides sides(*this, r);
    const View<uint16_t> q(r, ports.q), k(r, ports.k), v(r, ports.v), o(r, ports.o);
    const auto enqueue_with = [&](const GraphPlan& plan, Tensors tensors) {
      tensors[Id::kLogSum] = r.saved;
      enqueue(plan, r, tensors, s.lengths, scale, s.workspace);
    };
    if (fills(r) && sides.q.lies_well(q) && sides.k.lies_well(k) && sides.v.lies_well(v) && sides.o.lies_well(o))
      return enqueue_with(full_.plan, {q.data, k.data, v.data, o.data});
    pack(name, r, sides.q, q, s.q, s.lengths.queries);
    pack(name, r, sides.k, k, s.k, s.lengths.keys);
    pack(name, r, sides.v, v, s.v);
    enqueue_with(padded_.plan, {s.q, s.k, s.v, s.o});
    unpack(name, r, sides.o, s.o, o);
  }

  void run_backward(const char* name, const attn_grad& g, const QkvPorts& ports, float scale) const {
    const attn_run& r = *g.run;
    Layout layout(r.exec->scratch);
    const GradientScratch s(layout, *this);
    const Sides sides(*this, r);
    const View<uint16_t> q(r, ports.q), k(r, ports.k), v(r, ports.v), o(r, ports.o), given(g, ports.o), dq(g, ports.q),
        dk(g, ports.k), dv(g, ports.v);
    const auto give = [&] {
      unpack(name, r, sides.q, s.dq, dq);
      unpack(name, r, sides.k, s.dk, dk);
      unpack(name, r, sides.v, s.dv, dv);
    };
    if (r.queries == 0 || r.keys == 0) return give();
    if (clears_sums_) {
      const cudaError_t error =
          cudaMemsetAsync(s.sum_of_q, 0, s.sum_of_q_bytes, reinterpret_cast<cudaStream_t>(r.exec->stream));
      if (error != cudaSuccess)
        throw Refusal(ATTN_DEVICE, say("CUDA cannot clear memory: ", cudaGetErrorString(error)));
    }
    const auto enqueue_with = [&](Tensors tensors) {
      tensors[Id::kLogSum] = r.saved;
      tensors[Id::kProduct] = s.product;
      tensors[Id::kSumOfQ] = s.sum_of_q;
      enqueue(gradient_->plan, r, tensors, s.run.lengths, scale, s.run.workspace);
    };
    // A gradient that nobody wants goes to scratch.
    const auto into = [](const Side& side, const View<uint16_t>& x, uint16_t* room) {
      return x.data == nullptr ? room : side.lies_well(x) ? x.data : nullptr;
    };
    uint16_t *const to_q = into(sides.q, dq, s.dq), *const to_k = into(sides.k, dk, s.dk),
                    *const to_v = into(sides.v, dv, s.dv);
    if (fills(r) && sides.q.lies_well(q) && sides.k.lies_well(k) && sides.v.lies_well(v) && sides.o.lies_well(o) &&
        sides.o.lies_well(given) && to_q && to_k && to_v) {
      const int64_t blocks = (r.batch + kCopyThreads - 1) / kCopyThreads;
      launch(name, fill_kernel, {dim3(static_cast<unsigned>(blocks)), kCopyThreads}, *r.exec, s.run.lengths, r.batch,
             static_cast<int32_t>(r.queries), static_cast<int32_t>(r.keys));
      return enqueue_with({q.data, k.data, v.data, o.data, given.data, to_q, to_k, to_v});
    }
    pack(name, r, sides.q, q, s.run.q, s.run.lengths.queries);
    pack(name, r, sides.k, k, s.run.k, s.run.lengths.keys);
    pack(name, r, sides.v, v, s.run.v);
    pack(name, r, sides.o, o, s.run.o);
    pack(name, r, sides.o, given, s.given);
    enqueue_with({s.run.q, s.run.k, s.run.v, s.run.o, s.given, s.dq, s.dk, s.dv});
    give();
  }

 private:
  using Id = AttentionTensors::Id;
  // Tensors and numbers of a call, by Id.
  struct Tensors {
    std::array<const void*, Id::kFirstVirtual> at{};
    Tensors(std::initializer_list<const void*> first) { std::copy(first.begin(), first.end(), at.begin() + Id::kQ); }
    const void*& operator[](Id id) { return at[static_cast<size_t>(id)]; }
  };
  // Rows of a kind: how many the run has and the plan allows, their lengths, and the rows on the other side.
  struct Side {
    int64_t outer_rows, rows, heads, width;
    const int32_t *lengths, *others;
    int64_t other_rows;
    int64_t count(int64_t batch) const { return batch * rows * heads * width; }
    bool lies_well(const View<uint16_t>& x) const {
      return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.head == width && x.next == heads * width &&
             x.batch == rows * heads * width;
    }
  };
  struct Sides {
    Side q, k, v, o;
    Sides(const Whole& w, const attn_run& r) {
      const AttentionShape& s = w.shape_;
      q = {r.queries, s.queries, s.heads, s.d, r.q_len, r.k_len, r.keys};
      k = {r.keys, s.keys, s.kv_heads, s.d, r.k_len, r.q_len, r.queries};
      v = k;
      v.width = s.e;
      o = q;
      o.width = s.e;
    }
  };
  struct Scratch {
    uint16_t *q, *k, *v, *o;
    RowLengths lengths;
    char* workspace;
    Scratch(Layout& layout, const Whole& w) {
      const AttentionShape& s = w.shape_;
      const Sides sides(w, attn_run{});
      q = layout.take<uint16_t>(sides.q.count(s.batch));
      k = layout.take<uint16_t>(sides.k.count(s.batch));
      v = layout.take<uint16_t>(sides.v.count(s.batch));
      o = layout.take<uint16_t>(sides.o.count(s.batch));
      lengths.queries = layout.take<int32_t>(s.batch);
      lengths.keys = layout.take<int32_t>(s.batch);
      const uint64_t run = std::max(w.full_.plan.workspace_bytes(), w.padded_.plan.workspace_bytes());
      workspace =
          layout.take<char>(static_cast<int64_t>(std::max(run, w.gradient_ ? w.gradient_->plan.workspace_bytes() : 0)));
    }
  };
  struct GradientScratch {
    Scratch run;
    uint16_t *given, *dq, *dk, *dv;
    float *product, *sum_of_q;
    size_t sum_of_q_bytes;
    GradientScratch(Layout& layout, const Whole& w) : run(layout, w) {
      const AttentionShape& s = w.shape_;
      const Sides sides(w, attn_run{});
      given = layout.take<uint16_t>(sides.o.count(s.batch));
      dq = layout.take<uint16_t>(sides.q.count(s.batch));
      dk = layout.take<uint16_t>(sides.k.count(s.batch));
      dv = layout.take<uint16_t>(sides.v.count(s.batch));
      product = layout.take<float>(s.batch * s.heads * s.queries);
      sum_of_q = layout.take<float>(sides.q.count(s.batch));
      sum_of_q_bytes = static_cast<size_t>(sides.q.count(s.batch)) * sizeof(float);
    }
  };

  template <class G>
  struct Ready {
    G graph;
    GraphPlan plan;
    Ready(const Library& library, const Handle& handle, const AttentionShape& shape)
        : graph(library, handle.raw(), shape), plan(library, handle, graph) {}
  };
  static AttentionShape padded(AttentionShape shape) {
    shape.padded = true;
    return shape;
  }
  bool fills(const attn_run& r) const {
    return r.q_len == nullptr && r.k_len == nullptr && r.batch == shape_.batch && r.queries == shape_.queries &&
           r.keys == shape_.keys;
  }
  static Copying copying(const attn_run& r, const Side& side, const View<uint16_t>& outer, uint16_t* inner) {
    return {outer,
            inner,
            r.batch,
            side.outer_rows,
            side.rows,
            static_cast<int>(side.heads),
            static_cast<int>(side.width),
            side.lengths,
            side.others,
            side.other_rows};
  }
  void pack(const char* name, const attn_run& r, const Side& side, const View<uint16_t>& from, uint16_t* to,
            int32_t* lengths = nullptr) const {
    launch(name, pack_kernel, {dim3(static_cast<unsigned>(shape_.batch * side.rows)), kCopyThreads}, *r.exec,
           copying(r, side, from, to), lengths);
  }
  static void unpack(const char* name, const attn_run& r, const Side& side, uint16_t* from, const View<uint16_t>& to) {
    if (!to.data || side.outer_rows == 0) return;
    launch(name, unpack_kernel, {dim3(static_cast<unsigned>(r.batch * side.outer_rows)), kCopyThreads}, *r.exec,
           copying(r, side, to, from));
  }
  // A handle has one stream at a time: calls of one plan take turns in enqueueing.
  void enqueue(const GraphPlan& plan, const attn_run& r, Tensors& tensors, const RowLengths& lengths, float scale,
               void* workspace) const {
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
    const float hidden = -std::numeric_limits<float>::infinity(), one = 1;
    tensors[Id::kQueries] = lengths.queries;
    tensors[Id::kKeys] = lengths.keys;
    tensors[Id::kScale] = &scale;
    tensors[Id::kHidden] = &hidden;
    tensors[Id::kOne] = &one;
    plan.run(handle_, r.exec->stream, tensors.at, workspace);
  }

  AttentionShape shape_;
  Handle handle_;
  Ready<AttentionGraph> full_, padded_;  // of runs that fill the bounds, and of any
  std::optional<Ready<AttentionGradientGraph>> gradient_;
  bool clears_sums_ = false;
  mutable std::atomic_flag enqueueing_;
};

}  // namespace attnkit::cuda::cudnn
#endif
