// The emulator itself: right kernels compute, and each way of being wrong is seen and named.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <attnkit/kernels/cuda/device.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <numeric>
#include <thread>
#include <vector>

namespace attnkit::test {
namespace {

using attnkit::cuda::Shared;
using attnkit::cuda::SharedParts;

// Device memory that frees itself.
template <class T>
class Device {
 public:
  explicit Device(size_t n) : data(static_cast<T*>(emulator::allocate(n * sizeof(T), sizeof(T)))), n_(n) {}
  explicit Device(const std::vector<T>& from) : Device(from.size()) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data, from.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  std::vector<T> get() const {
    std::vector<T> all(n_);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(all.data(), data, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return all;
  }
  T* const data;

 private:
  size_t n_;
};

std::vector<float> counted(size_t n) {
  std::vector<float> all(n);
  std::iota(all.begin(), all.end(), 1.0f);
  return all;
}

template <class... Parameter, class... Argument>
cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(Parameter...),
                   Argument... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Returns the faults of a kernel of one block, in the order of each of eight seeds; every seed must see it.
template <class... Parameter, class... Argument>
std::string fault(dim3 block, size_t shared, void (*kernel)(Parameter...), Argument... arguments) {
  std::string report;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    emulator::set_seed(seed);
    EXPECT_EQ(cudaSuccess, launch(nullptr, 1, block, shared, kernel, arguments...));
    EXPECT_EQ(cudaErrorLaunchFailure, cudaDeviceSynchronize());
    report = emulator::take_report();
    EXPECT_NE("", report) << "seed " << seed;
  }
  return report;
}

// The report names this file's line that holds these words.
void expect_line(const std::string& report, const char* words) {
  std::string line, number;
  FILE* source = std::fopen(ATTNKIT_EMULATOR_TEST, "r");
  ASSERT_NE(nullptr, source) << ATTNKIT_EMULATOR_TEST;
  char text[500];
  for (int n = 1; std::fgets(text, sizeof text, source); ++n)
    if (number.empty() && std::strstr(text, words)) number = "emulator_test.cpp:" + std::to_string(n);
  std::fclose(source);
  EXPECT_NE(std::string::npos, report.find(number)) << report << " does not name " << number;
}

#define EXPECT_SAYS(words, report) EXPECT_NE(std::string::npos, (report).find(words)) << (report)

// --- kernels that are right ---

__global__ void reverse_in_block(float* x, int n) {
  ATTNKIT_SHARED(float, kept, 256);
  const int i = static_cast<int>(threadIdx.x);
  kept[i] = x[blockIdx.x * n + i];
  __syncthreads();
  x[blockIdx.x * n + i] = kept[n - 1 - i];
}

TEST(Emulator, SharesMemoryBetweenTheThreadsOfABlock) {
  Device<float> x(counted(3 * 256));
  ASSERT_EQ(cudaSuccess, launch(nullptr, 3, 256, 0, reverse_in_block, x.data, 256));
  const auto got = x.get();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(static_cast<float>(i / 256 * 256 + 256 - i % 256), got[i]);
}

__global__ void sum_all(const float* x, float* to, int n) {
  SharedParts parts;
  const Shared<float> sums = parts.take<float>(blockDim.x / 32);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) sum += x[i];
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bits);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float all = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) all += sums[w];
  atomicAdd(to, all);
}

TEST(Emulator, ShufflesAndDynamicSharedMemory) {
  Device<float> x(counted(1000)), to(std::vector<float>{0});
  ASSERT_EQ(cudaSuccess, launch(nullptr, 1, 128, 16, sum_all, x.data, to.data, 1000));
  EXPECT_EQ(500500.0f, to.get()[0]);
}

