// The linear core: o_i = (a_i^T S_i) / g(a_i^T z_i) with S_i = sum b_j v_j^T, z_i = sum b_j over the keys i sees.
//
// One kernel serves whole, causal, prefix, streaming and cross attention.  A feature map is a small struct with
//   ATTNKIT_INLINE void query(const float* x, int64_t b, int64_t h, int64_t position, float* row) const;
//   ATTNKIT_INLINE void key(...the same...) const;
// that write D' features of row x (D wide) at a position from 0.  A map may write other features for z than for S
// (Shape::split), or keep numbers of its own per head and change the scale of what was summed (Rescales).  Per head the
// work is a list of events in time order, append a key or read a query; a register tile of S walks the list, so S is
// loaded once per kEvents.  Each element of S, z and o is one chain of additions in an order that no chunking changes:
// equal bits however a stream is split.  State per head: S[D'][E], then z[D'], f32.  Cost per head: 2 D'(E+1) flops per
// key and per query.
#ifndef ATTNKIT_KERNELS_LINEAR_HPP
#define ATTNKIT_KERNELS_LINEAR_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/simd.hpp>

namespace attnkit::linear {

constexpr int64_t kEvents = 16;

struct Shape {
  int64_t heads, width, features, values;  // H, D, D', E
  int64_t split = 0;                       // where in a row the D' features for z begin; 0: they are those for S
  int64_t extra = 0;                       // floats of the map's own in a head's state, behind z
  int64_t row() const { return features + split; }
  uint64_t head_bytes() const { return static_cast<uint64_t>(features * (values + 1) + extra) * sizeof(float); }
};

// A map whose features depend on what was summed.  Before keys [from, to) of k are appended, rescale may multiply row f
// of S and entry f of z in `head` (S, z, then extra) by a factor; key and query get `head` as a last argument.
template <class Map>
concept Rescales = requires(const Map& map, const View<const float>& k, float* head) {
  map.rescale(k, int64_t{}, int64_t{}, int64_t{}, int64_t{}, head);
};

struct Ports {
  uint32_t q, k, v, o;
};

struct Plan {
  uint64_t worker_bytes;  // scratch of one worker: features of kEvents keys and queries, then S and z if stateless
  double item_flops;      // one head of one batch row
};

// Fills sizes and cost.  map_flops: of the feature map, per row and head.
inline Plan plan(const Shape& s, const attn_request& r, double map_flops, attn_info& info) {
  const bool stream = (r.flags & ATTN_STREAM) != 0;
  const auto rows = static_cast<double>(r.queries + r.keys);
  Plan plan;
  plan.item_flops = rows * (2.0 * static_cast<double>(s.features * (s.values + 1)) + map_flops);
  plan.worker_bytes =
      aligned(static_cast<uint64_t>(2 * kEvents * s.row()) * sizeof(float)) + (stream ? 0 : aligned(s.head_bytes()));
  info.scratch_bytes = plan.worker_bytes * r.workers;
  info.state_bytes = stream ? aligned(static_cast<uint64_t>(s.heads) * s.head_bytes()) : 0;
  const auto items = static_cast<uint64_t>(r.batch * s.heads);
  const uint64_t state = stream ? items * s.head_bytes() : 0;
  info.flops = items * static_cast<uint64_t>(plan.item_flops);
  info.bytes_read = items * static_cast<uint64_t>(r.queries * s.width + r.keys * (s.width + s.values)) * 4 + state;
  info.bytes_written = items * static_cast<uint64_t>(r.queries * s.values) * 4 + (r.keys > 0 ? state : 0);
  return plan;
}

// Append k, v if v; then read q into o if o.
struct Event {
  const float *k, *v, *q;
  float *o, den;
};

// Walks the events with a tile of R rows and C Vecs of S in registers.
template <int R, int C>
ATTNKIT_INLINE void walk(float* s, int64_t stride, int64_t f, int64_t e, Event* events, int64_t n) {
  using namespace simd;
  Vec tile[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) tile[r][c] = at(s + r * stride + c * kLanes).v;
  bool changed = false;
  for (const Event* x = events; x != events + n; ++x) {
    if (x->v) {
      changed = true;
      Vec v[C];
      for (int c = 0; c < C; ++c) v[c] = at(x->v + e + c * kLanes).v;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) tile[r][c] += x->k[f + r] * v[c];
    }
    if (x->o) {
      Vec o[C];
      for (int c = 0; c < C; ++c) o[c] = at(x->o + e + c * kLanes).v;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) o[c] += x->q[f + r] * tile[r][c];
      for (int c = 0; c < C; ++c) at(x->o + e + c * kLanes).v = o[c];
    }
  }
  if (!changed) return;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) at(s + r * stride + c * kLanes).v = tile[r][c];
}

