// The questions of a test to the stand-in for cuDNN.
#pragma once
#include <cstdint>

namespace emulator {

void set_cudnn_has_device(bool has);
uint64_t cudnn_executions();

}  // namespace emulator
