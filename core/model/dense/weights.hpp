// The weights of a dense layer in one type, packed into panels of 16 outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/buffer.hpp"
#include "core/base/threads.hpp"
#include "core/manifest/manifest.hpp"

namespace attnkit::core {

class Sha256;

constexpr int64_t panel_outputs = 16;

// Rows of inputs x and of outputs y; strides in elements.
struct DenseRows {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int64_t count;
};

// The last step on the sums s = W x + b: y = f(s), or y += s.
struct DenseFinish {
  std::optional<Activation> activation;
  bool add = false;
};

// weight: (outputs, inputs), row by row; bias: (outputs) or empty; or both packed, at a multiple of 64 bytes.
struct DenseSource {
  int64_t inputs, outputs;
  std::span<const float> weight, bias;
  Threads* threads = nullptr;  // that pack; NULL: the caller's
  std::span<const std::byte> image = {};
  std::shared_ptr<const void> owner = {};  // of image
  int64_t panels() const { return (outputs + panel_outputs - 1) / panel_outputs; }
  // pack(first, last): the outputs of a panel.
  template <class Pack>
  void each_panel(Pack&& pack) const {
    const auto some = [&](int64_t begin, int64_t end, uint32_t) {
      for (int64_t p = begin; p < end; ++p) pack(p * panel_outputs, std::min(outputs, (p + 1) * panel_outputs));
    };
    const int64_t grain =
        1 + (int64_t{1} << 16) / (inputs * panel_outputs + 1);  // below, threads cost more than they save
    threads ? threads->each(panels(), grain, some) : some(0, panels(), 0);
  }
};
class DenseWeights {
 public:
  virtual ~DenseWeights() = default;
  // Any thread.  The result for a row does not depend on the rows beside it or on the number of threads.
  virtual void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const = 0;
  virtual void row(int64_t output, float* weights) const = 0;  // the weights of one output, as they are used
  virtual void digest(Sha256& to) const = 0;  // the same on every machine; of integers on those with FMA
  // The packed weights, for machines whose packing() is the same: DenseSource takes it in place of the weights.
  std::span<const std::byte> image() const { return image_.bytes(); }

 protected:
  // Memory of its own to pack into, or an image that lies elsewhere.
  class Image {
   public:
    // NULL: it is there already.  Throws Error (ATTN_INVALID): an image of another size.
    std::byte* begin(const DenseSource& from, uint64_t bytes);
    // Of memory of its own: makes it larger and returns what is new.
    std::byte* grow(uint64_t more);
    std::span<const std::byte> bytes() const { return bytes_; }
    template <class T>
    const T* at(uint64_t offset) const {
      return reinterpret_cast<const T*>(bytes_.data() + offset);
    }

   private:
    Buffer own_;
    std::shared_ptr<const void> owner_;
    std::span<const std::byte> bytes_;
  };
  Image image_;
};

// The way in which this machine and this version pack, in a word: images are for those that pack alike.
std::string packing();

// The instructions that multiply bytes; the results have the same bits.
enum class ByteKernel { plain, avx2, avx_vnni, vnni, amx, neon, dot };
bool has(ByteKernel kernel);  // whether this machine does; AVX-VNNI's kernels run by AVX-512 as well
bool has_avx_vnni();          // whether the processor has these instructions
// Of those.  ATTNKIT_INSTRUCTIONS in the environment leaves some out: avx512 AMX, avx2 AVX-VNNI, neon the dot products
// of bytes.
ByteKernel fastest_bytes();

std::shared_ptr<const DenseWeights> f32_weights(const DenseSource& from);
// Each weight rounded to 8 significant bits; everything else is f32.
std::shared_ptr<const DenseWeights> bf16_weights(const DenseSource& from);
// Per output a scale and integers of -127 to 127.  Inputs are rounded to 8 bits while running, with a scale for each
// row; products and sums of both are exact.  Throws Error (ATTN_UNSUPPORTED): more than 32,768 inputs.
std::shared_ptr<const DenseWeights> int8_weights(const DenseSource& from, ByteKernel with = fastest_bytes());
// For blocks of 32 inputs of an output a scale and 4 bits each; inputs as with int8, with a scale for each block.
std::shared_ptr<const DenseWeights> int4_weights(const DenseSource& from, ByteKernel with = fastest_bytes());

}  // namespace attnkit::core
