#include "hosts/cli/bundle/bundle.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "core/base/roles.hpp"
#include "core/base/sha256.hpp"
#include "core/search/manifest_text.hpp"
#include "hosts/cli/bundle/readme.hpp"
#include "hosts/cli/bundle/staging.hpp"
#include "hosts/cli/bundle/weights.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char *manifest_name = "model.toml", *readme_name = "README.md";

// The mechanisms of a model's blocks, in the terms of a search.
std::pair<search::Space, search::Placement> placement_of(const Json& description) {
  search::Space space;
  search::Placement placement;
  for (const uint32_t role : all_roles)
    for (const Json& block : description["blocks"]) {
      if (block["role"] != role_name(role)) continue;
      const std::string toml = block["given"]["toml"];
      const auto known = std::ranges::find(space.choices, toml, &search::Choice::toml);
      space.blocks.push_back({role, block["layer"]});
      placement.push_back(static_cast<int>(known - space.choices.begin()));
      if (known == space.choices.end()) space.choices.push_back({block["given"]["label"], toml});
    }
  return {space, placement};
}

// Files under names of their own, in a folder that is not there yet.
class Contents {
 public:
  explicit Contents(const std::string& folder) : staging_(folder) {}

  void add(const std::string& name, const std::string& content, const std::string& what) {
    write_file(staging_.in(name), content);
    files_.push_back({name, what, content.size()});
  }
  // Both return the name, which is changed where another file has it.  A file is copied once.
  std::string add_renamed(const std::string& name, const std::string& content, const std::string& what) {
    const fs::path wanted = name;
    std::string own = name;
    for (int n = 2; !taken_.insert(own).second; ++n)
      own = fmt::format("{}-{}{}", wanted.stem().string(), n, wanted.extension().string());
    add(own, content, what);
    return own;
  }
  std::string copy(const fs::path& source, const std::string& what, std::string read(const std::string&) = read_file) {
    const auto [at, is_new] = copied_.try_emplace(fs::canonical(source));
    if (is_new) at->second = add_renamed(source.filename().string(), read(source.string()), what);
    return at->second;
  }

  Staging& staging() { return staging_; }
  std::vector<BundledFile> files() const {
    std::vector<BundledFile> sorted = files_;
    std::ranges::sort(sorted, {}, &BundledFile::name);
    return sorted;
  }

 private:
  Staging staging_;
  std::vector<BundledFile> files_;
  std::set<std::string> taken_ = {manifest_name, readme_name, Change::report_name};
  std::map<fs::path, std::string> copied_;
};

// Of models, data and programs, such as notice.tsv.
constexpr const char* other_kinds[] = {".gguf", ".json", ".npz", ".py", ".safetensors", ".toml", ".tsv"};

// By the letters that its name begins with: LICENSE-APACHE and license.model.txt are licences as well.
bool is_licence(const fs::path& file) {
  if (std::ranges::count(other_kinds, file.extension().string()) > 0) return false;
  std::string name;
  for (const unsigned char c : file.filename().string()) {
    if (!std::isalpha(c)) break;
    name += static_cast<char>(std::toupper(c));
  }
  return name == "LICENSE" || name == "LICENCE" || name == "COPYING" || name == "NOTICE";
}

// Returns whether there was one.
bool copy_licences(const std::vector<fs::path>& folders, Contents& to) {
  std::vector<fs::path> found;
  std::error_code bad;
  for (const fs::path& folder : folders)
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, bad))
      if (is_licence(entry.path()) && entry.is_regular_file(bad)) found.push_back(entry.path());
  std::ranges::sort(found);
  for (const fs::path& file : found) to.copy(file, "licence");
  return !found.empty();
}

// The result of a search beside the manifest that measured this placement of these weights; null: there is none.
Json result_of(const fs::path& folder, const std::string& model, const std::string& placement,
               const std::string& digest) {
  std::error_code bad;
  const fs::path path = folder / "result.json";
  if (!fs::is_regular_file(path, bad)) return nullptr;
  const Json result = Json::parse(read_file(path.string()), nullptr, false);
  const Json& of = member(result, "model");
  const std::string searched = text_in(of, "weights_sha256");
  const bool fits = text_in(result, "schema") == "attnkit.search/1" && text_in(of, "name") == model &&
                    (searched.empty() || searched == digest);
  const Json& all = member(result, "placements");
  const auto has_it = [&](const Json& p) { return text_in(p, "id") == placement; };
  return fits && std::ranges::any_of(all, has_it) ? result : Json();
}

}  // namespace

