// Laws of company: calls leave the process as it was, running ones allocate nothing, nothing leaks, and neither a lack
// of memory nor a fork takes the process down.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"
#include "core/conformance/law.hpp"
#include "core/conformance/process_state.hpp"

namespace attnkit::core::conformance {

namespace {

// Every function of the table in each form of run: create, fill, plan, whole runs, streams by one worker and by three
// and in slots, backward, and the frees.
void call_everything(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  const Mechanism mech(plugin, law.mech().block(), law.place().settings);
  bool ran = false;
  const auto attempt = [&](auto&& act) {
    try {
      act();
    } catch (const Refused&) {
    } catch (const RefusedInWords&) {
    } catch (const NotApplicable&) {
    }
  };
  const auto train = [&](const Law& of, auto& in, const Call& call, uint32_t workers, uint32_t flags) {
    if (plugin.backward == nullptr) return;
    auto training = of.train(in, call, workers, flags);
    auto grads = training.gradients();
    training.backward(grads, workers);
  };
  const auto run = [&](const Law& of, int64_t batch, int64_t n, const Call& call, uint32_t workers, uint32_t flags) {
    Inputs in = of.inputs(batch, n);
    of.whole(in, call, workers, flags);
    ran = true;
    train(of, in, call, workers, flags);
  };
  for (const uint32_t workers : {3u, 1u}) attempt([&] { run(law, 2, 20, {}, workers, 0); });
  attempt([&] { run(law, 4, 20, law.padded(20), 1, 0); });
  Call prefix;
  for (int i = 0; i < 40; ++i) prefix.visible.push_back(i % 20 / 3);
  if (!law.causal()) attempt([&] { run(law, 2, 20, prefix, 1, ATTN_PREFIX); });
  attempt([&] { run(*SharedKeys(law).shared, 2, 20, {}, 1, 0); });
  attempt([&] { run(law.narrow(), 1, 300, {}, 1, 0); });
  attempt([&] {
    const Law narrow = law.narrow();
    Inputs in = narrow.inputs(1, 4096);
    narrow.whole(in);
  });
  if (plugin.backward != nullptr)
    attempt([&] {
      Inputs64 in(law.inputs(2, 20));
      run_whole(in, 0, law.with_totals({}, 2, 20));
      train(law, in, {}, 1, 0);
    });
  for (const uint32_t workers : {1u, 3u})
    attempt([&] {
      Inputs in = law.inputs(2, 20);
      law.stream(in, chunks_of(20, 7), workers);
      ran = true;
    });
  attempt([&] {
    Inputs in = law.inputs(2, 20);
    const Planned plan = law.stream_plan(2, 20, 20);
    const Arena arena(plan.info().state_bytes, 3);
    Call call = law.step(0, 18, arena, 2, 20);
    call.slots = {2, 0};
    plan.run(in, call);
    law.probe(plan, in, arena, 18, 20, call.slots);
  });
  if (!ran)
    law.may_refuse([&] {
      Inputs in = law.inputs(2, 20);
      law.whole(in);
    });
}

// From before the first create on.
void watched(const Trial& trial, uint32_t kinds) {
  load(trial.file);
  bool ran = false;
  RefusedInWords words;
  for (const Place& place : places_of(trial, "process", kAnywhere, Draws::one)) {
    StateWatch watch(kinds);
    std::vector<Place> all = instead_of(place);
    all.insert(all.begin(), place);
    for (const Place& tried : all) {
      try {
        Law law(tried);
        call_everything(law);
        ran = true;
        break;
      } catch (const RefusedInWords& refused) {
        words = refused;
      }
    }
    watch.check();
  }
  if (!ran) throw words;
}

void float_modes(const Trial& trial) { watched(trial, ProcessState::kFloat); }
void signals(const Trial& trial) { watched(trial, ProcessState::kSignals | ProcessState::kTimers); }
void threads(const Trial& trial) { watched(trial, ProcessState::kThreads); }
void files(const Trial& trial) { watched(trial, ProcessState::kFiles); }
void settings(const Trial& trial) { watched(trial, ProcessState::kSettings); }

// Counts what run and backward allocate.
class AllocationWatch : public Watch {
 public:
  AllocationWatch() { set_watch(this); }
  ~AllocationWatch() override { set_watch(nullptr); }
  void before() override { before_ = allocation_counter()(); }
  void after(const char* function) override {
    const Allocations now = allocation_counter()();
    const uint64_t made = now.made - before_.made, mapped = now.mapped - before_.mapped;
    const bool computes = std::strcmp(function, "run") == 0 || std::strcmp(function, "backward") == 0;
    if (!computes || !change.empty()) return;
    if (made > 0) change = fmt::format("{} allocated memory {} times", function, made);
    if (mapped > 0) change = fmt::format("{} mapped memory {} times", function, mapped);
  }
  std::string change;

