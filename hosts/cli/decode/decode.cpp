#include "hosts/cli/decode/decode.hpp"

#include <algorithm>
#include <cmath>

#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {
namespace {

// An input that is being decoded.
struct Active {
  size_t index;
  Session session;
  int32_t next;     // the token to write
  size_t position;  // tokens written
  size_t limit;
  Ids made;
};

class Decoder {
 public:
  Decoder(const Model& model, const Facts& facts, std::span<const Input> inputs, const DecodeOptions& options,
          const Done& done)
      : model_(model), facts_(facts), inputs_(inputs), options_(options), done_(done) {}

  LargestSession run() {
    if (options_.beams > 1)
      for (size_t i = 0; i < inputs_.size(); ++i) search(i);
    else
      while (fill()) step();
    return largest_;
  }

 private:
  bool is_empty(const Input& input) const { return facts_.encoder && !facts_.speech && input.ids.size() == 1; }
  bool fill();
  void open(Session& session, const Input& input, size_t rows, size_t prompt);
  size_t limit_of(const Input& input) const;
  void search(size_t index);
  void step();
  void write();
  [[noreturn]] void blame(const Error& batch);
  [[noreturn]] void fail_at(size_t index, const Error& e) const;
  void choose(size_t row);
  void finish(size_t index, Session& session, Ids& made, size_t position);

  const Model& model_;
  const Facts& facts_;
  std::span<const Input> inputs_;
  const DecodeOptions& options_;
  const Done& done_;
  size_t next_input_ = 0;
  std::vector<Active> active_;
  std::vector<attnkit_session*> handles_;
  std::vector<float> logits_;
  Batch tokens_;
  LargestSession largest_;
};

size_t Decoder::limit_of(const Input& input) const {
  if (options_.limit > 0) return std::min<size_t>(options_.limit, facts_.max_length());
  return facts_.encoder ? std::min(facts_.max_length(), source_length(facts_, input) * 3 / 2 + 20)
                        : facts_.max_length();
}

void Decoder::fail_at(size_t index, const Error& e) const { fail_decoding(inputs_[index], e); }

// Tells the target's length where the model asks for it, reads the source, or writes the first `prompt` ids of a
// decoder's prompt to all rows.
void Decoder::open(Session& session, const Input& input, size_t rows, size_t prompt) {
  // Before the source: the keys made from it may depend on the length.
  if (input.reference && facts_.asks_for_length)
    session.set_length(static_cast<double>(input.target.size() + (facts_.encoder ? 1 : input.ids.size())));
  if (facts_.encoder) read_source(session, facts_, input);
  if (facts_.encoder || prompt == 0) return;
  attnkit_session* const self = session.get();
  const Ids ids(input.ids.begin(), input.ids.begin() + static_cast<std::ptrdiff_t>(prompt));
  Session::write({&self, 1}, Batch(std::vector<Ids>(rows, ids)));
}

// Keeps the batch full; false when nothing is left to do.
bool Decoder::fill() {
  while (active_.size() < options_.batch && next_input_ < inputs_.size()) {
    const size_t index = next_input_++;
    const Input& input = inputs_[index];
    check_interrupt();
    if (is_empty(input)) {
      done_(index, {});
      continue;
    }
    try {
      const size_t prompt = facts_.encoder ? 0 : input.ids.size() - 1;
      Session session(model_, 1);
      open(session, input, 1, prompt);
      active_.push_back({index,
                         std::move(session),
                         facts_.encoder ? facts_.info.begin_id : input.ids.back(),
                         prompt,
                         limit_of(input),
                         {}});
    } catch (const Error& e) {
      fail_at(index, e);
    }
  }
  return !active_.empty();
}

void Decoder::search(size_t index) {
  const Input& input = inputs_[index];
  check_interrupt();
  if (is_empty(input)) return done_(index, {});
  try {
    Session session(model_, options_.beams);
    open(session, input, options_.beams, input.ids.size());
    Ids made = session.generate(static_cast<uint32_t>(limit_of(input)));
    finish(index, session, made, made.size());
  } catch (const Error& e) {
    fail_at(index, e);
  }
}

void Decoder::write() {
  handles_.clear();
  tokens_.ids.clear();
  for (const Active& a : active_) {
    handles_.push_back(a.session.get());
    tokens_.ids.push_back(a.next);
  }
  tokens_.length = 1;
  tokens_.lengths.assign(active_.size(), 1);
  logits_.resize(active_.size() * static_cast<size_t>(facts_.info.outputs));
  try {
    Session::write(handles_, tokens_, logits_.data(), facts_.info.outputs);
  } catch (const Error& e) {
    blame(e);
  }
}

// A refused write changed no session, so writing them one by one finds whose fault it was.
void Decoder::blame(const Error& batch) {
  for (const Active& a : active_) {
    attnkit_session* const self = a.session.get();
    const Ids token = {a.next};
    try {
      Session::write({&self, 1}, Batch({&token, 1}));
    } catch (const Error& e) {
      fail_at(a.index, e);
    }
  }
  fail_at(active_.front().index, batch);
}

void Decoder::step() {
  check_interrupt();
  write();
  for (size_t row = 0; row < active_.size(); ++row) choose(row);
  std::erase_if(active_, [&](Active& a) {
    const bool over =
        a.made.back() == facts_.info.end_id || a.made.size() >= a.limit || a.position >= facts_.max_length();
    if (over) finish(a.index, a.session, a.made, a.position);
    return over;
  });
}

void Decoder::choose(size_t row) {
  Active& a = active_[row];
  const float* scores = logits_.data() + row * static_cast<size_t>(facts_.info.outputs);
  const float* best = std::max_element(scores, scores + facts_.info.outputs);
  if (std::isnan(*best))
    fail(Exit::numerical,
         "{}: the model's scores are not numbers (NaN) after {} tokens: its weights or a mechanism are broken",
         inputs_[a.index].origin, a.made.size());
  ++a.position;
  a.next = static_cast<int32_t>(best - scores);
  a.made.push_back(a.next);
}

void Decoder::finish(size_t index, Session& session, Ids& made, size_t position) {
  const size_t tokens = source_length(facts_, inputs_[index]) + position;
  Json state;
  if (tokens > largest_.tokens || facts_.needs_length) state = Json::parse(session.describe());
  if (tokens > largest_.tokens) largest_ = {state["state_bytes"], tokens};
  Decoded decoded{{}, made.size(), false, length_use(facts_, state)};
  decoded.ids.swap(made);
  decoded.whole = !decoded.ids.empty() && decoded.ids.back() == facts_.info.end_id;
  if (decoded.whole) decoded.ids.pop_back();
  done_(index, decoded);
}

}  // namespace

LengthUse length_use(const Facts& facts, const Json& state) {
  if (!facts.needs_length || state["target_length"].is_null()) return {};
  return {state["target_length"].get<double>(), state["beyond_target_length"].get<uint64_t>()};
}

void fail_decoding(const Input& input, const Error& e) {
  const bool inputs_fault = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
  // What goes wrong inside while decoding is a mechanism's or the weights' doing.
  const Exit exit = inputs_fault ? Exit::data : e.code() == ATTN_INTERNAL ? Exit::numerical : Exit::internal;
  fail(exit, "{}: {}", input.origin, e.what());
}

LargestSession decode(const Model& model, const Facts& facts, std::span<const Input> inputs,
                      const DecodeOptions& options, const Done& done) {
  return Decoder(model, facts, inputs, options, done).run();
}

}  // namespace attnkit::cli
