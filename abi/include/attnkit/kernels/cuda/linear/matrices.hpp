// The chunks of kernels.hpp in f16 and bf16: their products on the tensor cores.
//
// Features, rounded to T, and values lie in shared memory as T.  A product of these takes T's m16n8k16; what S and P
// hold may be beyond f16, so A S and P V take tf32's m16n8k8, whose 10 bits of fraction are f16's.  All add up in f32,
// and the denominators are sums of the rounded features and of the rounded P.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_MATRICES_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_MATRICES_HPP
#include <attnkit/kernels/cuda/linear/kernels.hpp>

namespace attnkit::cuda::linear {

struct alignas(8) Two {
  float x, y;
};

// A row of T in shared memory, read in f32.
template <class T>
struct WideShared {
  Shared<T> data;
  __device__ float operator[](int f) const { return widened(static_cast<T>(data[f])); }
};

template <class Work>
class MatrixTiles : public Tiles<Work> {
  using Map = typename Work::Map;
  using T = typename Work::Type;
  using Base = Tiles<Work>;
  using Base::den_, Base::head_, Base::limit_, Base::o_, Base::s_, Base::w_, Base::z_, Base::size;
  static constexpr int kScores = kChunk + 8;
  static_assert(kChunk == 32 && kWarps == 4);

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t floats = f16(s) * (s_row(s) + 1) + kChunk * (o_row(s) + (s.splits ? 2 : 1) * kScores + 2) +
                           kWarps * s.row() + static_cast<int64_t>(s.follow_floats());
    return static_cast<uint64_t>(floats) * sizeof(float) +
           static_cast<uint64_t>(kChunk * (2 * row(s) + v_row(s))) * sizeof(T);
  }

  __device__ MatrixTiles(const Work& work, const Head& head) : Base(work, head, s_row(work.sizes), o_row(work.sizes)) {
    SharedParts parts;
    s_ = parts.take<float>(f16(size()) * s_row(size()));
    z_ = parts.take<float>(f16(size()));
    o_ = parts.take<float>(kChunk * o_row(size()));
    p_ = parts.take<float>(kChunk * kScores);
    p_z_ = Map::kSplits ? parts.take<float>(kChunk * kScores) : p_;
    stage_ = parts.take<float>(kWarps * size().row());
    den_ = parts.take<float>(kChunk);
    limit_ = parts.take<int>(kChunk);
    a_ = parts.take<T>(kChunk * row(size()));
    b_ = parts.take<T>(kChunk * row(size()));
    v_ = parts.take<T>(kChunk * v_row(size()));
    if constexpr (kFollows<Map>) Base::take_follow(parts);
  }

  __device__ void load_state(const float* state) { Base::load_state(state, f16(size()), e16(size())); }
  __device__ void raise(int64_t j) { Base::raise(j, stage_); }
  __device__ void load_queries(int64_t first, int n) {
    copy(w_.call.q, first, n, size().d, a_, row(size()));
    map<true>(first, n, a_);
  }
  __device__ void load_keys(int64_t first, int n) {
    for (int r = warp(); r < kChunk; r += kWarps)
      for (int c = (r < n ? size().e : 0) + lane(); c < e16(size()); c += 32)
        v_[r * v_row(size()) + c] = narrowed<T>(0);
    copy(w_.call.v, first, n, size().e, v_, v_row(size()));
    copy(w_.call.k, first, n, size().d, b_, row(size()));
    map<false>(first, n, b_);
  }

