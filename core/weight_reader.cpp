#include "core/weight_reader.hpp"

#include "core/error.hpp"
#include "core/manifest_codes.hpp"

namespace attnkit {
namespace {

size_t count(const std::vector<int64_t>& shape) {
  size_t n = 1;
  for (int64_t d : shape) n *= static_cast<size_t>(d);
  return n;
}

}  // namespace

void WeightReader::wrong(const std::string& message, const std::string& help) {
  diagnostics_.error(ak::weights_do_not_fit, place_, message, help, ATTNKIT_AREA_WEIGHTS);
}

void WeightReader::warn(std::string message, std::string help) {
  diagnostics_.warn(ak::no_adapters, place_, std::move(message), std::move(help), ATTNKIT_AREA_WEIGHTS);
}

std::vector<float> WeightReader::f32(const std::string& name, const std::vector<int64_t>& shape) {
  taken_.insert(name);
  try {
    return weights_.f32(name, shape);
  } catch (const Error& e) {
    wrong(e.what(), "the manifest's widths, layers and mechanisms must be those the weights were trained with");
    return std::vector<float>(count(shape));
  }
}

std::vector<std::byte> WeightReader::integers(const std::string& name, const std::string& dtype,
                                              const std::vector<int64_t>& shape) {
  taken_.insert(name);
  const StoredTensor* t = weights_.find(name);
  if (t && t->dtype == dtype && t->shape == shape) return {t->data.begin(), t->data.end()};
  wrong(fmt::format("{}: tensor \"{}\" must be {} of shape {}{}", weights_.path(), name, dtype, shape_text(shape),
                    t ? fmt::format(", not {} of {}", t->dtype, shape_text(t->shape)) : ", and is missing"),
        "");
  return std::vector<std::byte>(count(shape) * (dtype == "I64" ? 8 : 4));
}

void WeightReader::finish(const std::function<bool(const std::string&)>& ignorable) {
  for (const StoredTensor& t : weights_.tensors())
    if (!taken_.count(t.name) && !ignorable(t.name))
      diagnostics_.error(ak::left_over_tensor, place_,
                         fmt::format("{}: tensor \"{}\" of shape {} belongs to nothing in this model", weights_.path(),
                                     t.name, shape_text(t.shape)),
                         "the model that was trained has a part that this manifest does not", ATTNKIT_AREA_WEIGHTS);
}

}  // namespace attnkit
