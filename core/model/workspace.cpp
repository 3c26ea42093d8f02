#include "core/model/workspace.hpp"

#include "core/model/device_compute.hpp"

namespace attnkit::core {
namespace {

// The place this thread looks at first; threads that follow each other begin at different places.
size_t own_place() {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace

Workspace::Workspace() = default;
Workspace::~Workspace() = default;

void Workspace::use(std::unique_ptr<Compute> how, DeviceCompute* device_of) {
  compute = std::move(how);
  device = device_of;
  for (Buffer* b : {&scratch, &x, &normed, &y, &hidden, &memory, &scores, &input, &context})
    *b = Buffer(compute->memory());
}

WorkspacePool::~WorkspacePool() {
  for (Place& place : places_) delete place.idle.load();
}

WorkspacePool::Lease WorkspacePool::take() {
  const size_t own = own_place();
  for (size_t i = 0; i < places_.size(); ++i) {
    std::atomic<Workspace*>& idle = places_[(own + i) % places_.size()].idle;
    if (!idle.load(std::memory_order_relaxed)) continue;
    if (Workspace* found = idle.exchange(nullptr, std::memory_order_acquire)) return Lease(found, {this});
  }
  return Lease(new Workspace, {this});
}

void WorkspacePool::give(Workspace* workspace) {
  if (workspace->device) workspace->device->end();
  const size_t own = own_place();
  for (size_t i = 0; i < places_.size(); ++i) {
    Workspace* none = nullptr;
    if (places_[(own + i) % places_.size()].idle.compare_exchange_strong(none, workspace, std::memory_order_release,
                                                                         std::memory_order_relaxed))
      return;
  }
  delete workspace;
}

}  // namespace attnkit::core