__global__ void ask_the_warp(int* to) {
  const int l = static_cast<int>(threadIdx.x);
  const unsigned low = 0x0000FFFF, mask = l < 16 ? low : ~low;
  int* at = to + l * 10;
  at[0] = __shfl_sync(mask, l, 3, 16);
  at[1] = __shfl_up_sync(mask, l, 2, 16);
  at[2] = __shfl_down_sync(mask, l, 2, 16);
  at[3] = static_cast<int>(__ballot_sync(mask, l % 2));
  at[4] = __any_sync(mask, l == 5) + 2 * __all_sync(mask, l < 16);
  at[5] = static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(l)));
  at[6] = static_cast<int>(__reduce_min_sync(mask, static_cast<unsigned>(l)) +
                           100 * __reduce_max_sync(mask, static_cast<unsigned>(l)));
  at[7] = __syncthreads_count(l % 3 == 0);
  at[8] = __syncthreads_or(l == 31) + 2 * __syncthreads_and(l < 31);
  at[9] = __shfl_xor_sync(0xFFFFFFFF, l, 17);
}

TEST(Emulator, AnswersAWarpsQuestions) {
  Device<int> to(320);
  ASSERT_EQ(cudaSuccess, launch(nullptr, 1, 32, 0, ask_the_warp, to.data));
  const auto got = to.get();
  for (int l = 0; l < 32; ++l) {
    const int base = l / 16 * 16;
    const std::vector<int> want = {base + 3,
                                   l % 16 < 2 ? l : l - 2,
                                   l % 16 > 13 ? l : l + 2,
                                   static_cast<int>(l < 16 ? 0x0000AAAAu : 0xAAAA0000u),
                                   l < 16 ? 3 : 0,
                                   l < 16 ? 120 : 376,
                                   l < 16 ? 1500 : 3116,
                                   11,
                                   1,
                                   l ^ 17};
    EXPECT_EQ(want, std::vector<int>(got.begin() + l * 10, got.begin() + l * 10 + 10)) << "lane " << l;
  }
}

__global__ void add_to_one(int* to) {
  ATTNKIT_SHARED(int, sum, 1);
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  atomicAdd(&sum[0], 1);
  __syncthreads();
  if (threadIdx.x == 0) to[blockIdx.x] = sum[0];
}

TEST(Emulator, AddsAtomically) {
  Device<int> to(2);
  ASSERT_EQ(cudaSuccess, launch(nullptr, 2, 100, 0, add_to_one, to.data));
  EXPECT_EQ((std::vector<int>{100, 100}), to.get());
}

__global__ void hand_over_in_the_warp(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  const unsigned i = threadIdx.x;
  for (int round = 0; round < 3; ++round) {
    kept[i] = x[i];
    __syncwarp();
    x[i] = kept[i ^ 1] + 1;
    __syncwarp();
  }
}

TEST(Emulator, AWarpsBarrierOrdersItsLanes) {
  Device<float> x(counted(64));
  ASSERT_EQ(cudaSuccess, launch(nullptr, 1, 64, 0, hand_over_in_the_warp, x.data));
  EXPECT_EQ(5.0f, x.get()[0]);
}

__global__ void copy_through(const float4* x, float4* to) {
  ATTNKIT_SHARED(float4, kept, 64);
  attnkit::cuda::copy_async(kept + threadIdx.x, x + threadIdx.x);
  attnkit::cuda::commit_copies();
  attnkit::cuda::copy_async(kept + (threadIdx.x + 32), x + threadIdx.x + 32);
  attnkit::cuda::commit_copies();
  attnkit::cuda::wait_for_copies<1>();
  __syncthreads();
  to[threadIdx.x] = kept[31 - threadIdx.x];
  attnkit::cuda::wait_for_copies<0>();
  __syncthreads();
  to[threadIdx.x + 32] = kept[63 - threadIdx.x];
}

TEST(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  Device<float> x(counted(256)), to(256);
  ASSERT_EQ(cudaSuccess, launch(nullptr, 1, 32, 0, copy_through, reinterpret_cast<const float4*>(x.data),
                                reinterpret_cast<float4*>(to.data)));
  const auto got = to.get();
  EXPECT_EQ(125.0f, got[0]);
  EXPECT_EQ(4.0f, got[127]);
  EXPECT_EQ(253.0f, got[128]);
}

// --- kernels that are wrong ---

