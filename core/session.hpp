// One input being decoded: its rows (beams) have decoder states of their own and share the states of the source.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/model.hpp"

namespace attnkit {

class Session {
 public:
  Session(std::shared_ptr<const Model> model, int rows);
  ~Session();
  Session(const Session&) = delete;

  std::unique_ptr<Session> clone() const;
  void reorder(const std::vector<uint32_t>& parents);
  void read(const Ids& source);
  void set_length(double target_length);
  // Continues until </s> or limit; greedy with one row, beam search with more.
  std::vector<int32_t> generate(int64_t limit);
  // Appends tokens (R, T) to different sessions of one model; logits (R, T, outputs) or NULL.  All or nothing.
  static void write(std::span<Session* const> sessions, const Ids& tokens, float* logits);

  const Model& model() const { return *model_; }
  int rows() const { return static_cast<int>(slots_.size()); }
  int64_t source_length() const { return source_length_; }
  int64_t position(int row) const { return positions_[row]; }
  std::optional<double> target_total() const { return target_total_; }
  int64_t beyond_total() const { return beyond_; }
  // The logits after the last token of each row, (rows, outputs); meaningless before the first write.
  const float* last(int row) const { return last_.data() + row * model_->outputs(); }
  // Steps to an output when nothing else limits it.
  int64_t default_limit() const;

  // Marks sessions busy for a call; throws when one of them is in use already, or stands there twice.
  class Use {
   public:
    explicit Use(const Session& session) : one_(&session), sessions_(&one_, 1) { mark(); }
    explicit Use(std::span<Session* const> sessions)
        : sessions_(const_cast<const Session* const*>(sessions.data()), sessions.size()) {
      mark();
    }
    ~Use() { release(sessions_.size()); }
    Use(const Use&) = delete;

   private:
    void mark();
    void release(size_t n);
    const Session* one_ = nullptr;
    std::span<const Session* const> sessions_;
  };

 private:
  static void check_write(std::span<Session* const> sessions, const Ids& tokens);
  void check_rows(const Ids& tokens, int64_t first_row) const;
  static Step gather(std::span<Session* const> sessions, const Ids& tokens, ModelWorkspace& ws);
  static void gather_aux(std::span<Session* const> sessions, Aux& to);
  void check_carried() const;
  void advance(int row, int32_t tokens);
  std::vector<uint64_t> used(int row) const;
  std::vector<int32_t> greedy(int64_t limit);
  void copy_row(int32_t from, int32_t to, int64_t position) const;

  std::shared_ptr<const Model> model_;
  std::vector<int32_t> slots_, positions_;
  int32_t cross_slot_ = -1;
  std::shared_ptr<const Aux> aux_;  // what the encoder gave out, of one row; clones share it
  int64_t source_length_ = 0;
  bool has_source_ = false;
  std::optional<double> target_total_;
  int64_t beyond_ = 0;
  std::vector<float> last_;
  mutable std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

// Beam search over a session whose rows are the beams (core/beam.cpp says how it scores); the best hypothesis, </s>
// included if reached.
std::vector<int32_t> beam_search(Session& session, int64_t limit);

}  // namespace attnkit
