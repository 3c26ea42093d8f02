#include "hosts/cli/quantize/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>

#include "core/base/bf16.hpp"
#include "core/base/int4.hpp"
#include "core/base/int8.hpp"
#include "hosts/cli/io/safetensors.hpp"

namespace attnkit::cli {

using namespace core;
namespace {

using nlohmann::json;

std::vector<float> floats_of(const HostTensor& t) {
  std::vector<float> values(t.bytes.size() / sizeof(float));
  std::memcpy(values.data(), t.bytes.data(), values.size() * sizeof(float));
  return values;
}

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// Dense layers and embeddings are what is called ".weight" and is no vector; tables of positions and of token types are
// added as they are.
bool is_packed(const HostTensor& t) {
  const std::string& name = t.name;
  return t.fields.at("dtype") == "F32" && t.fields.at("shape").size() >= 2 && name.ends_with(".weight") &&
         !name.ends_with(".positions.weight") && !name.ends_with(".token_types.weight");
}

// Blocks with adapters, as "decoder.1.self.".
std::set<std::string> adapted_blocks(const Safetensors& file) {
  std::set<std::string> blocks;
  for (const HostTensor& t : file.tensors)
    if (const size_t at = t.name.find(".adapter."); at != std::string::npos)
      blocks.insert(t.name.substr(0, t.name.rfind('.', at - 1) + 1));
  return blocks;
}

// A tensor in fewer bits, and the numbers it stands for.
struct Rounded {
  std::string bytes, scales, offsets;  // the last two empty where there are none
  std::vector<float> values;
};

Rounded to_bf16(const std::vector<float>& weights) {
  std::vector<uint16_t> halves;
  Rounded r;
  for (const float w : weights) r.values.push_back(from_bf16(halves.emplace_back(round_to_bf16(w))));
  r.bytes = bytes_of(halves);
  return r;
}

Rounded to_int8(const std::vector<float>& weights, size_t outputs) {
  const size_t inputs = outputs ? weights.size() / outputs : 0;
  std::vector<int8_t> numbers(weights.size());
  std::vector<float> scales;
  Rounded r;
  for (size_t o = 0; o < outputs; ++o) {
    int8_t* const row = numbers.data() + o * inputs;
    scales.push_back(round_to_int8(weights.data() + o * inputs, static_cast<int64_t>(inputs), row));
    for (size_t i = 0; i < inputs; ++i) r.values.push_back(row[i] * scales.back());
  }
  r.bytes = bytes_of(numbers);
  r.scales = bytes_of(scales);
  return r;
}

Rounded to_int4(const std::vector<float>& weights, int64_t outputs, int64_t inputs) {
  std::vector<uint8_t> bytes(static_cast<size_t>(outputs * ((inputs + 1) / 2)), 0x88);
  std::vector<float> scales, offsets;
  std::array<int8_t, int4_block> q;
  Rounded r;
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t first = 0; first < inputs; first += int4_block) {
      const int64_t n = std::min(int4_block, inputs - first);
      const auto [scale, offset] = round_to_int4(weights.data() + o * inputs + first, n, q.data());
      scales.push_back(scale);
      offsets.push_back(offset);
      for (int64_t i = 0; i < n; ++i) {
        const int number = q[static_cast<size_t>(i)];
        uint8_t& both = bytes[static_cast<size_t>(o * ((inputs + 1) / 2) + (first + i) / 2)];
        both = static_cast<uint8_t>(both ^ ((number + 8) ^ 8) << i % 2 * 4);
        r.values.push_back(scale * static_cast<float>(number) + offset);
      }
    }
  r.bytes = bytes_of(bytes);
  r.scales = bytes_of(scales);
  if (std::ranges::any_of(offsets, [](float offset) { return offset != 0; })) r.offsets = bytes_of(offsets);
  return r;
}

double error_of(const std::vector<float>& weights, const std::vector<float>& rounded) {
  double off = 0, size = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    off += std::pow(double{weights[i]} - double{rounded[i]}, 2);
    size += double{weights[i]} * double{weights[i]};
  }
  return size > 0 ? std::sqrt(off / size) : 0;
}

}  // namespace

QuantisedWeights quantised(const std::string& safetensors, const std::string& type) {
  Safetensors file = parse_safetensors(safetensors);
  const std::set<std::string> adapted = adapted_blocks(file);
  const auto is_adapted = [&](const std::string& name) {
    return std::ranges::any_of(adapted, [&](const std::string& block) {
      return name.starts_with(block) && name != block + "v.weight";  // values have no adapter
    });
  };
  QuantisedWeights made;
  std::deque<std::string> kept;  // what the tensors' bytes are views of
  std::vector<HostTensor> tensors;
  for (HostTensor& t : file.tensors) {
    // Blocks of int4 are inputs that lie side by side, which those of a convolution do only once it is loaded.
    const bool convolution = t.fields.at("shape").size() > 2;
    const bool whole = is_adapted(t.name) || (type == "int4" && convolution);
    if (!is_packed(t) || whole) {
      made.whole += is_packed(t);
      tensors.push_back(std::move(t));
      continue;
    }
    const std::vector<float> weights = floats_of(t);
    const std::vector<int64_t> shape = t.fields.at("shape");
    const bool halves = type == "int4";
    std::vector<int64_t> stored = shape, of_scales = {shape[0]};
    if (halves) {
      stored[1] = (shape[1] + 1) / 2;
      of_scales.push_back(int4_blocks(shape[1]));
    }
    Rounded r = type == "bf16" ? to_bf16(weights)
                : halves       ? to_int4(weights, shape[0], shape[1])
                               : to_int8(weights, static_cast<size_t>(shape[0]));
    made.layers.push_back({t.name, shape, error_of(weights, r.values)});
    const std::string& bytes = kept.emplace_back(std::move(r.bytes));
    const char* dtype = type == "bf16" ? "BF16" : halves ? "U8" : "I8";
    tensors.push_back({t.name, {{"dtype", dtype}, {"shape", stored}}, bytes});
    for (auto& [suffix, numbers] : {std::pair{".scale", &r.scales}, {".offset", &r.offsets}})
      if (!numbers->empty())
        tensors.push_back(
            {t.name + suffix, {{"dtype", "F32"}, {"shape", of_scales}}, kept.emplace_back(std::move(*numbers))});
  }
  made.bytes = to_safetensors(file.metadata, std::move(tensors));
  return made;
}

}  // namespace attnkit::cli
