// performer: softmax attention estimated with positive random features (FAVOR+).
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Choromanski et al.: Rethinking Attention with Performers, ICLR 2021, arXiv:2009.14794.
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A_i = phi(Q_i), B_j = phi(K_j),   x^ = D^-1/4 x
//   phi(x)_f = m^-1/2 (e^(w_f . x^ - |x^|^2 / 2 - c) + feature_eps),   E[phi(q) . phi(k)] e^(..c) = e^(q . k / D^1/2)
//
// c, the stabiliser, keeps e^ within range.  While feature_eps is 0 and there is no guard it cancels, so each feature
// may have its own, here one that follows the keys: S_f = sum_j e^(a_jf - c_f) v_j, and queries carry e^(c_f).  Cost
// per head: 2 m (D + E + 1)(N + M) flops; state m (E + 2) floats, whatever the length.
#include <attnkit/kernels/linear/core.hpp>
#include <attnkit/kernels/stages.hpp>
#include <optional>

#include "gradient.hpp"
#include "model.hpp"

namespace {

using attnkit::Guard;
using attnkit::Layout;
using attnkit::View;
using attnkit::performer::Directions;
using attnkit::performer::Model;
using attnkit::performer::Stabiliser;
namespace linear = attnkit::linear;
namespace simd = attnkit::simd;
using simd::at;
using simd::kLanes;
using simd::select;
using simd::Vec;

// A key may exceed c_f by this much before S_f and z_f are brought to a new scale: e^16 is far from overflowing, and
// rescaling becomes rare.
constexpr float kMargin = 16;
constexpr float kLeast = -3.402823466e38f;  // the least c_f: the most negative finite number

struct Map {
  int64_t m, d;
  Stabiliser stabiliser;
  float scale, root;  // D^-1/4, D^-1/2
  float fixed, eps;   // c of kFixed; feature_eps
  bool cancels;       // factors of a query's features do not matter
  int64_t width() const { return simd::whole_lanes(m); }
};

// Rows of `heads` heads on omega, asked for in order and projected kAhead at a time, so that omega is loaded once for
// several of them.  Omega is held transposed, [D][m], features in whole vectors: each element of a projection is one
// chain of multiply-adds over D, whichever rows are projected with it.
constexpr int64_t kAhead = 16;
template <class Isa>
class Projected {
 public:
  // x: row 0 of the first head.  rows: room for kAhead rows of map.width() floats of each head.  limit: rows of x from
  // there on are not touched.
  ATTNKIT_INLINE Projected(const Map& map, const float* omega, const View<const float>& of, const float* x,
                           int64_t heads, int64_t limit, float* rows)
      : map_(&map), omega_(omega), x_(x), head_(of.head), next_(of.next), heads_(heads), limit_(limit), rows_(rows) {}

  // omega x of row i of head h, with -infinity in the lanes past m.
  ATTNKIT_INLINE const float* operator()(int64_t i, int64_t h = 0) {
    if (i >= end_) load(i);
    return rows_ + (h * kAhead + i - begin_) * map_->width();
  }
  // |x|^2 of row i.
  ATTNKIT_INLINE float square(int64_t i, int64_t h = 0) const {
    const float* x = x_ + h * head_ + i * next_;
    return simd::dot<Isa>(x, x, map_->d);
  }

 private:
  ATTNKIT_INLINE void load(int64_t i) {
    const int64_t width = map_->width(), n = std::min(kAhead, limit_ - i);
    begin_ = i;
    end_ = i + n;
    for (int64_t h = 0; h < heads_; ++h) {
      float* rows = rows_ + h * kAhead * width;
      std::memset(rows, 0, static_cast<size_t>(n * width) * sizeof(float));
      simd::add_product<Isa, float>({x_ + h * head_ + i * next_, next_}, {omega_, map_->d, width, width},
                                    {rows, n, width, width});
      for (int64_t r = 0; r < n; ++r)
        for (int64_t f = map_->m; f < width; ++f) rows[r * width + f] = -__builtin_inff();
    }
  }
  const Map* map_;
  const float *omega_, *x_;
  int64_t head_, next_, heads_, limit_;
  float* rows_;
  int64_t begin_ = 0, end_ = 0;
};

// One head of keys of one batch row while it runs, and the heads of queries that read it.
template <class Isa>
struct Head {
  const Map& map;
  linear::Walker<Isa> walker;
  Projected<Isa> queries, keys;
  float *s, *z, *c;  // c: [m] when running
  int64_t e;
  float constant;  // c otherwise

