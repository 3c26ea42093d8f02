// 16-bit types, and how a test asks a bridge for them.
#pragma once
#include <cstdlib>

#include "core/conformance/halves.hpp"
#include "support/array.hpp"

namespace attnkit::test {

using conformance::all_halves;
using conformance::round_inputs;
using Type = conformance::Half;

// Makes all numbers of an array such as the type holds.
inline void round_numbers(Array& numbers, const Type& type) {
  numbers.set([&, before = numbers](int64_t b, int64_t h, int64_t i, int64_t c) {
    return type.widen(type.round(before.at(b, h, i, c)));
  });
}

// While it lives, plans of emulated variants are in this type.
class InType {
 public:
  explicit InType(const Type& type) { setenv("ATTNKIT_CUDA_TYPE", type.name, 1); }
  ~InType() { unsetenv("ATTNKIT_CUDA_TYPE"); }
  InType(const InType&) = delete;
};

}  // namespace attnkit::test
