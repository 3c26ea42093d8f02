#include "core/search/space.hpp"

#include <algorithm>

#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;

class SpaceMaker {
 public:
  explicit SpaceMaker(const SpaceRequest& request) : request_(request) {
    for (uint32_t role : all_roles)
      for (const Json& block : request.description["blocks"])
        if (is_text(block["role"], role_name(role))) space_.blocks.push_back({role, block["layer"]});
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
    std::vector<std::string> names;
    for (uint32_t role : roles_of(space_)) names.push_back(role_name(role));
    for (const auto& [name, mechanisms] : request_.roles) {
      if (std::ranges::count(names, name) == 0)
        fail(Fault::usage, "--space {}: this model has no such block; it has {}", name, fmt::join(names, ", "));
      if (mechanisms.empty()) fail(Fault::usage, "--space {}: no mechanism is named", name);
    }
  }

  int add_choice(const Choice& choice) {
    const auto at = std::ranges::find(space_.choices, choice.label, &Choice::label);
    const auto index = static_cast<int>(at - space_.choices.begin());
    if (at == space_.choices.end()) space_.choices.push_back(choice);
    return index;
  }

  int named(const std::string& mechanism, const std::string& where) {
    const auto& loaded = request_.mechanisms;
    if (std::ranges::count(loaded, mechanism) == 0)
      fail(Fault::usage, "{}: no mechanism \"{}\" is loaded; there are {}", where, mechanism, fmt::join(loaded, ", "));
    return add_choice({mechanism, "\"" + mechanism + "\""});
  }

  // The choices of a role: the command line's, the manifest's [search], or what the manifest has there.
  std::vector<int> allowed(uint32_t role) {
    std::vector<int> found;
    const std::string name = role_name(role);
    if (const auto given = request_.roles.find(name); given != request_.roles.end()) {
      if (given->second == std::vector<std::string>{"all"}) return every(name);
      for (const std::string& mechanism : given->second) {
        const int c = named(mechanism, "--space " + name);
        if (std::ranges::count(found, c) > 0) fail(Fault::usage, "--space {}: \"{}\" is named twice", name, mechanism);
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

  static Choice given_in(const Json& block) { return {block["given"]["label"], block["given"]["toml"]}; }

  // The model's own as it is there, and first, which makes it the baseline's, then all others.
  std::vector<int> every(const std::string& role) {
    std::vector<int> found;
    std::vector<std::string> others = request_.mechanisms;
    for (const Json& block : request_.description["blocks"])
      if (block["role"] == role && block["layer"] == 1) {
        found.push_back(add_choice(given_in(block)));
        std::erase(others, block["mechanism"].get<std::string>());
      }
    for (const std::string& mechanism : others) found.push_back(named(mechanism, role));
    return found;
  }

  int fixed(const std::string& role) {
    std::optional<Choice> only;
    for (const Json& block : request_.description["blocks"]) {
      if (block["role"] != role) continue;
      const Choice choice = given_in(block);
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
    const Unit unit = blocks_of(space_, role);
    space_.allowed.resize(unit.last, choices);
    space_.baseline.resize(unit.last, baseline);
  }

  const SpaceRequest& request_;
  Space space_;
};

}  // namespace

Space make_space(const SpaceRequest& request) { return SpaceMaker(request).make(); }

std::vector<uint32_t> roles_of(const Space& space) {
  std::vector<uint32_t> roles;
  for (const BlockId& block : space.blocks)
    if (roles.empty() || roles.back() != block.role) roles.push_back(block.role);
  return roles;
}

Unit blocks_of(const Space& space, uint32_t role) {
  Unit unit;
  while (unit.first < space.blocks.size() && space.blocks[unit.first].role != role) ++unit.first;
  unit.last = unit.first;
  while (unit.last < space.blocks.size() && space.blocks[unit.last].role == role) ++unit.last;
  return unit;
}

bool is_uniform(const Placement& placement, Unit unit) {
  return placement == with_choice(placement, unit, placement[unit.first]);
}

Placement with_choice(Placement placement, Unit unit, int choice) {
  for (size_t s = unit.first; s < unit.last; ++s) placement[s] = choice;
  return placement;
}

bool is_allowed(const Space& space, Unit unit, const Placement& placement) {
  return is_uniform(placement, unit) && std::ranges::count(space.allowed[unit.first], placement[unit.first]) > 0;
}

std::string id_of(const Space& space, const Placement& placement) {
  std::string id;
  for (uint32_t role : roles_of(space)) {
    const Unit unit = blocks_of(space, role);
    const size_t last = is_uniform(placement, unit) ? unit.first + 1 : unit.last;
    id += (id.empty() ? "" : " ") + std::string(role_name(role)) + "=";
    for (size_t s = unit.first; s < last; ++s) id += (s > unit.first ? "," : "") + space.choice(placement[s]).label;
  }
  return id;
}

std::vector<Placement> homogeneous(const Space& space) {
  std::vector<Placement> found;
  for (int c = 0; c < static_cast<int>(space.choices.size()); ++c)
    if (std::ranges::all_of(space.allowed, [c](const auto& allowed) { return std::ranges::count(allowed, c) > 0; }))
      found.emplace_back(space.blocks.size(), c);
  return found;
}

uint64_t size_of(const Space& space, bool per_layer) {
  uint64_t size = 1;
  for (size_t s = 0; s < space.blocks.size(); ++s) {
    if (!per_layer && s > 0 && space.blocks[s].role == space.blocks[s - 1].role) continue;
    if (__builtin_mul_overflow(size, uint64_t{space.allowed[s].size()}, &size)) return UINT64_MAX;
  }
  return size;
}

void Declared::add(const Space& space, const Placement& placement, const Json& description) {
  for (size_t s = 0; s < space.blocks.size(); ++s)
    for (const Json& block : description["blocks"]) {
      if (!is_text(block["role"], role_name(space.blocks[s].role)) || block["layer"] != space.blocks[s].layer) continue;
      for (const Json& cost : block["costs"])
        costs_[{s, placement[s], cost["length"]}] = {cost.value("state_bytes", uint64_t{0}),
                                                     cost.value("flops", uint64_t{0}),
                                                     cost.value("step_flops", uint64_t{0})};
    }
}

DeclaredCost Declared::of(size_t block, int choice, int64_t length) const {
  const auto at = costs_.find({block, choice, length});
  return at == costs_.end() ? DeclaredCost() : at->second;
}

DeclaredCost Declared::of(const Placement& placement, int64_t length) const {
  const auto add = [](uint64_t& sum, uint64_t n) {
    if (__builtin_add_overflow(sum, n, &sum)) sum = UINT64_MAX;
  };
  DeclaredCost total;
  for (size_t s = 0; s < placement.size(); ++s) {
    const DeclaredCost one = of(s, placement[s], length);
    add(total.state_bytes, one.state_bytes);
    add(total.flops, one.flops);
    add(total.step_flops, one.step_flops);
  }
  return total;
}

}  // namespace attnkit::core::search
