// Hands out a model's tensors by name, from its weights file or made from a seed; reports every tensor of the file that
// is missing or wrong, and at the end every one that nobody took.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/manifest/diagnostics.hpp"
#include "core/manifest/manifest.hpp"
#include "core/weights/weights.hpp"

namespace attnkit::core {

class PackedCache;
class Threads;

// Fills the tensor, the same for the same seed on every machine.
using Initial = std::function<void(uint64_t seed, std::vector<float>& values)>;

Initial constant(float value);
Initial normal(double deviation);
// Uniform in +-gain sqrt(6 / (in + out)) (Glorot and Bengio, AISTATS 2010).
Initial xavier(int64_t in, int64_t out, double gain = 1);

// Thrown after the last diagnostic when it makes no sense to go on.
struct Stopped {};

// The owner of a tensor: a mechanism's own may be made from a seed where a file lacks it, the model's may not.
// One of all blocks that use a mechanism is made once.
enum class Owner { model, mechanism, all_blocks };

class WeightReader {
 public:
  // file NULL: everything is made from the seed.  One of both must be there.  threads: of whoever makes layers of what
  // is handed out, or NULL.
  WeightReader(const Weights* file, std::optional<uint64_t> seed, Diagnostics& diagnostics, Place place,
               Threads* threads = nullptr)
      : file_(file), seed_(seed), diagnostics_(diagnostics), place_(place), threads_(threads) {}

  // Every tensor that is handed out from now on is kept in `kept`, as it is handed out.
  struct Kept {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  void keep(std::map<std::string, Kept>* kept) { kept_ = kept; }

  // Layers that were packed by another start, or NULL.
  void use(PackedCache* cache) { cache_ = cache; }
  PackedCache* cache() const { return cache_; }
  // A tensor that need not be read, since a layer of it was found packed.
  void take(const std::string& name);

  Threads* threads() const { return threads_; }
  bool has_file() const { return file_ != nullptr; }
  bool has(const std::string& name) const { return file_ && file_->find(name) != nullptr; }
  // Zeros of that shape, after a diagnostic, where the tensor is missing or wrong.
  std::vector<float> f32(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                         Owner owner = Owner::model);
  // The same, in place where the file allows.
  Numbers numbers(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                  Owner owner = Owner::model);
  // The bytes of a mechanism's integer tensor ("I32", "I64").
  using Fill = std::function<void(uint64_t seed, std::vector<std::byte>& bytes)>;
  std::vector<std::byte> integers(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                                  const Fill& initial);
  // The type in which a layer of that tensor is kept; only of WeightType::stored the file decides.
  WeightType type_of(const std::string& name, WeightType wanted) const;
  void warn(std::string message, std::string help);
  // Reports tensors nobody took, unless they are ignorable, or tables or heads that repeat one that was taken.
  void finish(const std::function<bool(const StoredTensor&)>& ignorable);

 private:
  std::vector<float> find(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                          Owner owner);
  std::vector<std::byte> find(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                              const Fill& initial);
  // Is this tensor made, and may its size be?
  bool is_made(const std::string& name, const std::vector<int64_t>& shape, Owner owner);
  std::vector<float> make(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial,
                          Owner owner);
  void wrong(int code, const std::string& message, const std::string& help, size_t zeros);
  // Before so many bytes are read: pages of what was read and packed before do not stay mapped, or a model would be in
  // memory twice while it opens.
  void make_room(size_t bytes);

  const Weights* file_;
  std::optional<uint64_t> seed_;
  Diagnostics& diagnostics_;
  Place place_;
  Threads* threads_;
  PackedCache* cache_ = nullptr;
  std::set<std::string> taken_;
  struct Common {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Common> common_;  // made for all blocks
  std::map<std::string, Kept>* kept_ = nullptr;
  size_t made_ = 0, read_ = 0;
  int problems_ = 0;
};

}  // namespace attnkit::core
