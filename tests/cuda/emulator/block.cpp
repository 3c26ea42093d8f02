// The threads of one block as fibres, what they wait for, and the shared memory between them.
#include "cuda/emulator/block.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
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

// Keeps the stack of the caller, and goes on where the one of `to` was kept.  Other such functions also save the modes
// of floating point, which no kernel changes and which takes six times as long as all else.
extern "C" [[gnu::visibility("hidden")]] void emulator_switch_stacks(void** kept, void* to);
asm(R"(
  .text
  .hidden emulator_switch_stacks
  .globl emulator_switch_stacks
  .type emulator_switch_stacks, @function
emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulator_switch_stacks, . - emulator_switch_stacks
)");

namespace emulator {
namespace {

constexpr size_t kStack = 256 * 1024, kPage = 4096;
constexpr size_t kMostShared = 227 * 1024, kMostStatic = 48 * 1024;
constexpr unsigned kMostThreads = 1024;

struct Stop {};  // thrown through a kernel that has failed

struct Copy {
  uint32_t offset;
  size_t bytes;
  uint32_t unit;
  const void* from;
  size_t group;  // how many its thread had committed before
};

enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kDone };

// Threads are made once and run a block after another: a fibre costs more than many kernels do.
struct alignas(64) Thread {  // what every switch needs first, in a line of the cache
  unsigned number = 0;
  uint3 index{};
  void* stack = nullptr;  // where it goes on
  uint32_t who = 0;       // number and moment, as a mark has them
  State state = State::kReady;
  bool begun = false;
  bool predicate = false;
  Site site{};  // where it waits
  unsigned mask = 0;
  Finish finish = nullptr;

  std::array<uint32_t, 32> seen{};  // of each lane of its warp, the last moment that is before now
  std::vector<Copy> copies;
  size_t groups_committed = 0, groups_arrived = 0;

  char* memory = nullptr;  // of the stack
  std::jmp_buf escape;

  unsigned warp() const { return number / 32; }
  unsigned lane() const { return number % 32; }
};

// Lanes that came to one place for one mask.
struct Gathering {
  unsigned mask = 0, here = 0;  // nobody is here: free for another place
  Finish finish = nullptr;
  int line = 0;
  std::array<void*, 32> brought{};
};

struct Warp {
  uint32_t lanes = 0;  // that it has
  uint32_t ready = 0;  // of those, that can go on
  std::vector<Gathering> gatherings;
};

// An access to two or four bytes of shared memory.
struct Mark {
  // From the top: a copy that nobody waited for, the phase in 31 bits, the thread in 10, its moment in 22.  Phases are
  // counted on from block to block, so that one comparison tells what is before this phase or before this block.
  uint64_t when = 0;
  uint64_t place = 0;  // whether it was atomic, file and line: pointers of programs have 47 bits
  unsigned thread() const { return static_cast<unsigned>(when >> 22 & 1023); }
  uint32_t moment() const { return when & kMoments; }
  Site site() const {
    return {reinterpret_cast<const char*>((place & ~kAtomic) >> 16), static_cast<int>(place & 0xFFFF)};
  }

  static constexpr uint32_t kMoments = (1u << 22) - 1;
  static constexpr uint64_t kInFlight = uint64_t{1} << 63, kAtomic = uint64_t{1} << 63, kPhase = uint64_t{1} << 32;
};

// The last accesses to two or four bytes: most of a test's time is spent here.
struct Granule {
  Mark write, read, other_warp_read;
};

struct Running {
  const std::function<void()>* kernel;
  std::span<Thread> threads;
  uint32_t ready_warps = 0;  // that have lanes which can go on
  unsigned warp = 0;         // of the thread that was chosen last
  unsigned done = 0, at_barrier = 0;
  int predicates = 0, count = 0;  // of the barrier that threads come to, and of the last one
  uint64_t begin = 0, phase = 0;  // the least marks of this block and of this phase
  size_t dynamic_bytes = 0, shared_bytes = 0;
  std::vector<std::pair<const void*, Part>> parts;
  std::string report;
};

uint64_t random_state = 1;
Thread threads[kMostThreads];
Warp warps[kMostThreads / 32];
Running block;
Thread *current = nullptr, *previous = nullptr;  // that runs, and that ran before it; null: the scheduler
std::thread::id runs_blocks;                     // the thread of the host that does; others may fault meanwhile
void* scheduler = nullptr;                       // its stack
#ifdef EMULATOR_ASAN
const void* scheduler_stack = nullptr;
size_t scheduler_size = 0;
#endif
alignas(64) char shared_memory[kMostShared];
// Of every four bytes, and behind them of the second halves of all: few parts of shared memory tell halves apart, and
// what the others use lies side by side.
constexpr size_t kSecondHalves = kMostShared / 4;
Granule granules[2 * kSecondHalves];

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

uint64_t draw() {  // Splitmix's mixing of a counter
  uint64_t x = random_state += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x >> 32;
}

// One of the bits that are set, any of them possible.
unsigned any_bit(uint32_t bits, uint64_t drawn) {
  const int turned = static_cast<int>(drawn % 32);
  return static_cast<unsigned>(std::countr_zero(std::rotr(bits, turned)) + turned) % 32;
}

// The next thread of those that can go on, null where there is none.  Mostly one of the warp that ran last, whose
// stacks are in the cache; warps still overtake each other between any two places where they wait.
Thread* draw_thread() {
  if (block.ready_warps == 0) return nullptr;
  const uint64_t drawn = draw();
  if (drawn % 64 == 0 || warps[block.warp].ready == 0) block.warp = any_bit(block.ready_warps, drawn >> 8);
  uint32_t& ready = warps[block.warp].ready;
  const unsigned lane = any_bit(ready, drawn >> 16);
  ready &= ~(1u << lane);
  if (ready == 0) block.ready_warps &= ~(1u << block.warp);
  return &block.threads[block.warp * 32 + lane];
}

void make_ready(unsigned warp, uint32_t lanes) {
  warps[warp].ready |= lanes;
  block.ready_warps |= 1u << warp;
}

// After a switch, on the other side.
void arrive([[maybe_unused]] void* fake_stack) {
#ifdef EMULATOR_ASAN
  const void* stack = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &size);
  if (!previous) {
    scheduler_stack = stack;
    scheduler_size = size;
  }
#endif
}

