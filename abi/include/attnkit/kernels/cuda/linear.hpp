// A linear attention on CUDA is a feature map: ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<T>) of a struct T.
//
// linear/chunks.hpp and kernels.hpp compute it, linear/gradient.hpp its gradient, linear/registers.hpp and
// registers_gradient.hpp both in 16 bits for some maps.  A T has
//   about, options, fill as in plugin.hpp; device_type is set here
//   explicit T(const attnkit::cuda::linear::Setup&);    may change the shape, whose features are D when it arrives
//   template <class Real> using Device = ...;           the map in a kernel, which copies it by value:
//     static constexpr bool kSplits                       does z take other features than S?
//     template <bool kQuery, class X>                     a warp together writes the features of row x: D numbers x[f]
//     __device__ void features(const X& x, const Place&, const Row<Real>& row) const;
//   template <class Real>
//   Device<Real> device(const attn_run&) const;         of one run; pointers in it are those of the run
// A map whose features are made number by number names how instead, and needs neither features nor gradient below:
// Elementwise in linear/kernels.hpp. Features that are exponentials with scales of their own have logits instead:
// linear/follow.hpp. It trains if its map has a derivative (of logits: linear/follow.hpp), and then computes in f64
// too:
//     template <bool kQuery, class X>                     from the gradient of row, given, writes that of x to given.s,
//     __device__ void gradient(...features'..., const Row<Real>& given) const;       and may write over row
// with LEARNED ports also
//     __device__ Factors factors(int n) const;            which two of the notes that gradient leaves in row.s make,
//                                                         multiplied, a row's share of learned gradient n
//   int notes() const;                                  of a row
//   attnkit::cuda::linear::Learned learned() const;     the ports, those of queries and as many of keys
// And, where it needs them,
//   void check(const attnkit::Request&, attnkit::Info&) const;    refuses what it cannot do
//   double flops() const;                                         of the map, per row and head
//   bool splits() const;                          may blocks share a long row?  Not if features depend on other rows
//   static constexpr const char* output_doc;                      if the output is no weighted mean
//   static QkvPorts list(const Setup&);                           ports of other names, and the widths of their rows
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_HPP
#include <attnkit/kernels/cuda/linear/chunks.hpp>
#include <attnkit/kernels/cuda/linear/follow_gradient.hpp>
#include <attnkit/kernels/cuda/linear/registers.hpp>
#include <attnkit/kernels/cuda/linear/registers_gradient.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

namespace attnkit::cuda::linear {

struct Shape : Widths {
  explicit Shape(const attn_block& b) : Widths(b), features(d) {}
  int64_t features;   // D'
  int64_t extra = 0;  // floats of a head's state behind z
  int64_t head_floats() const { return features * (e + 1) + extra; }
};

// The arguments of a map.
struct Setup {
  const attn_block& block;
  const Values& values;
  Ports& ports;
  Shape& shape;
};

template <class T>
class InF32 {
  template <class Real>
  using Device = typename T::template Device<Real>;
  static constexpr bool kTrains = Differentiable<Device<float>>, kInRegisters = ElementwiseBack<Device<float>>;
  template <class Real>
  using Gradients = GradientWork<Device<Real>, Real>;
  // The scan of a gradient that needs most.
  template <class Real, bool kInShared>
  using LargestScan = std::conditional_t<kFollows<Device<Real>>, FollowScans<Gradients<Real>, kInShared>,
                                         Scan<Gradients<Real>, false, kInShared>>;

 public:
  struct Plan {
    bool in_chunks;                 // does a head fit into a block's shared memory?
    bool trains_in_halves = false;  // has its gradient kernels of 16 bits?
  };
  static constexpr About about = on_cuda(T::about);
  static Options options() { return T::options(); }

