#include "core/search/space.hpp"

#include <algorithm>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

class SpaceMaker {
 public:
  explicit SpaceMaker(const SpaceRequest& request) : request_(request) {
    for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS})
      for (const Json& block : request.description["blocks"])
        if (block["role"] == role_name(role)) space_.sites.push_back({role, block["layer"]});
  }

  Space make() {
    check_roles();
    for (uint32_t role : roles_of(space_)) add_role(role);
    if (size_of(space_, true) < 2)
      throw Failure(
          Fault::usage, "the search space holds one placement: there is nothing to choose from",
          "give every role its mechanisms: --space decoder.self=NAME,NAME, or [search] space in the manifest");
    return std::move(space_);
  }

 private:
  void check_roles() const {
    const std::vector<uint32_t> roles = roles_of(space_);
    for (const auto& [name, mechanisms] : request_.roles) {
      const auto is_it = [&](uint32_t role) { return name == role_name(role); };
      if (std::none_of(roles.begin(), roles.end(), is_it))
        fail(Fault::usage, "--space {}: this model has no such block; it has {}", name, names_of(roles));
      if (mechanisms.empty()) fail(Fault::usage, "--space {}: no mechanism is named", name);
    }
  }

  static std::string names_of(const std::vector<uint32_t>& roles) {
    std::string out;
    for (uint32_t role : roles) out += (out.empty() ? "" : ", ") + std::string(role_name(role));
    return out;
  }

  int add_choice(const Choice& choice) {
    const auto same = [&](const Choice& c) { return c.label == choice.label; };
    const auto at = std::find_if(space_.choices.begin(), space_.choices.end(), same);
    if (at != space_.choices.end()) return static_cast<int>(at - space_.choices.begin());
    space_.choices.push_back(choice);
    return static_cast<int>(space_.choices.size()) - 1;
  }

  int named(const std::string& mechanism, const std::string& where) {
    const auto& loaded = request_.mechanisms;
    if (std::find(loaded.begin(), loaded.end(), mechanism) == loaded.end())
      fail(Fault::usage, "{}: no mechanism \"{}\" is loaded; there are {}", where, mechanism, fmt::join(loaded, ", "));
    return add_choice({mechanism, "\"" + mechanism + "\""});
  }

  // What may sit in a role: the command line's, the manifest's [search], or what the manifest has there.
  std::vector<int> allowed(uint32_t role) {
    std::vector<int> found;
    const std::string name = role_name(role);
    if (const auto given = request_.roles.find(name); given != request_.roles.end()) {
      for (const std::string& mechanism : given->second) {
        const int c = named(mechanism, "--space " + name);
        if (std::find(found.begin(), found.end(), c) != found.end())
          fail(Fault::usage, "--space {}: \"{}\" is named twice", name, mechanism);
        found.push_back(c);
      }
      return found;
    }
    if (const Json& all = search("space"); all.contains(name)) {
      for (const Json& choice : all[name]) found.push_back(add_choice({choice["label"], choice["toml"]}));
      return found;
    }
    return {fixed(name)};
  }

  int fixed(const std::string& role) {
    std::optional<Choice> only;
    for (const Json& block : request_.description["blocks"]) {
      if (block["role"] != role) continue;
      const Choice choice = {block["given"]["label"], block["given"]["toml"]};
      if (only && only->toml != choice.toml)
        throw Failure(Fault::usage, fmt::format("{} is not in the search space and its layers differ", role),
                      fmt::format("name what may sit there: --space {}=NAME,NAME", role));
      only = choice;
    }
    return add_choice(*only);
  }

  const Json& search(const char* key) const {
    static const Json none = Json::object();
    const Json& search = request_.description.contains("search") ? request_.description["search"] : none;
    return search.is_object() && search.contains(key) && !search[key].is_null() ? search[key] : none;
  }

  void add_role(uint32_t role) {
    const std::vector<int> choices = allowed(role);
    int baseline = choices.front();
    if (request_.baseline)
      baseline = named(*request_.baseline, "--baseline");
    else if (const Json& own = search("baseline"); !own.empty())
      baseline = add_choice({own["label"], own["toml"]});
    const auto [first, last] = sites_of(space_, role);
    for (size_t s = first; s < last; ++s) {
      space_.allowed.push_back(choices);
      space_.baseline.push_back(baseline);
    }
  }

  const SpaceRequest& request_;
  Space space_;
};

}  // namespace

Space make_space(const SpaceRequest& request) { return SpaceMaker(request).make(); }

}  // namespace attnkit::search