void enter();

void make_stack(Thread& thread) {
  void* p = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  mprotect(p, kPage, PROT_NONE);
  thread.memory = static_cast<char*>(p);
  // Tops of stacks that are alike modulo a page would share a few lines of the cache.
  auto** const top = reinterpret_cast<void**>(thread.memory + kStack - thread.number % 64 * 1088);
  top[-2] = reinterpret_cast<void*>(enter);  // returned to, behind six registers of 0; itself it returns nowhere
  thread.stack = top - 8;
}

// Lets a thread run, or the scheduler for null, until the calling one is chosen again.
void switch_to(Thread* next) {
  previous = current;
  current = next;
  if (next) {
    threadIdx = next->index;
    next->state = State::kReady;
    next->begun = true;
    if (!next->stack) make_stack(*next);
  }
  void* fake_stack = nullptr;
#ifdef EMULATOR_ASAN
  if (next)
    __sanitizer_start_switch_fiber(&fake_stack, next->memory + kPage, kStack - kPage);
  else
    __sanitizer_start_switch_fiber(&fake_stack, scheduler_stack, scheduler_size);
#endif
  emulator_switch_stacks(previous ? &previous->stack : &scheduler, next ? next->stack : scheduler);
  arrive(fake_stack);
}

// Lets others run until this thread is chosen again.
void yield() {
  Thread* const next = draw_thread();
  if (next != current) switch_to(next);
  if (!block.report.empty()) throw Stop{};
}

void run(Thread& me) {
  if (_setjmp(me.escape) != 0) return;
  try {
    (*block.kernel)();
    if (!me.copies.empty() || me.groups_arrived < me.groups_committed)
      report("the thread ends before copies that it has begun");
  } catch (const Stop&) {
  }
}

void enter() {
  arrive(nullptr);
  for (Thread& me = *current;;) {
    run(me);
    me.state = State::kDone;
    ++block.done;
    switch_to(block.report.empty() ? draw_thread() : nullptr);
  }
}

void begin(Thread& t, unsigned number, uint3 index) {
  t.number = number;
  t.who = number << 22 | 1;
  t.index = index;
  t.state = State::kReady;
  t.begun = false;
  if (t.seen[t.lane()] != 0) t.seen.fill(0);
  t.copies.clear();
  t.groups_committed = t.groups_arrived = 0;
}

void make_all_ready() {
  for (unsigned w = 0; w * 32 < block.threads.size(); ++w) make_ready(w, warps[w].lanes);
}