__global__ void without_barrier(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  kept[threadIdx.x] = 1;                    // 64 threads write
  x[threadIdx.x] = kept[63 - threadIdx.x];  // a read of what others write
}
__global__ void without_second_barrier(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  for (int round = 0; round < 2; ++round) {
    kept[threadIdx.x] = 1;  // again, while others read
    __syncthreads();
    x[threadIdx.x] = kept[63 - threadIdx.x];
  }
}
__global__ void write_the_same(float*) {
  ATTNKIT_SHARED(float, kept, 1);
  kept[0] = static_cast<float>(threadIdx.x);  // 64 threads write one place
}
__global__ void add_without_atomics(float*) {
  ATTNKIT_SHARED(float, kept, 1);
  if (threadIdx.x == 0) kept[0] = 0;
  __syncthreads();
  kept[0] += 1;  // all threads add
}
__global__ void shuffle_is_no_barrier(float* x) {
  ATTNKIT_SHARED(float, kept, 32);
  kept[threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1.0f, 0);
  x[threadIdx.x] = kept[31 - threadIdx.x] + __shfl_sync(0xFFFFFFFF, 1.0f, 0);  // what another lane wrote
}

TEST(Emulator, SeesRaces) {
  Device<float> x(64);
  const std::string missing = fault(64, 0, without_barrier, x.data);
  const bool unwritten = missing.find("that nobody wrote") != std::string::npos;  // as the order of threads has it
  EXPECT_SAYS(unwritten ? "that nobody wrote" : "race in shared memory: ", missing);
  expect_line(missing, unwritten ? "// a read of what others write" : "// 64 threads write");
  const std::string again = fault(64, 0, without_second_barrier, x.data);
  EXPECT_SAYS("race in shared memory: ", again);
  EXPECT_SAYS("have no barrier between them", again);
  expect_line(again, "// again, while others read");
  expect_line(fault(64, 0, write_the_same, x.data), "// 64 threads write one place");
  expect_line(fault(64, 0, add_without_atomics, x.data), "// all threads add");
  expect_line(fault(32, 0, shuffle_is_no_barrier, x.data), "// what another lane wrote");
}

