// Plans and runs a mechanism as a strict host: exact scratch between canaries, poisoned outputs, inputs that must
// survive.
#pragma once
#include <cstdlib>

#include "support/array.hpp"
#include "support/loader.hpp"

namespace attnkit::test {

// size bytes aligned to ATTN_ALIGN between two canaries, filled with 0xFF (NaN) or zero.
class Bytes {
 public:
  explicit Bytes(uint64_t size, int fill);
  void* data() const { return raw_.get() + ATTN_ALIGN; }
  uint64_t size() const { return size_; }
  bool intact() const;

 private:
  uint64_t size_;
  std::unique_ptr<unsigned char, void (*)(void*)> raw_;
};

// An arena of state rows, all zero at first.
struct Arena {
  Arena(uint64_t row_bytes, int64_t rows) : stride(row_bytes), bytes(row_bytes * static_cast<uint64_t>(rows), 0) {}
  char* row(int64_t slot) const { return static_cast<char*>(bytes.data()) + static_cast<uint64_t>(slot) * stride; }
  uint64_t stride;
  Bytes bytes;
};

// Does a run take a sequence there, or give one?
bool is_taken(const attn_port& port);
bool is_given(const attn_port& port);

// All tensors of one mechanism, by port: sequences of N or M rows and auxiliary ones with random content, stored ones
// filled from the seed.
struct Inputs {
  Inputs(const Mechanism& mech, int64_t batch, int64_t queries, int64_t keys, uint64_t seed,
         Layout layout = Layout::kModel);
  Array& operator[](const std::string& name) { return arrays.at(static_cast<size_t>(mech->find(name))); }
  const Mechanism* mech;
  int64_t keys;
  std::vector<Array> arrays;
};

// The bounds of a plan, most of them for the reader's convenience.
attn_request make_request(int64_t batch, int64_t queries, int64_t keys, uint32_t flags = 0, int64_t past = 0,
                          uint32_t workers = 1);

// What changes from run to run.  Empty vectors are NULL.
struct Call {
  int64_t q_from = 0, queries = 0, k_from = 0, keys = 0;  // rows of the inputs that this run takes
  std::vector<int32_t> q_len{}, k_len{}, q_pos{}, k_pos{}, visible{}, slots{};
  std::vector<double> q_total{}, k_total{};
  const Arena* arena = nullptr;
  uint32_t workers = 1;
  bool without_aux = false;  // AUX_IN has no value yet
};

// A plan and its runs.  Throws Refused; std::logic_error when a canary or an input was touched.
class Planned {
 public:
  Planned(const Mechanism& mech, const attn_request& request);
  const attn_info& info() const { return info_; }
  attn_plan* get() const { return plan_.get(); }
  const attn_request& request() const { return request_; }
  // Returns the output's rows, and in aux those of AUX_OUT by name; NaN where the run wrote nothing.
  Array run(Inputs& inputs, const Call& call, std::map<std::string, Array>* aux = nullptr) const;

 private:
  attn_tensor tensor(Inputs& inputs, size_t port, const Call& call, std::map<std::string, Array>& given) const;

  const Mechanism& mech_;
  attn_request request_;
  attn_info info_{};
  std::unique_ptr<attn_plan, void (*)(attn_plan*)> plan_;
};

// Plans and runs one whole sequence.
Array run_whole(Inputs& inputs, uint32_t flags, Call call, uint32_t workers = 1,
                std::map<std::string, Array>* aux = nullptr);

}  // namespace attnkit::test
