#include "core/base/formats/gguf.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/formats/byte_reader.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view magic = "GGUF";
constexpr size_t place_of_tensor_count = 8;  // in the file
constexpr uint64_t default_alignment = 32, max_alignment = 1 << 20;
constexpr size_t max_name = 1024, max_values = size_t{1} << 24;
constexpr uint32_t max_dimensions = 4;
constexpr uint32_t string_type = 8, array_type = 9;

// Of the types that are not supported, for messages.
constexpr std::pair<uint32_t, const char*> other_types[] = {
    {6, "Q5_0"},   {7, "Q5_1"},     {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {13, "Q5_K"},
    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},   {26, "I32"},
    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"}};

class GgufReader : ByteReader {
 public:
  using ByteReader::ByteReader;

  Gguf read() {
    const uint64_t tensors = read_metadata();
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) offsets.push_back(read_tensor());
    place(offsets);
    return std::move(made_);
  }

  std::string without_tensors() {
    read_metadata();
    std::string made(text_of(bytes().first(at())));
    made.replace(place_of_tensor_count, sizeof(uint64_t), sizeof(uint64_t), '\0');
    return made;
  }

 private:
  // Returns the number of tensors.
  uint64_t read_metadata() {
    if (!is_gguf(bytes())) broken("is no GGUF file");
    take(magic.size());
    const auto version = number<uint32_t>();
    if (version != 0 && (version & 0xffffu) == 0) broken("is big-endian, which is not supported");
    if (version != 2 && version != 3) broken("is of version {}; 2 and 3 are supported", version);
    const auto tensors = number<uint64_t>(), values = number<uint64_t>();
    // The shortest tensor and value.
    check_count(tensors, 32, "tensors");
    check_count(values, 13, "values");
    made_.metadata = nlohmann::json::object();
    for (uint64_t i = 0; i < values; ++i) read_value();
    return tensors;
  }

  void check_count(uint64_t count, uint64_t smallest, const char* of) const {
    if (count > left() / smallest)
      broken("would have {} {}, and {} bytes are left: the file is cut off or damaged", count, of, left());
  }

  std::string text() { return std::string(ByteReader::text(number<uint64_t>())); }

  std::string name(const char* of) {
    std::string made = text();
    if (made.empty() || made.size() > max_name || valid_utf8(made) < made.size())
      broken("has a {} of {} bytes that is no name: {}", of, made.size(), quote(made));
    return made;
  }

  void read_value() {
    const std::string key = name("key");
    if (made_.metadata.contains(key)) broken("has the key {} twice", quote(key));
    const auto type = number<uint32_t>();
    made_.metadata[key] = type == array_type ? array(key) : value(key, type);
  }

  nlohmann::json value(const std::string& key, uint32_t type) {
    if (++values_ > max_values) broken("has more than {} values", max_values);
    switch (type) {
      case 0:
        return number<uint8_t>();
      case 1:
        return number<int8_t>();
      case 2:
        return number<uint16_t>();
      case 3:
        return number<int16_t>();
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case string_type:
        return text();
      case 10:
        return number<uint64_t>();
      case 11:
        return number<int64_t>();
      case 12:
        return number<double>();
      case array_type:
        broken("has an array of arrays in {}, which is not supported", quote(key));
      default:
        broken("has a value of the unknown type {} in {}", type, quote(key));
    }
  }

  nlohmann::json array(const std::string& key) {
    const auto type = number<uint32_t>();
    const auto count = number<uint64_t>();
    check_count(count, type == string_type ? 8 : 1, "values in one array");
    nlohmann::json all = nlohmann::json::array();
    for (uint64_t i = 0; i < count; ++i) all.push_back(value(key, type));
    return all;
  }

  // Its offset in the data.
  uint64_t read_tensor() {
    GgufTensor made;
    made.name = name("tensor name");
    if (!names_.insert(made.name).second) broken("has the tensor {} twice", quote(made.name));
    const auto dimensions = number<uint32_t>();
    if (dimensions < 1 || dimensions > max_dimensions)
      broken("tensor {} has {} dimensions; 1 to {} are supported", quote(made.name), dimensions, max_dimensions);
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto n = number<uint64_t>();
      if (n < 1 || n > uint64_t{1} << 40) broken("tensor {} has a dimension of {}", quote(made.name), n);
      made.shape.insert(made.shape.begin(), static_cast<int64_t>(n));
    }
    made.type = type_of(made.name, number<uint32_t>());
    made_.tensors.push_back(std::move(made));
    return number<uint64_t>();
  }

  std::string type_of(const std::string& tensor, uint32_t id) const {
    std::vector<std::string> known;
    for (const GgufBlock& block : gguf_blocks) {
      if (block.id == id) return block.type;
      known.emplace_back(block.type);
    }
    const auto* other = std::ranges::find(other_types, id, [](const auto& type) { return type.first; });
    broken("tensor {} has type {}, which is not supported; {} are", quote(tensor),
           other == std::end(other_types) ? std::to_string(id) : other->second, fmt::join(known, ", "));
  }

  uint64_t alignment() const {
    if (!made_.metadata.contains("general.alignment")) return default_alignment;
    const nlohmann::json& value = made_.metadata["general.alignment"];
    const uint64_t n = value.is_number_unsigned() ? value.get<uint64_t>() : 0;
    if (!std::has_single_bit(n) || n > max_alignment)
      broken("general.alignment is {}; a power of two up to {} is needed", value.dump(-1, ' ', true, replace_),
             max_alignment);
    return n;
  }

  uint64_t bytes_of(const GgufTensor& t) const {
    const auto* block = std::ranges::find(gguf_blocks, t.type, [](const GgufBlock& b) { return std::string(b.type); });
    if (t.shape.back() % block->numbers != 0)
      broken("tensor {} has rows of {} numbers; {} has blocks of {}", quote(t.name), t.shape.back(), t.type,
             block->numbers);
    uint64_t bytes = static_cast<uint64_t>(t.shape.back() / block->numbers);
    bool fits = !__builtin_mul_overflow(bytes, uint64_t{block->bytes}, &bytes);
    for (size_t i = 0; i + 1 < t.shape.size(); ++i)
      fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(t.shape[i]), &bytes);
    if (!fits) broken("tensor {} has a size that overflows 64 bits", quote(t.name));
    return bytes;
  }

  // Every tensor in the data, none over another.
  void place(const std::vector<uint64_t>& offsets) {
    const uint64_t step = alignment();
    const uint64_t begin = std::min((at() + step - 1) / step * step, uint64_t{bytes().size()});
    const std::span<const std::byte> data = bytes().subspan(begin);
    std::vector<std::pair<uint64_t, size_t>> order;
    for (size_t i = 0; i < offsets.size(); ++i) order.emplace_back(offsets[i], i);
    std::ranges::sort(order);
    uint64_t end = 0;
    for (const auto& [offset, i] : order) {
      GgufTensor& t = made_.tensors[i];
      const uint64_t size = bytes_of(t);
      if (offset % step != 0)
        broken("tensor {} begins at byte {} of the data, which is no multiple of {}", quote(t.name), offset, step);
      if (offset < end) broken("tensor {} begins at byte {} of the data, inside another", quote(t.name), offset);
      if (offset > data.size() || size > data.size() - offset)
        broken("tensor {} has {} bytes at byte {} of the data, which has {}: the file is cut off", quote(t.name), size,
               offset, data.size());
      end = offset + size;
      t.data = data.subspan(offset, size);
    }
  }

  static constexpr auto replace_ = nlohmann::json::error_handler_t::replace;

  size_t values_ = 0;
  std::set<std::string> names_;
  Gguf made_;
};

}  // namespace

bool is_gguf(std::span<const std::byte> bytes) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Gguf Gguf::read(std::span<const std::byte> bytes, const std::string& path) { return GgufReader(bytes, path).read(); }

std::string without_tensors(std::span<const std::byte> gguf, const std::string& path) {
  return GgufReader(gguf, path).without_tensors();
}

}  // namespace attnkit::core
