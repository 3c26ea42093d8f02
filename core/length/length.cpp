#include "core/length/length.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/length/network.hpp"
#include "core/length/table.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/base/sha256.hpp"

namespace attnkit {
namespace {

class Ratio : public Length {
 public:
  explicit Ratio(double alpha) : Length(fmt::format("ratio {}", alpha)), alpha_(alpha) {}
  double predict(Threads&, LengthBuffers&, const SourceSoFar& source) const override {
    return source.length > 0 ? alpha_ * static_cast<double>(source.length) : 1;
  }
  void describe(nlohmann::ordered_json& to) const override { to["alpha"] = alpha_; }

 private:
  double alpha_;
};

class Fixed : public Length {
 public:
  explicit Fixed(double length) : Length(fmt::format("fixed {}", length)), length_(length) {}
  double predict(Threads&, LengthBuffers&, const SourceSoFar&) const override { return length_; }
  void describe(nlohmann::ordered_json& to) const override { to["length"] = length_; }

 private:
  double length_;
};

std::string identity_of(const LengthTable& table, double dampening) {
  Sha256 sum;
  sum.add_numbers(std::span(table.means));
  return fmt::format("lut {} {}", dampening, hex(sum.digest()));
}

class Table : public Length {
 public:
  Table(LengthTable table, double dampening, int64_t longest)
      : Length(identity_of(table, dampening)),
        table_(std::move(table)),
        dampening_(dampening),
        longest_(static_cast<double>(longest)) {}
  double predict(Threads&, LengthBuffers&, const SourceSoFar& source) const override {
    double sum = 0;
    for (int64_t i = 0; i < source.length; ++i) sum += table_.means[static_cast<size_t>(source.ids[i])];
    return std::clamp(sum / dampening_, 1.0, longest_);
  }
  bool needs_ids() const override { return true; }
  void describe(nlohmann::ordered_json& to) const override {
    to["dampening"] = dampening_;
    to["tokens"] = table_.listed;
    to["mean"] = table_.mean;
  }

 private:
  LengthTable table_;
  double dampening_, longest_;
};

std::unique_ptr<const Length> open_table(const Manifest& m, const Vocabulary& source, Diagnostics& diagnostics) {
  try {
    return std::make_unique<Table>(read_length_table(m.length_file, source), m.dampening, m.max_length);
  } catch (const Error& e) {
    diagnostics.error(ak::bad_length_table, m.length_place, e.what(), {}, ATTNKIT_AREA_DATA);
    return nullptr;
  }
}

}  // namespace

const char* predict_name(Predict predict) {
  switch (predict) {
    case Predict::ratio:
      return "ratio";
    case Predict::fixed:
      return "fixed";
    case Predict::reference:
      return "reference";
    case Predict::lut:
      return "lut";
    case Predict::network:
      return "network";
    case Predict::none:
      break;
  }
  return "none";
}

std::unique_ptr<const Length> make_length(const Manifest& m, const Vocabulary* source, Diagnostics& diagnostics) {
  switch (m.predict) {
    case Predict::ratio:
      return std::make_unique<Ratio>(m.alpha);
    case Predict::fixed:
      return std::make_unique<Fixed>(m.fixed_length);
    case Predict::lut:
      return open_table(m, *source, diagnostics);
    case Predict::network:
      return open_length_network(m, diagnostics);
    case Predict::reference:
    case Predict::none:
      break;
  }
  return nullptr;
}

}  // namespace attnkit
