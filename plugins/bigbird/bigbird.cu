// bigbird on CUDA: the mathematics of bigbird.cpp.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "model.hpp"

namespace {

namespace cuda = attnkit::cuda;
namespace attend = attnkit::cuda::attend;
using cuda::Sight;

// Tiles of a block of queries walk the keys of the blocks that it sees, one block after another; see attend.hpp.
struct Listed : attend::Everywhere {
  static constexpr bool kListed = true, kDecodes = false;
  cuda::Rows<const int32_t> table;
  int block, blocks, random;
  bool repeats;

  __host__ __device__ int tiles_of_block(int size) const { return (block + size - 1) / size; }
  int64_t tiles(int64_t rows, int size) const { return (rows + block - 1) / block * tiles_of_block(size); }
  // The last block begins and the first follows: they have the most to walk.
  __device__ int64_t first(int turn, int turns, int size) const {
    const int of_block = tiles_of_block(size), all = turns / of_block, i = (turn / of_block + all - 1) % all;
    return static_cast<int64_t>(i) * block + turn % of_block * size;
  }
  __device__ int64_t last(int64_t first) const { return (first / block + 1) * block; }

  // On the CPU a table that names a block that does not exist is refused; here no one reads it before a run.
  __device__ bool is_known(int h, int64_t row) const {
    const int i = block_of(row);
    for (int r = 0; r < random && !global(i); ++r)
      if (const int t = drawn(h, i)[r]; t < 0 || t >= blocks) return false;
    return true;
  }

  template <class Walk>
  __device__ void for_keys(const Sight& sight, int h, int64_t row, const Walk& walk) const {
    const auto keys = static_cast<int>(sight.fresh);
    const int i = block_of(row), n = global(i) ? 1 : 5 + random;
    for (int x = 0; x < n; ++x) {
      const int t = seen(h, i, x), end = global(i) ? keys : (t + 1) * block;
      walk(t * block, end < keys ? end : keys);
    }
  }

  template <class Walk>
  __device__ void for_rows(const Sight& sight, int h, int key, const Walk& walk) const {
    const int t = key / block, live = static_cast<int>((sight.queries + block - 1) / block);
    for (int base = 0; base < live; base += 32) {
      const int own = base + cuda::lane();
      for (unsigned some = __ballot_sync(cuda::kAll, own < live && times(h, own, t) > 0); some != 0; some &= some - 1) {
        const int i = base + __ffs(static_cast<int>(some)) - 1;
        const int64_t first = static_cast<int64_t>(i) * block, end = first + block;
        for (int n = times(h, i, t); n > 0; --n) walk(first, end < sight.queries ? end : sight.queries);
      }
    }
  }

 private:
  __device__ int block_of(int64_t row) const { return static_cast<int>(row) / block; }
  __device__ bool global(int i) const { return i == 0 || i == blocks - 1; }
  __device__ const int32_t* drawn(int h, int i) const { return table.at(0, h, i - 1); }
  // Does block i see block t whatever the table says?
  __device__ bool is_fixed(int i, int t) const { return global(t) || (t >= i - 1 && t <= i + 1); }

  // The block that comes x-th in the list of block i; `blocks`, where there are no keys, for one that counts no more.
  __device__ int seen(int h, int i, int x) const {
    if (x == 0) return 0;
    if (x == 4) return blocks - 1;
    if (x < 4) return global(i + x - 2) ? blocks : i + x - 2;
    const int32_t* list = drawn(h, i);
    const int t = list[x - 5];
    if (t < 0 || t >= blocks) return blocks;
    if (repeats) return t;
    bool counts = !is_fixed(i, t);
    for (int r = 0; r < x - 5; ++r) counts = counts && list[r] != t;
    return counts ? t : blocks;
  }
  // Returns how often block i sees block t.
  __device__ int times(int h, int i, int t) const {
    if (global(i)) return 1;
    int n = is_fixed(i, t) ? 1 : 0;
    for (int r = 0; r < random; ++r) n += drawn(h, i)[r] == t ? 1 : 0;
    return repeats || n == 0 ? n : 1;
  }
};

struct BigBird : bigbird::Model {
  static constexpr attnkit::About about = cuda::on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int keys;  // of a tile
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    return {attend::plan<Listed>(shape, r, info)};
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || r.queries == 0) return;
    cuda::with_type<true>(io.o.of(r.ports), [&](auto number) {
      attend::run<decltype(number)>(about.name, r, io, shape, scale(), false, plan.keys, reach(r));
    });
  }

  void backward(const Plan&, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    cuda::with_type<true>(io.o.of(g.run->ports), [&](auto number) {
      using T = decltype(number);
      if constexpr (sizeof(T) >= sizeof(float))
        attend::run_backward<T>(about.name, g, io, shape, scale(), false, reach(*g.run));
    });
  }

 private:
  Listed reach(const attn_run& r) const {
    return {{},
            attnkit::View<const int32_t>(r, table),
            static_cast<int>(shape.block),
            static_cast<int>(shape.blocks()),
            static_cast<int>(shape.random),
            shape.repeats};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<BigBird>)
