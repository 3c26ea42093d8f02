// Checks that the outputs of a call share no element with each other or with anything else that it was given.
#pragma once

#include <attnkit/plugin.h>

#include <span>

namespace attnkit::core {

// One tensor of a call.  Its strides are not negative, the innermost one is 1.
struct UsedTensor {
  const attn_tensor* tensor;
  const char* name;  // of its port
  const char* kind;  // "", "the output ": what stands before the name
  bool written;
  int32_t port;
};

// Throws Error (ATTN_INVALID, where: the port of what is written) naming the first two that overlap.  Tensors whose
// rows lie between each other's are fine; those without data, or of elements that are no whole bytes, are left out.
void check_overlaps(std::span<const UsedTensor> tensors);

}  // namespace attnkit::core
