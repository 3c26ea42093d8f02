// rope_linear: linear attention with elu(x) + 1 features whose first half is turned by the position.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Su et al.: RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864, Eq. 19; half of the
// features, adjacent pairs and the query's scale as in Agostinelli, Hong, Chen: LeaPformer, ICML 2024.
//
//   o_i = sum_j (R_i A_i . R_j B_j) v_j / g(sum_j A_i . B_j),   A = elu(s Q) + 1, B = elu(K) + 1
//
// R_p turns features 2m and 2m + 1 by p base^(-2m / r) for 2m < r, positions from 0, r = D/2; the denominator is not
// turned, so it stays positive.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

#include "model.hpp"

namespace {

using attnkit::linear::At;
using attnkit::linear::Place;

struct RopeLinear : rope_linear::Model {
  explicit RopeLinear(const attnkit::linear::Setup& s) : Model(s) {
    s.shape.split = d;
    for (int64_t f = 0; f < rotated; f += 2) {
      const double part = static_cast<double>(f) / static_cast<double>(rotated);
      turns.push_back(std::pow(base, -part) / 1.5707963267948966);
    }
  }

  // A row is the D turned features for S, then the D plain ones for z.
  template <class Isa, class Real>
  ATTNKIT_INLINE void spread(const Real* x, double by, int64_t position, Real* row) const {
    attnkit::elu1<Isa>(x, by, d, row + d);
    std::memcpy(row, row + d, static_cast<size_t>(d) * sizeof(Real));
    turn(position, row);
  }
  // Turns pairs of features by their angles at a position; back, if the position is negative.
  template <class Real>
  ATTNKIT_INLINE void turn(int64_t position, Real* row) const {
    for (size_t m = 0; m < turns.size(); ++m) {
      Real c, s;
      attnkit::quarter_turns(static_cast<double>(position) * turns[m], c, s);
      const Real even = row[2 * m], odd = row[2 * m + 1];
      row[2 * m] = even * c - odd * s;
      row[2 * m + 1] = even * s + odd * c;
    }
  }
  // The turned features' gradient, turned back, and that of the plain ones.
  template <class Isa, class Real>
  ATTNKIT_INLINE void gradient(const Real* x, double by, int64_t position, const Real* row, const Real* given,
                               Real* to) const {
    std::memcpy(to, given, static_cast<size_t>(d) * sizeof(Real));
    turn(-position, to);
    for (int64_t f = 0; f < d; ++f) to[f] += given[d + f];
    attnkit::elu1_gradient<Isa>(x, row + d, by, d, to, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query(const Real* x, const At<Isa>& at, Real* row) const {
    spread<Isa>(x, scale, at.position, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key(const Real* x, const At<Isa>& at, Real* row) const {
    spread<Isa>(x, 1, at.position, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query_gradient(const Real* x, const At<Isa>& at, Real* row, const Real* given, Real* to) const {
    gradient<Isa>(x, scale, at.position, row, given, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key_gradient(const Real* x, const At<Isa>& at, Real* row, const Real* given, Real* to) const {
    gradient<Isa>(x, 1, at.position, row, given, to);
  }

  std::vector<double> turns;  // quarter turns of each pair per position
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<RopeLinear>)
