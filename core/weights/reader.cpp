#include "core/weights/reader.hpp"

#include <algorithm>
#include <attnkit/kernels/random.hpp>
#include <cmath>

#include "core/base/error.hpp"
#include "core/manifest/diagnostics.hpp"

namespace attnkit::core {
namespace {

// Weights of quite another model are not worth a line for each of thousands of tensors, and a mistyped width must not
// cost the memory of the model it would make.
constexpr int max_problems = 20;
constexpr size_t max_zeros = size_t{1} << 22;
constexpr size_t max_made = size_t{1} << 31;

size_t count(const std::vector<int64_t>& shape) {
  size_t n = 1;
  for (int64_t d : shape)
    if (__builtin_mul_overflow(n, static_cast<size_t>(d), &n)) return ~size_t{0};
  return n;
}

// FNV-1a, 64 bits: names differ, so seeds do.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return seed ^ hash;
}

}  // namespace

Initial constant(float value) {
  return [value](uint64_t, std::vector<float>& values) { values.assign(values.size(), value); };
}

Initial normal(double deviation) {
  return [deviation](uint64_t seed, std::vector<float>& values) {
    Random random(seed);
    for (float& x : values) x = static_cast<float>(deviation * random.normal());
  };
}

Initial xavier(int64_t in, int64_t out, double gain) {
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(in + out));
  return [bound](uint64_t seed, std::vector<float>& values) {
    Random random(seed);
    for (float& x : values) x = static_cast<float>(bound * (2 * random.uniform() - 1));
  };
}

void WeightReader::wrong(int code, const std::string& message, const std::string& help, size_t zeros) {
  diagnostics_.add(code, place_, message, help);
  if (++problems_ < max_problems && zeros <= max_zeros) return;
  diagnostics_.add(code, place_, fmt::format("{}: the tensors after that were not looked at", file_->path()), "");
  throw Stopped();
}

void WeightReader::warn(std::string message, std::string help) {
  diagnostics_.add(ak::no_adapters, place_, std::move(message), std::move(help));
}

bool WeightReader::is_made(const std::string& name, const std::vector<int64_t>& shape, Owner owner) {
  if (!seed_ || (file_ && (owner == Owner::model || has(name)))) return false;
  const size_t n = count(shape);
  if (n > max_made - made_) {
    diagnostics_.add(ak::weights_do_not_fit, place_,
                     fmt::format("tensor \"{}\" of shape {} would be made by the seed, and the model would then have "
                                 "more than {} numbers so made",
                                 name, shape_text(shape), max_made),
                     "check the widths, or give a weights file");
    throw Stopped();
  }
  made_ += n;
  return true;
}

std::vector<float> WeightReader::make(const std::string& name, const std::vector<int64_t>& shape,
                                      const Initial& initial, Owner owner) {
  const auto known = common_.find(name);
  if (known != common_.end()) {
    if (known->second.shape == shape) return known->second.values;
    wrong(ak::weights_do_not_fit,
          fmt::format("tensor \"{}\" is one for all blocks, and one wants it {}, another {}", name,
                      shape_text(known->second.shape), shape_text(shape)),
          "give the mechanism the same options in these blocks", 0);
    return std::vector<float>(count(shape));
  }
  std::vector<float> values(count(shape));
  initial(seed_of(*seed_, name), values);
  if (owner == Owner::all_blocks) common_[name] = {shape, values};
  return values;
}

std::vector<float> WeightReader::f32(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                                     Owner owner) {
  std::vector<float> values = find(name, shape, initial, owner);
  const std::span bytes = std::as_bytes(std::span(values));
  if (kept_) (*kept_)[name] = {"F32", shape, {bytes.begin(), bytes.end()}};
  return values;
}

void WeightReader::take(const std::string& name) {
  taken_.insert(name);
  const StoredTensor* t = file_->find(name);
  if (t && (t->dtype == "I8" || t->dtype == "U8")) taken_.insert(scale_of(name));
  if (t && t->dtype == "U8") taken_.insert(offset_of(name));
}

Numbers WeightReader::numbers(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                              Owner owner) {
  const StoredTensor* stored = file_ ? file_->find(name) : nullptr;
  if (!stored || stored->dtype != "F32" || stored->shape != shape || kept_)
    return Numbers(f32(name, shape, initial, owner));
  taken_.insert(name);
  make_room(count(shape) * sizeof(float));
  return file_->numbers(name, shape);
}

