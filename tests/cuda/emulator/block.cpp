// The threads of one block as fibres, what they wait for, and the shared memory between them.
#include "cuda/emulator/block.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <csetjmp>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

namespace context = boost::context;
constexpr size_t kStack = 256 * 1024, kPage = 4096;
constexpr size_t kMostShared = 227 * 1024, kMostStatic = 48 * 1024;

struct Stop {};  // thrown through a kernel that has failed

class Stacks {
 public:
  char* at(size_t i) {
    while (stacks_.size() <= i) {
      void* p = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      mprotect(p, kPage, PROT_NONE);
      stacks_.push_back(static_cast<char*>(p));
    }
    return stacks_[i];
  }

 private:
  std::vector<char*> stacks_;
};

struct NoFree {
  void deallocate(context::stack_context&) const {}
};

struct Copy {
  uint32_t offset;
  size_t bytes;
  uint32_t unit;
  const void* from;
};

enum class State { kReady, kAtBarrier, kAtCollective, kDone };

// Lanes that came to one place for one mask.
struct Gathering {
  unsigned mask = 0, here = 0;
  Finish finish = nullptr;
  int line = 0;
  std::array<void*, 32> brought{};
};

struct Thread {
  unsigned number = 0;
  uint3 index{};
  State state = State::kReady;
  context::fiber fiber;
  bool begun = false;
  void* fake_stack = nullptr;
  std::jmp_buf escape;

  Site site{};  // where it waits
  bool predicate = false;
  int count = 0;
  unsigned mask = 0;
  Finish finish = nullptr;

  std::array<uint32_t, 32> seen{};  // of each lane of its warp, the last moment that is before now
  std::vector<Copy> copies;
  std::vector<std::vector<Copy>> groups;

  unsigned warp() const { return number / 32; }
  unsigned lane() const { return number % 32; }
};

// The last accesses to two or four bytes of shared memory, in one line of the cache: most of a test's time is spent
// here.
struct alignas(64) Granule {
  struct Mark {
    uint32_t phase = 0, moment : 22 = 0, thread : 10 = 0;
    uint64_t place = 0;  // line, and above it the file: pointers have 48 bits
    Site site() const { return {reinterpret_cast<const char*>(place >> 16), static_cast<int>(place & 0xFFFF)}; }
  };
  uint32_t block = 0;
  bool written = false, atomic = false, in_flight = false;
  Mark write, read, other_warp_read;
};
static_assert(sizeof(Granule) == 64);

struct Running {
  const std::function<void()>* kernel;
  std::vector<Thread> threads;
  std::vector<unsigned> ready;
  unsigned done = 0, at_barrier = 0;
  uint32_t phase = 1;
  size_t dynamic_bytes = 0, shared_bytes = 0;
  std::map<const void*, Part> parts;
  std::vector<std::vector<Gathering>> gatherings;  // of each warp
  std::string report;
};

uint64_t random_state = 1;
Stacks stacks;
Running block;
uint32_t block_number = 0;
Thread* current = nullptr;
std::thread::id runs_blocks;  // the thread of the host that does; others may fault meanwhile
context::fiber scheduler;
#ifdef EMULATOR_ASAN
const void* scheduler_stack = nullptr;
size_t scheduler_size = 0;
#endif
alignas(64) char shared_memory[kMostShared];
Granule granules[kMostShared / 2];

std::string text(Site site) {
  const std::string file = site.file;
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(site.line);
}
std::string text(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

void report(const std::string& what) {
  if (!block.report.empty()) return;
  block.report = what + ", in block " + text(blockIdx);
  if (current) block.report += " thread " + text(current->index);
}

// Gives control back to the scheduler until this thread is chosen again.
void yield() {
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&current->fake_stack, scheduler_stack, scheduler_size);
#endif
  scheduler = std::move(scheduler).resume();
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(current->fake_stack, &scheduler_stack, &scheduler_size);
#endif
  if (!block.report.empty()) throw Stop{};
}

void finished(Thread& me) {
  me.state = State::kDone;
  ++block.done;
}