Json write_bundle(const Runtime& runtime, const Model& model, const std::string& manifest, const std::string& folder,
                  const Change* change) {
  const fs::path from = fs::absolute(manifest).parent_path();
  const search::ManifestText text(read_file(manifest));
  Contents contents(folder);
  BundleFacts facts;
  facts.description = Json::parse(model.describe());
  std::map<std::string, std::string> paths;
  std::vector<fs::path> folders = {from};
  fs::path weights_file;
  for (const auto& [key, file] : text.files()) {
    if (key == "weights.names") continue;  // a bundle's tensors have our names
    const fs::path source = from / file;
    if (const fs::path beside = source.parent_path(); std::ranges::count(folders, beside) == 0)
      folders.push_back(beside);
    if (key == "weights.file")
      weights_file = source;
    else
      paths[key] = key.starts_with("length.") ? contents.copy(source, "predicts the target's length")
                                              : contents.copy(source, "vocabulary", vocabulary_bytes);
  }
  const bool renewed = change || text.renames() || (!weights_file.empty() && !is_safetensors(weights_file.string()));
  if (!change && renewed && facts.description.at("weights_type") == "stored")
    fail(
        Exit::usage,
        "{}: [weights] type = \"stored\" keeps what the file has, and a bundle's is one safetensors file of tensors by "
        "our names, so another: say type = \"int4\" or \"int8\", or use attnkit quantize",
        manifest);
  UsedWeights weights = used_weights(model, renewed ? "" : weights_file.string());
  if (change) weights.bytes = change->weights(weights.bytes);
  paths["weights.file"] = contents.add_renamed(
      weights_file.empty() || renewed ? "weights.safetensors" : weights_file.filename().string(), weights.bytes,
      change
          ? fmt::format("{}, {}", counted_text(weights.tensors, "tensor"), change->type)
          : fmt::format("{}, {} of other placements left out", counted_text(weights.tensors, "tensor"), weights.left));
  facts.licensed = copy_licences(folders, contents);
  for (const fs::path& one : folders) facts.lookup.push_back(one.lexically_normal().string());
  const auto [space, placement] = placement_of(facts.description);
  contents.add(manifest_name,
               text.bundled(space, placement, paths, sha256_hex(std::as_bytes(std::span(weights.bytes))),
                            fmt::format("Written by attnkit {} from {}.", attnkit_version(), manifest),
                            change ? change->type : ""),
               "manifest");
  facts.placement = search::id_of(space, placement);
  if (!change) facts.result = result_of(from, facts.description["name"], facts.placement, weights.digest);
  Json report;
  try {
    const Model made(runtime, contents.staging().in(manifest_name));
    if (change) report = change->report(made);
  } catch (const Error& e) {
    fail(Exit::internal, "the bundle does not open: {}", e.what());
  }
  if (change) contents.add(Change::report_name, report.dump(1) + "\n", "what the change costs");
  facts.files = contents.files();
  contents.add(readme_name, readme_text(facts), "what this is, and its figures");
  contents.staging().finish();
  Json document = {{"schema", "attnkit.bundle/1"},
                   {"bundle", folder},
                   {"manifest", (fs::path(folder) / manifest_name).string()},
                   {"placement", facts.placement},
                   {"measured", !facts.result.is_null()},
                   {"licensed", facts.licensed},
                   {"files", Json::array()}};
  if (change) document["report"] = report;
  for (const BundledFile& f : contents.files())
    document["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"what", f.what}});
  return document;
}

std::string bundle_text(const Json& bundle) {
  Table table({"file", ">bytes", ""});
  for (const Json& f : bundle["files"]) table.add({f["name"], grouped_text(f["bytes"]), f["what"]});
  std::string out = table.text();
  if (!bundle["licensed"]) out += "no licence was found beside the model\n";
  if (!bundle["measured"])
    out += "no figures: no result.json of attnkit search beside the manifest has this placement\n";
  return out;
}

}  // namespace attnkit::cli