void WeightReader::make_room(size_t bytes) {
  constexpr size_t most = size_t{1} << 24;
  read_ += bytes;
  if (read_ < most) return;
  read_ = 0;
  file_->release();
}

std::vector<float> WeightReader::find(const std::string& name, const std::vector<int64_t>& shape,
                                      const Initial& initial, Owner owner) {
  if (is_made(name, shape, owner)) return make(name, shape, initial, owner);
  take(name);
  make_room(count(shape) * sizeof(float));
  try {
    return file_->f32(name, shape);
  } catch (const Error& e) {
    wrong(ak::weights_do_not_fit, e.what(),
          "the manifest's widths, layers and mechanisms must be those the weights were trained with", count(shape));
    return std::vector<float>(count(shape));
  }
}

std::vector<std::byte> WeightReader::integers(const std::string& name, const std::string& dtype,
                                              const std::vector<int64_t>& shape, const Fill& initial) {
  std::vector<std::byte> bytes = find(name, dtype, shape, initial);
  if (kept_) (*kept_)[name] = {dtype, shape, bytes};
  return bytes;
}

std::vector<std::byte> WeightReader::find(const std::string& name, const std::string& dtype,
                                          const std::vector<int64_t>& shape, const Fill& initial) {
  const size_t bytes = dtype == "I64" ? 8 : 4;
  if (is_made(name, shape, Owner::mechanism)) {
    std::vector<std::byte> made(count(shape) * bytes);
    initial(seed_of(*seed_, name), made);
    return made;
  }
  taken_.insert(name);
  const StoredTensor* t = file_->find(name);
  if (t && t->dtype == dtype && t->shape == shape) return {t->data.begin(), t->data.end()};
  wrong(ak::weights_do_not_fit,
        fmt::format("{}: tensor \"{}\" must be {} of shape {}{}", file_->path(), name, dtype, shape_text(shape),
                    t ? fmt::format(", not {} of {}", t->dtype, shape_text(t->shape)) : ", and is missing"),
        "", count(shape));
  return std::vector<std::byte>(count(shape) * bytes);
}

WeightType WeightReader::type_of(const std::string& name, WeightType wanted) const {
  static const std::map<std::string, WeightType> types = {
      {"Q4_0", WeightType::int4}, {"Q4_1", WeightType::int4}, {"Q4_K", WeightType::int4}, {"U8", WeightType::int4},
      {"Q8_0", WeightType::int8}, {"Q6_K", WeightType::int8}, {"I8", WeightType::int8},   {"BF16", WeightType::bf16}};
  if (wanted != WeightType::stored) return wanted;
  const StoredTensor* t = file_ ? file_->find(name) : nullptr;
  const auto found = t ? types.find(t->dtype) : types.end();
  return found == types.end() ? WeightType::f32 : found->second;
}

void WeightReader::finish(const std::function<bool(const StoredTensor&)>& ignorable) {
  if (!file_) return;
  // Checkpoints may hold a table that is tied twice.
  const auto is_table = [](const StoredTensor& t) {
    return t.name == "head.weight" || t.name.find("embed") != std::string::npos;
  };
  const auto is_copy = [&](const StoredTensor& t, const StoredTensor& other) {
    return is_table(t) && is_table(other) && t.shape.size() > 1 && !t.layout && !other.layout &&
           t.dtype == other.dtype && t.shape == other.shape && std::ranges::equal(t.data, other.data);
  };
  // A name map may give one tensor several names, of which a model takes what its ties leave.
  const auto is_taken_by_another_name = [&](const StoredTensor& t) {
    return std::any_of(file_->tensors().begin(), file_->tensors().end(), [&](const StoredTensor& other) {
      const bool same =
          other.data.data() == t.data.data() && other.shape == t.shape && other.share.before == t.share.before;
      return taken_.count(other.name) && (same || is_copy(t, other));
    });
  };
  for (const StoredTensor& t : file_->tensors())
    if (!taken_.count(t.name) && !t.alias && !ignorable(t) && !is_taken_by_another_name(t))
      wrong(ak::left_over_tensor,
            fmt::format("{}: tensor \"{}\" of shape {} belongs to nothing in this model", file_->path(), t.name,
                        shape_text(t.shape)),
            "the model that was trained has a part that this manifest does not", 0);
}

}  // namespace attnkit::core
