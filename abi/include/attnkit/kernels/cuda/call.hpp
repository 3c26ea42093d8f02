// The arguments of a run, as kernels take them: rows of tensors, lengths, the keys that queries see, the state.
#ifndef ATTNKIT_KERNELS_CUDA_CALL_HPP
#define ATTNKIT_KERNELS_CUDA_CALL_HPP
#include <cuda_runtime.h>

#include <attnkit/plugin.hpp>

namespace attnkit::cuda {

template <class T>
struct Rows {
  T* data;
  int64_t batch, head, next;
  Rows() = default;
  Rows(const View<T>& view) : data(view.data), batch(view.batch), head(view.head), next(view.next) {}
  __device__ T* at(int64_t b, int64_t h, int64_t i) const { return data + b * batch + h * head + i * next; }
};

// The per-row arrays of a run and its bounds; see attn_run.
struct Lengths {
  const int32_t *q_len, *k_len, *q_pos, *k_pos, *visible;
  int64_t queries, keys;
  bool causal;
  Lengths(const attn_run& r, bool is_causal)
      : q_len(r.q_len),
        k_len(r.k_len),
        q_pos(r.q_pos),
        k_pos(r.k_pos),
        visible(r.visible),
        queries(r.queries),
        keys(r.keys),
        causal(is_causal) {}
};

// The keys that batch row b knows and its queries see, as attnkit::Sight has it on the CPU.
struct Sight {
  int64_t queries, fresh, past, q_pos;
  const int32_t* visible;
  bool causal;

  __device__ Sight(const Lengths& l, int64_t b)
      : queries(l.q_len ? l.q_len[b] : l.queries),
        fresh(l.k_len ? l.k_len[b] : l.keys),
        past(l.k_pos ? l.k_pos[b] : 0),
        q_pos(l.q_pos ? l.q_pos[b] : 0),
        visible(l.visible ? l.visible + b * l.queries : nullptr),
        causal(l.causal) {}
  __device__ int64_t seen(int64_t i) const {
    const int64_t all = past + fresh;
    int64_t n = all;
    if (visible)
      n = visible[i];
    else if (causal)
      n = q_pos + i + 1;
    return n < all ? n : all;
  }
};

struct States {
  char* data;
  uint64_t stride;
  const int32_t* slots;
  explicit States(const attn_run& r) : data(static_cast<char*>(r.state)), stride(r.state_stride), slots(r.slots) {}
  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ float* row(int64_t b) const {
    const int64_t slot = slots ? slots[b] : b;
    return reinterpret_cast<float*>(data + static_cast<uint64_t>(slot) * stride);
  }
};

}  // namespace attnkit::cuda
#endif