Gathering& gathering(std::vector<Gathering>& all, unsigned mask, Finish finish, int line) {
  Gathering* free = nullptr;
  for (Gathering& g : all) {
    if (g.here == 0)
      free = &g;
    else if (g.mask == mask && g.finish == finish && g.line == line)
      return g;
  }
  if (!free) free = &all.emplace_back();
  free->mask = mask;
  free->finish = finish;
  free->line = line;
  return *free;
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

uint64_t place_of(const Site& site) {
  return reinterpret_cast<uint64_t>(site.file) << 16 | static_cast<uint16_t>(site.line);
}

Mark mark_here(const Site& site) { return {block.phase | current->who, place_of(site)}; }

bool is_before(const Mark& mark) {
  if (mark.when < block.phase) return true;
  const Thread& me = *current;
  if (mark.thread() == me.number) return true;
  return mark.thread() / 32 == me.warp() && me.seen[mark.thread() % 32] >= mark.moment();
}

[[noreturn]] void race(const char* here, const char* there, const Mark& mark, const Site& site) {
  fail(std::string("race in shared memory: ") + here + " at " + text(site) + " and " + there + " by thread " +
           text(block.threads[mark.thread()].index) + " at " + text(mark.site()) + " have no barrier between them",
       site);
}

// Refuses an access that races, where a look at the last write and read did not exclude it.
[[gnu::noinline]] void check(const Granule& g, Access kind, const Site& site) {
  const uint64_t written = g.write.when & ~Mark::kInFlight;
  const char* const here = kind == Access::kRead ? "a read" : "a write";
  if (written >= block.begin) {
    if (written != g.write.when) race(here, "a copy that nobody waited for", g.write, site);
    const bool both_atomic = kind == Access::kAtomic && (g.write.place & Mark::kAtomic);
    if (!both_atomic && !is_before(g.write)) race(here, "a write", g.write, site);
  } else if (kind != Access::kWrite) {
    fail("a read of shared memory that nobody wrote", site);
  }
  if (kind == Access::kRead) return;
  for (const Mark* read : {&g.read, &g.other_warp_read})
    if (!is_before(*read)) race(here, "a read", *read, site);
}

template <class Each>
void for_granules(uint32_t offset, size_t bytes, uint32_t unit, Each each) {
  if (unit == 4)
    for (Granule *g = granules + offset / 4, *end = g + bytes / 4; g != end; ++g) each(*g);
  else
    for (uint32_t at = offset; at < offset + bytes; at += 2) each(granules[at / 4 + (at & 2 ? kSecondHalves : 0)]);
}

[[noreturn, gnu::noinline]] void fail_place(uint32_t offset, size_t bytes, Part part, size_t alignment,
                                            const Site& site) {
  if (offset < part.begin || offset + bytes > part.end) fail("an access beyond its part of shared memory", site);
  if (offset % alignment != 0) fail("an access to shared memory that is not aligned", site);
  fail("an access to fewer bytes of shared memory than its elements have", site);
}

[[noreturn, gnu::noinline]] void fail_mask(unsigned mask, const Site& site) {
  if (!(mask >> current->lane() & 1)) fail("the calling lane is not in its own mask", site);
  fail("the mask names lanes that the block of " + std::to_string(block.threads.size()) + " threads does not have",
       site);
}

}  // namespace

void set_block_seed(uint64_t seed) { random_state = seed; }
uint64_t draw(uint64_t n) { return draw() * n >> 32; }  // n is small

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
  block.predicates += predicate;
  if (++block.at_barrier == block.threads.size()) {
    const bool together = std::all_of(block.threads.begin(), block.threads.end(), [&](const Thread& t) {
      return t.site.line == site.line && (t.site.file == site.file || std::strcmp(t.site.file, site.file) == 0);
    });
    if (together) {
      block.at_barrier = 0;
      block.count = std::exchange(block.predicates, 0);
      block.phase += Mark::kPhase;
      make_all_ready();
    }
  }
  yield();
  return block.count;
}

void collective(unsigned mask, Finish finish, void* mine, Site site) {
  Thread& me = *current;
  Warp& warp = warps[me.warp()];
  if (!(mask >> me.lane() & 1) || mask & ~warp.lanes) fail_mask(mask, site);
  me.state = State::kAtCollective;
  me.site = site;
  me.mask = mask;
  me.finish = finish;
  Gathering& all = gathering(warp.gatherings, mask, finish, site.line);
  all.here |= 1u << me.lane();
  all.brought[me.lane()] = mine;
  if (all.here == mask) {
    finish(all.brought.data(), mask, site);
    all.here = 0;
    make_ready(me.warp(), mask);
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
          if (mask != ~0u)  // of lanes outside the mask, the latest that one of these knows
            for (unsigned i = 0; i < 32; ++i) all[i] = std::max(all[i], t.seen[i]);
          all[l] = t.seen[l];
        }
        for (unsigned l = 0; l < 32; ++l) {
          if (!(mask >> l & 1)) continue;
          auto& t = *static_cast<Thread*>(brought[l]);
          t.seen = all;
          t.who = t.number << 22 | ((all[l] + 1) & Mark::kMoments);
        }
      },
      current, site);
}

