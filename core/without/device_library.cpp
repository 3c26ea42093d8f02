// A library without dlopen has no other device.
#include "core/device/device.hpp"

namespace attnkit::core {

std::string file_of(const DeviceTable&) { return ""; }

const DeviceTable& load_device_library() {
  fail(ATTN_DEVICE, "this attnkit is built without dlopen (ATTNKIT_DLOPEN=OFF): its models run on the CPU alone");
}

}  // namespace attnkit::core
