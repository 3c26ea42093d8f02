// The file: u32 version, text spec, u32 its revision, u32 variables, each with its name, u8 dimensions, u32 for each,
// u8 type, u32 bytes and these; u32 aliases, each an alias and the variable it stands for.  A text is u16 bytes and
// these, the last of them 0.
#include "core/base/formats/ctranslate2.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "core/base/formats/byte_reader.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr uint32_t supported = 6, newest = 64;
constexpr size_t max_name = 1024;
constexpr uint8_t max_dimensions = 4;
constexpr std::string_view scale_of = "_scale", layer_of = "layer_";

struct Type {
  const char* name;
  size_t bytes;
};
constexpr Type types[] = {{"F32", 4}, {"I8", 1}, {"I16", 2}, {"I32", 4}, {"F16", 2}, {"BF16", 2}};

class Ctranslate2Reader : ByteReader {
 public:
  using ByteReader::ByteReader;

  Ctranslate2 read() {
    if (!is_ctranslate2(bytes())) broken("is no model.bin of CTranslate2");
    const auto version = number<uint32_t>();
    if (version != supported)
      broken("is of version {}; {} is supported: convert the model with a newer CTranslate2", version, supported);
    made_.metadata = {{"spec", text("spec")}};
    made_.metadata["revision"] = number<uint32_t>();
    const auto count = number<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) read_variable();
    add_scales();
    const auto aliases = number<uint32_t>();
    for (uint32_t i = 0; i < aliases; ++i) read_alias();
    if (left() > 0) broken("has {} bytes behind the last alias", left());
    leave_out_scales();
    for (const Ctranslate2Tensor& t : made_.tensors) describe(t);
    return std::move(made_);
  }

 private:
  std::string text(const char* of) {
    const uint64_t begin = at();
    std::string made(ByteReader::text(number<uint16_t>()));
    if (!made.empty() && made.back() == '\0') made.pop_back();
    if (made.empty() || made.size() > max_name || valid_utf8(made) < made.size() ||
        made.find('\0') != std::string::npos)
      broken("has a {} at byte {} that is none: {}", of, begin, quote(made));
    return made;
  }

  std::string new_name(const char* of) {
    std::string name = text(of);
    if (!at_name_.emplace(name, made_.tensors.size()).second) broken("has {} twice", quote(name));
    return name;
  }

  void read_variable() {
    Ctranslate2Tensor made;
    made.name = new_name("name");
    const auto dimensions = number<uint8_t>();
    if (dimensions > max_dimensions)
      broken("variable {} has {} dimensions; up to {} are supported", quote(made.name), dimensions, max_dimensions);
    uint64_t size = 1;
    for (uint8_t i = 0; i < dimensions; ++i) {
      made.shape.push_back(number<uint32_t>());
      if (__builtin_mul_overflow(size, static_cast<uint64_t>(made.shape.back()), &size))
        broken("variable {} has a size that overflows 64 bits", quote(made.name));
    }
    const auto id = number<uint8_t>();
    if (id >= std::size(types)) broken("variable {} has the unknown type {}", quote(made.name), id);
    const Type& type = types[id];
    made.type = type.name;
    const auto bytes = number<uint32_t>();
    if (__builtin_mul_overflow(size, uint64_t{type.bytes}, &size) || size != bytes)
      broken("variable {} has {} bytes, which its shape and type do not make", quote(made.name), bytes);
    made.data = take(bytes);
    if (dimensions > 0 || made.name.ends_with(scale_of)) {
      made_.tensors.push_back(std::move(made));
    } else {
      made_.metadata[made.name] = setting(made);
      at_name_[made.name] = no_tensor;
    }
  }

  static nlohmann::json setting(const Ctranslate2Tensor& t) {
    const auto as = [&]<class T>(T value) {
      std::memcpy(&value, t.data.data(), sizeof value);
      return nlohmann::json(value);
    };
    if (t.type == "I8") return as(int8_t{});
    if (t.type == "I16") return as(int16_t{});
    if (t.type == "I32") return as(int32_t{});
    return t.type == "F32" ? as(float{}) : nlohmann::json();
  }

  void read_alias() {
    const std::string alias = new_name("alias"), name = text("name");
    const auto of = at_name_.find(name);
    if (name == alias || of == at_name_.end())
      broken("has the alias {} of {}, which is not there", quote(alias), quote(name));
    const size_t place = of->second;
    at_name_[alias] = place == no_tensor ? no_tensor : made_.tensors.size();
    if (place == no_tensor) {
      made_.metadata[alias] = made_.metadata[name];
      return;
    }
    Ctranslate2Tensor copy = made_.tensors[place];
    copy.name = alias;
    copy.alias = true;
    made_.tensors.push_back(std::move(copy));
  }

  void add_scales() {
    for (Ctranslate2Tensor& t : made_.tensors) {
      if (t.type != "I8" && t.type != "I16") continue;
      const auto found = at_name_.find(t.name + std::string(scale_of));
      if (found == at_name_.end()) broken("variable {} is {} and has no scales", quote(t.name), t.type);
      const Ctranslate2Tensor& scales = made_.tensors[found->second];
      const size_t count = scales.data.size() / sizeof(float),
                   rows = t.shape.empty() ? 1 : static_cast<size_t>(t.shape[0]);
      if (scales.type != "F32" || count == 0 || (count != 1 && count != rows))
        broken("variable {} has {} numbers of {}; one for each of the rows of {}, or one for all, is supported",
               quote(scales.name), count, scales.type, quote(t.name));
      t.scales = scales.data;
    }
  }

  // They belong to what they scale and are no tensors.
  void leave_out_scales() {
    std::erase_if(made_.tensors, [&](const Ctranslate2Tensor& t) {
      return t.name.ends_with(scale_of) && at_name_.contains(t.name.substr(0, t.name.size() - scale_of.size()));
    });
  }

  void describe(const Ctranslate2Tensor& t) {
    for (size_t i = 0; i < t.shape.size(); ++i) made_.metadata[fmt::format("{}[{}]", t.name, i)] = t.shape[i];
    const size_t layer = t.name.find(layer_of);
    if (layer == std::string::npos) return;
    const size_t begin = layer + layer_of.size();
    const auto n = parse_number<int32_t>(t.name.substr(begin, t.name.find('/', begin) - begin));
    if (!n || *n < 0 || *n == std::numeric_limits<int32_t>::max()) return;
    nlohmann::json& layers = made_.metadata[t.name.substr(0, begin) + "*"];
    layers = std::max<int32_t>(layers.is_null() ? 0 : layers.get<int32_t>(), *n + 1);
  }

  static constexpr size_t no_tensor = SIZE_MAX;

  std::map<std::string, size_t> at_name_;  // places among the tensors
  Ctranslate2 made_;
};

}  // namespace

bool is_ctranslate2(std::span<const std::byte> bytes) {
  uint32_t version = 0;
  uint16_t length = 0;
  if (bytes.size() < sizeof version + sizeof length) return false;
  std::memcpy(&version, bytes.data(), sizeof version);
  std::memcpy(&length, bytes.data() + sizeof version, sizeof length);
  // A safetensors file, whose first 8 bytes are a length, would have these all but 0.
  return version > 0 && version < newest && length > 1 && length <= max_name;
}

Ctranslate2 Ctranslate2::read(std::span<const std::byte> bytes, const std::string& path) {
  return Ctranslate2Reader(bytes, path).read();
}

}  // namespace attnkit::core
