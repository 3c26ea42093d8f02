// Training in 16 bits: TrainsHalves<M> is mechanism M, whose gradients are f32, with plans of f16 and bf16 that train.
//
// A run computes in 16 bits and saves nothing.  Its gradient is M's in f32: the run's tensors are widened into scratch,
// M runs there again, and gradients of sequences are rounded to their type.  Those of LEARNED tensors are f32 as ever.
// An M that has gradients of 16 bits for some plans, and of their runs for some where it is not for all, says so:
//   static bool trains_in_halves(const Plan&);
//   bool trains_in_halves(const attn_run&) const;
#ifndef ATTNKIT_KERNELS_CUDA_TRAIN_HALVES_HPP
#define ATTNKIT_KERNELS_CUDA_TRAIN_HALVES_HPP
#include <array>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <optional>

namespace attnkit::cuda {

constexpr int kConvertThreads = 256;

// A tensor of 16 bits, and its numbers in f32 in the order of its axes.
template <class Half>
struct Converting {
  Half* half;
  float* number;
  int64_t count, shape[4], stride[4];
  Converting(const attn_tensor& t, float* numbers) : half(static_cast<Half*>(t.data)), number(numbers), count(1) {
    for (int n = 0; n < 4; ++n) {
      shape[n] = t.shape[n];
      stride[n] = t.stride[n];
      count *= t.shape[n];
    }
  }
  __device__ Half* at(int64_t x) const {
    Half* to = half;
    for (int n = 3; n >= 0; --n) {
      to += x % shape[n] * stride[n];
      x /= shape[n];
    }
    return to;
  }
};

// A thread per number.
template <class Half, bool kWidens>
static __global__ void __launch_bounds__(kConvertThreads) convert_kernel(const Converting<Half> c) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kConvertThreads + threadIdx.x;
  if (x >= c.count) return;
  if constexpr (kWidens)
    c.number[x] = widened(*c.at(x));
  else
    *c.at(x) = narrowed<Half>(c.number[x]);
}

template <class M>
class TrainsHalves : public M {
  static constexpr bool kTrains = requires(const M& m, const typename M::Plan& plan, const attn_grad& g) {
    m.backward(plan, g);
  };
  static constexpr About with_halves(About about) {
    about.trains_halves = kTrains;
    return about;
  }

 public:
  struct Plan {
    typename M::Plan run;
    std::optional<typename M::Plan> gradient;  // in f32, of a plan that trains in 16 bits
    Request request;
    uint64_t saved_bytes = 0;  // of the gradient's run
    bool is_own = false;       // has M gradients of 16 bits for it?
  };
  static constexpr About about = with_halves(M::about);

  TrainsHalves(const attn_block& b, const Values& values, Ports& ports) : M(b, values, ports), ports_(ports.list()) {
    if (ports_.size() > kMostPorts)
      throw unsupported("a mechanism that trains in 16 bits has at most ", kMostPorts, " ports");
  }

  Plan plan(const Request& r, Info& info) const {
    if (!r.trains() || !check::is_half(r)) return {M::plan(r, info), std::nullopt, r};
    Request forward = r, f32 = r;
    forward.flags &= ~static_cast<uint32_t>(ATTN_TRAIN);
    f32.dtype_code = 2;
    f32.dtype_bits = 32;
    bool is_own = false;
    const auto plan_run = [&] {
      if constexpr (kSome) {
        Info own = info;
        typename M::Plan found = M::plan(r, own);
        is_own = M::trains_in_halves(found);
        if (is_own) {
          info = own;
          return found;
        }
      }
      return M::plan(forward, info);
    };
    typename M::Plan run = plan_run();
    if (is_own && !kSomeRuns) return {std::move(run), std::nullopt, r};
    Info of{};
    Plan plan{std::move(run), M::plan(f32, of), r};
    plan.saved_bytes = of.saved_bytes;
    plan.is_own = is_own;
    info.backward_scratch_bytes =
        std::max(info.backward_scratch_bytes,
                 Layout::measure<Scratch>(ports_, plan) + std::max(of.scratch_bytes, of.backward_scratch_bytes));
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (!plan.gradient || is_own(plan, r)) return M::run(plan.run, r);
    attn_run without = r;
    without.saved = nullptr;  // the host has none
    M::run(plan.run, without);
  }

