#include "core/search/placement.hpp"

#include <algorithm>

namespace attnkit::search {

std::vector<uint32_t> roles_of(const Space& space) {
  std::vector<uint32_t> roles;
  for (const Site& site : space.sites)
    if (roles.empty() || roles.back() != site.role) roles.push_back(site.role);
  return roles;
}

std::pair<size_t, size_t> sites_of(const Space& space, uint32_t role) {
  const auto is_here = [&](const Site& s) { return s.role == role; };
  const auto first = std::find_if(space.sites.begin(), space.sites.end(), is_here);
  const auto last = std::find_if_not(first, space.sites.end(), is_here);
  return {first - space.sites.begin(), last - space.sites.begin()};
}

namespace {

bool is_uniform(const Placement& placement, std::pair<size_t, size_t> range) {
  return std::all_of(placement.begin() + static_cast<std::ptrdiff_t>(range.first),
                     placement.begin() + static_cast<std::ptrdiff_t>(range.second),
                     [&](int c) { return c == placement[range.first]; });
}

}  // namespace

std::string id_of(const Space& space, const Placement& placement) {
  std::string id;
  for (uint32_t role : roles_of(space)) {
    const auto range = sites_of(space, role);
    const size_t last = is_uniform(placement, range) ? range.first + 1 : range.second;
    id += (id.empty() ? "" : " ") + std::string(role_name(role)) + "=";
    for (size_t s = range.first; s < last; ++s)
      id += (s > range.first ? "," : "") + space.choices[static_cast<size_t>(placement[s])].label;
  }
  return id;
}

bool is_per_role(const Space& space, const Placement& placement) {
  const std::vector<uint32_t> roles = roles_of(space);
  return std::all_of(roles.begin(), roles.end(),
                     [&](uint32_t role) { return is_uniform(placement, sites_of(space, role)); });
}

std::vector<Placement> homogeneous(const Space& space) {
  std::vector<Placement> found;
  for (int c = 0; c < static_cast<int>(space.choices.size()); ++c) {
    const auto allows = [c](const std::vector<int>& a) { return std::find(a.begin(), a.end(), c) != a.end(); };
    if (std::all_of(space.allowed.begin(), space.allowed.end(), allows)) found.emplace_back(space.sites.size(), c);
  }
  return found;
}

uint64_t size_of(const Space& space, bool per_layer) {
  uint64_t size = 1;
  for (size_t s = 0; s < space.sites.size(); ++s) {
    if (!per_layer && s > 0 && space.sites[s].role == space.sites[s - 1].role) continue;
    if (__builtin_mul_overflow(size, uint64_t{space.allowed[s].size()}, &size)) return UINT64_MAX;
  }
  return size;
}

}  // namespace attnkit::search