  // O = A S, 16 columns of it to a warp, and the denominators' share of z.
  __device__ void read_state() {
    const int ld = s_row(size()), g = lane() / 4, t = lane() % 4;
    for (int e = warp() * 16; e < e16(size()); e += kWarps * 16) {
      float acc[2][2][4] = {};
      for (int f = 0; f < f16(size()); f += 16) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) rows_of(a_, row(size()), m * 16, f, a[m]);
#pragma unroll
        for (int half = 0; half < 2; ++half)  // lane t has features 2 t and 2 t + 1 of both operands
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const auto at = s_ + ((f + half * 8 + 2 * t) * ld + e + n * 8 + g);
            const float b[2] = {as_tf32(at[0]), as_tf32(at[ld])};
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              const uint32_t low = a[m][half * 2], high = a[m][half * 2 + 1];
              const float left[4] = {half_of<T>(low, 0), half_of<T>(high, 0), half_of<T>(low, 1), half_of<T>(high, 1)};
              multiply_add(acc[m][n], left, b);
            }
          }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          store(o_ + ((m * 16 + g) * o_row(size()) + e + n * 8 + 2 * t), o_row(size()), acc[m][n]);
    }
    for (int i = warp(); i < kChunk; i += kWarps) {
      float sum = 0;
      for (int f = lane(); f < size().features; f += 32) sum = fmaf(at_z(a_, i, f), z_[f], sum);
      sum = sum_of_warp(sum);
      if (lane() == 0) den_[i] = sum;
    }
  }

  // O += P V with P = A B^T where query i sees key j of the tile, 0 elsewhere, and the denominators' share of it.
  __device__ void weigh(int64_t from, int n, int64_t first) {
    Base::limit(from, n, first);
    __syncthreads();
    scores(p_, 0);
    if constexpr (Map::kSplits) scores(p_z_, f16(size()));
    __syncthreads();
    for (int i = warp(); i < kChunk; i += kWarps) {
      const float sum = sum_of_warp(lane() < limit_[i] ? static_cast<float>(p_z_[i * kScores + lane()]) : 0.0f);
      if (lane() == 0) den_[i] += sum;
    }
    for (int e = warp() * 16; e < e16(size()); e += kWarps * 16) mix(e);
  }

  // S += B^T V, 16 rows and columns at a time, z += the sum of B; both kept as they are by rows of zeros.
  __device__ void sum(int n) {
    const int across = e16(size()) / 16, g = lane() / 4, t = lane() % 4, ld = s_row(size());
    for (int unit = warp(); unit < f16(size()) / 16 * across; unit += kWarps) {
      const int f = unit / across * 16, e = unit % across * 16;
      float acc[2][4];
#pragma unroll
      for (int c = 0; c < 2; ++c) load(s_ + ((f + g) * ld + e + c * 8 + 2 * t), ld, acc[c]);
      for (int j = 0; j < n; j += 16) {
        uint32_t a[4], b[4];
        load_matrices<true>(a, b_ + ((j + lane() / 16 * 8 + lane() % 8) * row(size()) + f + lane() / 8 % 2 * 8));
        columns_of(v_, v_row(size()), j, e, b);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const uint32_t right[2] = {b[2 * c], b[2 * c + 1]};
          multiply_add<T>(acc[c], a, right);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) store(s_ + ((f + g) * ld + e + c * 8 + 2 * t), ld, acc[c]);
    }
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      float z = z_[f];
      for (int j = 0; j < n; ++j) z += at_z(b_, j, f);
      z_[f] = z;
    }
  }

 private:
  __host__ __device__ static int round16(int n) { return (n + 15) / 16 * 16; }
  __host__ __device__ static int f16(const Sizes& s) { return round16(s.features); }
  __host__ __device__ static int e16(const Sizes& s) { return round16(s.e); }
  // From row to row; chosen so that rows read together lie in different banks.
  __host__ __device__ static int row(const Sizes& s) {
    return (s.splits ? 2 : 1) * round16(s.d > s.features ? s.d : s.features) + 8;
  }
  __host__ __device__ static int v_row(const Sizes& s) { return e16(s) + 8; }
  __host__ __device__ static int s_row(const Sizes& s) { return e16(s) + 4; }
  __host__ __device__ static int o_row(const Sizes& s) { return e16(s) + 8; }
  __device__ float at_z(const Shared<T>& rows, int r, int f) const {
    return widened(static_cast<T>(rows[r * row(size()) + (Map::kSplits ? f16(size()) : 0) + f]));
  }

  // Begins to copy n rows as they are.
  __device__ void copy(const Rows<const T>& from, int64_t first, int n, int width, const Shared<T>& to,
                       int to_row) const {
    if (w_.call.by_eight) {
      const int eights = width / 8;
      for (int x = static_cast<int>(threadIdx.x); x < n * eights; x += kThreads) {
        const int r = x / eights, c = x % eights * 8;
        copy_async(to + (r * to_row + c), from.at(head_.b, head_.h, first + r) + c);
      }
    } else {
      for (int r = warp(); r < n; r += kWarps)
        for (int c = lane(); c < width; c += 32) to[r * to_row + c] = from.at(head_.b, head_.h, first + r)[c];
    }
  }
  // Waits for the copies and puts features in the place of the rows.
  template <bool kQuery>
  __device__ void map(int64_t first, int n, const Shared<T>& rows) const {
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const auto stage = stage_ + warp() * size().row();
    for (int r = warp(); r < kChunk; r += kWarps) {
      const auto to = rows + r * row(size());
      if (r < n) {
        const Place at{head_.b, head_.h, (kQuery ? head_.q_pos : head_.past) + first + r};
        const Row<float> row{stage, stage + size().z_at()};
        if constexpr (kFollows<Map>)
          Base::template follow<kQuery>(r, WideShared<T>{to}, row, [this](int j, int f) { return at_z(b_, j, f); });
        else
          write_features<kQuery>(w_.map, WideShared<T>{to}, at, row);
        __syncwarp();
      }
      for (int f = lane(); f < f16(size()); f += 32) {
        const bool real = r < n && f < size().features;
        to[f] = narrowed<T>(real ? static_cast<float>(stage[f]) : 0.0f);
        if constexpr (Map::kSplits)
          to[f16(size()) + f] = narrowed<T>(real ? static_cast<float>(stage[size().z_at() + f]) : 0.0f);
      }
      __syncwarp();
    }
  }

  // 16 x 16 of a matrix as the left operand has it, from its rows; as the right one has it, from its columns.
  __device__ static void rows_of(const Shared<T>& m, int ld, int r, int c, uint32_t (&to)[4]) {
    load_matrices<false>(to, m + ((r + lane() % 16) * ld + c + lane() / 16 * 8));
  }
  __device__ static void columns_of(const Shared<T>& m, int ld, int r, int c, uint32_t (&to)[4]) {
    load_matrices<true>(to, m + ((r + lane() % 16) * ld + c + lane() / 16 * 8));
  }
  // A lane's four of 16 x 8 sums.
  __device__ static void load(const Shared<float>& at, int ld, float (&to)[4]) {
    const Two low = as<Two>(at)[0], high = as<Two>(at + 8 * ld)[0];
    to[0] = low.x;
    to[1] = low.y;
    to[2] = high.x;
    to[3] = high.y;
  }
  __device__ static void store(const Shared<float>& at, int ld, const float (&from)[4]) {
    as<Two>(at)[0] = Two{from[0], from[1]};
    as<Two>(at + 8 * ld)[0] = Two{from[2], from[3]};
  }

  // P of 16 queries and keys to a warp, as tf32 has it.
  __device__ void scores(const Shared<float>& p, int at) const {
    const int i = warp() / 2 * 16, j = warp() % 2 * 16, g = lane() / 4, t = lane() % 4;
    float acc[2][4] = {};
    if (j < limit_[i + 15])
      for (int f = 0; f < f16(size()); f += 16) {
        uint32_t a[4], b[4];
        rows_of(a_, row(size()), i, at + f, a);
        load_matrices<false>(b, b_ + ((j + lane() / 16 * 8 + lane() % 8) * row(size()) + at + f + lane() / 8 % 2 * 8));
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const uint32_t right[2] = {b[2 * c], b[2 * c + 1]};
          multiply_add<T>(acc[c], a, right);
        }
      }
    const int low = limit_[i + g], high = limit_[i + g + 8];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = j + c * 8 + 2 * t;
