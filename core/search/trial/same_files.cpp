#include "core/search/trial/same_files.hpp"

#include <attnkit/attnkit.h>
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "core/base/sha256.hpp"
#include "core/search/failure.hpp"
#include "core/search/trial/data_set.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string moved_path(const std::string& path, const std::string& from, const std::string& to) {
  const fs::path relative = fs::path(path).lexically_relative(from);
  if (relative.empty() || *relative.begin() == "..") return path;
  return (fs::path(to) / relative).string();
}

void check_digest(const std::string& what, const std::string& file, const std::string& wanted) {
  const std::string found = digest_of_file(file);
  if (found == wanted) return;
  fail(Fault::data, "{} is another one here: {} has sha256 {}, the search's {}; copy it, or leave this host out", what,
       file, found, wanted);
}

}  // namespace

std::string digest_of(const std::string& bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

std::string digest_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || fs::is_directory(path)) fail(Fault::data, "{} cannot be read", path);
  Sha256 all;
  std::vector<char> piece(size_t{1} << 20);
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    all.add_numbers(std::span<const char>(piece.data(), static_cast<size_t>(in.gcount())));
  }
  if (in.bad()) fail(Fault::data, "{} cannot be read", path);
  return hex(all.digest());
}

std::string digest_of_recordings(const std::string& data, const std::string& test) {
  std::string all;
  for (const std::string& list : {data, test})
    if (!list.empty())
      for (const std::string& path : recordings_of(list))
        // One that is not there is for a worker to refuse, which says where it is named.
        all += fs::is_regular_file(path) ? digest_of_file(path) : "none";
  return digest_of(all);
}

std::string library_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&attnkit_version), &info) == 0 || !info.dli_fname)
    fail(Fault::internal, "the system does not say where libattnkit is");
  return info.dli_fname;
}

Json moved(Json open, const std::string& folder) {
  const std::string dir = open.at("dir");
  for (const char* key : {"data", "test"}) {
    const std::string from = open.value(key, "");
    if (from.empty()) continue;
    const std::string to = moved_path(from, dir, folder);
    open[key] = to;
    Json* const files = open.contains("expects") ? &open["expects"]["files"] : nullptr;
    if (!files || to == from || !files->contains(from)) continue;
    (*files)[to] = (*files)[from];
    files->erase(from);
  }
  open["dir"] = folder;
  return open;
}

void check_expected(const Json& open, const std::string& program, const Json& plugins) {
  if (!open.contains("expects")) return;
  const Json& expects = open["expects"];
  if (const std::string wanted = expects.at("version"); wanted != attnkit_version())
    fail(Fault::data, "attnkit is {} here, {} where the search is: install that one", attnkit_version(), wanted);
  check_digest("the attnkit command", program, expects.at("program"));
  check_digest("libattnkit", library_file(), expects.at("library"));
  for (const auto& [path, digest] : expects.at("files").items())
    check_digest("a file of the model or its data", (fs::path(open.at("dir").get<std::string>()) / path).string(),
                 digest);
  for (const auto& [name, digest] : expects.at("plugins").items()) {
    if (!plugins.contains(name))
      fail(Fault::data, "there is no plugin {} here: install it, or leave this host out", name);
    check_digest("the plugin " + name, plugins[name], digest);
  }
  if (!expects.contains("recordings")) return;
  if (digest_of_recordings(open.at("data"), open.value("test", "")) != expects["recordings"])
    fail(Fault::data, "the recordings that {} names are others here; copy them, or leave this host out",
         open["data"].get<std::string>());
}

}  // namespace attnkit::core::search
