// A library for a device that is of another version of attnkit.
#include "core/device/table.hpp"

extern "C" __attribute__((visibility("default"))) const attnkit::core::DeviceTable* attnkit_device_table() {
  static attnkit::core::DeviceTable table{};
  table.struct_size = sizeof table;
  table.version = "0.0.0";
  return &table;
}
