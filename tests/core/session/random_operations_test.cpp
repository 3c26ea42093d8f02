// Sessions under operations in any order, row by row against sessions of one row that know nothing of each other.
#include <random>

#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

constexpr int32_t end = 2;

// The history of one row; enough to make it again.
struct Event {
  std::vector<int32_t> ids;
  bool is_read = false, last = false;
  int32_t length = 0;  // of a write: how many of the ids are real
};

void apply(Session& session, const Event& e) {
  Session* const self = &session;
  const auto n = static_cast<int64_t>(e.ids.size());
  if (e.is_read)
    session.read(ids_of(e.ids), e.last);
  else
    Session::write({&self, 1}, {e.ids.data(), n, 1, n, &e.length}, nullptr);
}

struct Row {
  std::vector<Event> events;
  std::unique_ptr<Session> alone;
  bool ended = false;
};

struct Tested {
  std::unique_ptr<Session> session;
  std::vector<Row> rows;
};

class RandomOperations : public testing::TestWithParam<std::tuple<StreamCase, unsigned>> {
 protected:
  void SetUp() override {
    const auto& [given, seed] = GetParam();
    random_.seed(seed);
    model_ = load(given.model);
    ASSERT_TRUE(model_);
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  Tested& any() { return tested_[static_cast<size_t>(below(static_cast<int>(tested_.size())))]; }
  int32_t word() { return 3 + below(8); }

  // A session of one row that was never copied, saved or beside another one.
  Row made_again(const Row& row) const {
    Row made{row.events, std::make_unique<Session>(model_, 1), row.ended};
    for (const Event& e : made.events) apply(*made.alone, e);
    return made;
  }

  void create() {
    const int rows = 1 + below(3);
    tested_.push_back({std::make_unique<Session>(model_, rows), {}});
    for (int r = 0; r < rows; ++r) tested_.back().rows.push_back(made_again({}));
  }

  // Some of the sessions together, each as much as it gets.
  void read() {
    std::vector<Session*> sessions;
    std::vector<int32_t> ids, lens;
    std::vector<uint32_t> last;
    for (Tested& t : tested_) {
      if (t.session->source().complete || below(2)) continue;
      Event e{{}, true, below(6) == 0 || t.session->source_length() > 30, 0};
      for (int n = 1 + below(4); n > 0; --n) e.ids.push_back(word());
      sessions.push_back(t.session.get());
      lens.push_back(static_cast<int32_t>(e.ids.size()));
      last.push_back(e.last);
      ids.insert(ids.end(), e.ids.begin(), e.ids.end());
      ids.resize(sessions.size() * 4);
      for (Row& row : t.rows) {
        apply(*row.alone, e);
        row.events.push_back(e);
      }
    }
    if (sessions.empty()) return;
    Session::read(sessions, Ids{ids.data(), 4, static_cast<int64_t>(lens.size()), 4, lens.data()}, last);
  }

  // To some of the sessions, to each row as many tokens as it gets.
  void write() {
    std::vector<Session*> sessions;
    std::vector<Row*> rows;
    for (Tested& t : tested_)
      if (t.session->source_length() > 0 && below(2)) {
        sessions.push_back(t.session.get());
        for (Row& row : t.rows) rows.push_back(&row);
      }
    if (sessions.empty()) return;
    const int64_t length = 1 + below(4);
    std::vector<int32_t> ids, lens;
    for (Row* row : rows) {
      const int64_t room = model_->manifest().max_length - row->alone->position(0);
      Event e{
          {}, false, false, static_cast<int32_t>(row->ended ? 0 : std::min<int64_t>(room, below(5) % (length + 1)))};
      for (int64_t i = 0; i < length; ++i) e.ids.push_back(word());
      if (e.length > 0 && below(12) == 0) e.ids[static_cast<size_t>(e.length - 1)] = end;
      row->ended = row->ended || (e.length > 0 && e.ids[static_cast<size_t>(e.length - 1)] == end);
      apply(*row->alone, e);
      row->events.push_back(e);
      ids.insert(ids.end(), e.ids.begin(), e.ids.end());
      lens.push_back(e.length);
    }
    Session::write(sessions, {ids.data(), length, static_cast<int64_t>(rows.size()), length, lens.data()}, nullptr);
  }

  void clone() {
    const Tested& t = any();
    Tested copy{t.session->clone(), {}};
    for (const Row& row : t.rows) copy.rows.push_back(made_again(row));
    tested_.push_back(std::move(copy));
  }

  void reorder() {
    Tested& t = any();
    std::vector<uint32_t> parents;
    std::vector<Row> rows;
    for (size_t r = 0; r < t.rows.size(); ++r) {
      parents.push_back(static_cast<uint32_t>(below(static_cast<int>(t.rows.size()))));
      rows.push_back(made_again(t.rows[parents[r]]));
    }
    t.session->reorder(parents);
    t.rows = std::move(rows);
  }

  void save_and_load() {
    Tested& t = any();
    const std::vector<std::byte> blob = t.session->save();
    if (below(2)) t.session.reset();  // the slots that it leaves are the ones that are loaded into
    t.session = Session::load(model_, blob);
    EXPECT_EQ(blob, t.session->save());
  }

  void destroy() {
    std::swap(any(), tested_.back());
    tested_.pop_back();
    expect_empty_slots(*model_, 4);
  }

  // One token more than max_length.
  void refuse() {
    Tested& t = any();
    const auto rows = static_cast<int64_t>(t.rows.size());
    Session* const self = t.session.get();
    const int64_t length = model_->manifest().max_length + 1 - t.session->position(below(static_cast<int>(rows)));
    const std::vector<int32_t> ids(static_cast<size_t>(rows * length), 3);
    EXPECT_THROW(Session::write({&self, 1}, {ids.data(), length, rows, length, nullptr}, nullptr), Error);
  }

  void operate() {
    const int choice = below(10);
    if (choice < 3) write();
    if (choice == 3 || choice == 4) read();
    if (choice == 5) reorder();
    if (choice == 6) clone();
    if (choice == 7) save_and_load();
    if (choice == 8) destroy();
    if (choice == 9) refuse();
  }

  void check() {
    for (const Tested& t : tested_)
      for (size_t r = 0; r < t.rows.size(); ++r) {
        const Session& alone = *t.rows[r].alone;
        const int row = static_cast<int>(r);
        ASSERT_EQ(t.session->position(row), alone.position(0)) << "row " << r;
        ASSERT_EQ(t.session->source_length(), alone.source_length());
        ASSERT_TRUE(std::equal(alone.last(0), alone.last(0) + model_->outputs(), t.session->last(row))) << "row " << r;
        if (!t.rows[r].ended) continue;
        Session* const self = t.session.get();
        const std::vector<int32_t> ids(t.rows.size(), 3);
        std::vector<int32_t> lens(t.rows.size());
        lens[r] = 1;
        const auto rows = static_cast<int64_t>(lens.size());
        ASSERT_THROW(Session::write({&self, 1}, {ids.data(), 1, rows, 1, lens.data()}, nullptr), Error) << "after </s>";
      }
  }

  std::mt19937 random_;
  std::shared_ptr<const Model> model_;
  std::vector<Tested> tested_;
};

TEST_P(RandomOperations, LeaveEveryRowAsIfItWereAlone) {
  for (int step = 0; step < 150; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    if (tested_.size() < 2 || (tested_.size() < 6 && below(8) == 0))
      create();
    else if (tested_.size() > 6)
      destroy();
    else
      operate();
    ASSERT_NO_FATAL_FAILURE(check());
    if (HasFailure()) return;
  }
  tested_.clear();
  expect_empty_slots(*model_, 32);
}

INSTANTIATE_TEST_SUITE_P(Models, RandomOperations,
                         testing::Combine(testing::ValuesIn(stream_cases()), testing::Range(1u, 4u)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace attnkit::test