__global__ void shared_out_of_bounds(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  ATTNKIT_SHARED(float, next, 64);
  kept[threadIdx.x] = next[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = kept[threadIdx.x + 1];  // one too far
}
__global__ void part_out_of_bounds(float* x) {
  SharedParts parts;
  const Shared<float> a = parts.take<float>(32), b = parts.take<float>(32);
  a[threadIdx.x] = b[threadIdx.x] = 0;
  x[threadIdx.x] = a[threadIdx.x + 32];  // a is not b
}
__global__ void more_than_launched(float* x) {
  SharedParts parts;
  x[threadIdx.x] = parts.take<float>(33)[0];
}
__global__ void unwritten(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  if (threadIdx.x > 0) kept[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = kept[threadIdx.x];  // 0 was never written
}
__global__ void misaligned(float* x) {
  ATTNKIT_SHARED(float, kept, 64);
  kept[threadIdx.x] = 0;
  __syncthreads();
  const float4 four = attnkit::cuda::as<float4>(kept + 1)[threadIdx.x % 8];
  x[threadIdx.x] = four.x;
}
__global__ void copies_not_waited_for(float4* x) {
  ATTNKIT_SHARED(float4, kept, 32);
  attnkit::cuda::copy_async(kept + threadIdx.x, x + threadIdx.x);
  attnkit::cuda::commit_copies();
  x[threadIdx.x] = kept[threadIdx.x];  // too early
}

TEST(Emulator, SeesMisuseOfSharedMemory) {
  Device<float> x(counted(128));
  const std::string bounds = fault(64, 0, shared_out_of_bounds, x.data);
  EXPECT_SAYS("element 64 of 64 in shared memory does not exist", bounds);
  expect_line(bounds, "// one too far");
  const std::string part = fault(32, 256, part_out_of_bounds, x.data);
  EXPECT_SAYS(" of 32 in shared memory does not exist", part);
  expect_line(part, "// a is not b");
  EXPECT_SAYS("takes 132 bytes of dynamic shared memory and was launched with 128",
              fault(32, 128, more_than_launched, x.data));
  const std::string never = fault(64, 0, unwritten, x.data);
  EXPECT_SAYS("a read of shared memory that nobody wrote", never);
  EXPECT_SAYS("thread (0,0,0)", never);
  expect_line(never, "// 0 was never written");
  EXPECT_SAYS("not aligned", fault(64, 0, misaligned, x.data));
  const std::string early = fault(32, 0, copies_not_waited_for, reinterpret_cast<float4*>(x.data));
  EXPECT_SAYS("a copy that nobody waited for", early);
  expect_line(early, "// too early");
}

__global__ void read_beyond(float* x) {
  float sum = 0;
  for (unsigned i = 0; i <= blockDim.x; ++i) sum += x[i];  // one more than there are
  if (sum == 0) x[0] = 1;
}
__global__ void write_beyond(float* x, int i) {
  if (threadIdx.x == 7) x[i] = 1;  // somewhere else
}

TEST(Emulator, SeesAccessesBeyondGlobalMemory) {
  Device<float> x(counted(64));
  const std::string read = fault(64, 0, read_beyond, x.data);
  EXPECT_SAYS("a read of global memory 0 bytes past an allocation of 256 bytes", read);
  expect_line(read, "// one more than there are");
  const std::string wrote = fault(64, 0, write_beyond, x.data, 100);
  EXPECT_SAYS("a write to global memory 144 bytes past an allocation of 256 bytes", wrote);
  EXPECT_SAYS("thread (7,0,0)", wrote);
  expect_line(wrote, "// somewhere else");
  Device<float> y(counted(64));  // what was spoilt stays spoilt
  EXPECT_SAYS("a kernel wrote to global memory 4 bytes before an allocation", fault(64, 0, write_beyond, y.data, -1));
}

__global__ void barrier_of_some(float* x) {
  if (threadIdx.x < 40) __syncthreads();  // the others end
  x[threadIdx.x] = 0;
}
__global__ void two_barriers(float* x) {
  if (threadIdx.x < 40)
    __syncthreads();  // here 40
  else
    __syncthreads();
  x[threadIdx.x] = 0;
}
__global__ void outside_the_mask(float* x) { x[threadIdx.x] = __shfl_sync(0x0000FFFF, 1.0f, 0); }
__global__ void missing_lanes(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1.0f, 0);  // 16 of 32
}
__global__ void source_outside(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_down_sync(0x0000FFFF, 1.0f, 4);  // lanes 12 to 15 ask 16 to 19
}
__global__ void lanes_of_no_thread(float* x) { x[threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1.0f, 0); }

TEST(Emulator, SeesDivergence) {
  Device<float> x(64);
  const std::string some = fault(64, 0, barrier_of_some, x.data);
  EXPECT_SAYS("divergent barrier: thread (", some);
  EXPECT_SAYS("has ended", some);
  expect_line(some, "// the others end");
  const std::string two = fault(64, 0, two_barriers, x.data);
  EXPECT_SAYS("divergent barrier: thread (", two);
  expect_line(two, "// here 40");
  EXPECT_SAYS("the calling lane is not in its own mask", fault(32, 0, outside_the_mask, x.data));
  const std::string missing = fault(32, 0, missing_lanes, x.data);
  EXPECT_SAYS("divergent warp: ", missing);
  expect_line(missing, "// 16 of 32");
  const std::string source = fault(32, 0, source_outside, x.data);
  EXPECT_SAYS("which is not in the shuffle's mask", source);
  expect_line(source, "// lanes 12 to 15 ask 16 to 19");
  EXPECT_SAYS("lanes that the block of 20 threads does not have", fault(20, 0, lanes_of_no_thread, x.data));
}

__global__ void do_nothing(float*) {}

TEST(Emulator, RefusesImpossibleLaunches) {
  float* none = nullptr;
  EXPECT_EQ(cudaErrorInvalidConfiguration, launch(nullptr, 1, 1025, 0, do_nothing, none));
  EXPECT_EQ(cudaErrorInvalidConfiguration, launch(nullptr, 0, 32, 0, do_nothing, none));
  EXPECT_EQ(cudaErrorInvalidConfiguration, launch(nullptr, dim3(1, 65536), 32, 0, do_nothing, none));
  EXPECT_EQ(cudaErrorInvalidConfiguration, launch(nullptr, 1, 32, 50000, do_nothing, none));
  EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
  EXPECT_EQ(cudaErrorInvalidValue,
            cudaFuncSetAttribute(do_nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 230 * 1024));
  ASSERT_EQ(cudaSuccess, cudaFuncSetAttribute(do_nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
  EXPECT_EQ(cudaSuccess, launch(nullptr, 1, 32, 50000, do_nothing, none));
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  EXPECT_EQ(cudaErrorInvalidValue, cudaGetLastError());
}

__global__ void do_nothing_either(float*) {}

// Of launch.hpp: what one thread sets for a kernel must be enough for another, whose launch comes between.
TEST(Launch, LeavesTheSharedMemoryOfOthers) {
  float* const none = nullptr;
  const attn_exec exec{};
  for (const size_t bytes : {100 * 1024, 60 * 1024})
    attnkit::cuda::launch("nothing", do_nothing_either, {dim3(1), 32, bytes}, exec, none);
  EXPECT_EQ(cudaSuccess, launch(nullptr, 1, 32, 100 * 1024, do_nothing_either, none));
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
}

TEST(EmulatorDeathTest, TheCpuMayNotTouchDeviceMemory) {
  Device<float> x(counted(64));
  EXPECT_DEATH(std::printf("%f", static_cast<double>(*static_cast<volatile float*>(x.data))),
               "the CPU reads memory of the device");
  EXPECT_DEATH(*static_cast<volatile float*>(x.data) = 1, "the CPU writes memory of the device");
}

std::atomic<int> stage{0};
__global__ void wait_for_the_host(float* x) {
  x[0] = 1;
  stage = 1;
  while (stage == 1) usleep(1000);
}

// Where pages alone close memory it is open while a kernel runs.
TEST(EmulatorDeathTest, TheCpuMayNotTouchDeviceMemoryWhileAKernelOfAnotherThreadRuns) {
  const int key = pkey_alloc(0, 0);
  if (key < 0) GTEST_SKIP() << "this processor has no protection keys";
  pkey_free(key);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Device<float> x(counted(64));
  EXPECT_DEATH(
      {
        alarm(60);
        std::thread other([&x] {
          launch(nullptr, 1, 1, 0, wait_for_the_host, x.data);
          cudaDeviceSynchronize();
        });
        while (stage == 0) usleep(1000);
        std::printf("%f", static_cast<double>(*static_cast<volatile float*>(x.data)));
        stage = 2;
        other.join();
        std::_Exit(0);
      },
      "the CPU reads memory of the device");
}

// --- streams ---

__global__ void append_digit(int64_t* x, int digit) { *x = *x * 10 + digit; }

TEST(Emulator, StreamsKeepTheirOwnOrderAlone) {
  std::vector<bool> seen(2);
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    emulator::set_seed(seed);
    Device<int64_t> x(std::vector<int64_t>{0});
    cudaStream_t a, b;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    for (int digit = 1; digit <= 3; ++digit) launch(a, 1, 1, 0, append_digit, x.data, digit);
    launch(b, 1, 1, 0, append_digit, x.data, 9);
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    std::string order = std::to_string(x.get()[0]);
    seen[order.front() == '9' ? 0 : 1] = true;
    order.erase(order.find('9'), 1);
    EXPECT_EQ("123", order);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
  EXPECT_TRUE(seen[0] && seen[1]) << "streams ran in one order only";
}

TEST(Emulator, EventsAndTheDefaultStreamOrderStreams) {
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    emulator::set_seed(seed);
    Device<int64_t> x(std::vector<int64_t>{0});
    cudaStream_t a, b, blocking;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&blocking, cudaStreamDefault);
    cudaEvent_t event;
    cudaEventCreate(&event);
    launch(a, 1, 1, 0, append_digit, x.data, 1);
    cudaEventRecord(event, a);
    cudaStreamWaitEvent(b, event);
    launch(b, 1, 1, 0, append_digit, x.data, 2);
    EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(event));
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(b));
    EXPECT_EQ(cudaSuccess, cudaEventQuery(event));
    launch(blocking, 1, 1, 0, append_digit, x.data, 3);
    launch(nullptr, 1, 1, 0, append_digit, x.data, 4);
    launch(blocking, 1, 1, 0, append_digit, x.data, 5);
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(blocking));
    EXPECT_EQ(12345, x.get()[0]);
    cudaEventDestroy(event);
    for (cudaStream_t s : {a, b, blocking}) cudaStreamDestroy(s);
  }
}

