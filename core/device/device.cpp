#include "core/device/device.hpp"

namespace attnkit::core {

std::shared_ptr<Device> Device::open(int32_t id) {
  const std::shared_ptr<Device> device(new Device);
  device->table_ = &load_device_library();
  attn_error err = empty_error();
  device->check(device->table_->open(id, &device->handle_, &err), err);
  DeviceInfo info{};
  device->check(device->table_->describe(device->handle_, &info, &err), err);
  device->name_ = info.name;
  return device;
}

Device::~Device() {
  if (handle_) table_->close(handle_);
}

void Device::check(int32_t code, const attn_error& err) const {
  if (code != ATTN_OK) check_plugin(code, err, "the CUDA device");
}

CurrentDevice::CurrentDevice(const Device* device) : device_(device) {
  if (!device) return;
  attn_error err = empty_error();
  device->check(device->table_->make_current(device->handle_, &former_, &err), err);
}

DeviceMemory::DeviceMemory(const Device& device, uint64_t bytes) : device_(&device), bytes_(bytes) {
  void* memory = nullptr;
  if (bytes > 0) device.call(&DeviceTable::allocate, bytes, &memory);
  data_ = static_cast<char*>(memory);
}

void DeviceMemory::reset() {
  if (data_) device_->table_->release(device_->handle_, data_);
  data_ = nullptr;
  bytes_ = 0;
}

PinnedMemory::~PinnedMemory() {
  if (data_) device_.table_->release_host(device_.handle_, data_);
}

char* PinnedMemory::get(uint64_t bytes) {
  if (bytes <= bytes_) return data_;
  void* memory = nullptr;
  device_.call(&DeviceTable::allocate_host, bytes, &memory);
  if (data_) device_.table_->release_host(device_.handle_, data_);
  data_ = static_cast<char*>(memory);
  bytes_ = bytes;
  return data_;
}

Stream::Stream(const Device& device) : device_(device) { device.call(&DeviceTable::make_stream, &stream_); }

Stream::~Stream() { device_.table_->free_stream(device_.handle_, stream_); }

void Stream::wait() const { device_.call(&DeviceTable::wait, stream_); }

void Stream::from_host(void* to, const void* from, uint64_t bytes) const {
  if (bytes > 0) device_.call(&DeviceTable::from_host, stream_, to, from, bytes);
}

void Stream::to_host(void* to, const void* from, uint64_t bytes) const {
  if (bytes > 0) device_.call(&DeviceTable::to_host, stream_, to, from, bytes);
}

void Stream::copy(void* to, const void* from, uint64_t bytes) const {
  if (bytes > 0) device_.call(&DeviceTable::copy, stream_, to, from, bytes);
}

void Stream::zero(void* memory, uint64_t bytes) const {
  if (bytes > 0) device_.call(&DeviceTable::zero, stream_, memory, bytes);
}

void Stream::begin_capture() const { device_.call(&DeviceTable::begin_capture, stream_); }

Stream::Graph Stream::end_capture() const {
  DeviceGraph* graph = nullptr;
  device_.call(&DeviceTable::end_capture, stream_, &graph);
  return {graph, device_.table_->free_graph};
}

void Stream::drop_capture() const {
  try {
    end_capture();
  } catch (...) {  // what failed while capturing is the error
  }
}

void Stream::launch(const Graph& graph) const {
  device_.call(&DeviceTable::launch, stream_, const_cast<const DeviceGraph*>(graph.get()));
}

}  // namespace attnkit::core