// Columns [e, e + C * 16) of S against all events.
template <class Isa, int C>
ATTNKIT_INLINE void panel(float* s, const Shape& shape, int64_t e, Event* events, int64_t n) {
  int64_t f = 0;
  for (; f + Isa::rows <= shape.features; f += Isa::rows)
    walk<Isa::rows, C>(s + f * shape.values + e, shape.values, f, e, events, n);
  for (; f < shape.features; ++f) walk<1, C>(s + f * shape.values + e, shape.values, f, e, events, n);
}

// The last columns of S, fewer than 16.
ATTNKIT_INLINE void tail(float* s, const Shape& shape, int64_t e, Event* events, int64_t n) {
  for (int64_t f = 0; f < shape.features; ++f) {
    float* row = s + f * shape.values;
    for (const Event* x = events; x != events + n; ++x) {
      if (x->v)
        for (int64_t c = e; c < shape.values; ++c) row[c] += x->k[f] * x->v[c];
      if (x->o)
        for (int64_t c = e; c < shape.values; ++c) x->o[c] += x->q[f] * row[c];
    }
  }
}

// One head of one batch row while it runs.
template <class Isa>
class Walker {
 public:
  ATTNKIT_INLINE Walker(const Shape& shape, const Guard& guard, float* s, float* features)
      : shape_(shape), guard_(guard), s_(s), z_(s + shape.features * shape.values), features_(features) {}

  // Where the features of the next key or query go; the event is full until flush when this returns room to no more.
  ATTNKIT_INLINE float* key_row() {
    if (n_ == kEvents) flush();
    return features_ + n_ * shape_.row();
  }
  ATTNKIT_INLINE void append(const float* k, const float* v) { events_[n_++] = {k, v, nullptr, nullptr, 0}; }
  // A query rides in the event of the key before it, if that has none yet.
  ATTNKIT_INLINE float* query_row() {
    const bool ride = n_ > 0 && !events_[n_ - 1].o;
    if (!ride && n_ == kEvents) flush();
    if (!ride || n_ == 0) events_[n_++] = {nullptr, nullptr, nullptr, nullptr, 0};
    return features_ + (kEvents + n_ - 1) * shape_.row();
  }
  ATTNKIT_INLINE void read(const float* q, float* o) {
    std::memset(o, 0, static_cast<size_t>(shape_.values) * sizeof(float));
    events_[n_ - 1].q = q;
    events_[n_ - 1].o = o;
  }
  ATTNKIT_INLINE void flush() {
    if (n_ == 0) return;
    sums();
    int64_t e = 0;
    for (; e + Isa::columns * simd::kLanes <= shape_.values; e += Isa::columns * simd::kLanes)
      panel<Isa, Isa::columns>(s_, shape_, e, events_, n_);
    for (; e + simd::kLanes <= shape_.values; e += simd::kLanes) panel<Isa, 1>(s_, shape_, e, events_, n_);
    if (e < shape_.values) tail(s_, shape_, e, events_, n_);
    for (const Event* x = events_; x != events_ + n_; ++x)
      if (x->o)
        for (int64_t c = 0; c < shape_.values; ++c) x->o[c] /= x->den;
    n_ = 0;
  }

