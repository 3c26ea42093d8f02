#include "hosts/cli/bundle/weights.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "core/base/file.hpp"
#include "core/base/sha256.hpp"
#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using nlohmann::json;

struct Tensor {
  std::string name;
  json fields;  // dtype, shape and, in the file it comes from, data_offsets
  std::string_view bytes;

  size_t alignment() const {
    const std::string type = fields.at("dtype");
    return type.ends_with("64") ? 8 : type.ends_with("32") ? 4 : type.ends_with("16") ? 2 : 1;
  }
};

struct Safetensors {
  json metadata;
  std::vector<Tensor> tensors;

  const Tensor* find(const std::string& name) const {
    const auto at = std::ranges::find(tensors, name, &Tensor::name);
    return at == tensors.end() ? nullptr : &*at;
  }
};

// The library has read these bytes strictly, so what is wrong here was changed since.
Safetensors parse(std::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof length) throw std::out_of_range("no header");
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string_view rest = bytes.substr(sizeof length), data = rest.substr(length);
  const json header = json::parse(rest.substr(0, length));
  Safetensors file;
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") {
      file.metadata = fields;
      continue;
    }
    const uint64_t begin = fields.at("data_offsets").at(0), end = fields.at("data_offsets").at(1);
    if (begin > end || end > data.size()) throw std::out_of_range("offsets");
    file.tensors.push_back({name, fields, data.substr(begin, end - begin)});
  }
  return file;
}

std::string to_safetensors(const json& metadata, std::vector<Tensor> tensors) {
  std::ranges::stable_sort(tensors, std::greater<>(), &Tensor::alignment);  // readers map numbers where they lie
  json header = json::object();
  if (metadata.is_object()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (Tensor& t : tensors) {
    const uint64_t begin = end;
    end += t.bytes.size();
    t.fields["data_offsets"] = {begin, end};
    header[t.name] = t.fields;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.reserve(sizeof length + length + end);
  bytes += text;
  for (const Tensor& t : tensors) bytes += t.bytes;
  return bytes;
}

}  // namespace

UsedWeights used_weights(const Model& model, const std::string& file) {
  detail::Handle<attnkit_blob, attnkit_blob_destroy> blob;
  blob.make(attnkit_model_weights, model.get());
  uint64_t size = 0;
  const auto* data = static_cast<const char*>(attnkit_blob_data(blob.get(), &size));
  const std::vector<std::byte> stored =
      file.empty() ? std::vector<std::byte>() : read_file(file, std::numeric_limits<ptrdiff_t>::max());
  try {
    std::vector<Tensor> used = parse({data, static_cast<size_t>(size)}).tensors;
    Safetensors from;
    if (!file.empty()) from = parse({reinterpret_cast<const char*>(stored.data()), stored.size()});
    size_t taken = 0;
    for (Tensor& t : used)
      if (const Tensor* own = from.find(t.name)) {
        t = *own;
        ++taken;
      }
    const size_t count = used.size();
    return {to_safetensors(from.metadata, std::move(used)), file.empty() ? "" : sha256_hex(stored), count,
            from.tensors.size() - taken};
  } catch (const json::exception&) {
  } catch (const std::out_of_range&) {
  }
  fail(Exit::weights, "{}: was changed while it was read; try again", quote(file));
}

}  // namespace attnkit::cli
