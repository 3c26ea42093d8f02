// The part of luna that is the same on every device: options, shapes, ports, initial values, what it refuses.
#pragma once
#include <algorithm>
#include <attnkit/kernels/random.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>

namespace luna {

using attnkit::Port;
using attnkit::Sight;
using attnkit::unsupported;

enum class Map { kLog2, kSoftplus, kElu1 };

struct Shape : attnkit::Widths {
  int64_t pack_heads = 0, l = 0;  // heads of the pack attention, rows of P
  bool causal = false, tied = false, contextual = false, dynamic = false;
  Map map = Map::kLog2;
  int64_t width() const { return heads * d; }
  int64_t values() const { return tied ? d : e; }  // of a head's output
  int64_t pack_d() const { return width() / pack_heads; }
  bool gives() const { return contextual && !causal; }  // a P for the blocks that follow
  // Rows of P that count for a bidirectional row.
  int64_t live(const Sight& sight) const {
    const int64_t known = sight.past + sight.fresh;
    return dynamic ? std::min(l, known) : known > 0 ? l : 0;
  }
};

inline double scale(int64_t width) { return 1 / std::sqrt(static_cast<double>(width)); }

// The state of a row, bidirectional: of the pack softmax the sums of e^(s - m) v, m and the sums of e^(s - m) by head
// and row of P; then keys and, untied, values of the packed sequence; then P for the blocks that follow.
template <class Real = float>
struct Packed {
  Real *sums, *largest, *totals, *keys, *values, *p;
  Packed(Real* base, const Shape& s) {
    sums = base;
    largest = sums + s.l * s.width();
    totals = largest + s.l * s.pack_heads;
    keys = totals + s.l * s.pack_heads;
    values = s.tied ? keys : keys + s.l * s.width();
    p = values + s.l * s.heads * s.values();
  }
  static int64_t size(const Shape& s) {
    const int64_t values = s.tied ? 0 : s.l * s.heads * s.e;
    return s.l * (2 * s.width() + 2 * s.pack_heads) + values + (s.contextual ? s.l * s.width() : 0);
  }
};

// The same, causal: pq, then per head the sums of A k^T and, untied, of A v^T, then how many rows of P count.
template <class Real = float>
struct Causal {
  Real *pq, *keys, *values, *live;
  Causal(Real* base, const Shape& s) {
    pq = base;
    keys = pq + s.l * s.width();
    values = s.tied ? keys : keys + s.l * s.width();
    live = values + s.l * s.heads * s.values();
  }
  static int64_t size(const Shape& s) { return s.l * (2 * s.width() + (s.tied ? 0 : s.heads * s.e)) + 1; }
};

inline int64_t memory_size(const Shape& s) { return s.causal ? Causal<>::size(s) : Packed<>::size(s); }

struct Ports {
  Port q, k, v, pk, pv, p_in, p_out, start, pq_weight, pq_bias, k_weight, k_bias, v_weight, v_bias, norm_weight,
      norm_bias, o;
};

// The stream p_start is drawn from in every block, so that a model has one whatever the port's index: no other tensor's
// index is as low.
constexpr uint64_t kStartStream = 2;

struct Model {
  static constexpr attnkit::About about{
      .name = "luna",
      .summary = "packs the context into a short sequence that travels between blocks, then attends to that",
      .citation = "Ma et al., Luna: Linear Unified Nested Attention, NeurIPS 2021, arXiv:2106.01540",
      .state_revision = "1"};
  static attnkit::Options options() {
    using attnkit::Option;
    return {
        Option::integer("projection", 16, 1, 4096, "l, the rows of the packed sequence P"),
        Option::integer("pheads", 0, 0, 4096, "heads of the pack attention; 0: those of the block"),
        Option::boolean("tied", true, "one projection for keys and values, of the pack and of the unpack attention"),
        Option::boolean("contextual", true,
                        "P comes from the block before; false: each block starts from the learned P"),
        Option::boolean("dynamic", true, "rows of P past a sequence's own length are left out"),
        Option::text("activation", "log2", {"log2", "softplus", "elu1"},
                     "w of the causal form: log2(1 + 2^x), log(1 + e^x) or elu(x) + 1; part of the model")};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), shape{attnkit::Widths(b)} {
    const auto map = values.text("activation");
    const int64_t given = values.integer("pheads"), heads = b.heads;
    shape.pack_heads = given != 0 ? given : heads;
    shape.l = values.integer("projection");
    shape.causal = b.causal != 0;
    shape.tied = values.boolean("tied");
    // P that other blocks of the same encoder made has seen all of it: no business of a causal one.
    shape.contextual = values.boolean("contextual") && !(b.causal && b.role == ATTN_ENCODER_SELF);
    shape.dynamic = values.boolean("dynamic");
    shape.map = map == "log2" ? Map::kLog2 : map == "softplus" ? Map::kSoftplus : Map::kElu1;
    if (shape.width() % shape.pack_heads != 0)
      throw unsupported("pheads is ", given, " and d_model ", shape.width(),
                        ", which it does not divide: set pheads to a divisor of d_model, or to 0")
          .at(values.index("pheads"));
    if (shape.causal && given != 0 && given != heads)
      throw unsupported("pheads is ", given, " in a causal block of ", heads,
                        " heads, where packing and unpacking share their heads: set pheads to 0")
          .at(values.index("pheads"));
    list(ports);
  }

