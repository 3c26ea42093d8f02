// s4d on CUDA: the mathematics of s4d.cpp.
#include <algorithm>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "cuda/gradient.hpp"

namespace {

using namespace s4d::cuda;
using attnkit::Layout;
using attnkit::View;

struct S4d : s4d::Model {
  static constexpr attnkit::About about = on_cuda(Model::about);
  using Model::Model;
  struct Plan {};

  // Results of the scan that runs against the other, and states with which segments begin; f64, which is for checks,
  // is not split.
  template <class Real>
  struct Scratch {
    Real* behind;
    float* begun;
    Scratch(Layout& layout, const s4d::Shape& s, int64_t batch, int64_t keys)
        : behind(s.directions == 2 ? layout.take<Real>(batch * keys * s.channels) : nullptr),
          begun(sizeof(Real) == sizeof(float) && keys > kMostWhole
                    ? layout.take(batch * segments_of(keys) * s.state_floats())
                    : nullptr) {}
  };
  // Of a gradient: sums of the learned tensors too.
  template <class Real>
  struct GradientScratch : Scratch<Real> {
    Sums* sums;
    double* skip;
    GradientScratch(Layout& layout, const s4d::Shape& s, int64_t batch, int64_t keys)
        : Scratch<Real>(layout, s, batch, keys),
          sums(layout.take<Sums>(batch * s.directions * s.channels * s.half)),
          skip(layout.take<double>(batch * s.channels)) {}
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    if (r.is_f64() && shape.half > kMostThreads / 32 * kFewStates * kQuarters)
      throw attnkit::unsupported("f64, which is for checks, takes no order above ",
                                 2 * kMostThreads / 32 * kFewStates * kQuarters, " on CUDA: make it smaller");
    const auto measure = [&](auto real) {
      using Real = decltype(real);
      info.scratch_bytes = Layout::measure<Scratch<Real>>(shape, r.batch, r.keys);
      info.train(r, 0, 0, Layout::measure<GradientScratch<Real>>(shape, r.batch, r.keys));
    };
    if (r.is_f64())
      measure(double{});
    else
      measure(float{});
    return {};
  }

  void run(const Plan&, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    with_type<true>(o.of(r.ports), [&](auto number) {
      using T = decltype(number);
      Layout layout(r.exec->scratch);
      Work<T> work = work_of<T>(r, Scratch<RealOf<T>>(layout, shape, r.batch, r.keys));
      work.o = View<T>(r, o);
      scan<false>(r, work);
    });
  }

  void backward(const Plan&, const attn_grad& g) const {
    if (g.run->batch == 0 || g.run->keys == 0) return;
    with_type<true>(o.of(g.run->ports), [&](auto number) {
      using T = decltype(number);
      if constexpr (sizeof(T) >= sizeof(float)) backward_in<T>(g);
    });
  }

 private:
  template <class T>
  bool has_few_states() const {
    return sizeof(T) == sizeof(double) || shape.half <= kFewStates * kQuarters;
  }

  template <class T>
  Work<T> work_of(const attn_run& r, const Scratch<RealOf<T>>& scratch) const {
    using Real = RealOf<T>;
    const s4d::Learned<const Real> in = learned<const Real>(r.ports);
    const int states = (has_few_states<T>() ? kFewStates : kStates) * kQuarters;
    const int parts = static_cast<int>((shape.half + states - 1) / states), groups = std::max(1, 4 / parts);
    const auto blocks = static_cast<int>((shape.channels + groups * kChannels - 1) / (groups * kChannels));
    return {View<const T>(r, x),
            {},
            {},
            {},
            Lengths(r, block.causal != 0),
            States(r),
            in.log_step,
            in.skip,
            in.log_decay,
            in.frequency,
            {in.readout[0], in.readout[1]},
            scratch.behind,
            scratch.begun,
            static_cast<int>(shape.channels),
            static_cast<int>(shape.half),
            static_cast<int>(shape.channels / shape.heads),
            parts,
            groups,
            blocks,
            r.batch,
            r.keys < kFewRows ? std::clamp<int64_t>(blocks * r.batch / kBlocks, 1, kMost) : 1};
  }

  // Both scans, or the only one.
  template <bool kGradient, class T>
  void scan(const attn_run& r, const Work<T>& work) const {
    const auto with = [&](auto own) {
      constexpr int kOwn = decltype(own)::value;
      const auto start = [&](auto second) {
        constexpr bool kSecond = decltype(second)::value;
        const auto pass = [&](auto ends) {
          constexpr bool kEnds = decltype(ends)::value;
          const auto blocks = static_cast<unsigned>(work.blocks * ((work.batch + work.together - 1) / work.together));
          const auto segments = static_cast<unsigned>(work.begun ? segments_of(r.keys) : 1);
          launch(about.name, scan_kernel<T, kOwn, kSecond, kGradient, kEnds>,
                 {dim3(blocks, segments - kEnds), static_cast<unsigned>(32 * work.parts * work.groups),
                  Scan<T, kOwn, kSecond, kGradient, kEnds>::bytes(work.groups, work.parts)},
                 *r.exec, work);
        };
        if constexpr (sizeof(T) != sizeof(double))
          if (work.begun) {
            pass(std::true_type{});
            const int64_t threads = work.batch * shape.channels * (shape.half + 1);
            launch(about.name, begin_kernel<T>,
                   {dim3(static_cast<unsigned>((threads + kBeginners - 1) / kBeginners)), kBeginners}, *r.exec, work,
                   kSecond != kGradient);
          }
        pass(std::false_type{});
      };
      if (work.behind) start(std::true_type{});
      start(std::false_type{});
    };
    if constexpr (sizeof(T) != sizeof(double))
      if (!has_few_states<T>()) return with(std::integral_constant<int, kStates>{});
    with(std::integral_constant<int, kFewStates>{});
  }

  template <class Real>
  void backward_in(const attn_grad& g) const {
    const attn_run& r = *g.run;
    Layout layout(r.exec->scratch);
    const GradientScratch<Real> scratch(layout, shape, r.batch, r.keys);
    Work<Real> work = work_of<Real>(r, scratch);
    work.given = View<const Real>(g, o);
    work.dx = View<Real>(g, x);
    if (work.dx.data) scan<true>(r, work);

    const s4d::Learned<Real> to = learned<Real>(g.grads);
    if (!to.log_step && !to.skip && !to.log_decay && !to.frequency && !to.readout[0] && !to.readout[1]) return;
    const auto groups = static_cast<int>((shape.half + kOfBlock - 1) / kOfBlock);
    const auto blocks = static_cast<int>((shape.channels + kChannels - 1) / kChannels) * groups;
    const Lesson<Real> lesson{work,   scratch.sums, scratch.skip, static_cast<int>(shape.directions), groups,
                              blocks, to.log_decay, to.frequency, {to.readout[0], to.readout[1]},     to.log_step,
                              to.skip};
    const auto start = [&](auto* kernel, int64_t count) {
      launch(about.name, kernel, {dim3(static_cast<unsigned>(count)), kLearners}, *r.exec, lesson);
    };
    start(learn_kernel<Real, false>, r.batch * blocks);
    if (!block.causal) start(learn_kernel<Real, true>, r.batch * blocks);
    start(collect_kernel<Real>, (shape.channels + kLearners / 32 - 1) / (kLearners / 32));
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<S4d>)
