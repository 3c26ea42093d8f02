#include "core/search/identity.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/search/failure.hpp"
#include "core/base/sha256.hpp"

namespace attnkit::search {
namespace {

std::string digest(const std::string& bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

std::string digest_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) fail(Fault::data, "{} cannot be read", path);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) fail(Fault::data, "{} cannot be read", path);
  return digest(bytes);
}

}  // namespace

nlohmann::json identity_of(const ManifestText& manifest, const Space& space, const Settings& settings,
                           const WorkerCommand& command, const std::vector<LoadedMechanism>& mechanisms,
                           const std::string& cpu) {
  nlohmann::json identity = {{"version", ATTNKIT_VERSION},
                             {"model", digest(manifest.with(space, space.baseline))},
                             {"data", digest_of_file(settings.data)},
                             {"test", settings.test.empty() ? "" : digest_of_file(settings.test)},
                             {"baseline", id_of(space, space.baseline)},
                             {"repetitions", settings.repetitions},
                             {"threads", settings.threads},
                             {"cpu", cpu}};
  for (const auto& [key, file] : manifest.files())
    identity[key] = digest_of_file((std::filesystem::path(command.open["dir"].get<std::string>()) / file).string());
  for (const LoadedMechanism& mechanism : mechanisms)
    identity["plugin " + mechanism.name] = digest_of_file(mechanism.file);
  return identity;
}

}  // namespace attnkit::search