  void list(attnkit::Ports& ports) {
    const int64_t width = shape.width(), l = shape.l;
    io.q = ports.query("q", shape.d, "queries of the unpack attention");
    if (shape.causal) {
      io.k = ports.key("k", shape.d, "keys, and values when tied");
      if (!shape.tied) io.v = ports.key("v", shape.e, "values");
    }
    io.pk = ports.key("pk", shape.d, "keys of the pack attention, and its values when tied");
    if (!shape.causal && !shape.tied) io.pv = ports.key("pv", shape.d, "values of the pack attention");
    io.start = ports.learned("p_start", {l, width}, "P before the first block", ATTN_PER_MODEL);
    io.pq_weight = ports.learned("pq_weight", {width, width}, "queries of the pack attention, of P");
    io.pq_bias = ports.learned("pq_bias", {width}, "their bias");
    if (!shape.causal) {
      io.k_weight = ports.learned("k_weight", {width, width}, "keys of the packed sequence, and values when tied");
      io.k_bias = ports.learned("k_bias", {width}, "their bias");
    }
    if (!shape.causal && !shape.tied) {
      io.v_weight = ports.learned("v_weight", {shape.heads * shape.e, width}, "values of the packed sequence");
      io.v_bias = ports.learned("v_bias", {shape.heads * shape.e}, "their bias");
    }
    if (shape.gives()) {
      io.norm_weight = ports.learned("norm_weight", {width}, "scale of the norm of P");
      io.norm_bias = ports.learned("norm_bias", {width}, "shift of the norm of P");
    }
    if (shape.contextual) io.p_in = ports.aux_in("p", l, width, "P as the block before left it");
    if (shape.gives()) io.p_out = ports.aux_out("p", l, width, "P for the blocks that follow");
    io.o = ports.output("o", shape.values(), "what the queries find in the packed sequence");
  }

  void check(const attnkit::Request& r) const {
    attnkit::check_sight(block, r);
    if (r.shows_prefixes())
      throw unsupported(
          "luna packs the whole context into P before any query reads it, and would have to pack anew for every length "
          "of the visible prefix: run it without ATTN_PREFIX, or use a mechanism such as linear or softmax");
    if (!shape.causal && shape.contextual && r.streams() && !r.knows_k_total())
      throw unsupported(
          "the P that this block takes from the block before is made of the whole source, so a source that grows would "
          "change it: read the whole source first, or set contextual = false");
  }

  // Adds what is the same on every device to info.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    info.state(r, memory_size(shape));
    info.count(r, r.batch, flops(r));
    if (r.batch > 0 && r.queries + r.keys > 0) info.bytes_read -= r.real_bytes(unread(r));
  }

  // Does a run at these bounds begin sequences, so that P is projected?
  bool begins(const attnkit::Request& r) const { return r.keys > 0 && (!shape.causal || r.past == 0 || !r.streams()); }

  // Of one batch row.
  uint64_t flops(const attnkit::Request& r) const {
    const int64_t width = shape.width(), values = shape.heads * shape.values(), l = shape.l;
    const int64_t exponentials =
        5 * l * (shape.causal ? shape.heads * r.queries : shape.heads * r.queries + shape.pack_heads * r.keys);
    const int64_t append = 2 * l * r.keys * (2 * width + (shape.causal && !shape.tied ? values : 0));
    const int64_t read = 2 * l * r.queries * (width + values);
    int64_t columns = begins(r) ? width : 0;
    if (!shape.causal && r.keys > 0) columns += width + (shape.tied ? 0 : values);
    return static_cast<uint64_t>(append + read + exponentials + 2 * l * width * columns);
  }

  // Numbers of the ports that such runs do not read: the learned P where another comes, what is projected only at the
  // beginning, what only keys need.
  int64_t unread(const attnkit::Request& r) const {
    const int64_t width = shape.width(), values = shape.heads * shape.values(), p = shape.l * width;
    int64_t unread = shape.contextual ? p : 0;
    if (!begins(r)) unread += width * (width + 1) + (shape.contextual ? r.batch * p : p);
    if (!shape.causal && r.keys == 0)
      unread += (width + 1) * (width + (shape.tied ? 0 : values)) + (shape.gives() ? 2 * width : 0);
    return unread;
  }

  // P standard normal; weights Xavier-uniform with gain 1/sqrt 2, biases uniform in 1/sqrt fan-in; norms the identity.
  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port == io.start ? kStartStream : port);
    const auto width = static_cast<double>(shape.width());
    const double out = port == io.v_weight ? static_cast<double>(shape.heads * shape.e) : width;
    const double weight = std::sqrt(3 / (width + out)), bias = 1 / std::sqrt(width);
    for (int64_t i = 0; i < count; ++i) {
      double x = port == io.norm_weight ? 1 : 0;
      if (port == io.start) x = random.normal();
      if (port == io.pq_weight || port == io.k_weight || port == io.v_weight) x = (2 * random.uniform() - 1) * weight;
      if (port == io.pq_bias || port == io.k_bias || port == io.v_bias) x = (2 * random.uniform() - 1) * bias;
      data[i] = static_cast<float>(x);
    }
  }

  attn_block block;
  Shape shape;
  Ports io;
};

}  // namespace luna
