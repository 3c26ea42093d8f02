#include "core/weights/weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/base/bf16.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/formats/ctranslate2.hpp"
#include "core/base/formats/gguf.hpp"
#include "core/base/formats/npz.hpp"
#include "core/base/half.hpp"
#include "core/base/int4.hpp"
#include "core/base/json.hpp"
#include "core/base/sha256.hpp"
#include "core/base/text.hpp"
#include "core/import/names.hpp"
#include "core/weights/quantised.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t max_header = 100'000'000;
constexpr size_t digest_shown = 12;

struct HeaderTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::array<uint64_t, 2> offsets{};  // begin and end, in bytes of the data
};

using nlohmann::json;

// The JSON header as a list of tensors, before anything is known about the data behind it.
struct HeaderReader {
  const std::string& path;

  std::vector<HeaderTensor> read(std::string_view text) {
    // nlohmann takes a NUL for the end of its input and would not look behind it.
    if (text.find('\0') != std::string_view::npos) fail(ATTN_INVALID, "{}: the header holds a NUL byte", path);
    std::vector<HeaderTensor> tensors;
    const json header = parse(text);
    for (const auto& [name, value] : header.items()) {
      if (!value.is_object()) broken("has {} for {}, which must be an object", kind(value), quote(name));
      if (name != "__metadata__") tensors.push_back(tensor(name, value));
      for (const auto& [key, entry] : value.items())
        if (name == "__metadata__" && !entry.is_string())
          broken("has {} in __metadata__, where only strings belong", kind(entry));
    }
    return tensors;
  }

  // nlohmann merges duplicate keys when it builds a document, so they are looked for on the way.
  // Refuses a key that an object has twice.
  struct Keys : JsonEvents {
    explicit Keys(const HeaderReader& of) : header(of) {}
    bool start_object(std::size_t) override { return open.emplace_back(), true; }
    bool end_object() override { return open.pop_back(), true; }
    bool key(std::string& name) override {
      const bool fresh = open.back().insert(name).second;
      if (open.size() == 1) outer = name;
      if (fresh) return true;
      if (open.size() == 1) header.broken("holds {} twice", quote(name));
      if (outer == "__metadata__") header.broken("holds the __metadata__ key {} twice", quote(name));
      header.broken("tensor {} has the field {} twice", quote(outer), quote(name));
    }

    const HeaderReader& header;
    std::vector<std::unordered_set<std::string>> open;  // of the objects that are open
    std::string outer;
  };

  json parse(std::string_view text) const {
    try {
      Keys keys(*this);
      json::sax_parse(text, &keys);
      return json::parse(text);
    } catch (const json::parse_error& e) {
      broken("is no JSON at byte {}", e.byte);
    } catch (const json::out_of_range&) {
      broken("holds a number that is too large");
    }
  }

  HeaderTensor tensor(const std::string& name, const json& fields) const {
    HeaderTensor made{name, {}, {}, {}};
    const auto wrong = [&](const std::string& field, const json& value) {
      broken("tensor {}: {} has {} where it does not belong", quote(name), field, kind(value));
    };
    const auto numbers = [&](const std::string& field, const json& value) {
      if (!value.is_array()) wrong(field, value);
      for (const json& n : value)
        if (!n.is_number_unsigned()) wrong(field, n);
      return value.get<std::vector<uint64_t>>();
    };
    for (const auto& [field, value] : fields.items()) {
      if (field == "dtype") {
        if (!value.is_string()) wrong(field, value);
        made.dtype = value.get<std::string>();
      } else if (field == "shape") {
        for (const uint64_t n : numbers(field, value)) {
          if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            broken("tensor {} has a dimension of {}, which is too large", quote(name), n);
          made.shape.push_back(static_cast<int64_t>(n));
        }
      } else if (field == "data_offsets") {
        const std::vector<uint64_t> offsets = numbers(field, value);
        if (offsets.size() > 2) wrong(field, value[2]);
        if (offsets.size() < 2) broken("tensor {}: data_offsets needs two numbers", quote(name));
        made.offsets = {offsets[0], offsets[1]};
      } else {
        broken("tensor {} has an unknown field {}", quote(name), quote(field));
      }
    }
    for (const char* field : {"dtype", "shape", "data_offsets"})
      if (!fields.contains(field)) broken("tensor {} has no {}", quote(name), field);
    return made;
  }

