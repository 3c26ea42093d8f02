// Files made part by part, cut off and damaged: what a reader of untrusted bytes makes of them.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>

#include "core/base/error.hpp"

namespace attnkit::core {

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Returns the error of the bytes, in one line behind the file's name; "": none.
template <class Read>
std::string refusal_by(Read&& read, const std::string& bytes, const std::string& path) {
  try {
    read(std::as_bytes(std::span(bytes)), path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    const std::string message = e.what(), begin = path + ": ";
    EXPECT_TRUE(message.starts_with(begin)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message.substr(begin.size());
  }
  return "";
}

template <class Read>
void expect_beginnings_refused(Read&& read, const std::string& whole) {
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refusal_by(read, whole.substr(0, n), "x"), "") << n;
}

// With up to 4 of its first bytes changed, 20,000 times.  The tensors have at most so many bytes for each of the file.
template <class Read>
void expect_damage_survived(Read&& read, const std::string& whole, size_t first, size_t most) {
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = whole;
    for (int n = 0; n < 1 + i % 4; ++n) damaged[random() % first] = static_cast<char>(random());
    const auto kept = [&](std::span<const std::byte> bytes, const std::string& path) {
      const auto made = read(bytes, path);
      size_t total = 0;
      if constexpr (requires { made.tensors; })
        for (const auto& t : made.tensors) total += t.data.size();
      else
        for (const auto& t : made) total += t.data.size();
      EXPECT_LE(total, most * damaged.size());
    };
    ++(refusal_by(kept, damaged, "x").empty() ? accepted : refused);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 5'000);
}

}  // namespace attnkit::core
