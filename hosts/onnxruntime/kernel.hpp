// The operator attnkit.Block in one node of a graph: a mechanism with its options, and what its inputs are.
#pragma once
#include <attnkit/attnkit.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hosts/onnxruntime/ort.hpp"

namespace attnkit::ort {

// A failure of the runtime's own.
struct Failure {
  Status* status;
};

inline void check(Status* status) {
  if (status) throw Failure{status};
}

// Memory aligned as plugins want it.
class Memory {
 public:
  // At least this many bytes; contents undefined.
  void* reserve(uint64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{ATTN_ALIGN}); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  uint64_t size_ = 0;
};

// One run's memory, kept for the next one.
struct Workspace {
  Memory scratch, state;
  std::vector<Memory> others;  // AUX_OUT that the node does not have, by port
};

class Kernel {
 public:
  static constexpr size_t max_carried = 6;  // outputs behind o and state: the AUX_OUT ports

  // Throws attnkit::Error, Failure.
  Kernel(const Api& api, const KernelInfo* info);
  // Any number of threads at once.
  void run(Context* context) const;
  // "attnkit.Block" and the node's name.
  static std::string place(const Api& api, const KernelInfo* info);

 private:
  struct Given;
  struct Numbers;

  attn_info ask(const attn_request& request) const;
  std::unique_ptr<Workspace> workspace() const;
  Given given(const Context* context, int input) const;
  attn_tensor tensor(const Given& given, const attn_port& port) const;
  Numbers numbers(const Context* context, int64_t batch, int64_t queries) const;
  // Memory of an output of the node; NULL: it has no such output.
  void* output(Context* context, size_t index, const std::vector<int64_t>& shape) const;
  // The state that the run goes on from, where the node gives it, or in `own`.
  void* state_after(Context* context, const Numbers& rows, int64_t batch, int64_t stride, Memory& own) const;

  const Api& api_;
  uint32_t role_ = 0;
  int64_t capacity_ = 0;
  std::string mechanism_;
  std::unique_ptr<Block> block_;
  attn_request any_{};              // without bounds
  std::vector<std::string> names_;  // of the inputs
  std::vector<int> input_of_port_;  // -1: none
  std::vector<size_t> output_of_port_;
  std::vector<int> input_of_row_;  // by place in `per_row`; -1: none
  mutable std::mutex mutex_;       // of what follows
  mutable std::vector<std::pair<attn_request, attn_info>> asked_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace attnkit::ort