context::fiber enter(context::fiber&& from) {
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  scheduler = std::move(from);
  Thread& me = *current;
  if (_setjmp(me.escape) == 0) {
    try {
      (*block.kernel)();
      if (!me.copies.empty() || !me.groups.empty()) report("the thread ends before copies that it has begun");
    } catch (const Stop&) {
    }
  }
  finished(me);
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(nullptr, scheduler_stack, scheduler_size);
#endif
  return std::move(scheduler);
}

void resume(Thread& thread) {
  current = &thread;
  threadIdx = thread.index;
  thread.state = State::kReady;
  if (!thread.begun) {
    thread.begun = true;
    context::stack_context memory;
    // Tops of stacks that are alike modulo a page would share a few lines of the cache.
    memory.sp = stacks.at(thread.number) + kStack - thread.number % 64 * 1088;
    memory.size = kStack - kPage - 64 * 1088;
    thread.fiber =
        context::fiber(std::allocator_arg, context::preallocated(memory.sp, memory.size, memory), NoFree{}, enter);
  }
#ifdef EMULATOR_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stacks.at(thread.number) + kPage, kStack - kPage);
#endif
  thread.fiber = std::move(thread.fiber).resume();
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  current = nullptr;
}

std::string whereabouts(const Thread& t) {
  if (t.state == State::kDone) return "thread " + text(t.index) + " has ended";
  return "thread " + text(t.index) + " waits at " + text(t.site);
}

// Nobody can go on and not all are done: says who waits for whom.
void explain_deadlock() {
  const Thread *first = nullptr, *other = nullptr;
  for (const Thread& t : block.threads) {
    if (t.state == State::kDone) continue;
    if (!first || (first->state == State::kAtBarrier && t.state == State::kAtCollective)) first = &t;
  }
  if (first->state == State::kAtBarrier) {
    for (const Thread& t : block.threads)
      if (t.state == State::kDone || t.site.line != first->site.line || t.site.file != first->site.file) other = &t;
    report("divergent barrier: " + whereabouts(*first) + " and " + (other ? whereabouts(*other) : "nobody else"));
    return;
  }
  for (const Thread& t : block.threads) {
    const bool asked = t.warp() == first->warp() && (first->mask >> t.lane() & 1);
    if (asked && (t.state != State::kAtCollective || t.mask != first->mask || t.finish != first->finish ||
                  t.site.line != first->site.line))
      other = &t;
  }
  report("divergent warp: " + whereabouts(*first) + " for the lanes of its mask and " + whereabouts(*other));
}

bool is_before(const Granule::Mark& mark, const Thread& me) {
  if (mark.phase != block.phase) return true;
  if (mark.thread == me.number) return true;
  return mark.thread / 32u == me.warp() && me.seen[mark.thread % 32u] >= mark.moment;
}

[[noreturn]] void race(const char* here, const char* there, const Granule::Mark& mark, Site site) {
  fail(std::string("race in shared memory: ") + here + " at " + text(site) + " and " + there + " by thread " +
           text(block.threads[mark.thread].index) + " at " + text(mark.site()) + " have no barrier between them",
       site);
}

Granule& granule_at(uint32_t offset) {
  Granule& g = granules[offset / 2];
  if (g.block != block_number) {
    g = {};
    g.block = block_number;
  }
  return g;
}

// Member by member: what was stored in parts is slow to copy as a whole.
void mark(Granule::Mark& mark, const Thread& me, const Site& site) {
  mark.phase = block.phase;
  mark.moment = me.seen[me.lane()] + 1;
  mark.thread = me.number;
  mark.place = reinterpret_cast<uint64_t>(site.file) << 16 | static_cast<uint16_t>(site.line);
}