  ATTNKIT_INLINE void append(int64_t j, bool first, const float* v) {
    const float* p = keys(j);
    const float norm = keys.square(j) * map.root * 0.5f;
    if (map.stabiliser == Stabiliser::kRunning) follow(p, norm, first);
    float* row = walker.key_row();
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec<Isa> y = at<Isa>(p + f) - norm, own{};
      if (map.stabiliser == Stabiliser::kRunning) simd::load(c + f, map.m - f, own);
      y -= own + constant;
      simd::exp(y);
      simd::store(y + map.eps, map.m - f, row + f);
    }
    walker.append(row, v);
  }

  ATTNKIT_INLINE void read(int64_t i, int64_t h, float* o) {
    const float* p = queries(i, h);
    const bool running = map.stabiliser == Stabiliser::kRunning;
    const float norm = map.cancels ? 0 : queries.square(i, h) * map.root * 0.5f;
    const float factor = map.cancels ? 1 : 1 / static_cast<float>(map.m);
    Vec<Isa> most = -__builtin_inff() - Vec<Isa>{}, own{};
    for (int64_t f = 0; f < map.m; f += kLanes) {
      if (running) simd::load(c + f, map.m - f, own);
      const Vec<Isa> y = at<Isa>(p + f) + own;
      most = select(y > most, y, most);
    }
    const float shift = simd::largest(most) + norm;
    float* row = walker.query_row();
    for (int64_t f = 0; f < map.m; f += kLanes) {
      if (running) simd::load(c + f, map.m - f, own);
      Vec<Isa> y = at<Isa>(p + f) + own - shift;
      simd::exp(y);
      simd::store((y + map.eps) * factor, map.m - f, row + f);
    }
    walker.read(row, o);
  }

  // c follows a key that exceeds it.  A key that is -infinity must leave c finite, for those that come after it.
  ATTNKIT_INLINE void follow(const float* p, float norm, bool first) {
    Vec<Isa> over = -__builtin_inff() - Vec<Isa>{};
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec<Isa> y = at<Isa>(p + f) - norm, old;
      if (first) simd::store(select(y > kLeast, y, kLeast - Vec<Isa>{}), map.m - f, c + f);
      simd::load(c + f, map.m - f, old);
      y -= old;
      over = select(y > over, y, over);
    }
    if (!first && simd::largest(over) > kMargin) rescale(p, norm);
  }

  ATTNKIT_INLINE void rescale(const float* p, float norm) {
    walker.flush();  // what waits was made for the old scale
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec<Isa> old;
      simd::load(c + f, map.m - f, old);
      const Vec<Isa> y = at<Isa>(p + f) - norm;
      Vec<Isa> factor = old - y;
      simd::exp(factor);
      float exponents[kLanes], factors[kLanes];
      simd::store(y, exponents);
      simd::store(factor, factors);
      for (int64_t l = 0; l < kLanes && f + l < map.m; ++l) {
        if (!(exponents[l] - c[f + l] > kMargin)) continue;
        c[f + l] = exponents[l];
        z[f + l] *= factors[l];
        for (int64_t x = 0; x < e; ++x) s[(f + l) * e + x] *= factors[l];
      }
    }
  }
};

// Scratch that workers may share: omega, laid out once for all heads, and the sums of a head without a state.
struct Shared {
  float *omega, *sums;
  Shared(Layout& layout, const linear::Shape& shape, const Map& map, bool has_state)
      : omega(layout.take(map.width() * map.d)), sums(has_state ? nullptr : layout.take(shape.head_floats())) {}
};

// A worker's own: features, and rows on omega.
struct Own {
  float *features, *keys, *queries;
  Own(Layout& layout, const linear::Shape& shape, const Map& map, int64_t together)
      : features(linear::Scratch<>(layout, shape, true).rows),
        keys(layout.take(kAhead * map.width())),
        queries(layout.take(together * kAhead * map.width())) {}
};

