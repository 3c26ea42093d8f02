// One input being decoded: its rows (beams) have decoder states of their own and share the states of the source.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/decoding/sampler.hpp"
#include "core/model/device_compute.hpp"
#include "core/model/model.hpp"
#include "core/session/arena.hpp"

namespace attnkit::core {

class BlobReader;
class BlobWriter;
class Generation;

class Session {
 public:
  Session(std::shared_ptr<const Model> model, int rows);
  ~Session();
  Session(const Session&) = delete;

  std::unique_ptr<Session> clone() const;
  void reorder(std::vector<uint32_t> parents);
  // The two parts of it: all but last(), for rows that are written next, and last() alone.
  void reorder_states(const std::vector<uint32_t>& parents);
  void reorder_scores(std::vector<uint32_t> parents) noexcept;
  // More of the source; last: it is complete.
  void read(const SourceBatch& source, bool last = true);
  // The same for different sessions of one model, a row of `sources` each, encoded together; last: by session.  A
  // refusal changes none of them; after another error first reads are undone, and what read before is unusable.
  static void read(std::span<Session* const> sessions, const SourceBatch& sources, std::span<const uint32_t> last);
  void set_length(double target_length);
  // Continues until </s> or limit, 0: default_limit(); greedy with one row, beam search with more.
  std::vector<int32_t> generate(int64_t limit);
  // The same for different sessions of one model together, until one of them is over, or at most so many steps where
  // that is not 0.  Returns what each has made once it is over; nothing of those that go on when they are given again.
  // Whatever else writes or reorders such a session ends that.  Error: of which session, where it is one's; no other
  // lost anything.
  static std::vector<std::optional<std::vector<int32_t>>> generate(std::span<Session* const> sessions, int64_t limit,
                                                                   int64_t steps, int64_t room = INT64_MAX);
  // Writes a prompt and draws tokens behind it until </s>, limit or stop(id), which may be empty; one row.  limit 0: as
  // generate.  Throws Error before anything is written, or (ATTN_INTERNAL) for scores that are not numbers.
  std::vector<int32_t> sample(std::span<const int32_t> prompt, Sampler sampler, int64_t limit,
                              std::function<bool(int32_t)> stop);
  // All that the session is, for any process that has the same model (core/session/blob.hpp).
  std::vector<std::byte> save() const;
  static std::unique_ptr<Session> load(std::shared_ptr<const Model> model, std::span<const std::byte> bytes);
  // Appends tokens (R, T) to different sessions of one model; logits (R, T, outputs) or NULL.  All or nothing.
  static void write(std::span<Session* const> sessions, const Ids& tokens, float* logits);
  static void check_write(std::span<Session* const> sessions, const Ids& tokens);

  // Throws the error of one of several sessions of a call.
  [[noreturn]] static void fail_of(int64_t session, const Error& e);

  const Model& model() const { return *model_; }
  int rows() const { return static_cast<int>(slots_.size()); }
  int64_t source_length() const { return source_.length; }

  // The source as far as it was read.
  struct Source {
    int64_t length = 0;
    bool complete = false;
    int64_t reads = 0;
    int64_t encoded_again = 0;               // tokens that the encoder ran over more than once
    int64_t replays = 0, keys_replayed = 0;  // reads that filled states anew; keys they put there once more, all blocks
    int64_t predicted_again = 0;             // rows that the length's predictor ran over more than once
    SourceKind kind = SourceKind::none;      // what was read
    int64_t units = 0;                       // of it
    std::vector<int32_t> ids;                // kept while something may have to run anew
    std::vector<float> front;                // of speech, kept for the encoder: (length, D) rows of the front end
    Frontend::Waiting waiting;               // speech that makes no row yet
    std::vector<float> rows;         // (length, D) of the encoder's output, kept while something needs them anew
    std::shared_ptr<const Aux> aux;  // the sequences that the encoder gave, of one row; clones share it