  InF32(const attn_block& b, const Values& values, Ports& ports)
      : block_(b),
        shape_(b),
        guard_(Guard::from(values)),
        ports_(list(Setup{b, values, ports, shape_})),
        map_(Setup{b, values, ports, shape_}) {
    if constexpr (requires { map_.learned(); }) learned_ = map_.learned();
  }

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
    const uint64_t steps_bytes = r.is_f64() ? sizes.steps_bytes<double>(kSteps) : sizes.steps_bytes<float>(kSteps);
    if (!fits(steps_bytes))
      throw unsupported("the rows of ", kSteps, " tokens take ", steps_bytes, " bytes of a block's shared memory, ",
                        "which is ", most_shared(), " bytes: make the heads narrower");
    // f64 is for checks.
    Plan plan{r.dtype_bits == 16 ? fits(matrix_bytes()) : !r.is_f64() && fits(sizes.chunk_bytes())};
    const int64_t items = r.batch * shape_.heads;
    info.state(r, shape_.heads * shape_.head_floats());
    if (plan.in_chunks && splits(r.queries, r.keys))
      info.scratch_bytes =
          aligned(static_cast<uint64_t>(items * (1 + segments_of(r.keys)) * shape_.head_floats()) * sizeof(float));
    if (!r.streams() && !plan.in_chunks)  // sums of 16 bits are f32
      info.scratch_bytes =
          aligned(static_cast<uint64_t>(items * shape_.head_floats()) * (r.is_f64() ? sizeof(double) : sizeof(float)));
    if constexpr (kTrains)
      if (r.trains() && r.dtype_bits != 16)
        r.is_f64() ? plan_gradients<double>(r, info) : plan_gradients<float>(r, info);
    if constexpr (kInRegisters)
      if (r.trains() && r.dtype_bits == 16) plan.trains_in_halves = plan_half_gradients(r, info);
    const double row = 2.0 * static_cast<double>(shape_.features * (shape_.e + 1)) + map_flops;
    info.flops = static_cast<uint64_t>(items) * static_cast<uint64_t>(static_cast<double>(r.queries + r.keys) * row);
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    with_type<kTrains>(ports_.o.of(r.ports), [&](auto type) { run_in<decltype(type)>(plan, r); });
  }

  static bool trains_in_halves(const Plan& plan) requires kInRegisters { return plan.trains_in_halves; }

  void backward(const Plan&, const attn_grad& g) const requires kTrains {
    const attn_run& r = *g.run;
    if (r.batch == 0) return;
    with_type<true>(ports_.o.of(r.ports), [&](auto type) {
      using Real = decltype(type);
      if constexpr (sizeof(Real) == 2 && kInRegisters) backward_in_registers<Real>(g);
      if constexpr (sizeof(Real) >= sizeof(float)) {
        const auto given = [&](Port port) { return View<const Real>(r, port); };
        auto* scratch = static_cast<Real*>(r.exec->scratch);
        const int64_t learned = r.batch * shape_.heads * learned_.floats();
        const Gradients<Real> work{map_.template device<Real>(r),
                                   sizes(),
                                   given(ports_.q),
                                   given(ports_.k),
                                   given(ports_.v),
                                   given(ports_.o),
                                   View<const Real>(g, ports_.o),
                                   View<Real>(g, ports_.q),
                                   View<Real>(g, ports_.k),
                                   View<Real>(g, ports_.v),
                                   Lengths(r, block_.causal != 0),
                                   static_cast<const Real*>(r.saved),
                                   scratch + (learned + 3) / 4 * 4,
                                   scratch,
                                   static_cast<int>(learned_.floats() / 2),
                                   guard_.kind,
                                   static_cast<Real>(guard_.eps)};
        run_backward(about.name, *r.exec, work, r.batch, has_sums_in_shared<Real>(), learned_.is_wanted(g));
        if constexpr (Learns<Device<Real>>) learned_.collect(about.name, g, shape_.heads, work.learned);
      }
    });
  }

