// latte: attention through latents, softmax over the latents of a query times softmax over the positions of each
// latent.
// The slow form to compare with the paper: reference.hpp.
//
// Dolga, Cobzarenco, Barber: Latent Attention for Linear Time Transformers, 2024, arXiv:2402.17512.
//
//   o_i = sum_l softmax_l(a_i)_l sum_j softmax_j(b_.l)_j v_j,   a = X W_q [N, l], b = X W_k [M, l], l = L / H per head
//
// over the keys j that query i sees.  It runs as the paper's causal recursion with a running maximum m in every form:
//
//   m_l' = max(m_l, b_jl),  f_l = e^(m_l - m_l'),  z_l' = z_l f_l + e^(b_jl - m_l'),  S_l' = S_l f_l + e^(b_jl - m_l')
//   v_j o_i  = (sum_l e^(a_il - max a_i) S_l / z_l) / sum_l e^(a_il - max a_i)
//
// z >= 1 after the first key, so nothing stands under the fraction but z.  As in kernels/linear/core.hpp the work of a
// head is a list of events in time order; here an event may also shrink S, so a token that raises a maximum does not
// end the list.  What an event does depends on the tokens before it alone: equal bits however a sequence is split, and
// in whole runs too.  Cost per head: 2 l (E+1)(N+M) flops; state l (E+2) floats, whatever the length.
#include <attnkit/kernels/latents.hpp>
#include <attnkit/kernels/linear/core.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::simd;
using attnkit::Layout;
using attnkit::Sight;

constexpr int64_t kEvents = 16;
constexpr float kLeast = std::numeric_limits<float>::lowest();

// A head's state is S[l][E], z[l], m[l]; a z of 0 means that no logit above -infinity came yet.
struct Shape : attnkit::latents::Shape {  // l = L / H
  float scale;
  int64_t head_floats() const { return latents * (values + 2); }
};

// A worker's scratch: a key's weights, its shrinking factors and a query's weights by event, then S, z, m if there is
// no state.
struct Scratch {
  float *rows, *sums;
  Scratch(Layout& layout, const Shape& s, bool has_state)
      : rows(layout.take(3 * kEvents * whole_lanes(s.latents))),
        sums(has_state ? nullptr : layout.take(s.head_floats())) {}
};

// If v: S = S shrink (if any grew) + k v^T.  Then if o: o = factor q^T S.
struct Event {
  const float *k, *shrink, *v, *q;
  float *o, factor;
};

// Puts `other` into the lanes from n on.
template <class V>
ATTNKIT_INLINE void mask(int64_t n, float other, V& x) {
  constexpr float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  x = select(attnkit::simd::load_as<V>(lanes) < static_cast<float>(n), x, other - V{});
}

// One head of one batch row while it runs, or some columns of S.
template <class Isa>
class Walker {
 public:
  // events: room for kEvents.
  ATTNKIT_INLINE Walker(const Shape& shape, float* head, float* rows, Event* events)
      : shape_(shape),
        s_(head),
        z_(head + shape.latents * shape.values),
        m_(z_ + shape.latents),
        rows_(rows),
        events_(events) {}

  ATTNKIT_INLINE void append(const float* logits, const float* v) {
    if (n_ == kEvents) flush();
    float *k = row(0), *shrink = row(1);
    const bool grew = raise(logits, k, shrink);
    if (grew) {
      for (int64_t l = 0; l < shape_.latents; l += kLanes) {
        Vec<Isa> x = at<Isa>(shrink + l);
        attnkit::simd::exp(x);
        store(x, shrink + l);
      }
      for (int64_t l = 0; l < shape_.latents; ++l) z_[l] *= shrink[l];
    }
    for (int64_t l = 0; l < shape_.latents; ++l) z_[l] += k[l];
    events_[n_++] = {k, grew ? shrink : nullptr, v, nullptr, nullptr, 0};
  }

  // A query rides in the event of the key before it, if that has none yet.
  ATTNKIT_INLINE void read(const float* logits, float* o) {
    if (n_ == 0 || events_[n_ - 1].o) {
      if (n_ == kEvents) flush();
      events_[n_++] = {nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    }
    --n_;
    float* q = row(2);
    Event& event = events_[n_++];
    event.factor = softmax(logits, q);
    event.q = q;
    event.o = o;
    std::memset(o, 0, static_cast<size_t>(shape_.values) * sizeof(float));
  }

  // As of linear's Walker: a function of its own, on a copy.
  ATTNKIT_INLINE void flush() {
    if (n_ == 0) return;
    apart<Isa>(Flush{*this});
    n_ = 0;
  }
  ATTNKIT_INLINE void end() {
    if (n_ == 1 && !events_[0].shrink)
      take(true);
    else
      flush();
  }

 private:
  struct Flush {
    Walker walker;
    template <class>
    ATTNKIT_INLINE void operator()() const {
      walker.take(false);
    }
  };
  ATTNKIT_INLINE void take(bool one) const {
    if (one)
      attnkit::linear::step<Isa>(s_, shape_.latents, shape_.values, events_[0]);
    else
      attnkit::linear::sweep<Isa>(s_, shape_.latents, shape_.values, events_, n_);
    for (const Event* x = events_; x != events_ + n_; ++x)
      if (x->o)
        for (int64_t c = 0; c < shape_.values; ++c) x->o[c] *= x->factor;
  }
  // Row `which` of event n_: weights of its key, shrinking factors, weights of its query.
  ATTNKIT_INLINE float* row(int64_t which) const { return rows_ + (3 * n_ + which) * whole_lanes(shape_.latents); }

  // m becomes the largest of itself and the logits, k = e^(logits - m), shrink = old m - m.  Did any latent's m grow?
  // A NaN is never the largest; its own latent carries it.
  ATTNKIT_INLINE bool raise(const float* logits, float* k, float* shrink) {
    Vec<Isa> grown{};
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      const int64_t left = shape_.latents - l;
      Vec<Isa> x, sums, old;
      load(logits + l, left, x);
      load(z_ + l, left, sums);
      load(m_ + l, left, old);
      x *= shape_.scale;
      old = select(sums == 0.0f, kLeast - Vec<Isa>{}, old);
      if (left < kLanes) mask(left, kLeast, x);
      const Vec<Isa> top = select(x > old, x, old);
      grown = select(x > old, 1.0f - Vec<Isa>{}, grown);
      store(top, left, m_ + l);
      x -= top;
      attnkit::simd::exp(x);
      store(x, k + l);
      store(old - top, shrink + l);
    }
    return largest(grown) != 0;
  }

