#include "core/search/worker/worker_pool.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/base/clock.hpp"
#include "core/search/failure.hpp"
#include "core/search/worker/worker.hpp"

namespace attnkit::core::search {
namespace {

constexpr int longest_wait = 100;  // milliseconds between two questions to stop
constexpr size_t max_lost = 3;     // trials in a row, after which a host is used no more
constexpr double slow_open = 5;    // seconds after which nobody counts on a worker that still opens the model

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

double slow_after(std::vector<double> seconds) {
  if (seconds.empty()) return 1;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return std::max(1.0, 2 * *middle);
}

namespace {

bool accepts(const TrialRequest& request, const nlohmann::json& result) try {
  return !request.accepts || request.accepts(result);
} catch (const std::exception&) {
  return false;
}

bool is_opened(const nlohmann::json& opened) try {
  const nlohmann::json &lists = opened.at("lists"), &buckets = opened.at("buckets");
  return opened.at("cpu").is_string() && opened.at("kind").is_string() && lists.at("data").is_number_unsigned() &&
         lists.at("test").is_number_unsigned() && buckets.is_array() &&
         (!opened.contains("repeated") || opened["repeated"].is_number_unsigned()) &&
         std::ranges::all_of(buckets, [](const nlohmann::json& bound) { return bound.is_number_unsigned(); });
} catch (const std::exception&) {
  return false;
}

}  // namespace

WorkerPool::WorkerPool(WorkerCommand command, int jobs, double open_timeout)
    : command_(std::move(command)),
      open_timeout_(open_timeout),
      workers_(static_cast<size_t>(std::max(jobs, 1)) * (command_.hosts ? command_.hosts->size() : 1)) {}

WorkerPool::~WorkerPool() = default;

LaunchedHost* WorkerPool::host_of(size_t slot) const {
  return command_.hosts ? &(*command_.hosts)[slot % command_.hosts->size()] : nullptr;
}

bool WorkerPool::is_usable(size_t slot) const {
  const LaunchedHost* host = host_of(slot);
  if (!host) return true;
  return host->reason.empty() &&
         (command_.cpu.empty() || host->opened.is_null() || host->opened["cpu"] == command_.cpu);
}

size_t WorkerPool::usable_hosts() const {
  size_t count = 0;
  for (size_t h = 0; command_.hosts && h < command_.hosts->size(); ++h) count += is_usable(h);
  return count;
}

void WorkerPool::start(size_t slot) {
  const LaunchedHost* host = host_of(slot);
  using Speaks = WorkerProcess::Speaks;
  workers_[slot] =
      host ? std::make_unique<Worker>(std::vector<std::string>{"/bin/sh", "-c", host->command}, command_.log_path,
                                      Speaks::standard_files, 0)
           : std::make_unique<Worker>(command_.argv, command_.log_path, Speaks::descriptor, command_.memory);
  nlohmann::json open = command_.open;
  if (host && !host->opened.is_null()) open.erase("expects");  // which a worker before this one has compared
  workers_[slot]->ask(std::move(open), ++latest_id_, open_timeout_);
}

void WorkerPool::kill_all() {
  for (auto& worker : workers_) worker.reset();
  open_crashes_ = 0;
}

void WorkerPool::check_hosts(Fault fault) const {
  if (!command_.hosts || usable_hosts() > 0) return;
  std::string all;
  for (const LaunchedHost& h : *command_.hosts)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", h.name,
                       h.reason.empty() ? "its processor is another one than that of the timings" : h.reason);
  if (command_.hosts->size() == 1) throw Failure(fault, all);
  throw Failure(Fault::data, "no host is left: " + all);
}

void WorkerPool::give_up(LaunchedHost& host, const std::string& reason, Fault fault) {
  host.reason = reason;
  for (size_t slot = 0; slot < workers_.size(); ++slot)
    if (host_of(slot) == &host && workers_[slot] && !workers_[slot]->is_open) workers_[slot].reset();
  check_hosts(fault);
}

void WorkerPool::settle_open(size_t slot, TrialReply reply, int allowed_crashes) {
  LaunchedHost* const host = host_of(slot);
  int& crashes = host ? host->open_crashes_in_a_row : open_crashes_;
  if (host && reply.status == TrialReply::ok && !is_opened(reply.body)) {
    reply.status = TrialReply::crashed;
    reply.reason = "sent a result that is none of opening the model";
  }
  if (reply.status == TrialReply::ok) {
    crashes = 0;
    if (host) host->opened = reply.body;
    if (!is_usable(slot)) {
      workers_[slot].reset();
      return check_hosts(Fault::data);
    }
    workers_[slot]->is_open = true;
    workers_[slot]->id = 0;
    open_result_ = std::move(reply.body);
    return;
  }
  workers_[slot].reset();
  if (reply.status == TrialReply::error) {
    const nlohmann::json kind = reply.body.contains("kind") ? reply.body["kind"] : nlohmann::json();
    const Fault fault = kind == "refused" ? Fault::manifest : kind == "data" ? Fault::data : Fault::internal;
    if (!host) throw Failure(fault, reply.reason);
    return give_up(*host, reply.reason, fault);
  }
  if (++crashes <= allowed_crashes) return;
  const std::string reason =
      fmt::format("a search worker failed while it opened the model{}: {}; its output is in {}",
                  allowed_crashes > 0 ? ", twice in a row" : "", reply.reason, command_.log_path);
  if (!host) throw Failure(Fault::internal, reason);
  give_up(*host, reason, Fault::internal);
}

// Errors of poll are no matter: all are looked at ten times a second, and whoever waits comes back.
bool WorkerPool::wait() {
  std::vector<pollfd> files;
  ready_.clear();
  auto next = looked_at_all_ + std::chrono::milliseconds(longest_wait);
  for (size_t slot = 0; slot < workers_.size(); ++slot) {
    const auto& worker = workers_[slot];
    if (!worker || !worker->is_busy()) continue;
    const short events = worker->lines.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    files.push_back({worker->process.socket(), events, 0});
    ready_.push_back(slot);
    next = std::min(next, worker->deadline);
  }
  const double left = std::chrono::duration<double, std::milli>(next - Clock::now()).count();
  ::poll(files.data(), files.size(), std::max(0, static_cast<int>(std::ceil(left))));
  const Clock::time_point now = Clock::now();
  if (now >= next) {
    looked_at_all_ = now;
    return true;
  }
  size_t kept = 0;
  for (size_t i = 0; i < files.size(); ++i)
    if (files[i].revents != 0) ready_[kept++] = ready_[i];
  ready_.resize(kept);
  return false;
}

// Of every host one worker, since those that are closed at the end of a short run would never come so far.  The slow
// ones are not waited for: they may come later.
nlohmann::json WorkerPool::open(const std::function<bool()>& stop) try {
  const size_t hosts = command_.hosts ? command_.hosts->size() : 1;
  const Clock::time_point begin = Clock::now();
  double limit = std::numeric_limits<double>::infinity();
  open_crashes_ = 0;
  check_hosts(Fault::data);
  for (;;) {
    std::optional<size_t> first;
    size_t opening = 0;
    for (size_t slot = 0; slot < hosts; ++slot) {
      if (!is_usable(slot)) continue;
      if (!workers_[slot]) start(slot);
      if (!workers_[slot]->is_open)
        ++opening;
      else if (!first)
        first = slot;
    }
    if (first && (opening == 0 || seconds_since(begin) > limit)) {
      for (auto& worker : workers_)
        if (worker && !worker->is_open) worker.reset();
      return command_.hosts ? host_of(*first)->opened : open_result_;
    }
    if (first && std::isinf(limit)) limit = std::max(slow_open, 2 * seconds_since(begin));
    if (stop && stop()) throw Failure(Fault::interrupted, "stopped before the model was open");
    wait();
    for (const size_t slot : ready_)
      if (auto reply = workers_[slot]->poll()) settle_open(slot, std::move(*reply), command_.hosts ? 1 : 0);
  }
} catch (...) {
  kill_all();
  throw;
}

// One call of run().
class WorkerPool::Run {
 public:
  Run(WorkerPool& pool, std::span<const TrialRequest> requests, const std::function<void(TrialReply)>& done)
      : pool_(pool),
        requests_(requests),
        done_(done),
        slots_(pool.command_.hosts ? pool.workers_.size() : std::min(pool.workers_.size(), requests.size())),
        shares_(requests.size(), slots_),
        trials_(requests.size()) {}

