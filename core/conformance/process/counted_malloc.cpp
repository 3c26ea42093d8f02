#include "core/conformance/process/counted_malloc.hpp"

#include <cerrno>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTNKIT_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ATTNKIT_SANITIZED
#endif
#endif

#ifdef ATTNKIT_SANITIZED

attnkit::conformance::CountAllocations attnkit::conformance::counted_malloc() { return nullptr; }

#else

namespace {

// Of the thread that calls a plugin: others of this program do not count.
thread_local attnkit::conformance::Allocations counted;

}  // namespace

// glibc's own, which the functions below stand for in every library of the process.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t n, size_t bytes);
void* __libc_realloc(void* p, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* p);

void* malloc(size_t bytes) {
  ++counted.made;
  return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) {
  ++counted.made;
  return __libc_calloc(n, bytes);
}
void* realloc(void* p, size_t bytes) {
  ++counted.made;
  if (p != nullptr) ++counted.freed;
  return __libc_realloc(p, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  ++counted.made;
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** p, size_t alignment, size_t bytes) {
  void* const made = memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *p = made;
  return 0;
}
void free(void* p) {
  if (p != nullptr) ++counted.freed;
  __libc_free(p);
}
}

attnkit::conformance::CountAllocations attnkit::conformance::counted_malloc() {
  return [] { return counted; };
}

#endif
