// The discrete form, kept from step to step of streams for as long as the learned tensors are what it was made of: a
// step would take many times as long to make it as to use it.
//
// A run comes on any thread, may neither wait nor allocate, and may bring other tensors than the run before.  So 16
// channels are read by any number of runs or written by one, and a run that meets others' numbers, or one that writes,
// makes its own, which have the same bits.
#pragma once
#include <atomic>
#include <cstring>
#include <memory>

#include "discretise.hpp"
#include "gradient.hpp"

namespace s4d {

class Memo {
 public:
  explicit Memo(const Shape& shape)
      : shape_(shape),
        holders_(new Holders[static_cast<size_t>(shape.channels / kLanes + 1)]),
        forms_(new Line[static_cast<size_t>((shape.channels / kLanes + 1) * form_lines())]),
        learned_(new float[static_cast<size_t>(shape.channels * learned_floats())]) {}

  // Whether it has the form of the 16 channels from `first`, made of these tensors.  Then `give` must follow.
  bool take(const Learned<const float>& in, int64_t first, Coefficients& form) const {
    Holders& holders = holders_[first / kLanes];
    int32_t n = holders.count.load(std::memory_order_relaxed);
    do
      if (n < 0) return false;
    while (!holders.count.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed));
    form.data = forms_[first / kLanes * form_lines()].numbers;
    const bool same = holders.made && all_parts(in, first, [](float* kept, const float* now, int64_t floats) {
                        return std::memcmp(kept, now, static_cast<size_t>(floats) * sizeof(float)) == 0;
                      });
    if (!same) give(first);
    return same;
  }
  void give(int64_t first) const { holders_[first / kLanes].count.fetch_sub(1, std::memory_order_release); }

  void keep(const Learned<const float>& in, int64_t first, const Coefficients& form) const {
    Holders& holders = holders_[first / kLanes];
    int32_t none = 0;
    if (in.readout[0].next != 2 || !holders.count.compare_exchange_strong(none, kWriter, std::memory_order_acquire))
      return;
    std::memcpy(forms_[first / kLanes * form_lines()].numbers, form.data,
                static_cast<size_t>(form_lines()) * sizeof(Line));
    all_parts(in, first, [](float* kept, const float* now, int64_t floats) {
      std::memcpy(kept, now, static_cast<size_t>(floats) * sizeof(float));
      return true;
    });
    holders.made = true;
    holders.count.store(0, std::memory_order_release);
  }

 private:
  static constexpr int64_t kLanes = simd::kLanes;
  static constexpr int32_t kWriter = -1;
  struct Holders {
    std::atomic<int32_t> count{0};  // runs that read, or kWriter
    bool made = false;
  };
  struct alignas(ATTN_ALIGN) Line {
    float numbers[kLanes];
  };
  int64_t form_lines() const { return 4 * shape_.half; }
  int64_t learned_floats() const { return 1 + 4 * shape_.half; }  // of a channel

  // Calls f with what is kept of the rows of these channels of each tensor and with what the run brings, until it says
  // no.
  template <class F>
  bool all_parts(const Learned<const float>& in, int64_t first, const F& f) const {
    const int64_t half = shape_.half, here = std::min(kLanes, shape_.channels - first);
    if (in.readout[0].next != 2) return false;
    float* kept = learned_.get() + first * learned_floats();
    const auto rows = [&](int64_t floats, auto row) {
      // Mostly they stand one behind another.
      const bool one = here == 1 || row(first + 1) - row(first) == floats;
      for (int64_t c = 0; c < here; c += one ? here : 1)
        if (!f(kept + c * floats, row(first + c), one ? here * floats : floats)) return false;
      kept += here * floats;
      return true;
    };
    return rows(1, [&](int64_t c) { return in.log_step + c; }) &&
           rows(half, [&](int64_t c) { return in.log_decay.row(c); }) &&
           rows(half, [&](int64_t c) { return in.frequency.row(c); }) &&
           rows(2 * half, [&](int64_t c) { return in.readout[0].row(0, c, 0); });
  }

  Shape shape_;
  std::unique_ptr<Holders[]> holders_;
  std::unique_ptr<Line[]> forms_;
  std::unique_ptr<float[]> learned_;
};

}  // namespace s4d