  static const char* kind(const json& value) {
    if (value.is_number_float()) return "a number that is no 64-bit integer";
    if (value.is_number_unsigned()) return "a number";
    if (value.is_number()) return "a negative number";
    if (value.is_boolean()) return "a boolean";
    return value.is_null()     ? "null"
           : value.is_string() ? "a string"
           : value.is_array()  ? "an array"
                               : "an object where none belongs";
  }

  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ATTN_INVALID, "{}: the header {}", path, fmt::format(text, std::forward<Args>(args)...));
  }
};

void check_size(const HeaderTensor& t, const std::string& path) {
  static const std::map<std::string_view, uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto type = sizes.find(t.dtype);
  const auto [begin, end] = t.offsets;
  if (begin > end)
    fail(ATTN_INVALID, "{}: tensor {} ends at byte {}, before its begin at {}", path, quote(t.name), end, begin);
  if (type == sizes.end())
    fail(ATTN_INVALID, "{}: tensor {} has the unknown type {}", path, quote(t.name), quote(t.dtype));
  uint64_t size = type->second;
  for (const int64_t n : t.shape)
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(n), &size))
      fail(ATTN_INVALID, "{}: tensor {} has a shape whose size overflows 64 bits: {}", path, quote(t.name),
           quote(shape_text(t.shape)));
  if (size != end - begin)
    fail(ATTN_INVALID, "{}: tensor {} ({} {}) needs {} bytes, its offsets give {}", path, quote(t.name), t.dtype,
         shape_text(t.shape), size, end - begin);
}

// Every byte of the data belongs to exactly one tensor.
void check_coverage(std::vector<HeaderTensor>& tensors, uint64_t data_bytes, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::tie(a.offsets, a.name) < std::tie(b.offsets, b.name);
  });
  uint64_t covered = 0;
  for (const HeaderTensor& t : tensors) {
    check_size(t, path);
    if (t.offsets[0] != covered)
      fail(ATTN_INVALID, "{}: tensor {} begins at byte {}, which {} (the tensors before it end at {})", path,
           quote(t.name), t.offsets[0], t.offsets[0] < covered ? "overlaps another tensor" : "leaves a hole", covered);
    covered = t.offsets[1];
  }
  if (covered != data_bytes)
    fail(ATTN_INVALID, "{}: the tensors cover {} bytes of data, the file holds {}", path, covered, data_bytes);
}

struct Parts {
  std::string_view header;  // JSON, without the spaces that pad it
  std::span<const std::byte> data;
};

Parts split(std::span<const std::byte> bytes, const std::string& path) {
  std::array<unsigned char, 8> prefix{};
  if (bytes.size() < prefix.size()) fail(ATTN_INVALID, "{}: {} bytes are no safetensors file", path, bytes.size());
  std::memcpy(prefix.data(), bytes.data(), prefix.size());
  uint64_t length = 0;
  for (size_t i = prefix.size(); i-- > 0;) length = length << 8 | prefix[i];
  if (length > max_header)
    fail(ATTN_INVALID, "{}: a header of {} bytes; at most {} are allowed", path, length, max_header);
  if (length > bytes.size() - prefix.size())
    fail(ATTN_INVALID, "{}: a header of {} bytes in a file of {}: the file is cut off", path, length, bytes.size());
  const std::string_view padded(reinterpret_cast<const char*>(bytes.data()) + prefix.size(), length);
  if (padded.empty() || padded.front() != '{') fail(ATTN_INVALID, "{}: the header must begin with {{", path);
  const std::string_view text = padded.substr(0, padded.find_last_not_of(' ') + 1);
  if (text.back() != '}') fail(ATTN_INVALID, "{}: the header must end with }} and spaces", path);
  return {text, bytes.subspan(prefix.size() + length)};
}

template <class T, class Convert>
std::vector<float> convert(std::span<const std::byte> data, Convert&& to_float) {
  std::vector<float> out(data.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof value);  // the data of a file has no alignment
    out[i] = to_float(value);
  }
  return out;
}

// Of I8 and I16: each number divided by the scale of its row, or of all.
std::vector<float> divided(const StoredTensor& t) {
  std::vector<float> values = t.dtype == "I8"
                                  ? convert<int8_t>(t.data, [](int8_t x) { return static_cast<float>(x); })
                                  : convert<int16_t>(t.data, [](int16_t x) { return static_cast<float>(x); });
  const std::vector<float> scales = convert<float>(t.scales, [](float x) { return x; });
  const size_t width = values.size() / scales.size();
  for (size_t i = 0; i < values.size(); ++i) values[i] /= scales[i / width];
  return values;
}

