#include "core/model/rotary.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr int64_t stride = 256;  // positions between two entries of the coarse table

std::vector<double> speeds(const RotaryTable& t, const std::vector<double>& slower) {
  std::vector<double> all;
  for (int i = 0; i < t.width / 2; ++i) {
    const double own = slower.empty() ? 1 : slower[static_cast<size_t>(i)];
    const double speed = std::pow(t.base, -2.0 * i / t.width) / own, slow = speed / t.factor;
    if (t.scaling != RotaryScaling::llama3) {
      all.push_back(t.scaling == RotaryScaling::linear ? slow : speed);
      continue;
    }
    // The share of the unscaled speed that stays: 1 for turns that training saw often, 0 for those it never saw whole.
    const double turns = t.original_length * speed / (2 * M_PI);
    const double kept = (turns - t.low_frequency_factor) / (t.high_frequency_factor - t.low_frequency_factor);
    all.push_back(slow + std::clamp(kept, 0.0, 1.0) * (speed - slow));
  }
  return all;
}

std::vector<double> turns_of(const std::vector<double>& speeds, int64_t rows, int64_t step, double factor = 1) {
  std::vector<double> table;
  table.reserve(2 * static_cast<size_t>(rows) * speeds.size());
  for (int64_t r = 0; r < rows; ++r)
    for (const double speed : speeds) {
      const double angle = static_cast<double>(r * step) * speed;
      table.push_back(factor * std::cos(angle));
      table.push_back(factor * std::sin(angle));
    }
  return table;
}

}  // namespace

Rotary::Rotary(const RotaryTable& table, int64_t max_length)
    : all_{turns(table, table.slower, max_length)},
      short_length_(max_length),
      pairs_(table.width / 2),
      first_(table.layout == RotaryLayout::halves ? 1 : 2),
      second_(table.layout == RotaryLayout::halves ? pairs_ : 1) {
  if (table.scaling != RotaryScaling::longrope || table.original_length >= max_length) return;
  short_length_ = table.original_length;
  all_.push_back(turns(table, table.slower_long, max_length));
}

Rotary::Turns Rotary::turns(const RotaryTable& table, const std::vector<double>& slower, int64_t max_length) {
  const std::vector<double> each = speeds(table, slower);
  return {turns_of(each, stride, 1, table.attention_factor), turns_of(each, max_length / stride + 1, stride)};
}

std::pair<float, float> Rotary::turn_of(const Turns& by, int64_t position, int64_t i) const {
  const double *near = by.near.data() + position % stride * 2 * pairs_,
               *far = by.far.data() + position / stride * 2 * pairs_;
  return {static_cast<float>(near[2 * i] * far[2 * i] - near[2 * i + 1] * far[2 * i + 1]),
          static_cast<float>(near[2 * i + 1] * far[2 * i] + near[2 * i] * far[2 * i + 1])};
}

std::vector<float> Rotary::table(int64_t max_length) const {
  if (all_.size() > 1)
    fail(ATTN_UNSUPPORTED,
         "[model.rotary] scaling = \"longrope\": models on a device have one table of positions; run it "
         "on the CPU");
  std::vector<float> table;
  table.reserve(static_cast<size_t>(2 * max_length * pairs_));
  for (int64_t p = 0; p < max_length; ++p)
    for (int64_t i = 0; i < pairs_; ++i) {
      const auto [cosine, sine] = turn_of(all_.front(), p, i);
      table.push_back(cosine);
      table.push_back(sine);
    }
  return table;
}

void Rotary::turn(float* heads, int64_t count, int64_t width, int64_t position, int64_t length) const {
  const Turns& by = length > short_length_ ? all_.back() : all_.front();
  for (int64_t i = 0; i < pairs_; ++i) {
    const auto [cosine, sine] = turn_of(by, position, i);
    for (int64_t h = 0; h < count; ++h) {
      float &a = heads[h * width + i * first_], &b = heads[h * width + i * first_ + second_];
      const float turned = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = turned;
    }
  }
}

}  // namespace attnkit::core