Part static_shared(const void* key, size_t bytes, size_t alignment, uint32_t unit) {
  for (const auto& [known, part] : block.parts)
    if (known == key) return part;
  const size_t begin = (block.shared_bytes + alignment - 1) / alignment * alignment;
  block.shared_bytes = begin + bytes;
  if (block.shared_bytes - block.dynamic_bytes > kMostStatic ||
      block.shared_bytes > static_cast<size_t>(machine().most_shared)) {
    report("the kernel declares " + std::to_string(block.shared_bytes) + " bytes of shared memory");
    throw Stop{};
  }
  const Part part{static_cast<uint32_t>(begin), static_cast<uint32_t>(block.shared_bytes), unit};
  block.parts.emplace_back(key, part);
  return part;
}

Part dynamic_shared() { return {.begin = 0, .end = static_cast<uint32_t>(block.dynamic_bytes)}; }

void* access(uint32_t offset, size_t bytes, Part part, Access kind, const Site& site) {
  const size_t alignment = std::min<size_t>(bytes & -bytes, 16);
  if (offset < part.begin || offset + bytes > part.end || offset & (alignment - 1) || bytes & (part.unit - 1))
    fail_place(offset, bytes, part, alignment, site);
  Mark mark = mark_here(site);
  const uint64_t begin = block.begin, phase = block.phase;
  if (kind == Access::kRead)
    for_granules(offset, bytes, part.unit, [&](Granule& g) {
      // Most were written in an earlier phase of this block.
      if (g.write.when - begin >= phase - begin) check(g, kind, site);
      // From the last read in this phase, by another warp?
      if (((g.read.when ^ mark.when) >> 27) - 1 < 31) g.other_warp_read = g.read;
      g.read = mark;
    });
  else {
    if (kind == Access::kAtomic) mark.place |= Mark::kAtomic;
    for_granules(offset, bytes, part.unit, [&](Granule& g) {
      // No read of another warp in this phase without a last one.
      if (kind == Access::kAtomic || g.write.when >= phase || g.read.when >= phase) check(g, kind, site);
      g.write = mark;
    });
  }
  return shared_memory + offset;
}

void begin_copy(uint32_t offset, size_t bytes, Part part, const void* from, Site site) {
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) fail("a copy from memory that is not aligned", site);
  std::memset(access(offset, bytes, part, Access::kWrite, site), 0xFF, bytes);
  for_granules(offset, bytes, part.unit, [](Granule& g) { g.write.when |= Mark::kInFlight; });
  current->copies.push_back({offset, bytes, part.unit, from, current->groups_committed});
}

void commit_copies() { ++current->groups_committed; }

void wait_for_copies(int groups_left, Site site) {
  Thread& me = *current;
  const size_t left = static_cast<size_t>(groups_left);
  if (me.groups_committed - me.groups_arrived <= left) return;
  me.groups_arrived = me.groups_committed - left;
  auto copy = me.copies.begin();
  for (; copy != me.copies.end() && copy->group < me.groups_arrived; ++copy) {
    std::memcpy(shared_memory + copy->offset, copy->from, copy->bytes);
    for_granules(copy->offset, copy->bytes, copy->unit, [&](Granule& g) { g.write = mark_here(site); });
  }
  me.copies.erase(me.copies.begin(), copy);
}

bool report_fault(const std::string& what) {
  if (runs_blocks != std::this_thread::get_id() || !current) return false;
  report(what);
  return true;
}
void leave_kernel() { _longjmp(current->escape, 1); }

std::string run_block(dim3 shape, size_t dynamic_bytes, const std::function<void()>& kernel) {
  runs_blocks = std::this_thread::get_id();
  if (block.phase >= Mark::kInFlight / 2) {  // as many phases are left for this block
    std::fill(std::begin(granules), std::end(granules), Granule{});
    block.phase = 0;
  }
  block.begin = block.phase += Mark::kPhase;
  const unsigned n = shape.x * shape.y * shape.z;
  blockDim = shape;
  block.kernel = &kernel;
  block.threads = {threads, n};
  block.ready_warps = 0;
  block.done = block.at_barrier = 0;
  block.predicates = 0;
  block.dynamic_bytes = dynamic_bytes;
  block.shared_bytes = (dynamic_bytes + 15) / 16 * 16;
  block.parts.clear();
  block.report.clear();
  for (unsigned i = 0; i < n; ++i) begin(threads[i], i, {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y});
  for (unsigned first = 0; first < n; first += 32) {
    Warp& warp = warps[first / 32];
    warp.lanes = n - first < 32 ? (1u << (n - first)) - 1 : ~0u;
    warp.ready = 0;
    for (Gathering& g : warp.gatherings) g.here = 0;
  }
  make_all_ready();
  block.warp = static_cast<unsigned>(draw((n + 31) / 32));
  switch_to(draw_thread());
  if (block.report.empty() && block.done < n) explain_deadlock();
  if (!block.report.empty())
    for (Thread& t : block.threads)  // whoever waits is woken, and leaves
      if (t.begun && t.state != State::kDone) switch_to(&t);
  return block.report;
}

}  // namespace emulator
