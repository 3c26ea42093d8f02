// Decoding of many inputs: a batch of sessions that step together, refilled as they end by others whose sources are
// encoded together.
#pragma once

#include <attnkit/attnkit.hpp>
#include <optional>
#include <span>
#include <vector>

#include "core/search/trial/data_set.hpp"

namespace attnkit::core::search {

// A host derives from it and says what its inputs are.
class BatchedDecoder {
 public:
  virtual ~BatchedDecoder() = default;
  // Decodes inputs 0 to count - 1, up to `rows` at once; each as it would be decoded alone.
  void run(size_t count, size_t rows);
  // The same by beam search, over sessions whose rows are the beams.  limit: tokens to make at most, 0: as [decode]
  // says; nothing: each its own.
  void search(const Model& model, size_t count, size_t rows, std::optional<uint32_t> limit);

 protected:
  explicit BatchedDecoder(const TaskFacts& facts)
      : info_(facts.info), longest_(static_cast<size_t>(facts.longest_target())) {}

  struct Active {
    size_t index;
    Session session;
    int32_t next;     // the token to write
    size_t position;  // tokens written, as run() counts them
    size_t limit;     // tokens to make at most
    Ids source = {};  // that its session is to read, with those of the others that begin; empty: none
    Ids made = {};    // </s> included where it was reached
    std::optional<Sampler> sampler = {};  // chooses its tokens; none: each is the best
  };
  // Starts an input.  Returns nothing when there is nothing to decode.
  virtual std::optional<Active> open(size_t index) = 0;
  virtual void done(Active& input) = 0;
  // Whether what was made ends the output although </s> was not reached.
  virtual bool is_stopped(const Active&) const { return false; }
  // Throws the error of one input in the host's own way.
  [[noreturn]] virtual void fail_at(size_t index, const Error& e) const = 0;
  virtual void check_interrupt() const {}  // called before every step; may throw

 private:
  bool fill(size_t count, size_t rows);
  void go_on(const Model& model, std::span<Active> active, uint32_t limit, uint32_t steps);
  void read(std::span<Active> begun);
  void write();
  void fail_write(const Error& of_batch);
  void choose(size_t row);

  const attnkit_model_info info_;
  const size_t longest_;  // target, in tokens
  size_t next_ = 0;
  std::vector<Active> active_;
  std::vector<attnkit_session*> handles_;
  std::vector<float> scores_;
  Batch tokens_;
};

}  // namespace attnkit::core::search