  size_t slots() const { return slots_; }
  bool is_idle() const { return under_way_ == 0; }
  size_t left() const { return shares_.left() + lost_.size(); }

  // Gives requests to workers that have none, and starts workers for what is left.
  void feed() {
    size_t opening = 0;
    for (const auto& worker : pool_.workers_) opening += is_opening(worker);
    for (size_t slot = 0; slot < slots_; ++slot) {
      auto& worker = pool_.workers_[slot];
      if (left() == 0 && slow_.empty()) return;
      if (!pool_.is_usable(slot) || (worker && worker->is_busy())) continue;
      if (worker && worker->is_stale()) worker.reset();
      if (!worker && left() > opening) {
        pool_.start(slot);
        ++opening;
      }
      if (!worker || worker->is_busy()) continue;
      const std::optional<size_t> trial = take(slot);
      if (!trial) continue;
      worker->trial = *trial;
      under_way_ += trials_[*trial].workers++ == 0;
      worker->ask(requests_[*trial].request, ++pool_.latest_id_, requests_[*trial].timeout_seconds);
    }
  }

  void settle(size_t slot, TrialReply reply) {
    auto& worker = pool_.workers_[slot];
    const size_t number = worker->trial;
    Trial& trial = trials_[number];
    LaunchedHost* const host = pool_.host_of(slot);
    if (host && reply.status == TrialReply::ok && !accepts(requests_[number], reply.body)) {
      reply.status = TrialReply::crashed;
      reply.reason = "sent a result that is none of this kind of trial";
    }
    const bool is_short = reply.status == TrialReply::error && reply.body.value("kind", "") == "memory";
    const bool by_others = !worker->has_read || (is_short && worker->is_used);
    const bool is_dead = reply.status == TrialReply::crashed || reply.status == TrialReply::timed_out;
    worker->id = 0;
    worker->is_used = true;
    if (is_dead || is_short) worker.reset();
    --trial.workers;
    if (trial.is_done) return;
    under_way_ -= trial.workers == 0;
    if (by_others && !trial.was_repeated && trial.workers == 0) {
      trial.was_repeated = true;
      if (host)
        lost_.push_back({number, nullptr});
      else
        shares_.give_back(slot);
      return;
    }
    if (host && (is_dead || is_short) && goes_elsewhere(number, *host, reply.reason)) return;
    trial.is_done = true;
    if (trial.workers > 0) --under_way_;
    if (host) take_stock(trial, *host, reply);
    seconds_.push_back(reply.seconds);
    reply.tag = requests_[number].tag;
    done_(std::move(reply));
  }

