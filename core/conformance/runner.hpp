// Plans and runs a mechanism as a strict host: exact scratch between canaries, poisoned outputs, inputs that must
// survive.
#pragma once
#include <cstdlib>

#include "core/conformance/array.hpp"
#include "core/conformance/fence.hpp"

namespace attnkit::core::conformance {

// size bytes aligned to ATTN_ALIGN between two canaries, filled with 0xFF (NaN) or zero.
class Bytes {
 public:
  Bytes(uint64_t size, int fill);
  void* data() const { return raw_.get() + ATTN_ALIGN; }
  uint64_t size() const { return size_; }
  bool intact() const;

 private:
  uint64_t size_;
  std::unique_ptr<unsigned char, void (*)(void*)> raw_;
};

// An arena of state rows, all zero at first.  Rows lie further apart than they must, and the last one ends the arena.
// Between them are floats of about 12: neither what is added to one nor where one is added stays as it was.
struct Arena {
  Arena(uint64_t bytes_of_row, int64_t rows);
  char* row(int64_t slot) const { return static_cast<char*>(bytes.data()) + static_cast<uint64_t>(slot) * stride; }
  bool intact() const;  // nothing was written but rows
  uint64_t row_bytes, stride;
  Bytes bytes;

 private:
  int64_t rows_;
};

// Does a run take a sequence there, or give one?
bool is_taken(const attn_port& port);
bool is_given(const attn_port& port);

// All tensors of one mechanism, by port: sequences of N or M rows and auxiliary ones with random content, stored ones
// filled from the seed.  Both types get the same numbers.
template <class Real>
struct BasicInputs {
  BasicInputs(const Mechanism& mech, int64_t batch, int64_t queries, int64_t keys, uint64_t seed,
              Layout layout = Layout::kModel);
  template <class Other>
  explicit BasicInputs(const BasicInputs<Other>& other)
      : mech(other.mech),
        keys(other.keys),
        arrays(other.arrays.begin(), other.arrays.end()),
        of_outputs(other.of_outputs) {}
  BasicArray<Real>& operator[](const std::string& name) { return arrays.at(static_cast<size_t>(mech->find(name))); }
  const Mechanism* mech;
  int64_t keys;
  std::vector<BasicArray<Real>> arrays;
  Layout of_outputs;  // that of the inputs, but where these repeat a row
};
using Inputs = BasicInputs<float>;
using Inputs64 = BasicInputs<double>;

// The bounds of a plan, most of them for the reader's convenience.
attn_request make_request(int64_t batch, int64_t queries, int64_t keys, uint32_t flags = 0, int64_t past = 0,
                          uint32_t workers = 1);

// The parts that change from run to run.  Empty vectors are NULL.
struct Call {
  int64_t q_from = 0, queries = 0, k_from = 0, keys = 0;  // rows of the inputs that this run takes
  std::vector<int32_t> q_len{}, k_len{}, q_pos{}, k_pos{}, visible{}, slots{};
  std::vector<double> q_total{}, k_total{};
  const Arena* arena = nullptr;
  uint32_t workers = 1;
  int scratch_fill = 0xFF;   // every byte of scratch before the run
  bool without_aux = false;  // AUX_IN has no value yet
  bool fenced = false;       // whatever the run gets ends at a page that nobody may touch
  bool later = false;        // its structs are those of a later minor
  bool one_of_many = false;  // who makes them looks once whether the inputs survived
};

// A plan and its runs.  Throws Refused; Violation when a canary or an input was touched.
class Planned {
 public:
  Planned(const Mechanism& mech, const attn_request& request);
  const Mechanism& mech() const { return mech_; }
  const attn_info& info() const { return info_; }
  attn_plan* get() const { return plan_.get(); }
  const attn_request& request() const { return request_; }
  // Returns the output's rows, and in aux those of AUX_OUT by name; NaN where the run wrote nothing.
  template <class Real>
  BasicArray<Real> run(BasicInputs<Real>& inputs, const Call& call,
                       std::map<std::string, BasicArray<Real>>* aux = nullptr) const;

 private:
  const Mechanism& mech_;
  attn_request request_;
  attn_info info_{};
  std::shared_ptr<attn_plan> plan_;
};

// The refusal of a plan; ATTN_OK and no words if there is none.
Refused refusal(const Mechanism& mech, const attn_request& request);

// Scratch between canaries, and the workers that share it.
class Exec {
 public:
  Exec(uint64_t scratch_bytes, uint32_t workers, int fill = 0xFF);
  Exec(const Exec&) = delete;
  const attn_exec* get() const { return &exec_; }
  bool intact() const { return scratch_.intact(); }

 private:
  Bytes scratch_;
  attn_exec exec_;
};

// Copies of memory that end at pages which nobody may touch, and the way back.
class Copies {
 public:
  // NULL stays NULL.
  template <class T>
  T* add(const std::string& what, T* from, uint64_t bytes, uint64_t alignment) {
    return static_cast<T*>(add_bytes(what, const_cast<void*>(static_cast<const void*>(from)), bytes, alignment));
  }
  // The tensors of all ports, named "port q" after `what`.
  std::vector<attn_tensor> add(const char* what, const Mechanism& mech, const attn_tensor* tensors);
  void copy_back() const;
  Fences fences;

 private:
  void* add_bytes(const std::string& what, void* from, uint64_t bytes, uint64_t alignment);
  std::vector<std::pair<void*, uint64_t>> origins_;
};

// A run all of whose memory is a copy within fences.
struct FencedRun {
  FencedRun(const Mechanism& mech, const attn_run& of, const Call& call, uint64_t saved_bytes);
  FencedRun(const FencedRun&) = delete;
  Copies copies;
  std::vector<attn_tensor> tensors;
  attn_exec exec;
  attn_run run;
};

// One run with all that it names, which may be run again and stays as it was for a backward pass.
template <class Real>
class Bound {
 public:
  Bound(const Planned& plan, BasicInputs<Real>& inputs, const Call& call);
  Bound(const Bound&) = delete;
  void run();
  // The call alone, into outputs that are NaN again, without looking at what is around it.
  void run_again() {
    for (BasicArray<Real>& output : outputs) output.poison();
    call_plugin(run_);
  }
  const attn_run& get() const { return run_; }
  BasicInputs<Real>& inputs() const { return inputs_; }
  // Of the ports that are given; the others have none.
  std::vector<BasicArray<Real>> outputs;
  const Bytes saved;

 private:
  void call_plugin(const attn_run& run);

  const Planned& plan_;
  BasicInputs<Real>& inputs_;
  const Call call_;
  const Exec exec_;
  std::vector<attn_tensor> tensors_;
  attn_run run_{};
};

// Are all tensors the same, gaps included?
template <class Real>
bool same_memory(const std::vector<BasicArray<Real>>& a, const std::vector<BasicArray<Real>>& b);

// Plans and runs one whole sequence.
template <class Real>
BasicArray<Real> run_whole(BasicInputs<Real>& inputs, uint32_t flags, Call call, uint32_t workers = 1,
                           std::map<std::string, BasicArray<Real>>* aux = nullptr);
// The bounds of such a run, with the flags of what the call carries.
template <class Real>
attn_request whole_request(const BasicInputs<Real>& inputs, uint32_t flags, Call& call, uint32_t workers);

}  // namespace attnkit::core::conformance
