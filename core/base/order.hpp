// The order that oneTBB makes, for ThreadSanitizer, which does not see into it.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define ATTNKIT_TSAN 1
#endif
#endif

namespace attnkit::core {

// The acts of a thread up to before() happen before those of other threads from behind() on.
class Order {
 public:
#ifdef ATTNKIT_TSAN
  void before() { __tsan_release(this); }
  void behind() { __tsan_acquire(this); }
#else
  void before() {}
  void behind() {}
#endif
};

}  // namespace attnkit::core