  void backward(const Plan& plan, const attn_grad& g) const requires kTrains {
    if (!plan.gradient || is_own(plan, *g.run)) return M::backward(plan.run, g);
    if (plan.request.dtype_code == 2)
      backward_in<__half>(plan, g);
    else
      backward_in<__nv_bfloat16>(plan, g);
  }

 private:
  static constexpr bool kSome = requires(const typename M::Plan& plan) { M::trains_in_halves(plan); };
  static constexpr bool kSomeRuns = requires(const M& m, const attn_run& r) { m.trains_in_halves(r); };
  bool is_own(const Plan& plan, const attn_run& r) const {
    if constexpr (kSomeRuns) return plan.is_own && M::trains_in_halves(r);
    return false;
  }
  static constexpr size_t kMostPorts = 32;
  using Tensors = std::array<attn_tensor, kMostPorts>;

  static bool converts(const attn_port& p, const Request& r) { return check::bits_of(p, r) == 16; }

  struct Scratch {
    std::array<float*, kMostPorts> numbers, grads;
    void *saved, *rest;
    Scratch(Layout& layout, const PortList& ports, const Plan& plan) {
      const Request& r = plan.request;
      for (size_t i = 0; i < ports.size(); ++i) {
        const attn_port& p = *ports[i];
        const int64_t rows = p.kind == ATTN_KEY ? r.keys : r.queries;
        const int64_t count = converts(p, r) ? r.batch * p.shape[1] * rows * p.shape[3] : 0;
        numbers[i] = layout.take<float>(count);
        grads[i] = layout.take<float>(count);
      }
      saved = layout.take<char>(static_cast<int64_t>(plan.saved_bytes));
      rest = layout.take<char>(0);
    }
  };

  template <class Half>
  void backward_in(const Plan& plan, const attn_grad& g) const {
    const attn_run& r = *g.run;
    if (r.batch == 0) return;
    Layout layout(r.exec->scratch);
    const Scratch scratch(layout, ports_, plan);
    const auto convert = [&](auto widens, const attn_tensor& t, float* numbers) {
      const Converting<Half> c(t, numbers);
      const int64_t blocks = (c.count + kConvertThreads - 1) / kConvertThreads;
      if (blocks > 0)
        launch(M::about.name, convert_kernel<Half, decltype(widens)::value>,
               {dim3(static_cast<unsigned>(blocks)), kConvertThreads}, *r.exec, c);
    };
    const auto widened_copy = [](const attn_tensor& t, float* numbers) {
      attn_tensor f32 = t;
      f32.data = t.data ? numbers : nullptr;
      f32.dtype_code = 2;
      f32.dtype_bits = 32;
      int64_t next = 1;
      for (int n = 3; n >= 0; --n) {
        f32.stride[n] = next;
        next *= t.shape[n];
      }
      return f32;
    };
    Tensors ports, grads;
    for (size_t i = 0; i < ports_.size(); ++i) {
      ports[i] = r.ports[i];
      grads[i] = g.grads[i];
      if (!converts(*ports_[i], plan.request)) continue;
      const bool is_output = ports_[i]->kind == ATTN_OUTPUT;
      ports[i] = widened_copy(r.ports[i], scratch.numbers[i]);
      grads[i] = widened_copy(g.grads[i], scratch.grads[i]);
      if (is_output)
        convert(std::true_type{}, g.grads[i], scratch.grads[i]);
      else
        convert(std::true_type{}, r.ports[i], scratch.numbers[i]);
    }
    attn_exec exec = *r.exec;
    exec.scratch = scratch.rest;
    exec.scratch_bytes -= layout.bytes();
    attn_run f32 = r;
    f32.exec = &exec;
    f32.ports = ports.data();
    f32.saved = scratch.saved;
    M::run(*plan.gradient, f32);
    M::backward(*plan.gradient, attn_grad{sizeof(attn_grad), 0, &f32, grads.data()});
    for (size_t i = 0; i < ports_.size(); ++i)
      if (converts(*ports_[i], plan.request) && ports_[i]->kind != ATTN_OUTPUT && g.grads[i].data)
        convert(std::false_type{}, g.grads[i], scratch.grads[i]);
  }

  const PortList& ports_;
};

}  // namespace attnkit::cuda
#endif