// Whether a tensor of U8 holds two numbers of a row in each byte.
bool is_halves(const StoredTensor& t, const std::vector<int64_t>& shape) {
  return t.dtype == "U8" && shape.size() == 2 && t.shape == std::vector{shape[0], (shape[1] + 1) / 2};
}

// Each half of a byte, the low one first, is 8 more than a number in units of its block's scale, from its offset on if
// there are offsets.
std::vector<float> from_halves(std::span<const std::byte> data, int64_t rows, int64_t width,
                               const std::vector<float>& scales, const std::vector<float>& offsets) {
  std::vector<float> values(static_cast<size_t>(rows * width));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const auto both = static_cast<int>(data[static_cast<size_t>(r * ((width + 1) / 2) + i / 2)]);
      const auto block = static_cast<size_t>(r * int4_blocks(width) + i / int4_block);
      float& value = values[static_cast<size_t>(r * width + i)];
      value = scales[block] * static_cast<float>((both >> i % 2 * 4 & 15) - 8);
      if (!offsets.empty()) value += offsets[block];
    }
  return values;
}

// The part of a stored tensor, turned where it lies the other way, that makes the shape it has for us.
std::vector<float> laid_out(const StoredTensor& t, std::vector<float> theirs) {
  const size_t columns = t.layout->transposed && t.shape.size() == 2 ? static_cast<size_t>(t.shape[1]) : 0;
  const size_t rows = columns ? theirs.size() / columns : 0;
  std::vector<float> ours(theirs.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) ours[r * columns + c] = theirs[c * rows + r];
  if (columns) theirs.swap(ours);
  const auto size = static_cast<ptrdiff_t>(theirs.size()) / t.share.all;
  for (float& x : theirs) x += t.layout->plus;
  const auto first = theirs.begin() + size * t.share.before;
  return {first, first + size * t.share.own};
}

}  // namespace

std::vector<std::byte> to_safetensors(std::span<const StoredTensor> tensors) {
  json header = json::object();
  uint64_t end = 0;
  for (const StoredTensor& t : tensors) {
    const uint64_t begin = std::exchange(end, end + t.data.size());
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::vector<std::byte> bytes;
  bytes.reserve(8 + text.size() + end);
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<std::byte>(text.size() >> shift));
  const std::span front = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), front.begin(), front.end());
  for (const StoredTensor& t : tensors) bytes.insert(bytes.end(), t.data.begin(), t.data.end());
  return bytes;
}

std::string scale_of(const std::string& name) { return name + ".scale"; }
std::string offset_of(const std::string& name) { return name + ".offset"; }

