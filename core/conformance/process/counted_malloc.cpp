#include "core/conformance/process/counted_malloc.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTNKIT_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ATTNKIT_SANITIZED
#endif
#endif

#ifdef ATTNKIT_SANITIZED

attnkit::core::conformance::CountAllocations attnkit::core::conformance::counted_malloc() { return nullptr; }
attnkit::core::conformance::FailAllocation attnkit::core::conformance::failing_malloc() { return nullptr; }

#else

namespace {

// Of the thread that calls a plugin: others of this program do not count.
thread_local attnkit::core::conformance::Allocations counted;
thread_local int64_t until_failure = -1;
thread_local bool and_later = false, has_failed = false;

// Is this one that was asked to fail?
bool fails() {
  if (until_failure < 0) return false;
  if (until_failure > 0) return --until_failure, false;
  if (!and_later) until_failure = -1;
  errno = ENOMEM;
  return has_failed = true;
}

void* made(void* p) {
  if (p == nullptr) return p;
  ++counted.made;
  counted.bytes += static_cast<int64_t>(malloc_usable_size(p));
  return p;
}

void freed(void* p) {
  if (p == nullptr) return;
  ++counted.freed;
  counted.bytes -= static_cast<int64_t>(malloc_usable_size(p));
}

// glibc's function of that name, for one that stands in for it.
template <class Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// glibc's own, which the functions below stand for in every library of the process.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t n, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* p);

void* malloc(size_t bytes) { return fails() ? nullptr : made(__libc_malloc(bytes)); }
void* calloc(size_t n, size_t bytes) { return fails() ? nullptr : made(__libc_calloc(n, bytes)); }
void* realloc(void* p, size_t bytes) {
  if (bytes > 0 && fails()) return nullptr;
  const auto before = counted;
  freed(p);
  void* const got = __libc_realloc(p, bytes);
  if (got == nullptr && bytes > 0) counted = before;  // the old block stays
  return made(got);
}
void* memalign(size_t alignment, size_t bytes) { return fails() ? nullptr : made(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
void* valloc(size_t bytes) { return memalign(static_cast<size_t>(getpagesize()), bytes); }
void* pvalloc(size_t bytes) {
  const auto page = static_cast<size_t>(getpagesize());
  if (bytes > SIZE_MAX - page) return errno = ENOMEM, nullptr;
  return memalign(page, (bytes + page - 1) / page * page);
}
int posix_memalign(void** p, size_t alignment, size_t bytes) {
  void* const got = memalign(alignment, bytes);
  if (got == nullptr) return ENOMEM;
  *p = got;
  return 0;
}
void free(void* p) {
  freed(p);
  __libc_free(p);
}

// glibc's malloc does not come by these.
void* mmap(void* p, size_t bytes, int access, int flags, int file, off_t from) {
  static auto* const real = original<void*(void*, size_t, int, int, int, off_t)>("mmap");
  ++counted.mapped;
  return real(p, bytes, access, flags, file, from);
}
void* mmap64(void* p, size_t bytes, int access, int flags, int file, off64_t from) {
  static auto* const real = original<void*(void*, size_t, int, int, int, off64_t)>("mmap64");
  ++counted.mapped;
  return real(p, bytes, access, flags, file, from);
}
void* mremap(void* p, size_t bytes, size_t wanted, int flags, ...) {
  static auto* const real = original<void*(void*, size_t, size_t, int, void*)>("mremap");
  va_list more;
  va_start(more, flags);
  void* const at = va_arg(more, void*);
  va_end(more);
  ++counted.mapped;
  return real(p, bytes, wanted, flags, at);
}
}

attnkit::core::conformance::CountAllocations attnkit::core::conformance::counted_malloc() {
  return [] { return counted; };
}
attnkit::core::conformance::FailAllocation attnkit::core::conformance::failing_malloc() {
  return [](int64_t nth, bool later) {
    until_failure = nth;
    and_later = later;
    return std::exchange(has_failed, false);
  };
}

#endif