  // Looks for trials that take long, when nothing is left to start.
  void look_for_slow() {
    slow_.clear();
    if (!pool_.command_.hosts || left() > 0 || under_way_ == 0 || pool_.usable_hosts() < 2) return;
    const double limit = slow_after(seconds_);
    for (size_t slot = 0; slot < slots_; ++slot) {
      const Worker* worker = pool_.workers_[slot].get();
      if (!worker || !worker->is_busy() || !worker->is_open || trials_[worker->trial].is_done) continue;
      if (trials_[worker->trial].workers == 1 && seconds_since(worker->begin) > limit)
        slow_.push_back({worker->trial, pool_.host_of(slot)});
    }
  }

  // Ends workers that are no longer needed: those that still open the model, or work on a trial that another one ended.
  void end() {
    for (auto& worker : pool_.workers_)
      if (worker && worker->is_busy()) worker.reset();
  }

 private:
  struct Trial {
    size_t workers = 0;  // on it now
    bool is_done = false, was_repeated = false;
    LaunchedHost* failed_on = nullptr;
  };
  struct Elsewhere {
    size_t trial;
    const LaunchedHost* host;  // the one that it is not for; NULL: none
  };

  static bool is_opening(const std::unique_ptr<Worker>& worker) {
    return worker && !worker->is_open && seconds_since(worker->begin) < slow_open;
  }

