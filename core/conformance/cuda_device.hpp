// The first CUDA device of this machine, by the driver that is loaded when it is asked for.
#pragma once
#include "core/conformance/bridge.hpp"

namespace attnkit::core::conformance {

// NULL where there is none; *why says so then.  Its primary context, which CUDA's runtime uses too, is current on the
// thread of each call that makes a stream.  Lives as long as the process.
CudaDevice* cuda_device(std::string* why);

}  // namespace attnkit::core::conformance