TEST(Emulator, GraphsCaptureAndReplay) {
  Device<int64_t> x(std::vector<int64_t>{0});
  cudaStream_t a, b;
  cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  cudaEvent_t event;
  cudaEventCreate(&event);
  const uint64_t before = emulator::kernels_run();
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  launch(a, 1, 1, 0, append_digit, x.data, 1);
  cudaEventRecord(event, a);
  cudaStreamWaitEvent(b, event);
  launch(b, 1, 1, 0, append_digit, x.data, 2);
  cudaEventRecord(event, b);
  cudaStreamWaitEvent(a, event);
  launch(a, 1, 1, 0, append_digit, x.data, 3);
  cudaGraph_t graph;
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(a, &graph));
  EXPECT_EQ(before, emulator::kernels_run());
  cudaGraphExec_t exec;
  cudaGraphInstantiate(&exec, graph);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaSuccess, cudaGraphLaunch(exec, a));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(a));
  EXPECT_EQ(123123, x.get()[0]);
  EXPECT_EQ(before + 6, emulator::kernels_run());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);

  cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
  void* p;
  EXPECT_EQ(cudaErrorStreamCaptureUnsupported, cudaMallocAsync(&p, 8, a));
  EXPECT_EQ(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(a));
  EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(a, &graph));
  cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
  cudaEventRecord(event, a);
  cudaStreamWaitEvent(b, event);
  launch(b, 1, 1, 0, append_digit, x.data, 2);
  EXPECT_EQ(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(a, &graph));
  cudaGetLastError();

  // Another thread spoils a capture of the global mode by any wait, one of the thread's mode by a wait for it alone.
  const auto elsewhere = [](cudaStream_t waited) {
    cudaError_t error;
    std::thread([&] { error = cudaStreamSynchronize(waited); }).join();
    return error;
  };
  cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaErrorStreamCaptureUnsupported, elsewhere(b));
  EXPECT_EQ(cudaSuccess, cudaGetLastError()) << "an error belongs to the thread that met it";
  EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(a, &graph));
  cudaGetLastError();
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(cudaSuccess, elsewhere(b));
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(a, &graph));
  cudaGraphDestroy(graph);
  cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(cudaErrorStreamCaptureUnsupported, elsewhere(a));
  EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(a, &graph));
  cudaEventDestroy(event);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
  cudaGetLastError();
}

TEST(Emulator, MemoryOfAStreamIsFreedInItsOrder) {
  cudaStream_t a;
  cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
  void* p;
  ASSERT_EQ(cudaSuccess, cudaMallocAsync(&p, 8, a));
  ASSERT_EQ(cudaSuccess, cudaMemsetAsync(p, 0, 8, a));
  launch(a, 1, 1, 0, append_digit, static_cast<int64_t*>(p), 7);
  int64_t got = 0;
  cudaMemcpyAsync(&got, p, 8, cudaMemcpyDeviceToHost, a);
  cudaFreeAsync(p, a);
  EXPECT_EQ(0, got);
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(a));
  EXPECT_EQ(7, got);
  launch(a, 1, 1, 0, append_digit, static_cast<int64_t*>(p), 7);
  EXPECT_EQ(cudaErrorLaunchFailure, cudaStreamSynchronize(a));
  EXPECT_EQ(cudaErrorLaunchFailure, cudaDeviceSynchronize()) << "a fault stays";
  EXPECT_SAYS("a read of global memory ", emulator::take_report());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  cudaStreamDestroy(a);
}

}  // namespace
}  // namespace attnkit::test
