#include "hosts/cli/io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace attnkit::cli {

using nlohmann::json;

size_t HostTensor::alignment() const {
  const std::string type = fields.at("dtype");
  return type.ends_with("64") ? 8 : type.ends_with("32") ? 4 : type.ends_with("16") ? 2 : 1;
}

const HostTensor* Safetensors::find(const std::string& name) const {
  const auto at = std::ranges::find(tensors, name, &HostTensor::name);
  return at == tensors.end() ? nullptr : &*at;
}

Safetensors parse_safetensors(std::string_view bytes) {
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

std::string to_safetensors(const json& metadata, std::vector<HostTensor> tensors) {
  std::ranges::stable_sort(tensors, std::greater<>(), &HostTensor::alignment);  // readers map numbers where they lie
  json header = json::object();
  if (metadata.is_object()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (HostTensor& t : tensors) {
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
  for (const HostTensor& t : tensors) bytes += t.bytes;
  return bytes;
}

}  // namespace attnkit::cli