// One run; called for some heads of all batch rows, `together` at a time, which share a head of keys.
struct Run {
  const linear::Shape& shape;
  const Guard& guard;
  const Map& map;
  bool causal;
  const attn_run& run;
  attnkit::Qkv<> x;
  View<const float> omega;
  attnkit::State state;
  int64_t together;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* memory) const {
    Layout layout(memory);
    const Shared shared(layout, shape, map, bool{state});
    const Own own(layout, shape, map, together);
    pack<Isa>(0, map.m, shared.omega);
    const int64_t items = shape.heads / together;
    for (int64_t item = begin; item < end; ++item) one<Isa>(item / items, item % items * together, shared, own);
  }

  // Features [from, to) of omega.
  template <class Isa>
  ATTNKIT_INLINE void pack(int64_t from, int64_t to, float* columns) const {
    simd::pack_keys<Isa>(
        to - from, map.d, [&](int64_t r) { return omega.row(from + r); }, [&](int64_t) { return map.scale; },
        columns + from, map.width());
  }

  // Heads of queries from `first` on, and the head of keys whose sums are s.
  template <class Isa>
  ATTNKIT_INLINE Head<Isa> head_of(int64_t b, int64_t first, float* s, const float* columns, const Own& own,
                                   linear::Waiting<float>& waiting) const {
    const attnkit::Sight sight(run, b, causal);
    float* z = s + map.m * shape.e;
    return {map,
            linear::Walker<Isa>(shape, guard, s, own.features, waiting),
            Projected<Isa>(map, columns, x.q, x.q.row(b, first, 0), together, sight.queries, own.queries),
            Projected<Isa>(map, columns, x.k, x.k.row(b, first / shape.group(), 0), 1, sight.fresh, own.keys),
            s,
            z,
            z + map.m,
            shape.e,
            map.stabiliser == Stabiliser::kFixed ? map.fixed : 0};
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t first, const Shared& shared, const Own& own) const {
    const attnkit::Sight sight(run, b, causal);
    const int64_t h = first / shape.group();
    float* s = state.head(b, h, shape.head_floats(), shared.sums);
    linear::Waiting<float> waiting;
    Head<Isa> head = head_of<Isa>(b, first, s, shared.omega, own, waiting);
    stabilise(head, sight.fresh);
    sight.walk(
        bool{state},
        [&](int64_t from, int64_t to) __attribute__((always_inline)) {
          for (int64_t j = from; j < to; ++j) head.append(j, sight.past + j == 0, x.v.row(b, h, j));
        },
        [&](int64_t i) __attribute__((always_inline)) {
          for (int64_t n = 0; n < together; ++n) head.read(i, n, x.o.row(b, first + n, i));
        });
    head.walker.end();
  }

  template <class Isa>
  ATTNKIT_INLINE void stabilise(Head<Isa>& head, int64_t keys) const {
    if (map.stabiliser != Stabiliser::kGlobal) return;
    const Projected<Isa> from_the_first = head.keys;
    head.constant = most(head.keys, keys);
    head.keys = from_the_first;
  }

  // The largest w_f . k^ of n keys.
  template <class Isa>
  ATTNKIT_INLINE float most(Projected<Isa>& keys, int64_t n) const {
    Vec<Isa> max = -__builtin_inff() - Vec<Isa>{};
    for (int64_t j = 0; j < n; ++j) {
      const float* p = keys(j);
      for (int64_t f = 0; f < map.m; f += kLanes) {
        const Vec<Isa> y = at<Isa>(p + f);
        max = select(y > max, y, max);
      }
    }
    return simd::largest(max);
  }
};

constexpr int64_t kQueries = 64;  // that a worker takes at least

// A head of a whole sequence, all of whose queries see all keys: workers share omega and the queries, one appends keys.
struct Split {
  const Run& job;
  int64_t b, h;
  attnkit::Sight sight;
  Shared shared;

  Split(const Run& run, int64_t row, int64_t head, void* memory) : Split(run, row, head, Layout(memory)) {}
  Split(const Run& run, int64_t row, int64_t head, Layout layout)
      : job(run), b(row), h(head), sight(run.run, row, false), shared(layout, run.shape, run.map, false) {}

  int stages() const { return sight.queries > 0 && sight.fresh > 0 ? 3 : 0; }
  int64_t pieces(int stage) const {
    if (stage == 0) return job.map.width() / kLanes;
    return stage == 1 ? 1 : (sight.queries + kQueries - 1) / kQueries;
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void* memory) const {
    if (stage == 0) {
      job.pack<Isa>(begin * kLanes, std::min(end * kLanes, job.map.m), shared.omega);
      return;
    }
    Layout layout(memory);
    const Own own(layout, job.shape, job.map, 1);
    const int64_t floats = job.shape.head_floats(), kv = h / job.shape.group();
    float* s = stage == 1 ? job.state.head(b, kv, floats, shared.sums) : shared.sums;
    linear::Waiting<float> waiting;
    Head<Isa> head = job.head_of<Isa>(b, h, s, shared.omega, own, waiting);
    if (stage == 1) {
      job.stabilise(head, sight.fresh);
      for (int64_t j = 0; j < sight.fresh; ++j) head.append(j, j == 0, job.x.v.row(b, kv, j));
    } else {
      const int64_t stop = std::min(end * kQueries, sight.queries);
      for (int64_t i = begin * kQueries; i < stop; ++i) head.read(i, 0, job.x.o.row(b, h, i));
    }
    head.walker.end();
  }
};

