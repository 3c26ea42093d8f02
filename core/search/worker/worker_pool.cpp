#include "core/search/worker/worker_pool.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/clock.hpp"
#include "core/search/failure.hpp"
#include "core/search/worker/channel.hpp"
#include "core/search/worker/process_memory.hpp"
#include "core/search/worker/worker_process.hpp"

namespace attnkit::search {
namespace {

constexpr int longest_wait = 100;  // milliseconds between two questions to stop

// Shares the requests of a run out: a contiguous range for each worker.
class Shares {
 public:
  Shares(size_t requests, size_t workers) : left_(requests) {
    for (size_t w = 0; w < workers; ++w) ranges_.push_back({requests * w / workers, requests * (w + 1) / workers});
  }

  size_t left() const { return left_; }

  // Something must be left.
  size_t take(size_t worker) {
    Range& own = ranges_[worker];
    if (own.size() == 0) own = steal();
    --left_;
    return own.begin++;
  }

  // Returns the request that this worker took last.
  void give_back(size_t worker) {
    ++left_;
    --ranges_[worker].begin;
  }

 private:
  struct Range {
    size_t begin, end;
    size_t size() const { return end - begin; }
  };

  Range steal() {
    const auto is_smaller = [](const Range& a, const Range& b) { return a.size() < b.size(); };
    Range& victim = *std::max_element(ranges_.begin(), ranges_.end(), is_smaller);
    const size_t middle = victim.begin + victim.size() / 2;
    return {middle, std::exchange(victim.end, middle)};
  }

  std::vector<Range> ranges_;
  size_t left_;
};

}  // namespace

struct WorkerPool::Worker {
  explicit Worker(const WorkerCommand& command)
      : process(command.argv, command.log_path), lines(process.socket()), max_memory(command.memory) {}

  bool is_busy() const { return id != 0; }

  // It was asked nothing: an end, or words, are leftovers of the trial before.
  bool is_stale() {
    return process.has_ended() || lines.has_received() || lines.receive() != LineChannel::Arrival::none;
  }

  void ask(nlohmann::json request, uint64_t new_id, double timeout) {
    id = new_id;
    request["id"] = id;
    begin = Clock::now();
    const std::chrono::duration<double> longest(std::min(1e8, timeout));
    deadline = begin + std::chrono::duration_cast<Clock::duration>(longest);
    timeout_seconds = timeout;
    lines.put(request);
    lines.flush();
  }

  // No value while it works; its process is dead when it crashed or timed out.
  std::optional<TrialReply> poll() {
    lines.flush();
    const bool has_ended = process.has_ended();  // before reading: what it said last is there by now
    for (;;) {
      if (const auto line = lines.next_line()) return understand(*line);
      switch (lines.receive()) {
        case LineChannel::Arrival::some:
          break;
        case LineChannel::Arrival::none:
          if (has_ended) return crash(process.end(0));
          if (max_memory > 0 && own_memory_of(process.pid()).value_or(0) > max_memory) return take_too_much();
          if (Clock::now() < deadline) return std::nullopt;
          process.end(0);
          return reply(TrialReply::timed_out, nullptr, fmt::format("no reply within {:g} s", timeout_seconds));
        case LineChannel::Arrival::unread:
          has_read = false;
          [[fallthrough]];
        case LineChannel::Arrival::ended:
          return crash(process.end(1));
        case LineChannel::Arrival::too_long:
          return crash(fmt::format("sent no JSON, but a line of more than {} MiB", LineChannel::max_line >> 20));
      }
    }
  }

  WorkerProcess process;
  LineChannel lines;
  const uint64_t max_memory;
  bool is_open = false;  // has replied to open
  bool has_read = true;  // false: ended before it had read the request
  bool is_used = false;  // has run a trial, of which something may be left in its memory
  uint64_t id = 0;       // of the request it works on; 0: none
  size_t trial = 0;      // index of that request, once open
  Clock::time_point begin, deadline;
  double timeout_seconds = 0;

 private:
  TrialReply reply(TrialReply::Status status, nlohmann::json body, std::string reason) const {
    return {0, status, std::move(body), std::move(reason), seconds_since(begin)};
  }

  TrialReply take_too_much() {
    process.end(0);
    const double mib = static_cast<double>(max_memory) / (1024 * 1024);
    const std::string size = mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
    return reply(TrialReply::error, {{"kind", "memory"}},
                 fmt::format("needs more than the {} of --trial-memory", size));
  }

  TrialReply crash(std::string reason) {
    process.end(0);
    return reply(TrialReply::crashed, nullptr, reason.empty() ? "closed its channel without a reply" : reason);
  }

