// The device's memory: a range of addresses where every allocation ends at a page that nobody may touch, and that is
// closed altogether while no kernel and no copy runs: to each thread by a protection key, where the processor has them,
// which costs nothing, else to all by page tables, which took a third of a model's tests: the first times and then one
// in sixteen.
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "cuda/emulator/block.hpp"

namespace emulator {
namespace {

constexpr size_t kPage = 4096, kSpace = size_t{1} << 36;
constexpr int kBeside = 0xA5;
constexpr uint64_t kAlways = 256;  // times that page tables are closed one after another

struct Allocation {
  size_t bytes, pages;  // pages begin where those of data do
  char* begin;
};

class Memory {
 public:
  Memory() {
    void* p = mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    space_ = next_ = static_cast<char*>(p);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
  }

  void* allocate(size_t bytes, size_t alignment) {
    if (bytes > machine().memory || used_ > machine().memory - bytes) return nullptr;
    const size_t pages = (bytes + alignment + kPage - 1) / kPage;
    char* begin = next_;
    if (std::vector<char*>& again = freed_[pages]; !again.empty()) {
      begin = again.back();
      again.pop_back();
    } else if (next_ + (pages + 1) * kPage > space_ + kSpace) {
      return nullptr;
    } else {
      next_ += (pages + 1) * kPage;
    }
    char* data = begin + pages * kPage - (bytes + alignment - 1) / alignment * alignment;
    mprotect(begin, pages * kPage, PROT_READ | PROT_WRITE);
    std::memset(begin, kBeside, pages * kPage);
    std::memset(data, 0xFF, bytes);
    if (key_ >= 0)
      pkey_mprotect(begin, pages * kPage, PROT_READ | PROT_WRITE, key_);
    else if (closed_)
      mprotect(begin, pages * kPage, PROT_NONE);
    all_[data] = {bytes, pages, begin};
    used_ += bytes;
    return data;
  }

  bool free(void* p) {
    const auto it = all_.find(static_cast<char*>(p));
    if (it == all_.end()) return false;
    madvise(it->second.begin, it->second.pages * kPage, MADV_DONTNEED);
    if (key_ >= 0)
      pkey_mprotect(it->second.begin, it->second.pages * kPage, PROT_NONE, 0);
    else
      mprotect(it->second.begin, it->second.pages * kPage, PROT_NONE);
    if (machine().reuses) freed_[it->second.pages].push_back(it->second.begin);
    used_ -= it->second.bytes;
    all_.erase(it);
    return true;
  }
  size_t used() const { return used_; }

  void open() {
    if (open_++ == 0) allow();
  }
  void close() {
    if (--open_ > 0) return;
    if (key_ >= 0)
      pkey_set(key_, PKEY_DISABLE_ACCESS);
    else if (times_++ < kAlways || times_ % 16 == 0)
      protect(PROT_NONE);
  }

  std::string strayed() const {
    for (const auto& [data, a] : all_) {
      const char *behind = data + a.bytes, *end = a.begin + a.pages * kPage;
      for (const auto& [from, to] : {std::pair<const char*, const char*>(a.begin, data), {behind, end}}) {
        if (from == to || (*from == static_cast<char>(kBeside) && std::memcmp(from, from + 1, to - from - 1) == 0))
          continue;
        const char* p = from;
        while (*p == static_cast<char>(kBeside)) ++p;
        return "a kernel wrote to global memory " + place(p);
      }
    }
    return {};
  }

  bool has(const void* p) const { return p >= space_ && p < space_ + kSpace; }

  // Describes the place of p beside the next allocation.
  std::string place(const char* p) const {
    auto it = all_.upper_bound(const_cast<char*>(p));
    if (it != all_.begin() && (it == all_.end() || std::prev(it)->first + std::prev(it)->second.bytes + kPage > p))
      --it;
    if (it == all_.end()) return "that was never allocated";
    const auto& [data, a] = *it;
    const std::string of = " an allocation of " + std::to_string(a.bytes) + " bytes";
    if (p < data) return std::to_string(data - p) + " bytes before" + of;
    const int64_t past = p - (data + a.bytes);
    return past < static_cast<int64_t>(kPage) ? std::to_string(past) + " bytes past" + of : "that is not allocated";
  }

 private:
  static void on_fault(int, siginfo_t* info, void* context);
  void allow() {
    if (key_ >= 0)
      pkey_set(key_, 0);
    else if (closed_)
      protect(PROT_READ | PROT_WRITE);
  }
  void protect(int how) {
    closed_ = how == PROT_NONE;
    for (const auto& [data, a] : all_) mprotect(a.begin, a.pages * kPage, how);
  }
  char *space_ = nullptr, *next_ = nullptr;
  bool closed_ = true;  // by page tables
  uint64_t times_ = 0;
  int open_ = 0;                                        // by the thread whose operation runs; others wait for that
  const int key_ = pkey_alloc(0, PKEY_DISABLE_ACCESS);  // -1: there is none
  size_t used_ = 0;
  std::map<char*, Allocation> all_;
  std::map<size_t, std::vector<char*>> freed_;  // by pages
};

Memory& memory() {
  static Memory all;
  return all;
}

// The source line of an instruction outside the emulator, from debug information.
std::string line_of(uintptr_t instruction) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(instruction), &info) == 0) return "an unknown line";
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  char command[600];
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' %#zx", info.dli_fname, instruction - base);
  std::string line = "an unknown line";
  if (FILE* out = popen(command, "r")) {
    char text[500];
    while (std::fgets(text, sizeof text, out))
      if (!std::strstr(text, "/emulator/") && !std::strstr(text, "/usr/")) {
        line = text;
        line = line.substr(line.find_last_of('/') + 1);
        line = line.substr(0, line.find_first_of(" \n"));
        break;
      }
    pclose(out);
  }
  return line;
}

// Says what touched p; false when it was no kernel, whose report then has it.
bool reported(const char* p, const greg_t* registers) {
  const std::string line = line_of(static_cast<uintptr_t>(registers[REG_RIP]));
  const bool writes = (registers[REG_ERR] & 2) != 0;
  if (report_fault(std::string(writes ? "a write to" : "a read of") + " global memory " + memory().place(p) + " at " +
                   line))
    return true;
  const std::string message =
      std::string("the CPU ") + (writes ? "writes" : "reads") + " memory of the device at " + line + "\n";
  [[maybe_unused]] const auto written = write(2, message.data(), message.size());
  return false;
}

// The program dies of a fault that is none of a kernel.
void Memory::on_fault(int signal, siginfo_t* info, void* context) {
  const auto* at = static_cast<const char*>(info->si_addr);
  if (memory().has(at) && reported(at, static_cast<ucontext_t*>(context)->uc_mcontext.gregs)) {
    memory().allow();  // a signal begins with all keys closed
    leave_kernel();
  }
  std::signal(signal, SIG_DFL);
}

}  // namespace

Opened::Opened() { memory().open(); }
Opened::~Opened() { memory().close(); }

std::string strayed_writes() { return memory().strayed(); }

void* new_memory(size_t bytes, size_t alignment) { return memory().allocate(bytes, alignment); }

bool free_memory(void* p) { return memory().free(p); }

size_t used_memory() { return memory().used(); }

}  // namespace emulator
