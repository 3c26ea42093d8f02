// A worker that does what a request's "kind" asks for, mostly misbehave.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/search/worker/channel.hpp"

namespace {

using attnkit::core::search::WorkerChannel;
using nlohmann::json;
namespace fs = std::filesystem;

void wait_for(const std::string& path) {
  while (!fs::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

[[noreturn]] void hang() {
  for (;;) pause();
}

[[noreturn]] void die_of_segv() {
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
  hang();
}

// The machine that a launcher says this is.
std::string host() {
  const char* name = std::getenv("FAKE_HOST");
  return name ? name : "";
}

// Long enough to be seen.
void eat(size_t bytes) {
  std::vector<char> food(bytes);
  for (size_t i = 0; i < bytes; i += 4096) *static_cast<volatile char*>(&food[i]) = 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

void write_raw(int channel, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::send(channel, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n < 0) std::exit(9);
    done += static_cast<size_t>(n);
  }
}

json describe_self() {
  json signals;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    for (const char* name : {"SigBlk", "SigIgn", "SigCgt"})
      if (line.starts_with(name)) signals[name] = std::stoull(line.substr(8), nullptr, 16);
  std::set<int> descriptors;
  for (int d = 0; d < 1024; ++d)
    if (fcntl(d, F_GETFD) >= 0) descriptors.insert(d);
  status.close();
  rlimit files = {};
  getrlimit(RLIMIT_FSIZE, &files);
  return {{"signals", signals},
          {"descriptors", descriptors},
          {"is_leader", getpgrp() == getpid()},
          {"largest_file", files.rlim_cur}};
}

// "crash_unless": a file that has to be there; "crash_after": a file made by the first worker, of which later ones die;
// "leave": a file that gets a mark of each worker, which ends before it reads the request that comes next.
json open(const json& request, int channel) {
  if (request.contains("crash_unless") && !fs::exists(request["crash_unless"])) {
    std::ofstream(request["crash_unless"].get<std::string>()) << "once";
    die_of_segv();
  }
  if (request.contains("crash_after")) {
    if (fs::exists(request["crash_after"])) die_of_segv();
    std::ofstream(request["crash_after"].get<std::string>()) << "once";
  }
  if (request.contains("hang")) hang();
  if (request.contains("leave")) {
    std::ofstream(request["leave"].get<std::string>(), std::ios::app) << ".";
    write_raw(channel, json({{"id", request["id"]}, {"ok", true}, {"result", json::object()}}).dump() + "\n");
    pollfd next = {channel, POLLIN, 0};
    poll(&next, 1, -1);
    std::_Exit(5);
  }
  return {{"pid", getpid()},
          {"host", host()},
          {"cpu", "cpu of " + host()},
          {"kind", "decoder"},
          {"lists", {{"data", 1}, {"test", 0}}},
          {"buckets", request.value("odd_on", "-") == host() ? json(7) : json::array()}};
}

// Dies on one host, and leaves a mark of it; on others waits for so many of them.
void die_on(const std::string& where, const std::string& deaths, uintmax_t wait) {
  if (where == host()) {
    std::ofstream(deaths, std::ios::app) << ".";
    std::_Exit(3);
  }
  std::error_code absent;
  while (wait > 0 && (!fs::exists(deaths) || fs::file_size(deaths, absent) < wait))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void misbehave(const std::string& kind, const json& request, int channel) {
  if (kind == "segv") die_of_segv();
  if (kind == "die_on") die_on(request["host"], request["deaths"], request["wait"]);
  if (kind == "eat") eat(request["bytes"]);
  if (kind == "exit") std::_Exit(3);
  if (kind == "hang") hang();
  if (kind == "close") shutdown(channel, SHUT_RDWR), ::close(channel), hang();
  if (kind == "half") write_raw(channel, "{\"id\":"), std::_Exit(4);
  if (kind == "no_json") write_raw(channel, "hello\n"), hang();
  if (kind == "too_long") write_raw(channel, std::string((size_t{64} << 20) + 1, ' ')), hang();
  if (kind == "wrong_id") write_raw(channel, "{\"id\":999999,\"ok\":true,\"result\":1}\n"), hang();
  if (kind == "no_reply") write_raw(channel, "[1,2]\n"), hang();
  if (kind == "twice")
    write_raw(channel, json({{"id", request["id"]}, {"ok", true}, {"result", 1}}).dump() + "\nmore\n");
  if (kind == "leave_child" && fork() == 0) hang();
  if (kind == "leave_child" || kind == "die_idle")
    write_raw(channel, json({{"id", request["id"]}, {"ok", true}, {"result", 1}}).dump() + "\n");
  if (kind == "leave_child" || kind == "die_idle") std::_Exit(5);
}

json perform(const std::string& kind, const json& request, int channel) {
  misbehave(kind, request, channel);
  if (kind == "odd_on" && request["host"] == host()) misbehave(request["odd"], request, channel);
  if (kind == "open") return open(request, channel);
  if (kind == "self") return describe_self();
  if (kind == "huge") return std::string(request["bytes"].get<size_t>(), 'x');
  if (kind == "babble") std::cout << "{\"id\":" << request["id"] << ",\"ok\":false}\nbabble\n" << std::flush;
  if (kind == "meet") {
    std::ofstream(request["touch"].get<std::string>()) << "here";
    wait_for(request["wait"]);
  }
  if (kind == "wait") wait_for(request["wait"]);
  return {{"pid", getpid()}, {"size", request.value("text", "").size()}, {"host", host()}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string last = argv[argc - 1];
  const bool is_launched = last == "-";
  const int number = is_launched ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3) : std::stoi(last);
  int trials = -1;  // before this one
  WorkerChannel channel = is_launched ? WorkerChannel::of_standard_files() : WorkerChannel(number);
  while (auto request = channel.receive()) {
    const std::string kind = request->at("kind");
    ++trials;
    if (kind == "needs_memory" && trials > request->at("after"))
      channel.send({{"id", request->at("id")}, {"ok", false}, {"error", {{"kind", "memory"}, {"message", "full"}}}});
    else if (kind == "refuse" || request->contains("refuse") ||
             (kind == "open" && request->value("refuse_on", "-") == host()))
      channel.send({{"id", request->at("id")},
                    {"ok", false},
                    {"error", {{"kind", "refused"}, {"message", "no \xff thanks"}, {"diagnostics", json::array()}}}});
    else if (json result = perform(kind, *request, number); kind != "twice")
      channel.send({{"id", request->at("id")}, {"ok", true}, {"result", result}});
  }
}