void check(Granule& g, Access kind, const Site& site) {
  const Thread& me = *current;
  if (g.in_flight) race(kind == Access::kRead ? "a read" : "a write", "a copy that nobody waited for", g.write, site);
  const bool both_atomic = kind == Access::kAtomic && g.atomic;
  if (g.written && !both_atomic && !is_before(g.write, me))
    race(kind == Access::kRead ? "a read" : "a write", "a write", g.write, site);
  if (kind != Access::kWrite && !g.written) fail("a read of shared memory that nobody wrote", site);
  if (kind == Access::kRead) {
    if (g.read.phase == block.phase && g.read.thread / 32u != me.warp()) g.other_warp_read = g.read;
    mark(g.read, me, site);
    return;
  }
  for (const Granule::Mark* read : {&g.read, &g.other_warp_read})
    if (read->phase != 0 && !is_before(*read, me)) race("a write", "a read", *read, site);
  mark(g.write, me, site);
  g.written = true;
  g.atomic = kind == Access::kAtomic;
}

}  // namespace

void set_block_seed(uint64_t seed) { random_state = seed; }
// Splitmix's mixing of a counter; n is small.
uint64_t draw(uint64_t n) {
  uint64_t x = random_state += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return (x >> 32) * n >> 32;
}

void fail(const std::string& what, Site site) {
  report(what + " at " + text(site));
  throw Stop{};
}

void fail_beyond(int64_t offset, int64_t bytes, Part part, Site site) {
  const int64_t first = part.begin, end = part.end;
  fail("element " + std::to_string((offset - first) / bytes) + " of " + std::to_string((end - first) / bytes) +
           " in shared memory does not exist",
       site);
}

unsigned lane() { return current->lane(); }

int barrier(bool predicate, Site site) {
  Thread& me = *current;
  me.state = State::kAtBarrier;
  me.site = site;
  me.predicate = predicate;
  if (++block.at_barrier == block.threads.size()) {
    bool together = true;
    int count = 0;
    for (const Thread& t : block.threads) {
      together = together && t.site.line == site.line && std::strcmp(t.site.file, site.file) == 0;
      count += t.predicate;
    }
    if (together) {
      block.at_barrier = 0;
      ++block.phase;
      for (Thread& t : block.threads) {
        t.count = count;
        t.state = State::kReady;
        block.ready.push_back(t.number);
      }
    }
  }
  yield();
  return me.count;
}

void collective(unsigned mask, Finish finish, void* mine, Site site) {
  Thread& me = *current;
  const unsigned first = me.warp() * 32, size = static_cast<unsigned>(block.threads.size());
  if (!(mask >> me.lane() & 1)) fail("the calling lane is not in its own mask", site);
  if (size - first < 32 && mask >> (size - first))
    fail("the mask names lanes that the block of " + std::to_string(size) + " threads does not have", site);
  me.state = State::kAtCollective;
  me.site = site;
  me.mask = mask;
  me.finish = finish;
  std::vector<Gathering>& of_warp = block.gatherings[me.warp()];
  auto at = std::find_if(of_warp.begin(), of_warp.end(), [&](const Gathering& g) {
    return g.mask == mask && g.finish == finish && g.line == site.line;
  });
  if (at == of_warp.end()) at = of_warp.insert(at, {mask, 0, finish, site.line, {}});
  at->here |= 1u << me.lane();
  at->brought[me.lane()] = mine;
  if (at->here == mask) {
    const Gathering all = *at;
    of_warp.erase(at);
    finish(all.brought.data(), mask, site);
    for (unsigned l = 0; l < 32; ++l) {
      if (!(mask >> l & 1)) continue;
      block.threads[first + l].state = State::kReady;
      block.ready.push_back(first + l);
    }
  }
  yield();
}

void join_lanes(unsigned mask, Site site) {
  collective(
      mask,
      [](void* const* brought, unsigned mask, Site) {
        std::array<uint32_t, 32> all{};
        for (unsigned l = 0; l < 32; ++l) {
          if (!(mask >> l & 1)) continue;
          auto& t = *static_cast<Thread*>(brought[l]);
          ++t.seen[l];
          for (unsigned i = 0; i < 32; ++i) all[i] = std::max(all[i], t.seen[i]);
        }
        for (unsigned l = 0; l < 32; ++l)
          if (mask >> l & 1) static_cast<Thread*>(brought[l])->seen = all;
      },
      current, site);
}

