// A linear attention on CUDA is a feature map: ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<T>) of a struct T.
//
// linear/kernels.hpp computes it.  A T has
//   about, options, fill as in plugin.hpp; device_type is set here
//   explicit T(const attnkit::cuda::linear::Setup&);    may change the shape, whose features are D when it arrives
//   using Device = ...;                                 the map in a kernel, which copies it by value:
//     static constexpr bool kSplits                       does z take other features than S?
//     template <class X>
//     __device__ void query(const X& x, const Place&, const Row& row) const;
//     __device__ void key(...the same...) const;          a warp together writes the features of row x: D floats x[f]
//   Device device(const attn_run&) const;               of one run; pointers in it are those of the run
// And, where it needs them,
//   void check(const attnkit::Request&, attnkit::Info&) const;    refuses what it cannot do
//   double flops() const;                                         of the map, per row and head
//   static constexpr const char* output_doc;                      if the output is no weighted mean
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_HPP
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/linear/kernels.hpp>

namespace attnkit::cuda::linear {

struct Shape : Widths {
  explicit Shape(const attn_block& b) : Widths(b), features(d) {}
  int64_t features;  // D'
  int64_t head_floats() const { return features * (e + 1); }
};

// The arguments of a map.
struct Setup {
  const attn_block& block;
  const Values& values;
  Ports& ports;
  Shape& shape;
};

template <class T>
class Mechanism {
  using Device = typename T::Device;

 public:
  struct Plan {
    bool in_chunks;  // does a head fit into a block's shared memory?
  };
  static constexpr About about{T::about.name,
                               T::about.summary,
                               T::about.citation,
                               T::about.state_revision,
                               kCudaDevice,
                               T::about.oldest_host_minor,
                               true};
  static Options options() { return T::options(); }

  Mechanism(const attn_block& b, const Values& values, Ports& ports)
      : block_(b),
        shape_(b),
        guard_(Guard::from(values)),
        ports_(ports.qkv(shape_, output_doc())),
        map_(Setup{b, values, ports, shape_}) {}

  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const requires requires(const T& map) {
    map.fill(port, seed, data, count);
  }
  { map_.fill(port, seed, data, count); }

  Plan plan(const Request& r, Info& info) const {
    check_sight(block_, r);
    if constexpr (requires { map_.check(r, info); }) map_.check(r, info);
    double map_flops = 0;
    if constexpr (requires { map_.flops(); }) map_flops = map_.flops();
    const Sizes sizes = this->sizes();
    const auto steps_bytes = static_cast<int64_t>(sizes.steps_bytes(kSteps));
    if (steps_bytes > kMostShared)
      throw unsupported("the rows of ", kSteps, " tokens take ", steps_bytes, " bytes of a block's shared memory, ",
                        "which is ", kMostShared, " bytes: make the heads narrower");
    const Plan plan{static_cast<int64_t>(sizes.chunk_bytes()) <= kMostShared};
    const int64_t items = r.batch * shape_.heads;
    info.state(r, shape_.heads * shape_.head_floats());
    if (!r.streams() && !plan.in_chunks) info.scratch_bytes = aligned(float_bytes(items * shape_.head_floats()));
    const double row = 2.0 * static_cast<double>(shape_.head_floats()) + map_flops;
    info.flops = static_cast<uint64_t>(items) * static_cast<uint64_t>(static_cast<double>(r.queries + r.keys) * row);
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    with_type(ports_.o.of(r.ports), [&](auto type) { run_in<decltype(type)>(plan, r); });
  }

 private:
  static constexpr const char* output_doc() {
    if constexpr (requires { T::output_doc; }) return T::output_doc;
    return "weighted mean of the values";
  }
  Sizes sizes() const {
    return {static_cast<int>(shape_.heads), static_cast<int>(shape_.d), static_cast<int>(shape_.e),
            static_cast<int>(shape_.features), Device::kSplits};
  }
  template <class Type>
  void run_in(const Plan& plan, const attn_run& r) const {
    using Work = linear::Work<Device, Type>;
    const auto rows = [&](Port port) { return View<const Type>(r, port); };
    const Work work{
        map_.device(r),
        sizes(),
        {rows(ports_.q), rows(ports_.k), rows(ports_.v), View<Type>(r, ports_.o), Lengths(r, block_.causal != 0),
         States(r), static_cast<float*>(r.exec->scratch), guard_.kind, static_cast<float>(guard_.eps)}};
    const auto blocks = dim3(static_cast<unsigned>(r.batch * shape_.heads));
    const auto start = [&](auto* kernel, uint64_t bytes) {
      launch(about.name, kernel, {blocks, kThreads, bytes}, *r.exec, work);
    };
    const bool few = r.state != nullptr && r.queries <= kSteps && r.keys <= kSteps;
    if (few && r.queries <= 1 && r.keys <= 1)
      start(steps_kernel<Work, 1>, work.sizes.steps_bytes(1));
    else if (few || !plan.in_chunks)
      start(steps_kernel<Work, kSteps>, work.sizes.steps_bytes(kSteps));
    else
      start(chunks_kernel<Work>, work.sizes.chunk_bytes());
  }
  attn_block block_;
  Shape shape_;
  Guard guard_;
  QkvPorts ports_;
  T map_;
};

}  // namespace attnkit::cuda::linear
#endif