struct Performer : Model {
  struct Plan {
    bool is_f64;
    uint32_t workers;
    simd::Staged staged;   // scratch of f32 runs
    uint64_t exact_bytes;  // of a worker elsewhere
  };

  Performer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : Model(b, values),
        block(b),
        shape(b, true),
        map{m,
            d,
            stabiliser,
            static_cast<float>(scale),
            static_cast<float>(root),
            static_cast<float>(fixed),
            static_cast<float>(feature_eps),
            cancels},
        exact{m, d, scale, root, fixed, feature_eps, guard, cancels, stabiliser == Stabiliser::kGlobal} {
    shape.features = m;
    shape.extra = stabiliser == Stabiliser::kRunning ? m : 0;
    io = ports.qkv(shape, "weighted mean of the values");
    list(ports);
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    check_stabiliser(block, r);
    linear::cost(shape, r, 2.0 * static_cast<double>(map.m * map.d), info);
    const simd::Staged staged{Layout::measure<Shared>(shape, map, r.streams()),
                              Layout::measure<Own>(shape, map, shape.group())};
    info.scratch(r, staged.worker_bytes());
    uint64_t shared = 0;
    attnkit::with_real(r.is_f64(), [&](auto real) { shared = Layout::measure<Directions<decltype(real)>>(exact); });
    return {r.is_f64(), r.workers, staged, attnkit::latents::plan(latents(), r, info, shared)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (plan.is_f64) return compute<double>(plan, run, nullptr);
    const int64_t together = simd::heads_together(run, shape), rows = together * run.queries + run.keys;
    const Run body{shape, guard, map, block.causal != 0, run, {run, io}, {run, omega}, attnkit::State(run), together};
    const double flops = 2.0 * static_cast<double>(rows * map.m * (map.d + shape.e + 1));
    const int64_t items = run.batch * shape.heads / together;
    if (items < static_cast<int64_t>(run.exec->workers) && !block.causal && !run.visible && !run.state)
      simd::for_stages<Split>(run, shape.heads, flops, plan.staged, body);
    else
      simd::for_items(run, items, {flops, plan.staged.worker_bytes()}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    attnkit::with_real(plan.is_f64, [&](auto real) {
      const attnkit::QkvGrad<decltype(real)> g(grad, io);
      compute(plan, *grad.run, &g);
    });
  }

  // The f64 run, or with g the gradient.
  template <class Real>
  void compute(const Plan& plan, const attn_run& run, const attnkit::QkvGrad<Real>* g) const {
    if (run.batch == 0) return;
    Layout layout(static_cast<char*>(run.exec->scratch) + plan.exact_bytes * plan.workers);
    const Directions<Real> directions(layout, exact);
    directions.fill(exact, {run, omega});
    // Heads of queries that share a head of keys one after another: they add to its gradients.
    for (int64_t n = 0; n < shape.group(); ++n) {
      attnkit::Qkv<Real> x(run, io);
      x.q = x.q.every(shape.group(), n);
      x.o = x.o.every(shape.group(), n);
      std::optional<attnkit::QkvGrad<Real>> own;
      if (g) {
        own = *g;
        own->q = g->q.every(shape.group(), n);
        own->o = g->o.every(shape.group(), n);
      }
      const attnkit::QkvGrad<Real>* some = own ? &*own : nullptr;
      const attnkit::performer::RandomFeatures<Real> features{exact, directions, x, some};
      attnkit::latents::for_heads(latents(), features, block.causal != 0, run, x, some, plan.exact_bytes, n > 0);
    }
  }

  attnkit::latents::Shape latents() const { return {shape.kv_heads, map.m, shape.e}; }

  attn_block block;
  linear::Shape shape;
  Map map;
  attnkit::performer::FeatureMap exact;
  attnkit::QkvPorts io;
};

}  // namespace

ATTNKIT_PLUGIN(Performer)