  // q_l = e^(a_l - max a) / z_l; returns 1 / the sum over l of e^(a_l - max a).
  ATTNKIT_INLINE float softmax(const float* logits, float* q) const {
    Vec<Isa> most = -__builtin_inff() - Vec<Isa>{}, total{};
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      const int64_t left = shape_.latents - l;
      Vec<Isa> x;
      load(logits + l, left, x);
      x *= shape_.scale;
      if (left < kLanes) mask(left, -__builtin_inff(), x);
      most = select(x > most, x, most);
      store(x, q + l);
    }
    const float top = largest(most);
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      Vec<Isa> x = at<Isa>(q + l) - top, sums;
      load(z_ + l, shape_.latents - l, sums);
      attnkit::simd::exp(x);
      total += x;
      store(x / sums, q + l);
    }
    return 1 / sum(total);
  }

  const Shape& shape_;
  float *s_, *z_, *m_, *rows_;
  Event* events_;
  int64_t n_ = 0;
};

// One run; called for parts of heads of all batch rows.  A part is some columns of S and of the values: they meet in no
// sum, but each part weighs the logits for itself.
struct Run {
  const Shape& shape;
  const attn_run& run;
  bool causal;
  int64_t parts, columns;
  attnkit::Qkv<> x;
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* memory) const {
    Layout layout(memory);
    const Scratch scratch(layout, shape, bool{state});
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / parts / shape.heads, h = item / parts % shape.heads, from = item % parts * columns;
      Shape part = shape;
      part.values = std::min(columns, shape.values - from);
      float* head = state.head(b, h, part.head_floats(), scratch.sums);
      Event events[kEvents];
      Walker<Isa> walker(part, head, scratch.rows, events);
      Sight(run, b, causal)
          .walk(
              bool{state},
              [&](int64_t first, int64_t last) __attribute__((always_inline)) {
                for (int64_t j = first; j < last; ++j) walker.append(x.k.row(b, h, j), x.v.row(b, h, j) + from);
              },
              [&](int64_t i)
                  __attribute__((always_inline)) { walker.read(x.q.row(b, h, i), x.o.row(b, h, i) + from); });
      walker.end();
    }
  }
};

struct Latte : latte::Model {
  struct Plan {
    bool is_f64;
    uint64_t run_bytes, exact_bytes;  // scratch of a worker, in f32 runs and elsewhere
  };

  Latte(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : Model(b, values),
        shape{{b.heads, latents, b.head_width}, static_cast<float>(scale)},
        io(list(ports)),
        exact{shape, scale, b.causal != 0, io} {}

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    check_role();
    info.state(r, shape.heads * shape.head_floats());
    info.flops = static_cast<uint64_t>(static_cast<double>(r.batch * shape.heads) * shape.flops(r.queries + r.keys));
    const uint64_t run_bytes = info.scratch(r, Layout::measure<Scratch>(shape, r.streams()));
    return {r.is_f64(), run_bytes, exact.plan(r, info)};
  }

  void backward(const Plan& plan, const attn_grad& grad) const { exact.backward(grad, plan.exact_bytes); }

  void run(const Plan& plan, const attn_run& run) const {
    if (plan.is_f64) return exact.run(run, plan.exact_bytes);
    const int64_t heads = run.batch * shape.heads, workers = run.exec->workers, values = shape.values;
    // A state is one for all columns.
    const int64_t wanted = run.state || heads == 0 ? 1 : (workers + heads - 1) / heads;
    const int64_t columns = whole_lanes((values + wanted - 1) / wanted), parts = (values + columns - 1) / columns;
    const Run body{shape, run, block.causal != 0, parts, columns, {run, io}, attnkit::State(run)};
    const double flops = shape.flops(run.queries + run.keys) / static_cast<double>(parts);
    for_items(run, heads * parts, {flops, plan.run_bytes}, body);
  }

  Shape shape;
  attnkit::QkvPorts io;
  attnkit::latents::SoftmaxAttention exact;
};

}  // namespace

ATTNKIT_PLUGIN(Latte)
