#include "core/plugin/linked.hpp"

namespace attnkit {
namespace {

constinit std::span<const LinkedPlugin> linked;  // ready before constructors of other files run

}  // namespace

std::span<const LinkedPlugin> linked_plugins() noexcept { return linked; }

}  // namespace attnkit

void attn_link_plugins(const attnkit::LinkedPlugin* plugins, uint32_t count) noexcept {
  attnkit::linked = {plugins, count};
}