Part static_shared(const void* key, size_t bytes, size_t alignment, uint32_t unit) {
  const auto [it, fresh] = block.parts.try_emplace(key);
  if (fresh) {
    const size_t begin = (block.shared_bytes + alignment - 1) / alignment * alignment;
    block.shared_bytes = begin + bytes;
    if (block.shared_bytes - block.dynamic_bytes > kMostStatic ||
        block.shared_bytes > static_cast<size_t>(machine().most_shared)) {
      report("the kernel declares " + std::to_string(block.shared_bytes) + " bytes of shared memory");
      throw Stop{};
    }
    it->second = {static_cast<uint32_t>(begin), static_cast<uint32_t>(block.shared_bytes), unit};
  }
  return it->second;
}

Part dynamic_shared() { return {.begin = 0, .end = static_cast<uint32_t>(block.dynamic_bytes)}; }

void* access(uint32_t offset, size_t bytes, Part part, Access kind, const Site& site) {
  if (offset < part.begin || offset + bytes > part.end) fail("an access beyond its part of shared memory", site);
  if (offset % std::min<size_t>(bytes, 16) != 0) fail("an access to shared memory that is not aligned", site);
  if (bytes % part.unit != 0) fail("an access to fewer bytes of shared memory than its elements have", site);
  for (uint32_t at = offset; at < offset + bytes; at += part.unit) check(granule_at(at), kind, site);
  return shared_memory + offset;
}

void begin_copy(uint32_t offset, size_t bytes, Part part, const void* from, Site site) {
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) fail("a copy from memory that is not aligned", site);
  std::memset(access(offset, bytes, part, Access::kWrite, site), 0xFF, bytes);
  for (uint32_t at = offset; at < offset + bytes; at += part.unit) granule_at(at).in_flight = true;
  current->copies.push_back({offset, bytes, part.unit, from});
}

void commit_copies() {
  current->groups.push_back(std::move(current->copies));
  current->copies.clear();
}

void wait_for_copies(int groups_left, Site site) {
  Thread& me = *current;
  for (; me.groups.size() > static_cast<size_t>(groups_left); me.groups.erase(me.groups.begin()))
    for (const Copy& copy : me.groups.front()) {
      std::memcpy(shared_memory + copy.offset, copy.from, copy.bytes);
      for (uint32_t at = copy.offset; at < copy.offset + copy.bytes; at += copy.unit) {
        granule_at(at).in_flight = false;
        mark(granule_at(at).write, me, site);
      }
    }
}

bool report_fault(const std::string& what) {
  if (runs_blocks != std::this_thread::get_id() || !current) return false;
  report(what);
  return true;
}
void leave_kernel() { _longjmp(current->escape, 1); }

std::string run_block(dim3 shape, size_t dynamic_bytes, const std::function<void()>& kernel) {
  ++block_number;
  runs_blocks = std::this_thread::get_id();
  const unsigned n = shape.x * shape.y * shape.z;
  block = {};
  block.kernel = &kernel;
  block.dynamic_bytes = dynamic_bytes;
  block.shared_bytes = (dynamic_bytes + 15) / 16 * 16;
  block.threads.resize(n);
  block.gatherings.resize((n + 31) / 32);
  blockDim = shape;
  for (unsigned i = 0; i < n; ++i) {
    Thread& t = block.threads[i];
    t.number = i;
    t.index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
    block.ready.push_back(i);
  }
  for (;;) {
    while (!block.ready.empty()) {
      std::swap(block.ready[draw(block.ready.size())], block.ready.back());
      const unsigned next = block.ready.back();
      block.ready.pop_back();
      if (block.report.empty() || block.threads[next].begun) resume(block.threads[next]);
    }
    if (!block.report.empty()) {
      // Whoever waits is woken, and leaves.
      for (const Thread& t : block.threads)
        if (t.begun && t.state != State::kDone) block.ready.push_back(t.number);
      if (block.ready.empty()) return block.report;
    } else if (block.done == n) {
      return {};
    } else {
      explain_deadlock();
    }
  }
}

}  // namespace emulator
