#include "core/search/worker/worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/search/worker/process_memory.hpp"

namespace attnkit::core::search {

bool Worker::is_stale() {
  return process.has_ended() || lines.has_received() || lines.receive() != LineChannel::Arrival::none;
}

void Worker::ask(nlohmann::json request, uint64_t new_id, double timeout) {
  id = new_id;
  request["id"] = id;
  begin = Clock::now();
  const std::chrono::duration<double> longest(std::min(1e8, timeout));
  deadline = begin + std::chrono::duration_cast<Clock::duration>(longest);
  timeout_seconds = timeout;
  lines.put(request);
  lines.flush();
}

std::optional<TrialReply> Worker::poll() {
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

TrialReply Worker::reply(TrialReply::Status status, nlohmann::json body, std::string reason) const {
  return {0, status, std::move(body), std::move(reason), seconds_since(begin)};
}

TrialReply Worker::take_too_much() {
  process.end(0);
  const double mib = static_cast<double>(max_memory) / (1024 * 1024);
  const std::string size = mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
  return reply(TrialReply::error, {{"kind", "memory"}}, fmt::format("needs more than the {} of --trial-memory", size));
}

TrialReply Worker::crash(std::string reason) {
  process.end(0);
  return reply(TrialReply::crashed, nullptr, reason.empty() ? "closed its channel without a reply" : reason);
}

TrialReply Worker::understand(const std::string& line) {
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

}  // namespace attnkit::core::search