std::string shape_text(const std::vector<int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

Numbers::Numbers(std::vector<float> own) {
  const auto kept = std::make_shared<const std::vector<float>>(std::move(own));
  owner = kept;
  values = *kept;
}

Weights Weights::open(const std::string& path, const std::string& sha256, std::shared_ptr<const NameMap> names) {
  Weights w;
  w.path_ = path;
  w.names_ = std::move(names);
  if (path.ends_with(".json"))
    w.add_index();
  else
    w.add_file(path, sha256);
  if (w.names_) w.rename();
  std::sort(w.tensors_.begin(), w.tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(w.tensors_.begin(), w.tensors_.end(),
                                        [](const StoredTensor& a, const StoredTensor& b) { return a.name == b.name; });
  if (twice != w.tensors_.end())
    fail(ATTN_INVALID, "{}: both {} and {} are tensor {}", path, quote(twice->origin), quote(std::next(twice)->origin),
         quote(twice->name));
  return w;
}

void Weights::add_file(const std::string& path, const std::string& sha256) {
  std::span<const std::byte> bytes;
  if (sha256.empty()) {
    mapped_.push_back(MappedFile::open(path));
    bytes = mapped_.back()->bytes();
  } else {
    bytes_ = std::make_shared<const std::vector<std::byte>>(read_file(path, std::numeric_limits<ptrdiff_t>::max()));
    bytes = *bytes_;
  }
  if (const std::string actual = sha256.empty() ? "" : sha256_hex(bytes); actual != sha256)
    fail(ATTN_INVALID,
         "{}: SHA-256 is {}..., the manifest says {}...: the file is damaged or another one; replace it or correct "
         "its sha256",
         path, actual.substr(0, digest_shown), sha256.substr(0, digest_shown));
  const std::shared_ptr<const void> owner = sha256.empty() ? mapped_.back() : nullptr;
  if (is_gguf(bytes)) {
    if (names_ && names_->gguf) names_ = names_->gguf;
    for (GgufTensor& t : Gguf::read(bytes, path).tensors)
      tensors_.push_back({std::move(t.name), std::move(t.type), std::move(t.shape), t.data, {}, nullptr, owner});
    return;
  }
  if (is_ctranslate2(bytes)) {
    if (names_ && names_->ctranslate2) names_ = names_->ctranslate2;
    for (Ctranslate2Tensor& t : Ctranslate2::read(bytes, path).tensors)
      tensors_.push_back(
          {std::move(t.name), std::move(t.type), std::move(t.shape), t.data, {}, nullptr, owner, t.scales, t.alias});
    return;
  }
  if (is_npz(bytes)) {
    if (names_ && names_->marian) names_ = names_->marian;
    for (NpzTensor& t : read_npz(bytes, path))
      tensors_.push_back(
          {std::move(t.name), std::move(t.type), std::move(t.shape), t.data, {}, nullptr, t.owner ? t.owner : owner});
    return;
  }
  const auto [header, data] = split(bytes, path);
  std::vector<HeaderTensor> tensors = HeaderReader{path}.read(header);
  check_coverage(tensors, data.size(), path);
  for (HeaderTensor& t : tensors) {
    const std::span<const std::byte> own = data.subspan(t.offsets[0], t.offsets[1] - t.offsets[0]);
    tensors_.push_back({std::move(t.name), std::move(t.dtype), std::move(t.shape), own, {}, nullptr, owner});
  }
}

// {"weight_map": {tensor: file}}: the files lie beside the index, and have these tensors and no others.
void Weights::add_index() {
  const nlohmann::json document = read_json(path_, max_header);
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [name, file] : JsonValue(document, path_)["weight_map"].members()) {
    const std::string text = file.text();
    if (text.empty() || text.front() == '.' || text.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      file.wrong(fmt::format("is {}, not the name of a file beside it", quote(text)));
    files[text].insert(name);
  }
  if (files.empty()) fail(ATTN_INVALID, "{}: weight_map names no tensor", path_);
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  for (auto& [file, names] : files) {
    const size_t before = tensors_.size();
    add_file(folder + file, "");
    for (size_t i = before; i < tensors_.size(); ++i)
      if (names.erase(tensors_[i].name) == 0)
        fail(ATTN_INVALID, "{}: holds tensor {}, which {} does not name", folder + file, quote(tensors_[i].name),
             path_);
    if (!names.empty())
      fail(ATTN_INVALID, "{}: lacks tensor {}, which {} names", folder + file, quote(*names.begin()), path_);
  }
}

// The tensors by our names, with the shapes that they have for us.
void Weights::rename() {
  std::vector<StoredTensor> theirs = std::exchange(tensors_, {});
  for (StoredTensor& t : theirs) {
    const std::vector<NameMap::Ours> ours = names_->ours(t.name);
    const bool ignored = names_->ignores(t.name);
    if (ours.empty() && !ignored) tensors_.push_back(std::move(t));
    for (const NameMap::Ours& made : ours) {
      const NameRule& rule = *made.rule;
      StoredTensor one = t;
      one.name = made.name;
      one.origin = t.name;
      one.alias = t.alias || ignored;
      if (rule.flat) std::erase(one.shape, 1);
      // A bias lies the same way either way.
      const bool transposed = rule.transposed && t.shape.size() > 1;
      if (transposed || rule.parts > 1 || rule.plus != 0) one.layout = &rule;
      if (transposed && t.shape.size() != 2)
        fail(ATTN_INVALID, "{}: tensor {} is {}; {} turns it, which needs a matrix", path_, quote(t.name),
             shape_text(t.shape), names_->source);
      if (transposed) std::swap(one.shape[0], one.shape[1]);
      if (rule.parts > 1) {
        one.share = names_->share(rule);
        if (one.shape.empty() || one.shape[0] % one.share.all != 0)
          fail(ATTN_INVALID, "{}: tensor {} is {}; {} takes part {} of {}, which does not divide it", path_,
               quote(t.name), shape_text(t.shape), names_->source, rule.part, one.share.all);
        one.shape[0] = one.shape[0] / one.share.all * one.share.own;
      }
      tensors_.push_back(std::move(one));
    }
  }
}

const StoredTensor* Weights::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const StoredTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

const StoredTensor& Weights::checked(std::string_view name, const std::vector<int64_t>& shape) const {
  const StoredTensor* t = find(name);
  if (!t) {
    const std::string theirs = names_ ? names_->theirs(std::string(name)) : "";
    fail(ATTN_INVALID, "{}: no tensor {}{}", path_, quote(name),
         theirs.empty() ? "" : fmt::format(", which {} calls {}", names_->source, quote(theirs)));
  }
  if (t->shape != shape && !is_halves(*t, shape))
    fail(ATTN_INVALID, "{}: tensor {}{} is {}, the model needs {}", path_, quote(name),
         t->origin.empty() ? "" : fmt::format(" ({} in the file)", quote(t->origin)), shape_text(t->shape),
         shape_text(shape));
  return *t;
}

std::vector<float> Weights::f32(std::string_view name, const std::vector<int64_t>& shape) const {
  const StoredTensor& t = checked(name, shape);
  const auto values = [&]() -> std::vector<float> {
    if (t.dtype == "F32") return convert<float>(t.data, [](float x) { return x; });
    if (t.dtype == "F64") return convert<double>(t.data, [](double x) { return static_cast<float>(x); });
    if (t.dtype == "F16") return convert<uint16_t>(t.data, from_half);
    if (t.dtype == "BF16") return convert<uint16_t>(t.data, from_bf16);
    if (!t.scales.empty()) return divided(t);
    if (is_quantised(t.dtype)) return dequantised(t.dtype, t.data);
    if (t.dtype == "I8" || is_halves(t, shape)) return scaled(t, shape);
    fail(ATTN_INVALID, "{}: tensor {} has type {}; F32, F16, BF16, F64, I8 or U8 with scales is needed", path_,
         quote(name), t.dtype);
  }();
  return t.layout ? laid_out(t, values) : values;
}

std::vector<float> Weights::scaled(const StoredTensor& t, const std::vector<int64_t>& shape) const {
  if (t.layout)
    fail(ATTN_INVALID, "{}: tensor {} has type {} and another name and layout in the file: such scales are not read",
         path_, quote(t.name), t.dtype);
  if (!find(scale_of(t.name)))
    fail(ATTN_INVALID, "{}: tensor {} has type {} and no scales: {} is missing", path_, quote(t.name), t.dtype,
         scale_of(t.name));
  const bool halves = t.dtype == "U8";
  std::vector<int64_t> needed(shape.begin(), shape.begin() + (shape.empty() ? 0 : 1));
  if (halves) needed.push_back(int4_blocks(shape[1]));
  const auto of_blocks = [&](const std::string& name, const char* what) {
    const StoredTensor* found = find(name);
    if (!found) return std::vector<float>();
    if (found->dtype != "F32" || found->shape != needed)
      fail(ATTN_INVALID, "{}: tensor {} is {} {}, the {} of {} are F32 {}", path_, quote(name), found->dtype,
           shape_text(found->shape), what, quote(t.name), shape_text(needed));
    return f32(name, needed);
  };
  const std::vector<float> scales = of_blocks(scale_of(t.name), "scales");
  if (halves) return from_halves(t.data, shape[0], shape[1], scales, of_blocks(offset_of(t.name), "offsets"));
  std::vector<float> values = convert<int8_t>(t.data, [](int8_t q) { return static_cast<float>(q); });
  const size_t inputs = scales.empty() ? 1 : values.size() / scales.size();
  for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / inputs];
  return values;
}

Numbers Weights::numbers(std::string_view name, const std::vector<int64_t>& shape) const {
  const StoredTensor& t = checked(name, shape);
  const auto* data = reinterpret_cast<const float*>(t.data.data());
  const bool aligned = reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
  if (t.owner && t.dtype == "F32" && !t.layout && aligned)
    return {t.owner, std::span(data, t.data.size() / sizeof(float))};
  return Numbers(f32(name, shape));
}

std::string Weights::identity() const {
  Sha256 names;
  for (const StoredTensor& t : tensors_) {
    const NameRule rule = t.layout ? *t.layout : NameRule();
    const std::string text =
        fmt::format("{}\n{} {} {} {} {} {} {:a} {}\n", t.name, t.origin, t.dtype, shape_text(t.shape), rule.transposed,
                    t.share.before, t.share.all, rule.plus, t.alias);
    names.add(std::as_bytes(std::span(text)));
  }
  std::string all = hex(names.digest());
  for (const auto& file : mapped_) all += " " + file->identity();
  return all;
}

void Weights::release() const {
  for (const auto& file : mapped_) file->release();
}

}  // namespace attnkit::core