 private:
  Allocations before_;
};

void needs_counter() {
  if (allocation_counter() == nullptr) throw NotApplicable{"nothing counts allocations in this program"};
}

void allocates(Law& law) {
  needs_counter();
  AllocationWatch watch;
  call_everything(law);
  if (!watch.change.empty()) throw Violation(watch.change);
}

// Pieces of memory that this thread made and did not free.
int64_t pieces() {
  const Allocations all = allocation_counter()();
  return static_cast<int64_t>(all.made) - static_cast<int64_t>(all.freed);
}

// Bytes that are mapped for use, without the heap, whose pieces are counted.
int64_t mapped() {
  int64_t bytes = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && line.find("[heap]") == line.npos &&
        line.find(" ---p ") == line.npos)
      bytes += static_cast<int64_t>(end - begin);
  }
  return bytes;
}

// Memory that is still there after a hundred cycles: create, fill, plan, run, backward and the frees.
void leaks(Law& usual) {
  const Law law = usual.narrow();
  needs_counter();
  const attn_plugin& plugin = law.mech().plugin();
  Inputs in = law.inputs(1, 2);
  Call call = law.with_totals({}, 1, 2);
  attn_request request = whole_request(in, 0, call, 1);
  law.may_refuse([&] { Planned(law.mech(), request); });
  request.flags |= ATTN_TRAIN;
  const bool trains = plugin.backward != nullptr && refusal(law.mech(), request).code == ATTN_OK;
  if (!trains) request.flags &= ~uint32_t{ATTN_TRAIN};
  // All memory that the calls need is there before: what is counted is theirs.
  const Planned plan(law.mech(), request);
  Bound<float> bound(plan, in, call);
  std::vector<Array> copies = in.arrays;
  std::vector<attn_tensor> grads;
  for (size_t p = 0; p < copies.size(); ++p) {
    const uint32_t kind = law.port(p).kind;
    grads.push_back(kind == ATTN_TABLE ? attn_tensor{} : (is_given(law.port(p)) ? bound.outputs : copies)[p].tensor());
  }
  const Exec exec(plan.info().backward_scratch_bytes, 1);
  attn_run run = bound.get();
  run.exec = exec.get();
  const attn_grad grad{sizeof grad, 0, &run, grads.data()};
  const auto cycle = [&] {
    const Mechanism mech(plugin, law.mech().block(), law.place().settings);
    for (size_t p = 0; p < copies.size(); ++p) {
      const attn_port& port = law.port(p);
      const bool stored = port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE;
      if (stored && copies[p].rows <= 4096) mech.fill(p, 1, copies[p].tensor());  // larger ones take their time
    }
    const Planned again(mech, request);
    attn_error error = empty_error();
    expect_ok(boundary("run", [&] { return plugin.run(again.get(), &bound.get(), &error); }), error);
    if (trains) expect_ok(boundary("backward", [&] { return plugin.backward(again.get(), &grad, &error); }), error);
  };
  for (int i = 0; i < 3; ++i) cycle();  // what is made once
  const int64_t before = pieces(), mapped_before = mapped();
  for (int i = 0; i < 100; ++i) cycle();
  const int64_t kept = pieces() - before, more = mapped() - mapped_before;
  constexpr const char* cycles = "100 times create, fill, plan, run, backward and the frees";
  hold(kept < 100, "after {} {} pieces of memory were not freed", cycles, kept);
  hold(more < 100 * ::getpagesize(), "after {} {} bytes more are mapped", cycles, more);
}

// The end of act, run in a child of fork().
struct Child {
  std::string wrong;    // what it found wrong, "" where it was content
  std::string printed;  // on standard error
  int signal = 0;       // that ended the child, 0 if none did
};

