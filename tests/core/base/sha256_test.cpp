// The digests of FIPS 180-4's examples.
#include "core/base/sha256.hpp"

#include <gtest/gtest.h>

namespace attnkit::core {
namespace {

std::string digest(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

TEST(Sha256, GivesTheStandardsOwnDigests) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace attnkit::core