 private:
  ATTNKIT_INLINE void sums() {
    for (Event* x = events_; x != events_ + n_; ++x) {
      if (x->v)
        for (int64_t f = 0; f < shape_.features; ++f) z_[f] += x->k[shape_.split + f];
      if (x->o) x->den = guard_(simd::dot(x->q + shape_.split, z_, shape_.features));
    }
  }
  const Shape& shape_;
  const Guard& guard_;
  float *s_, *z_, *features_;
  int64_t n_ = 0;
  Event events_[kEvents];
};

template <class Map>
struct Job {
  const Shape& shape;
  const Guard& guard;
  const Plan& plan;
  const attn_run& run;
  const Map& map;
  bool causal;
  View<const float> q, k, v;
  View<float> o;
};

// Heads [begin, end) of all batch rows, one after another; the body that simd::dispatch compiles three times.
template <class Map>
struct Body {
  const Job<Map>& job;
  int64_t begin, end;
  uint32_t worker;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) one<Isa>(item / job.shape.heads, item % job.shape.heads);
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const Shape& shape = job.shape;
    const attn_run& run = job.run;
    auto* scratch = static_cast<char*>(run.exec->scratch) + worker * job.plan.worker_bytes;
    auto* features = reinterpret_cast<float*>(scratch);
    float* s;
    if (run.state) {
      auto* row =
          static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
      s = reinterpret_cast<float*>(row + static_cast<uint64_t>(h) * shape.head_bytes());
    } else {
      s = reinterpret_cast<float*>(scratch + job.plan.worker_bytes - aligned(shape.head_bytes()));
      std::memset(s, 0, shape.head_bytes());
    }
    const Sight sight(run, b, job.causal);
    Walker<Isa> walker(shape, job.guard, s, features);
    int64_t appended = 0;
    for (int64_t i = 0; i < run.queries; ++i) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      if (seen <= 0) {
        std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(shape.values) * sizeof(float));
        continue;
      }
      append_to(walker, seen - sight.past, appended, sight.past, b, h, s);
      float* row = walker.query_row();
      if constexpr (Rescales<Map>)
        job.map.query(job.q.row(b, h, i), b, h, sight.q_pos + i, row, s);
      else
        job.map.query(job.q.row(b, h, i), b, h, sight.q_pos + i, row);
      walker.read(row, job.o.row(b, h, i));
    }
    if (run.state) append_to(walker, sight.fresh, appended, sight.past, b, h, s);
    walker.flush();
  }

  template <class Isa>
  ATTNKIT_INLINE void append_to(Walker<Isa>& walker, int64_t limit, int64_t& appended, int64_t past, int64_t b,
                                int64_t h, float* head) const {
    if (appended >= limit) return;
    if constexpr (Rescales<Map>) {
      walker.flush();  // what waits was made for the old scale
      job.map.rescale(job.k, b, h, appended, limit, head);
    }
    for (; appended < limit; ++appended) {
      float* row = walker.key_row();
      if constexpr (Rescales<Map>)
        job.map.key(job.k.row(b, h, appended), b, h, past + appended, row, head);
      else
        job.map.key(job.k.row(b, h, appended), b, h, past + appended, row);
      walker.append(row, job.v.row(b, h, appended));
    }
    if constexpr (Rescales<Map>) walker.flush();  // the next query's features read z
  }
};

template <class Map>
void task(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  simd::dispatch(Body<Map>{*reinterpret_cast<const Job<Map>*>(arg), begin, end, worker});
}

// Runs one attn_run that plugin.hpp has checked.  Never allocates; parallel over batch rows and heads.
template <class Map>
void run(const Shape& shape, const Guard& guard, const Plan& plan, const Ports& ports, bool causal, const Map& map,
         const attn_run& run) {
  const Job<Map> job{shape,
                     guard,
                     plan,
                     run,
                     map,
                     causal,
                     View<const float>(run.ports[ports.q]),
                     View<const float>(run.ports[ports.k]),
                     View<const float>(run.ports[ports.v]),
                     View<float>(run.ports[ports.o])};
  const double flops = 2.0 * static_cast<double>((run.queries + run.keys) * shape.features * (shape.values + 1));
  for_each(*run.exec, run.batch * shape.heads, flops, task<Map>, &job);
}

}  // namespace attnkit::linear
#endif
