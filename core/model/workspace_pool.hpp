// Workspaces of a model that no call is using.  Taking and giving back neither locks nor, as long as there are no more
// threads than places, touches what another thread touches.
#pragma once

#include <array>
#include <atomic>
#include <memory>

namespace attnkit {

struct ModelWorkspace;

class WorkspacePool {
 public:
  WorkspacePool() = default;
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;

  // The one that this thread gave back last, else any, else a new one.  Any thread.
  std::unique_ptr<ModelWorkspace> take();
  // Keeps it, or frees it when all places are full: a burst of threads must not hold memory for ever.  Any thread.
  void give(std::unique_ptr<ModelWorkspace> workspace);

 private:
  struct alignas(64) Place {  // a cache line each
    std::atomic<ModelWorkspace*> idle{nullptr};
  };
  std::array<Place, 64> places_;
};

}  // namespace attnkit