  TrialReply understand(const std::string& line) {
    nlohmann::json message = nlohmann::json::parse(line, nullptr, false);
    if (message.is_discarded()) return crash(fmt::format("sent no JSON, but {} other bytes", line.size()));
    if (!message.is_object() || !message["ok"].is_boolean()) return crash("sent JSON that is no reply: no \"ok\"");
    if (message["id"] != id)
      return crash(fmt::format("sent a reply to request {}, not to {}", one_line(message["id"]).substr(0, 40), id));
    if (message["ok"].get<bool>()) return reply(TrialReply::ok, std::move(message["result"]), {});
    nlohmann::json& error = message["error"];
    if (!error.is_object() || !error["message"].is_string()) return crash("sent an error without a message");
    std::string text = error["message"];
    return reply(TrialReply::error, std::move(error), std::move(text));
  }
};

WorkerPool::WorkerPool(WorkerCommand command, int jobs, double open_timeout)
    : command_(std::move(command)), open_timeout_(open_timeout), workers_(static_cast<size_t>(std::max(jobs, 1))) {}

WorkerPool::~WorkerPool() = default;

void WorkerPool::start(size_t slot) {
  workers_[slot] = std::make_unique<Worker>(command_);
  workers_[slot]->ask(command_.open, ++latest_id_, open_timeout_);
}

void WorkerPool::kill_all() {
  for (auto& worker : workers_) worker.reset();
  open_crashes_ = 0;
}

void WorkerPool::settle_open(size_t slot, TrialReply reply, int allowed_crashes) {
  if (reply.status == TrialReply::ok) {
    workers_[slot]->is_open = true;
    workers_[slot]->id = 0;
    open_result_ = std::move(reply.body);
    open_crashes_ = 0;
    return;
  }
  workers_[slot].reset();
  if (reply.status == TrialReply::error) {
    const nlohmann::json kind = reply.body.contains("kind") ? reply.body["kind"] : nlohmann::json();
    throw Failure(kind == "refused" ? Fault::manifest : kind == "data" ? Fault::data : Fault::internal, reply.reason);
  }
  if (++open_crashes_ > allowed_crashes)
    fail(Fault::internal, "a search worker failed while it opened the model{}: {}; its output is in {}",
         allowed_crashes > 0 ? ", twice in a row" : "", reply.reason, command_.log_path);
}

void WorkerPool::wait() const {
  std::vector<pollfd> files;
  auto next = Clock::now() + std::chrono::milliseconds(longest_wait);
  for (const auto& worker : workers_) {
    if (!worker || !worker->is_busy()) continue;
    const short events = worker->lines.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    files.push_back({worker->process.socket(), events, 0});
    next = std::min(next, worker->deadline);
  }
  const double left = std::chrono::duration<double, std::milli>(next - Clock::now()).count();
  // Errors are no matter: whoever waits looks at every worker, and comes back.
  ::poll(files.data(), files.size(), std::max(0, static_cast<int>(std::ceil(left))));
}

nlohmann::json WorkerPool::open(const std::function<bool()>& stop) try {
  if (workers_[0] && workers_[0]->is_open) return open_result_;
  open_crashes_ = 0;
  start(0);
  while (!workers_[0]->is_open) {
    if (stop && stop()) throw Failure(Fault::interrupted, "stopped before the model was open");
    wait();
    if (auto reply = workers_[0]->poll()) settle_open(0, std::move(*reply), 0);
  }
  return open_result_;
} catch (...) {
  kill_all();
  throw;
}

void WorkerPool::run(std::span<const TrialRequest> requests, const std::function<void(TrialReply)>& done,
                     const std::function<bool()>& stop) try {
  const size_t slots = std::min(workers_.size(), requests.size());
  Shares shares(requests.size(), slots);
  std::vector<bool> was_repeated(requests.size());
  size_t under_way = 0;
  const auto is_opening = [](const auto& worker) { return worker && !worker->is_open; };

  // Gives requests to workers that have none, and starts workers for what is left.
  const auto feed = [&] {
    for (size_t slot = 0; slot < slots; ++slot) {
      auto& worker = workers_[slot];
      if (worker && !worker->is_busy() && shares.left() > 0 && worker->is_stale()) worker.reset();
      if (!worker && shares.left() > static_cast<size_t>(std::ranges::count_if(workers_, is_opening))) start(slot);
      if (!worker || worker->is_busy() || shares.left() == 0) continue;
      worker->trial = shares.take(slot);
      worker->ask(requests[worker->trial].request, ++latest_id_, requests[worker->trial].timeout_seconds);
      ++under_way;
    }
  };
  const auto settle = [&](size_t slot, TrialReply reply) {
    auto& worker = workers_[slot];
    const size_t trial = worker->trial;
    const bool is_short = reply.status == TrialReply::error && reply.body.value("kind", "") == "memory";
    const bool by_others = !worker->has_read || (is_short && worker->is_used);
    worker->id = 0;
    worker->is_used = true;
    if (reply.status == TrialReply::crashed || reply.status == TrialReply::timed_out || is_short) worker.reset();
    --under_way;
    if (by_others && !was_repeated[trial]) {
      was_repeated[trial] = true;
      shares.give_back(slot);
      return;
    }
    reply.tag = requests[trial].tag;
    done(std::move(reply));
  };

  for (bool is_stopping = false;;) {
    is_stopping = is_stopping || (stop && stop());
    if (!is_stopping) feed();
    if (under_way == 0 && (is_stopping || shares.left() == 0)) break;
    wait();
    for (size_t slot = 0; slot < slots; ++slot) {
      Worker* worker = workers_[slot].get();
      if (!worker || !worker->is_busy()) continue;
      std::optional<TrialReply> reply = worker->poll();
      if (reply && !worker->is_open)
        settle_open(slot, std::move(*reply), 1);
      else if (reply)
        settle(slot, std::move(*reply));
    }
  }
  for (auto& worker : workers_)
    if (is_opening(worker)) worker.reset();
} catch (...) {
  kill_all();
  throw;
}

}  // namespace attnkit::search
