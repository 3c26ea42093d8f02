#include "core/conformance/fence.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace attnkit::core::conformance {

namespace {

constexpr unsigned char kCanary = 0xA5;

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

thread_local sigjmp_buf way_out;
thread_local const Fences* guarded = nullptr;
thread_local const Fence* touched = nullptr;
thread_local void* touched_at = nullptr;

void on_fault(int signal, siginfo_t* info, void*) {
  if (guarded != nullptr)
    for (const auto& fence : *guarded)
      if (fence->forbids(info->si_addr)) {
        touched = fence.get();
        touched_at = info->si_addr;
        siglongjmp(way_out, 1);
      }
  // Not one of ours: it comes again, and ends the process as it would have.
  ::signal(signal, SIG_DFL);
}

// Handlers for the signals of a bad address, while it lives.
class Trap {
 public:
  Trap() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGSEGV, &action, &segv_);
    ::sigaction(SIGBUS, &action, &bus_);
  }
  ~Trap() {
    ::sigaction(SIGSEGV, &segv_, nullptr);
    ::sigaction(SIGBUS, &bus_, nullptr);
  }
  Trap(const Trap&) = delete;

 private:
  struct sigaction segv_ = {}, bus_ = {};
};

bool all_canary(const unsigned char* begin, const unsigned char* end) {
  return std::all_of(begin, end, [](unsigned char c) { return c == kCanary; });
}

}  // namespace

Fence::Fence(std::string what, uint64_t bytes, uint64_t alignment) : what_(std::move(what)), bytes_(bytes) {
  const uint64_t page = page_size(), inner = (bytes + page - 1) / page * page;
  mapped_ = inner + 2 * page;
  void* map = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<unsigned char*>(map);
  unsigned char* const begin = map_ + page;
  data_ = begin;
  if (inner == 0) return;
  ::mprotect(begin, inner, PROT_READ | PROT_WRITE);
  std::memset(begin, kCanary, inner);
  data_ = begin + (inner - bytes) / alignment * alignment;
}

Fence::~Fence() { ::munmap(map_, mapped_); }

void Fence::forbid() {
  forbidden_ = true;
  ::mprotect(map_, mapped_, PROT_NONE);
}

bool Fence::intact() const {
  if (forbidden_) return true;
  const uint64_t page = page_size();
  return all_canary(map_ + std::min(page, mapped_ - page), data_) && all_canary(data_ + bytes_, map_ + mapped_ - page);
}

bool Fence::forbids(const void* address) const {
  const auto* at = static_cast<const unsigned char*>(address);
  return at >= map_ && at < map_ + mapped_;
}

std::string Fence::where(const void* address) const {
  const auto* at = static_cast<const unsigned char*>(address);
  if (at < data_) return std::to_string(data_ - at) + " bytes before the begin of " + what_;
  if (at < data_ + bytes_) return "at byte " + std::to_string(at - data_) + " of " + what_;
  return std::to_string(at - (data_ + bytes_)) + " bytes past the end of " + what_;
}

void within(const Fences& fences, const char* function, const std::function<void()>& act) {
  guarded = &fences;
  touched = nullptr;
  {
    const Trap trap;
    if (sigsetjmp(way_out, 1) == 0) act();
  }
  guarded = nullptr;
  if (touched != nullptr) throw Violation(std::string(function) + " touched memory " + touched->where(touched_at));
  for (const auto& fence : fences)
    if (!fence->intact()) throw Violation(std::string(function) + " wrote beside " + fence->what());
}

}  // namespace attnkit::core::conformance
