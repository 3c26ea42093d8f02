#include "hosts/cli/bundle/weights.hpp"

#include <limits>
#include <span>

#include "core/base/file.hpp"
#include "core/base/formats/ctranslate2.hpp"
#include "core/base/formats/gguf.hpp"
#include "core/base/formats/npz.hpp"
#include "core/base/sha256.hpp"
#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/safetensors.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

using nlohmann::json;

bool is_safetensors(const std::string& file) {
  if (file.ends_with(".json")) return false;
  const auto mapped = core::MappedFile::open(file);
  const std::span<const std::byte> bytes = mapped->bytes();
  return !core::is_gguf(bytes) && !core::is_ctranslate2(bytes) && !core::is_npz(bytes);
}

std::string vocabulary_bytes(const std::string& file) {
  const auto mapped = core::MappedFile::open(file);
  return core::is_gguf(mapped->bytes()) ? core::without_tensors(mapped->bytes(), file) : read_file(file);
}

UsedWeights used_weights(const Model& model, const std::string& file) {
  detail::Handle<attnkit_blob, attnkit_blob_destroy> blob;
  blob.make(attnkit_model_weights, model.get());
  uint64_t size = 0;
  const auto* data = static_cast<const char*>(attnkit_blob_data(blob.get(), &size));
  const std::vector<std::byte> stored =
      file.empty() ? std::vector<std::byte>() : core::read_file(file, std::numeric_limits<ptrdiff_t>::max());
  try {
    std::vector<HostTensor> used = parse_safetensors({data, static_cast<size_t>(size)}).tensors;
    Safetensors from;
    if (!file.empty()) from = parse_safetensors({reinterpret_cast<const char*>(stored.data()), stored.size()});
    size_t taken = 0;
    std::vector<HostTensor> scales;  // of I8 and U8, and offsets of the latter
    for (HostTensor& t : used)
      if (const HostTensor* own = from.find(t.name)) {
        t = *own;
        ++taken;
        if (const json& type = t.fields.at("dtype"); type != "I8" && type != "U8") continue;
        for (const char* suffix : {".scale", ".offset"})
          if (const HostTensor* more = from.find(t.name + suffix)) scales.push_back(*more);
      }
    taken += scales.size();
    used.insert(used.end(), scales.begin(), scales.end());
    const size_t count = used.size();
    return {to_safetensors(from.metadata, std::move(used)), file.empty() ? "" : sha256_hex(stored), count,
            from.tensors.size() - taken};
  } catch (const json::exception&) {
  } catch (const std::out_of_range&) {
  }
  fail(Exit::weights, "{}: was changed while it was read; try again", quote(file));
}

}  // namespace attnkit::cli