    uint64_t kept_bytes() const;     // for the encoder or a block that may have to run anew
    uint64_t carried_bytes() const;  // of aux
  };
  const Source& source() const { return source_; }
  int64_t position(int row) const { return positions_[row]; }
  std::optional<double> target_total() const { return target_total_; }
  // Mechanisms allow row 0 no further token.
  bool at_total() const { return is_beyond_total(positions_[0] + 1); }
  int64_t beyond_total() const { return beyond_; }
  // The logits after the last token of each row, (rows, outputs); meaningless before the first write.
  const float* last(int row) const { return last_.data() + row * model_->outputs(); }
  // The same as [decode] leaves them, (outputs).  Throws Error (ATTN_INTERNAL): scores that are not numbers;
  // (ATTN_INVALID): no token may come.
  std::vector<float> next_scores(int row) const;
  // Steps to an output when nothing else limits it.
  int64_t default_limit() const;

  // Decoding steps of one token for each row of sessions on a device, which give a result and leave the scores there
  // until finish().
  class Steps {
   public:
    explicit Steps(const Model& model);
    ~Steps();
    Steps(const Steps&) = delete;
    void write(std::span<Session* const> sessions, const Ids& tokens, const StepResult& result);  // as Session::write
    const DeviceCompute& results() const;                                                         // of the last
    void finish();

   private:
    const Model& model_;
    const WorkspacePool::Lease lease_;
    std::vector<Session*> wrote_;  // those of the last
  };

  // Marks sessions busy for a call; throws when one of them is in use already, or stands there twice.
  class Use {
   public:
    explicit Use(std::span<Session* const> sessions);
    ~Use() { release(sessions_.size()); }
    Use(const Use&) = delete;

   private:
    void release(size_t n);
    std::span<Session* const> sessions_;
  };

 private:
  // States of all blocks of one role; bytes: by block, as far as they may have been written.
  struct States {
    Arena& arena;
    int32_t slot;
    std::vector<uint64_t> bytes;
  };
  // Those of a source of that length, and with `rows` those of the rows.
  std::vector<States> states(int64_t source_length, bool rows = true) const;
  void release();
  void check_carried() const;
  void check_usable() const;
  // The changes of a session by a read, until all of the call succeeded.
  struct Reading {
    Session* session;
    Source to;                // its source with more read
    std::vector<float> rows;  // of speech, the front end's
    SourcePart more;          // what the encoder takes now: ids, or rows that speech completes
    std::optional<double> target_total;
    std::vector<States> begun = {};  // by a first read, which is undone where it fails, without memory
  };
  void check_read(const SourceBatch& source, bool last) const;
  void check_one_row(bool is_one) const;
  static void check_reads(std::span<Session* const> sessions, const SourceBatch& sources,
                          std::span<const uint32_t> last);
  Reading begin_read(const SourceBatch& source, bool last);
  void undo_read(const std::vector<States>& begun);
  template <class Length>
  static std::vector<std::span<Reading>> groups_of(std::vector<Reading>& all, const Length& length);
  static std::vector<SourcePart> parts_of(std::span<Reading> group);
  static void append(std::span<Reading> group);
  class Writing;
  bool begins_with_end(int row) const;
  bool is_beyond_total(int64_t tokens) const {
    return model_->within_total() && target_total_ && static_cast<double>(tokens) > *target_total_;
  }
  void check_rows(const Ids& tokens, int64_t first_row) const;
  static void gather(std::span<Session* const> sessions, const Ids& tokens, Workspace& ws);
  static void advance(std::span<Session* const> sessions, const Ids& tokens);
  void advance(int row, int32_t tokens);
  void check_begun() const;
  void check_open() const;  // a token may follow
  std::vector<int32_t> finished(std::unique_ptr<Generation> generation);
  void check_some_may_come(float best) const;
  void load_rows(BlobReader& from);
  void load_source(BlobReader& from);

  std::shared_ptr<const Model> model_;
  std::vector<int32_t> slots_, positions_;
  std::vector<bool> ended_;  // by row: </s> was written
  int32_t cross_slot_ = -1, encoder_slot_ = -1;
  Source source_;
  int64_t reach_ = 0;        // how far the source's states may have been written
  bool usable_ = true;       // false: a read or write failed half way
  bool length_set_ = false;  // the target's length was set, not predicted
  std::optional<double> target_total_;
  int64_t beyond_ = 0;
  std::vector<float> last_;
  std::unique_ptr<Generation> generation_;  // that another call goes on with
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace attnkit::core
