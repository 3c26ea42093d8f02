// One plugin in one place: a block with options, and the shapes and calls that the laws are tried on there.
#pragma once
#include <optional>

#include "core/conformance/check.hpp"
#include "core/conformance/difference.hpp"
#include "core/conformance/stream.hpp"

namespace attnkit::core::conformance {

enum class Seat { kEncoder, kDecoder, kCross };
const char* name_of(Seat seat);

// Thrown where the plugin refuses in words, which ends the law.
struct RefusedInWords {
  std::string words;
};
// The law is about something that this mechanism has not.
struct NotApplicable {
  std::string reason;
};

// The table of a file; one for CUDA as one of the CPU, by the bridge.  Throws NotApplicable where there is no device.
const attn_plugin& load_here(const std::string& file);

struct Place {
  std::string file;
  Seat seat;
  attn_block block;
  Settings settings;
  uint64_t seed = 1;       // of the numbers
  bool is_random = false;  // else a block of fixed widths with the default options
  double gate = kGate;
  std::string text() const;
};
// One of each of these roles, then the random ones.  salt: each check has places of its own.
std::vector<Place> places_of(const Trial& trial, const std::string& salt, uint32_t roles, Draws draws = Draws::options);

// Tried in place of one that is refused: the same with E = D, as outputs that are added as they are have the width of
// the model, and four heads of 64, the block that every mechanism should take.
std::vector<Place> instead_of(const Place& place);

// Calls act(t) for each t below n, each in a thread of its own, all of which begin together.  Throws Violation.
void at_once(size_t n, const std::function<void(size_t t)>& act);

class Law;
// A place of the same seat where two heads of queries share each head of keys, and the same with a head of keys for
// each.  Throws NotApplicable where the mechanism takes no fewer heads of keys than of queries.
struct SharedKeys {
  explicit SharedKeys(const Law& law);
  // The same numbers for both, by which keys of `repeated` are those of `shared`, twice.
  std::pair<Inputs, Inputs> inputs(int64_t batch, int64_t n) const;
  std::unique_ptr<Law> shared, repeated;
};

class Law {
 public:
  // Throws RefusedInWords, Violation.
  explicit Law(const Place& place);

  const Place& place() const { return place_; }
  const Mechanism& mech() const { return *mech_; }
  bool causal() const { return place_.seat == Seat::kDecoder; }
  bool cross() const { return place_.seat == Seat::kCross; }
  const attn_port& port(size_t p) const { return *mech_->ports()[p]; }
  bool has(uint32_t kind) const;
  // Raw inputs and auxiliary sequences have no heads: what enters there may reach every head of its row.
  bool mixes_heads() const;
  // Does it take keys or values of fewer heads than queries as they are?  Such a head reaches `group` heads of outputs.
  bool shares_keys() const { return group() > 1; }
  int64_t group() const;

  // Runs act; what it refuses in words ends the law, any other refusal breaks it.
  template <class Act>
  auto may_refuse(Act&& act) const {
    try {
      return act();
    } catch (const Refused& refused) {
      throw in_words(refused);
    }
  }

  // Number of keys that go with n queries in this seat.
  int64_t keys_for(int64_t n) const { return cross() ? n * slope_ / 2 + (n > 0 ? offset_ : 0) : n; }
  // The shapes of a fixed place are constants, and those of a random one are drawn in their stead, from its seed: the
  // next number from min to max, a length, the sizes of chunks that add up to n, the rows of a batch in some order.
  int64_t drawn(int64_t fixed, int64_t min, int64_t max) const;
  int64_t length(int64_t fixed) const { return drawn(fixed, 1, fixed * 3 / 2 + 1); }
  uint32_t workers(uint32_t fixed) const { return static_cast<uint32_t>(drawn(fixed, 1, 8)); }
  std::vector<int64_t> chunks(int64_t n, int64_t size) const;
  std::vector<int32_t> order(std::vector<int32_t> fixed) const;
  // Four rows of at most n queries that are padded, one of them empty.
  Call padded(int64_t n) const;
  Inputs inputs(int64_t batch, int64_t n, uint64_t salt = 0, Layout layout = Layout::kModel) const {
    return inputs_of(batch, n, keys_for(n), salt, layout);
  }
  Inputs inputs_of(int64_t batch, int64_t n, int64_t m, uint64_t salt = 0, Layout layout = Layout::kModel) const {
    return Inputs(*mech_, batch, n, m, place_.seed + salt, layout);
  }
  // The same in a block of one head of width 8, for what is done many times.
  Law narrow() const;
  // Calls act with that beside a fixed place, where it is not refused in words.
  template <class Act>
  void also_narrow(Act&& act) const {
    if (place_.is_random) return;
    try {
      act(narrow());
    } catch (const Violation& wrong) {
      throw Violation(std::string("in a block of one head of width 8, ") + wrong.what());
    } catch (const RefusedInWords&) {
    }
  }
  bool draws_options() const { return place_.is_random; }
  // Of f32 results, as a ratio of RMS.
  double gate() const { return place_.gate; }
  // Is every element finite?  With random options, which may leave a division by zero: is it written?
  bool finite(const Array& a) const { return place_.is_random ? all_written(a) : all_finite(a); }
  // A whole-sequence call; totals are given where the block is causal, since angles may need them.
  Array whole(Inputs& in, Call call = {}, uint32_t workers = 1, uint32_t flags = 0) const;
  // Totals of all rows, for calls that know them.
  Call with_totals(Call call, int64_t batch, int64_t n) const;
  // The same as a training run.
  template <class Real>
  Training<Real> train(BasicInputs<Real>& in, Call call = {}, uint32_t workers = 1, uint32_t flags = 0) const;

  // Skips places that do not stream.  A plan for streams of up to `chunk` rows at a time with room for so many keys.
  Planned stream_plan(int64_t batch, int64_t chunk, int64_t capacity, uint32_t workers = 1) const;
  // Feeds rows through a state in chunks: self attention appends and reads together; cross appends all, then reads.
  Array stream(Inputs& in, const std::vector<int64_t>& chunks, uint32_t workers = 1) const;
  // A run that appends keys [from, from + count) to states and, in self attention, reads those queries.
  Call step(int64_t from, int64_t count, const Arena& arena, int64_t batch, int64_t n) const;
  // Returns the state's knowledge after keys [0, known), as an output: the next row of self, or some queries of cross.
  Array probe(const Planned& plan, Inputs& in, const Arena& arena, int64_t known, int64_t n,
              std::vector<int32_t> slots = {}, bool fenced = false) const;

  std::map<std::string, std::string> measured;
  std::string remark;  // of a law that holds

 private:
  static RefusedInWords in_words(const Refused& refused);

  Place place_;
  mutable Random shapes_;
  int64_t slope_ = 3, offset_ = 5;
  std::optional<Mechanism> mech_;
};

}  // namespace attnkit::core::conformance
