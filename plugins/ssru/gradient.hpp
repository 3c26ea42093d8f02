// The gradient of ssru.
//
// With g_t that of o_t, w_t = x_t W and z_t = x_t W_f + b_f:
//
//   dc_t = [c_t > 0] g_t + f_(t+1) dc_(t+1),   dw_t = (1 - f_t) dc_t,   dz_t = f_t (1 - f_t) (c_(t-1) - w_t) dc_t
//   dW = sum_t x_t^T dw_t,   dW_f = sum_t x_t^T dz_t,   db_f = sum_t dz_t,   dx_t = dw_t W^T + dz_t W_f^T
//
// A run under ATTN_TRAIN saves w, f, 1 - f and c.  First every worker scans channels of its own back, then rows are
// shared.
#pragma once
#include <attnkit/kernels/gradient.hpp>

#include "scan.hpp"

namespace ssru {

template <class Real>
struct Gradient {
  static constexpr int64_t kLanes = simd::Lanes<Real>::count;

  Shape shape;
  const attn_run& run;
  Learned<const Real> learned;
  Learned<Real> to;
  View<const Real> x;
  View<Real> dx;
  View<const Real> given;  // of o
  Real* shared;            // dw and dz of every row, each of all channels

  void operator()(uint64_t bytes) const {
    const int64_t d = shape.channels, rows = run.batch * run.keys, tiles = (run.keys + kRows - 1) / kRows;
    const double flops = 4.0 * static_cast<double>(rows * d);
    attnkit::for_each_item(run, (d + kLanes - 1) / kLanes, {flops * static_cast<double>(kLanes), bytes},
                           [&](int64_t item, void*) { scan_back(item * kLanes); });
    if (!dx) return;
    const double tile_flops = 4.0 * static_cast<double>(kRows * d * d);
    attnkit::for_each_item(run, run.batch * tiles, {tile_flops, bytes},
                           [&](int64_t item, void*) { give_rows(item / tiles, item % tiles * kRows); });
  }

 private:
  Real* of_row(int64_t b, int64_t t) const { return shared + (b * run.keys + t) * 2 * shape.channels; }
  const Real* saved(int64_t b, int64_t t) const {
    return static_cast<const Real*>(run.saved) + (b * run.keys + t) * kSaved * shape.channels;
  }

  // dw and dz of channels [first, first + lanes), and the gradients of their columns.
  void scan_back(int64_t first) const {
    const int64_t d = shape.channels, here = std::min(kLanes, d - first), width = d / shape.heads;
    Real bias[kLanes] = {};
    for (int64_t b = 0; b < run.batch; ++b) {
      const Sight sight(run, b, true);
      Real dc[kLanes] = {};
      int64_t i = sight.queries - 1;
      for (int64_t t = sight.fresh - 1; t >= 0; --t) {
        const Real *w = saved(b, t) + first, *f = w + d, *write = f + d, *c = write + d;
        const Real* before = t > 0 ? saved(b, t - 1) + 3 * d + first : nullptr;
        for (; i >= 0 && sight.seen(i) - 1 - sight.past >= t; --i)
          for (int64_t n = 0; n < here; ++n)
            if (!(c[n] <= 0)) dc[n] += given.row(b, (first + n) / width, i)[(first + n) % width];
        Real *dw = of_row(b, t) + first, *dz = dw + d;
        for (int64_t n = 0; n < here; ++n) {
          dw[n] = write[n] * dc[n];
          dz[n] = f[n] * dw[n] * ((before ? before[n] : 0) - w[n]);
          bias[n] += dz[n];
          dc[n] *= f[n];
        }
      }
      attnkit::in_vectors<Real>([&](auto) __attribute__((always_inline)) {
        for (const auto& [matrix, offset] : {std::pair(to.value, int64_t{0}), {to.forget, d}})
          for (int64_t k = 0; matrix && k < d; ++k) {
            Real sum[kLanes] = {};
            for (int64_t t = 0; t < sight.fresh; ++t) {
              const Real in = x.row(b, 0, t)[k], *g = of_row(b, t) + offset + first;
              for (int64_t n = 0; n < here; ++n) sum[n] += in * g[n];
            }
            for (int64_t n = 0; n < here; ++n) matrix.row(k)[first + n] += sum[n];
          }
      });
    }
    for (int64_t n = 0; to.bias && n < here; ++n) to.bias[first + n] += bias[n];
  }

  // dx of rows [t, t + kRows) of batch row b, or up to the last one.
  void give_rows(int64_t b, int64_t t) const {
    const int64_t d = shape.channels, end = std::min(t + kRows, Sight(run, b, true).fresh);
    attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      using Isa = decltype(isa);
      for (int64_t k = 0; k < d; ++k)
        for (int64_t row = t; row < end; ++row)
          dx.row(b, 0, row)[k] += simd::dot<Isa>(of_row(b, row), learned.value.row(k), d) +
                                  simd::dot<Isa>(of_row(b, row) + d, learned.forget.row(k), d);
    });
  }
};

}  // namespace ssru