  std::optional<size_t> take(size_t slot) {
    const LaunchedHost* host = pool_.host_of(slot);
    for (std::vector<Elsewhere>* list : {&lost_, &slow_}) {
      const auto found = std::find_if(list->begin(), list->end(), [&](const Elsewhere& e) {
        const Trial& trial = trials_[e.trial];
        if (list == &slow_) return e.host != host && trial.workers == 1 && !trial.is_done;
        return e.host != host || pool_.usable_hosts() == 1;
      });
      if (found != list->end()) {
        const size_t trial = found->trial;
        list->erase(found);
        return trial;
      }
      if (list == &lost_ && shares_.left() > 0) return shares_.take(slot);
    }
    return std::nullopt;
  }

  // Did a trial fail that another host may run, or runs already?
  bool goes_elsewhere(size_t number, LaunchedHost& host, const std::string& reason) {
    Trial& trial = trials_[number];
    if (trial.failed_on || pool_.command_.hosts->size() < 2) return trial.workers > 0;
    trial.failed_on = &host;
    host.trouble = reason;
    if (trial.workers == 0) lost_.push_back({number, &host});
    return true;
  }

  void take_stock(const Trial& trial, LaunchedHost& host, TrialReply& reply) {
    reply.host = host.name;
    ++host.trials;
    if (reply.status != TrialReply::ok) return;
    host.lost_in_a_row = 0;
    if (!trial.failed_on || trial.failed_on == &host) return;
    LaunchedHost& failed = *trial.failed_on;
    ++failed.lost;
    if (++failed.lost_in_a_row == max_lost && failed.reason.empty())
      pool_.give_up(failed,
                    fmt::format("{} trials in a row failed there that another host could run, the last one: {}",
                                max_lost, failed.trouble),
                    Fault::internal);
  }

  WorkerPool& pool_;
  const std::span<const TrialRequest> requests_;
  const std::function<void(TrialReply)>& done_;
  const size_t slots_;
  Shares shares_;
  std::vector<Trial> trials_;
  std::vector<Elsewhere> lost_;  // to be run again
  std::vector<Elsewhere> slow_;  // to be run by another host as well
  std::vector<double> seconds_;  // of the trials that ended
  size_t under_way_ = 0;         // trials that workers are on and that have no reply
};

void WorkerPool::run(std::span<const TrialRequest> requests, const std::function<void(TrialReply)>& done,
                     const std::function<bool()>& stop) try {
  check_hosts(Fault::data);
  Run run(*this, requests, done);
  for (bool is_stopping = false;;) {
    is_stopping = is_stopping || (stop && stop());
    if (!is_stopping) run.feed();
    if (run.is_idle() && (is_stopping || run.left() == 0)) break;
    const bool are_all = wait();
    for (const size_t slot : ready_) {
      Worker* worker = workers_[slot].get();
      if (!worker || !worker->is_busy()) continue;
      std::optional<TrialReply> reply = worker->poll();
      if (reply && !worker->is_open)
        settle_open(slot, std::move(*reply), 1);
      else if (reply)
        run.settle(slot, std::move(*reply));
    }
    if (are_all) run.look_for_slow();
  }
  run.end();
} catch (...) {
  kill_all();
  throw;
}

}  // namespace attnkit::core::search
