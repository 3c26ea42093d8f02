#include "core/model/workspace_pool.hpp"

#include "core/model/model.hpp"

namespace attnkit {
namespace {

// Where this thread looks first; threads that follow each other begin at different places.
size_t own_place() {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace

WorkspacePool::~WorkspacePool() {
  for (Place& place : places_) delete place.idle.load();
}

std::unique_ptr<ModelWorkspace> WorkspacePool::take() {
  const size_t own = own_place();
  for (size_t i = 0; i < places_.size(); ++i) {
    std::atomic<ModelWorkspace*>& idle = places_[(own + i) % places_.size()].idle;
    if (!idle.load(std::memory_order_relaxed)) continue;
    if (ModelWorkspace* found = idle.exchange(nullptr, std::memory_order_acquire))
      return std::unique_ptr<ModelWorkspace>(found);
  }
  return std::make_unique<ModelWorkspace>();
}

void WorkspacePool::give(std::unique_ptr<ModelWorkspace> workspace) {
  const size_t own = own_place();
  for (size_t i = 0; i < places_.size(); ++i) {
    std::atomic<ModelWorkspace*>& idle = places_[(own + i) % places_.size()].idle;
    ModelWorkspace* none = nullptr;
    if (!idle.compare_exchange_strong(none, workspace.get(), std::memory_order_release, std::memory_order_relaxed))
      continue;
    workspace.release();
    return;
  }
}

}  // namespace attnkit
