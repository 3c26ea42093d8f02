#include "core/plugin/linked.hpp"

namespace attnkit::core {
namespace {

constinit std::span<const LinkedPlugin> linked;  // ready before constructors of other files run

}  // namespace

std::span<const LinkedPlugin> linked_plugins() noexcept { return linked; }

}  // namespace attnkit::core

void attn_link_plugins(const attnkit::core::LinkedPlugin* plugins, uint32_t count) noexcept {
  attnkit::core::linked = {plugins, count};
}