template <class Act>
Child in_child(Act&& act) {
  int ends[2];
  hold(::pipe(ends) == 0, "pipe: {}", std::strerror(errno));
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  // Its output is not a plugin's word.
  const Descriptor printed(::memfd_create("printed", MFD_CLOEXEC));
  const pid_t child = ::fork();
  hold(child >= 0, "fork: {}", std::strerror(errno));
  if (child == 0) {
    const Descriptor nowhere(::open("/dev/null", O_WRONLY));
    ::dup2(nowhere.get(), STDOUT_FILENO);
    ::dup2(printed.get(), STDERR_FILENO);
    std::string words;
    try {
      act();
    } catch (const std::exception& e) {
      words = e.what();
    }
    write_all(to.get(), words);
    ::_exit(0);
  }
  to = Descriptor();
  Child ended;
  char piece[512];
  for (ssize_t n; (n = ::read(from.get(), piece, sizeof piece)) > 0;) ended.wrong.append(piece, static_cast<size_t>(n));
  int status = 0;
  hold(::waitpid(child, &status, 0) == child, "waitpid: {}", std::strerror(errno));
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  if (ended.signal == 0 && WEXITSTATUS(status) != 0)
    ended.wrong = fmt::format("it ended its process with {}", WEXITSTATUS(status));
  if (const ssize_t n = ::pread(printed.get(), piece, sizeof piece, 0); n > 0)
    ended.printed.assign(piece, static_cast<size_t>(n));
  return ended;
}

// Lets the nth allocation within each call into the plugin fail, or that and all after it.
class FailingWatch : public Watch {
 public:
  FailingWatch(int64_t nth, bool later) : nth_(nth), later_(later) { set_watch(this); }
  ~FailingWatch() override {
    allocation_failure()(-1, false);
    set_watch(nullptr);
  }
  void before() override { allocation_failure()(nth_, later_); }
  void after(const char*) override { failed |= allocation_failure()(-1, false); }
  bool failed = false;

 private:
  int64_t nth_;
  bool later_;
};

// Calls act with one failing allocation after the other, or with all failing from one on, until there is none left to
// fail.  Returns how many pieces of memory were kept by those calls.
template <class Act>
int64_t fail_each(bool later, Act&& act) {
  int64_t kept = 0;
  for (int64_t nth = 0;; nth += std::max<int64_t>(1, nth / 100)) {  // each of the first 200, then fewer and fewer
    const int64_t before = pieces();
    const bool failed = [&] {
      FailingWatch watch(nth, later);
      const Refused refused = refusal(act);
      hold(!watch.failed || refused.code == ATTN_OK || refused.code == ATTN_NO_MEMORY,
           "where allocation {} fails{}, it answers with code {} and not NO_MEMORY: {}", nth,
           later ? " and all after it" : "", refused.code, refused.what());
      return watch.failed;
    }();
    if (!failed) return kept;
    kept += pieces() - before;
  }
}

// Out of memory, create and plan say so, keep nothing, and do better the next time.
void out_of_memory(Law& law) {
  needs_counter();
  const auto calls = [&] {
    int64_t kept = 0;
    for (const bool later : {false, true}) {
      kept += fail_each(later, [&] { Mechanism(law.mech().plugin(), law.mech().block(), law.place().settings); });
      for (const uint32_t flags : {0u, uint32_t{ATTN_STREAM}, uint32_t{ATTN_TRAIN}}) {
        const attn_request r = make_request(2, 8, law.keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL | flags);
        if (refusal(law.mech(), r).code == ATTN_OK) kept += fail_each(later, [&] { Planned(law.mech(), r); });
      }
    }
    return kept;
  };
  const Child ended = in_child([&] {
    calls();  // what is made once
    const int64_t kept = calls();
    hold(kept <= 0, "{} pieces of memory were not freed by calls in which allocations failed", kept);
  });
  // The words of Rust's library, whose programs cannot do better.
  if (ended.signal == SIGABRT && ended.printed.find("memory allocation of ") != std::string::npos)
    throw RefusedInWords{"where memory is out it ends the process by abort(), as programs in Rust do"};
  hold(ended.signal == 0, "where an allocation failed, the process was killed by signal {} ({})", ended.signal,
       ::strsignal(ended.signal));
  if (!ended.wrong.empty()) throw Violation(ended.wrong);
}

// A child of fork() has the memory of its parent and none of its other threads.
void forks(Law& law) {
  Inputs in = law.inputs(2, 33);
  const Array parents = law.whole(in, {}, 2);
  const Child ended =
      in_child([&] { hold(same_bits(parents, law.whole(in, {}, 2)), "it gives other bits in a child of fork()"); });
  hold(ended.signal == 0, "in a child of fork() the process was killed by signal {} ({})", ended.signal,
       ::strsignal(ended.signal));
  if (!ended.wrong.empty()) throw Violation(ended.wrong);
}

