// Whether this is compiled for a sanitizer, which has memory and threads of its own.
#pragma once

#ifndef __has_feature  // as clang says what g++ says by macros
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