#pragma unroll
      for (int x = 0; x < 4; ++x) acc[c][x] = key + x % 2 < (x < 2 ? low : high) ? as_tf32(acc[c][x]) : 0;
      store(p + ((i + g) * kScores + key), kScores, acc[c]);
    }
  }

  // 16 columns of O += P V.  A product takes hidden keys times 0, so values that are infinite or NaN stay out of it.
  __device__ void mix(int e) {
    float acc[2][2][4];
    multiply_values(e, acc, std::false_type{});
    bool finite = true;
    for_sums(e, [&](int m, int n, int x, int, int) { finite = finite && is_finite(acc[m][n][x]); });
    if (__any_sync(kAll, !finite)) {
      multiply_values(e, acc, std::true_type{});
      for_sums(e, [&](int m, int n, int x, int i, int c) {
        for (int j = 0; j < limit_[i]; ++j) {
          const float value = widened(static_cast<T>(v_[j * v_row(size()) + c]));
          if (!is_finite(value)) acc[m][n][x] = fmaf(p_[i * kScores + j], value, acc[m][n][x]);
        }
      });
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) store(sums_at(m, n, e), o_row(size()), acc[m][n]);
  }
  __device__ static bool is_finite(float x) { return x - x == 0; }
  // Of a lane's four sums.
  __device__ Shared<float> sums_at(int m, int n, int e) const {
    return o_ + ((m * 16 + lane() / 4) * o_row(size()) + e + n * 8 + lane() % 4 * 2);
  }
  // Calls visit(m, n, x, row, column) for all of a lane's sums.
  template <class Visit>
  __device__ static void for_sums(int e, const Visit& visit) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) visit(m, n, x, m * 16 + lane() / 4 + x / 2 * 8, e + n * 8 + lane() % 4 * 2 + x % 2);
  }
  // acc = O + P V, kClean: without values that are infinite or NaN.
  template <bool kClean>
  __device__ void multiply_values(int e, float (&acc)[2][2][4], std::bool_constant<kClean>) const {
    const int g = lane() / 4, t = lane() % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) load(sums_at(m, n, e), o_row(size()), acc[m][n]);
    for (int j = 0; j < limit_[kChunk - 1]; j += 16) {
      uint32_t v[4];
      columns_of(v_, v_row(size()), j, e, v);
#pragma unroll
      for (int half = 0; half < 2; ++half)  // lane t has keys 2 t and 2 t + 1 of both operands
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const auto at = p_ + ((m * 16 + g) * kScores + j + half * 8 + 2 * t);
          const Two low = as<Two>(at)[0], high = as<Two>(at + 8 * kScores)[0];
          const float p[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            float right[2] = {half_of<T>(v[n * 2 + half], 0), half_of<T>(v[n * 2 + half], 1)};
#pragma unroll
            for (int x = 0; kClean && x < 2; ++x) right[x] = is_finite(right[x]) ? right[x] : 0;
            multiply_add(acc[m][n], p, right);
          }
        }
    }
  }

  Shared<float> p_, p_z_, stage_;
  Shared<T> a_, b_, v_;
};

template <class Work>
using TilesOf = std::conditional_t<sizeof(typename Work::Type) == 2, MatrixTiles<Work>, PlainTiles<Work>>;

}  // namespace attnkit::cuda::linear
#endif