// The file and a byte more, in a folder of its own while it lives.
class Copy {
 public:
  // Throws NotApplicable where there is no room for one, or none that may be loaded.
  explicit Copy(const std::filesystem::path& file) {
    std::error_code bad;
    const std::filesystem::path folders = std::filesystem::temp_directory_path(bad);
    struct statvfs system = {};
    if (bad || ::statvfs(folders.c_str(), &system) != 0) none("no temporary folder");
    if (system.f_flag & ST_NOEXEC) none(folders.string() + " is mounted noexec: set TMPDIR");
    rlimit most = {};
    ::getrlimit(RLIMIT_FSIZE, &most);
    if (std::filesystem::file_size(file) >= most.rlim_cur)
      none(fmt::format("files of at most {} MiB may be written", most.rlim_cur >> 20));
    std::string made = (folders / "attnkit-copy-XXXXXX").string();
    if (::mkdtemp(made.data()) == nullptr) none(std::strerror(errno));
    folder_ = made;
    path_ = folder_ / file.filename();
    if (std::filesystem::copy_file(file, path_, bad)) {
      std::ofstream(path_, std::ios::app) << '\n';
    } else {
      remove();
      none(bad.message());
    }
  }
  ~Copy() { remove(); }
  Copy(const Copy&) = delete;
  std::string path() const { return path_.string(); }

 private:
  [[noreturn]] static void none(const std::string& why) { throw NotApplicable{"no copy of its file: " + why}; }
  void remove() const {
    std::error_code bad;
    std::filesystem::remove_all(folder_, bad);
  }
  std::filesystem::path folder_, path_;
};

// Two versions of a plugin are two plugins.
void second_copy(Law& law) {
  Inputs in = law.inputs(2, 33);
  const Array first = law.whole(in);
  const Copy copy(law.place().file);
  Place place = law.place();
  place.file = copy.path();
  hold(&load(place.file) != &law.mech().plugin(), "a second copy of its file gives the table of the first");
  const Law other(place);
  Inputs theirs = other.inputs(2, 33);
  hold(same_bits(first, other.whole(theirs)), "a second copy of its file, loaded beside it, gives other bits");
  hold(same_bits(first, law.whole(in)), "beside a second copy of its file it gives other bits");
}

// The table and all it points to stay as they were.
void table_stays(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  const auto bytes = [&] {
    std::string all(reinterpret_cast<const char*>(&plugin), offsetof(attn_plugin, backward) + sizeof plugin.backward);
    for (const char* text : {plugin.name, plugin.summary, plugin.citation, plugin.state_revision}) all += text;
    for (uint32_t i = 0; i < plugin.n_options; ++i) {
      const attn_option& o = *plugin.options[i];
      all.append(reinterpret_cast<const char*>(&o), sizeof(attn_option)).append(o.name).append(o.doc);
      for (uint32_t c = 0; c < o.n_choices; ++c) all += o.choices[c];
    }
    return all;
  };
  const std::string before = bytes();
  call_everything(law);
  hold(before == bytes(), "its table changed after it was given out");
}

constexpr Check all[] = {
    {"process", "float_modes", "no call changes the floating-point modes", float_modes, nullptr, kAnywhere,
     Draws::none},
    {"process", "signals", "no call changes what signals do, or sets a timer", signals, nullptr, kAnywhere,
     Draws::none},
    {"process", "threads", "no call starts threads or processes, or binds its thread to processors", threads, nullptr,
     kAnywhere, Draws::none},
    {"process", "files", "no call leaves files open, closes or redirects one", files, nullptr, kAnywhere, Draws::none},
    {"process", "settings", "no call changes the working directory, the environment or the locale", settings, nullptr,
     kAnywhere, Draws::none},
    {"process", "allocates", "run and backward allocate nothing", nullptr, allocates, kAnywhere, Draws::one},
    {"process", "leaks", "what a hundred cycles of all calls made is freed", nullptr, leaks, kAnywhere, Draws::one},
    {"process", "out_of_memory", "create and plan say that memory is out, and keep none", nullptr, out_of_memory,
     kAnywhere, Draws::none},
    {"process", "forks", "a child of fork() gets the same bits", nullptr, forks, kAnywhere, Draws::one},
    {"process", "second_copy", "another version of it can be loaded beside it", nullptr, second_copy, kAnywhere,
     Draws::none},
    {"process", "table_stays", "the table and what it points to never change", nullptr, table_stays, kAnywhere,
     Draws::none},
};

}  // namespace

const std::span<const Check> process_checks = all;

}  // namespace attnkit::core::conformance
