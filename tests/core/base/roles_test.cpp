// Roles and their names belong together.
#include "core/base/roles.hpp"

#include <gtest/gtest.h>

namespace attnkit::core {
namespace {

TEST(Roles, HaveNamesThatLeadBack) {
  EXPECT_STREQ(role_name(ATTN_ENCODER_SELF), "encoder.self");
  EXPECT_STREQ(role_name(ATTN_DECODER_SELF), "decoder.self");
  EXPECT_STREQ(role_name(ATTN_DECODER_CROSS), "decoder.cross");
  EXPECT_STREQ(role_name(0), "unknown role");
  EXPECT_STREQ(role_name(4), "unknown role");
  for (const uint32_t role : all_roles) EXPECT_EQ(role_of(role_name(role)), role);
  for (const char* name : {"", "unknown role", "encoder", "encoder.self.1"}) EXPECT_EQ(role_of(name), 0u);
}

}  // namespace
}  // namespace attnkit::core