 private:
  static QkvPorts list(const Setup& setup) {
    if constexpr (requires { T::list(setup); })
      return T::list(setup);
    else
      return setup.ports.qkv(setup.shape, output_doc());
  }
  static constexpr const char* output_doc() {
    if constexpr (requires { T::output_doc; }) return T::output_doc;
    return "weighted mean of the values";
  }
  Sizes sizes() const {
    Sizes sizes{static_cast<int>(shape_.heads),    static_cast<int>(shape_.d), static_cast<int>(shape_.e),
                static_cast<int>(shape_.features), Device<float>::kSplits,     notes(),
                static_cast<int>(shape_.extra),    kFollows<Device<float>>};
    if constexpr (kFollows<Device<float>>) {
      sizes.table = map_.table_floats();
      sizes.wider = std::max(0, round4(sizes.d) - sizes.f4());
      sizes.each = kEach<Device<float>>;
    }
    if constexpr (requires { map_.units(); }) sizes.units = map_.units();
    return sizes;
  }
  // Of chunks, which few tokens of a row pass by; theirs is more where heads are narrow.
  uint64_t matrix_bytes() const {
    const Sizes sizes = this->sizes();
    return std::max(MatrixTiles<linear::Work<Device<float>, __half>>::bytes(sizes),
                    sizes.template steps_bytes<float>(kSteps));
  }
  // Are the rows, of 16 bits, whole pieces of 16 bytes?  tensors: of a run, or its gradients.
  bool is_by_eight(const attn_tensor* tensors) const {
    bool whole = shape_.d % 8 == 0 && shape_.e % 8 == 0;
    for (const Port port : {ports_.q, ports_.k, ports_.v, ports_.o}) {
      const attn_tensor& t = port.of(tensors);
      whole = whole && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
      for (int n = 0; n < 3; ++n) whole = whole && (t.shape[n] == 1 || t.stride[n] % 8 == 0);
    }
    return whole;
  }
  int notes() const {
    if constexpr (requires { map_.notes(); }) return map_.notes();
    return 0;
  }
  static bool fits(uint64_t bytes) { return static_cast<int64_t>(bytes) <= most_shared(); }
  template <class Real>
  bool has_sums_in_shared() const {
    return sizeof(Real) == sizeof(float) && fits(LargestScan<Real, true>::bytes(sizes()));
  }
  // Have long rows of such a run many blocks?
  bool splits(int64_t queries, int64_t keys) const {
    if constexpr (requires { map_.splits(); })
      if (!map_.splits()) return false;
    return queries > kRowSegment || keys > kRowSegment;
  }
  // Do runs save their sums of weights?  Scales that follow make them again.
  static constexpr bool saves() { return !kFollows<Device<float>>; }
  // Adds what a gradient needs: the sums of learned gradients, then the scratch of every head.
  template <class Real>
  void plan_gradients(const Request& r, Info& info) const {
    if (!fits(LargestScan<Real, false>::bytes(sizes())))
      throw unsupported("gradients of heads of ", shape_.d, " and ", shape_.e, " numbers with ", shape_.features,
                        " features do not fit, a few rows at a time, into a block's ", most_shared(),
                        " bytes of shared memory: make the heads narrower or the features fewer");
    const int64_t items = r.batch * shape_.heads;
    const int64_t floats = has_sums_in_shared<Real>() ? LargestScan<Real, true>::scratch_floats(sizes(), r.queries)
                                                      : LargestScan<Real, false>::scratch_floats(sizes(), r.queries);
    info.train(r, saves() ? items * r.queries : 0, 0,
               aligned(r.real_bytes((items * learned_.floats() + 3) / 4 * 4 + items * floats)));
  }
  // sums: of segments, NULL where rows are not split.
  template <class Type>
  auto work_of(const attn_run& r, float* sums) const {
    using Real = RealOf<Type>;
    const auto rows = [&](Port port) { return View<const Type>(r, port); };
    return Work<Device<Real>, Type>{
        map_.template device<Real>(r),
        sizes(),
        {rows(ports_.q), rows(ports_.k), rows(ports_.v), View<Type>(r, ports_.o), Lengths(r, block_.causal != 0),
         States(r), static_cast<Real*>(r.exec->scratch), sums, saves() ? static_cast<Real*>(r.saved) : nullptr,
         guard_.kind, static_cast<Real>(guard_.eps), is_by_eight(r.ports)}};
  }
  // across: blocks for each head
  dim3 blocks(const attn_run& r, int64_t across) const {
    return dim3(static_cast<unsigned>(r.batch * shape_.heads), static_cast<unsigned>(across));
  }
  // Adds up the sums of segments, in the order of H.
  template <class H, class Work>
  void add_segments(const attn_run& r, const Work& work) const {
    const int64_t threads = std::min<int64_t>(kMostThreads, (shape_.e + 32) / 32 * 32);  // e + 1 in whole warps
    launch(about.name, prefixes_kernel<H>, {blocks(r, shape_.features), static_cast<unsigned>(threads)}, *r.exec,
           work.sizes, Summed{work.call.lengths, work.call.states, work.call.sums});
  }
  template <class Type>
  void run_in(const Plan& plan, const attn_run& r) const {
    using Real = RealOf<Type>;
    using Work = linear::Work<Device<Real>, Type>;
    const bool is_split = plan.in_chunks && splits(r.queries, r.keys);
    const Work work = work_of<Type>(r, is_split ? static_cast<float*>(r.exec->scratch) : nullptr);
    const auto start = [&](auto* kernel, uint64_t bytes, int64_t across = 1) {
      launch(about.name, kernel, {blocks(r, across), kThreads, bytes}, *r.exec, work);
    };
    const auto steps = [&](auto most) {
      constexpr int kMost = decltype(most)::value;
      start(steps_kernel<Work, kMost>, work.sizes.template steps_bytes<Real>(kMost));
    };
    using Few = std::integral_constant<int, kSteps>;
    if constexpr (sizeof(Real) == sizeof(float)) {
      const auto chunks = [&](auto way, uint64_t bytes, uint64_t sums_bytes) {
        using Way = typename decltype(way)::type;
        const auto start = [&](auto* kernel, int64_t across, uint64_t bytes) {
          launch(about.name, kernel, {blocks(r, across), Way::kThreads, bytes}, *r.exec, work);
        };
        if (is_split && r.keys > 0) start(sums_kernel<Work, Way>, segments_of(r.keys), sums_bytes);
        if (is_split) add_segments<Head>(r, work);
        start(chunks_kernel<Work, Way>, is_split ? std::max<int64_t>(1, segments_of(r.queries)) : 1, bytes);
      };
      const auto in_chunks = [&] {
        if constexpr (sizeof(Type) == 2 && Elementwise<Device<Real>>)
          if (in_registers<Work>(r.state != nullptr, chunks)) return;
        const uint64_t bytes = sizeof(Type) == 2 ? matrix_bytes() : work.sizes.chunk_bytes();
        chunks(std::type_identity<SharedSums<Work>>{}, bytes, bytes);
      };
      if (is_split) {
        in_chunks();
        return;
      }
      const bool few = r.state != nullptr && r.queries <= kSteps && r.keys <= kSteps;
      if (few && r.queries <= 1 && r.keys <= 1)
        steps(std::integral_constant<int, 1>{});
      else if (few || !plan.in_chunks)
        steps(Few{});
      else
        in_chunks();
    } else {
      steps(Few{});
    }
  }
  // Calls f(width) for heads of the widths that have kernels in registers; returns whether it could and f returned
  // true.
  template <class F>
  bool with_width(const F& f) const {
    const auto is = [&]<int kD>(std::integral_constant<int, kD> width) {
      constexpr int kNumbers = kD * Device<float>::kFactors * (Device<float>::kSplits ? 2 : 1);  // more need registers
      if constexpr (kNumbers <= 128) return shape_.d == kD && shape_.e == kD && f(width);
      return false;
    };
    return is(std::integral_constant<int, 32>{}) || is(std::integral_constant<int, 64>{}) ||
           is(std::integral_constant<int, 128>{});
  }
  // Runs chunks(way, bytes, bytes of sums) for heads of these widths; false of others.
  template <class Work, class Chunks>
  bool in_registers(bool has_state, const Chunks& chunks) const {
    return with_width([&](auto width) {
      using Way = RegisterTiles<Work, decltype(width)::value>;
      uint64_t bytes = Way::bytes(sizes(), true);
      if (has_state) bytes = std::max(bytes, sizes().template steps_bytes<float>(kSteps));
      if ((has_state && !Way::kTakesSteps) || !fits(bytes)) return false;
      chunks(std::type_identity<Way>{}, bytes, Way::bytes(sizes(), false));
      return true;
    });
  }
  // Scratch of a gradient in 16 bits: numbers of queries, and the sums of segments for one scan after the other.
  struct HalfScratch {
    OfQuery* of_queries;
    float* sums;
    HalfScratch(Layout& layout, int64_t items, int64_t queries, int64_t segments, int64_t head_floats)
        : of_queries(layout.take<OfQuery>(items * queries)), sums(layout.take<float>(items * segments * head_floats)) {}
  };
  HalfScratch half_scratch(Layout& layout, int64_t batch, int64_t queries, int64_t keys) const {
    const int64_t segments = splits(queries, keys) ? 1 + segments_of(std::max(queries, keys)) : 0;
    return {layout, batch * shape_.heads, queries, segments, shape_.head_floats()};
  }
  // Plans a gradient that is not made in f32, or returns false.
  bool plan_half_gradients(const Request& r, Info& info) const {
    return with_width([&](auto width) {
      using Work = HalfGradientWork<linear::Work<Device<float>, __half>>;
      if (!fits(std::max(RegisterScan<Work, decltype(width)::value, true>::bytes(),
                         RegisterScan<Work, decltype(width)::value, false>::bytes())))
        return false;
      info.saved_bytes = aligned(static_cast<uint64_t>(r.batch * shape_.heads * r.queries) * sizeof(float));
      Layout layout(nullptr);
      half_scratch(layout, r.batch, r.queries, r.keys);
      info.backward_scratch_bytes = layout.bytes();
      return true;
    });
  }
  template <class Type>
  void backward_in_registers(const attn_grad& g) const {
    const attn_run& r = *g.run;
    Layout layout(r.exec->scratch);
    const HalfScratch scratch = half_scratch(layout, r.batch, r.queries, r.keys);
    const bool is_split = splits(r.queries, r.keys);
    using Run = linear::Work<Device<float>, Type>;
    HalfGradientWork<Run> work{work_of<Type>(r, is_split ? scratch.sums : nullptr),
                               View<const Type>(g, ports_.o),
                               View<Type>(g, ports_.q),
                               View<Type>(g, ports_.k),
                               View<Type>(g, ports_.v),
                               scratch.of_queries};
    work.run.call.by_eight = work.run.call.by_eight && is_by_eight(g.grads);
    with_width([&](auto width) {
      constexpr int kD = decltype(width)::value;
      using Work = HalfGradientWork<Run>;
      const auto start = [&](auto* kernel, unsigned threads, uint64_t bytes, int64_t across, const auto& of) {
        launch(about.name, kernel, {blocks(r, std::max<int64_t>(1, across)), threads, bytes}, *r.exec, of);
      };
      start(rows_kernel<Work, kD>, kRowThreads, 0, std::min<int64_t>(1024, r.queries / (8 * kRowThreads / kD)), work);
      if (work.dq.data) {
        using Way = RegisterTiles<Run, kD>;
        using Scan = RegisterScan<Work, kD, true>;
        if (is_split) {
          start(sums_kernel<Run, Way>, Way::kThreads, Way::bytes(sizes(), false), segments_of(r.keys), work.run);
          add_segments<Head>(r, work.run);
        }
        start(scan_kernel<Work, kD, true>, Scan::kThreads, Scan::bytes(), is_split ? segments_of(r.queries) : 1, work);
      }
      if (work.dk.data || work.dv.data) {
        using Scan = RegisterScan<Work, kD, false>;
        if (is_split) {
          start(scan_sums_kernel<Work, kD>, Scan::kThreads, Scan::bytes(), segments_of(r.queries), work);
          add_segments<Reversed>(r, work.run);
        }
        start(scan_kernel<Work, kD, false>, Scan::kThreads, Scan::bytes(), is_split ? segments_of(r.keys) : 1, work);
      }
      return true;
    });
  }
  attn_block block_;
  Shape shape_;
  Guard guard_;
  QkvPorts ports_;
  T map_;
  Learned learned_;
};

template <class T>
using Mechanism = TrainsHalves<InF32<T>>;

}  // namespace attnkit::cuda::linear
#endif
