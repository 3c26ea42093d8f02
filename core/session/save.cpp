// Sessions to blobs and back; the format is that of session_blob.hpp.
#include <cmath>
#include <cstring>

#include "core/manifest/manifest.hpp"
#include "core/model/encoded.hpp"
#include "core/session/blob.hpp"
#include "core/session/session.hpp"
#include "core/session/speech.hpp"

namespace attnkit {
namespace {

// In the words of the first version where it had the same.
std::string prediction(const Model& model) {
  const Manifest& m = model.manifest();
  const bool later = m.predict == Predict::lut || m.predict == Predict::network;
  return later ? model.length()->identity()
               : fmt::format("{} {} {}", static_cast<int>(m.predict), m.alpha, m.fixed_length);
}

// Everything that decides what a session of this model computes.
EncoderIdentity identity(const Model& model) {
  const Manifest& m = model.manifest();
  EncoderIdentity traits = model_traits(m);
  const auto add = [&](const std::string& name, const auto& value) {
    traits.push_back({name, fmt::format("{}", value)});
  };
  add("decoder.layers", m.decoder.layers);
  add("a source that grows", m.stream ? "possible" : "not possible");
  add("the prediction of lengths", prediction(model));
  for (const Block* block : model.blocks()) {
    const BlockChoice& c = block->choice();
    const Plugin& plugin = block->mechanism().plugin();
    const attn_block& b = block->mechanism().block();
    const std::string& path = block->path();
    add(path, use_text(plugin, c.options));
    add("the state revision of " + path, plugin.table.state_revision);
    add("the width of " + path,
        fmt::format("{} heads of {} and {}, f32", b.heads, b.d_model / static_cast<int32_t>(b.heads), b.head_width));
    add("filling anew of " + path, c.replays);
  }
  add("sha256 of the weights", model.digest());
  return traits;
}

void require_same_model(const EncoderIdentity& theirs, const EncoderIdentity& ours) {
  for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (theirs[i].name == ours[i].name && theirs[i].value == ours[i].value) continue;
    if (theirs[i].name != ours[i].name)
      fail(ATTN_INVALID, "the session was saved from another model: {} there, {} here", theirs[i].name, ours[i].name);
    fail(ATTN_INVALID, "the session was saved from another model: {} is {} there, but {} here", ours[i].name,
         theirs[i].value, ours[i].value);
  }
  if (theirs.size() != ours.size())
    fail(ATTN_INVALID, "the session was saved from another model: {} properties there, {} here", theirs.size(),
         ours.size());
}

[[noreturn]] void wrong(const char* what) {
  fail(ATTN_INVALID, "the saved session contradicts itself or its model: {}", what);
}

void require_that(bool right, const char* what) {
  if (!right) wrong(what);
}

// A number that can be counted on from without overflow.
int64_t count(BlobReader& from) {
  const uint64_t n = from.u64();
  require_that(n < uint64_t{1} << 62, "a count that no session reaches");
  return static_cast<int64_t>(n);
}

}  // namespace

// Reads and writes what Session keeps to itself.
class SessionBlob {
 public:
  static std::vector<std::byte> save(const Session& s);
  static std::unique_ptr<Session> load(std::shared_ptr<const Model> model, std::span<const std::byte> bytes);

 private:
  // Calls f(arena, block, slot, bytes) for every state.
  template <class F>
  static void each_state(const Session& s, F&& f);
  static void save_source(const Session& s, BlobWriter& to);
  static void load_rows(Session& s, BlobReader& from);
  static void load_target(Session& s, BlobReader& from);
  static void load_source(Session& s, BlobReader& from);
  static void load_aux(Session& s, BlobReader& from);
};

template <class F>
void SessionBlob::each_state(const Session& s, F&& f) {
  const Model& model = *s.model_;
  const auto each = [&](const Arena& arena, int32_t slot, const std::vector<uint64_t>& bytes) {
    for (size_t b = 0; b < bytes.size(); ++b) f(arena.row(b, slot), bytes[b]);
  };
  if (s.encoder_slot_ >= 0)
    each(model.states(ATTN_ENCODER_SELF), s.encoder_slot_, model.state_bytes(ATTN_ENCODER_SELF, s.source_.length));
  if (s.cross_slot_ >= 0)
    each(model.states(ATTN_DECODER_CROSS), s.cross_slot_, model.state_bytes(ATTN_DECODER_CROSS, s.source_.length));
  for (int r = 0; r < s.rows(); ++r)
    each(model.states(ATTN_DECODER_SELF), s.slots_[r], model.state_bytes(ATTN_DECODER_SELF, s.positions_[r]));
}

void SessionBlob::save_source(const Session& s, BlobWriter& to) {
  const Session::Source& source = s.source_;
  to.section("SRCE");
  to.u32(source.complete);
  for (const int64_t n : {source.length, source.reads, source.encoded_again, source.replays, source.keys_replayed})
    to.u64(static_cast<uint64_t>(n));
  to.numbers(source.ids);
  to.numbers(source.rows);
  to.u64(static_cast<uint64_t>(source.predicted_again));
  if (s.model_->frontend()) save_speech(source, to);
  to.section("AUXS");
  const Aux none;
  const Aux& aux = source.aux ? *source.aux : none;
  to.u32(static_cast<uint32_t>(aux.size()));
  for (const auto& [name, value] : aux) {
    to.text(name);
    to.numbers(value.data);
  }
}

std::vector<std::byte> SessionBlob::save(const Session& s) {
  s.check_usable();
  BlobWriter to;
  to.section("MODL");
  const EncoderIdentity traits = identity(*s.model_);
  to.u32(static_cast<uint32_t>(traits.size()));
  for (const EncoderTrait& t : traits) {
    to.text(t.name);
    to.text(t.value);
  }
  to.section("ROWS");
  to.u32(static_cast<uint32_t>(s.rows()));
  for (int r = 0; r < s.rows(); ++r) {
    to.u32(static_cast<uint32_t>(s.positions_[r]));
    to.u32(s.ended_[r]);
  }
  to.section("TARG");
  to.u32(s.told_);
  to.u32(s.target_total_.has_value());
  to.f64(s.target_total_.value_or(0));
  to.u64(static_cast<uint64_t>(s.beyond_));
  to.section("LAST");
  to.numbers(s.last_);
  save_source(s, to);
  to.section("STAT");
  each_state(s, [&](const char* state, uint64_t bytes) {
    to.u64(bytes);
    to.bytes(state, bytes);
  });
  return to.finish();
}

void SessionBlob::load_rows(Session& s, BlobReader& from) {
  const Model& model = *s.model_;
  for (int r = 0; r < s.rows(); ++r) {
    const uint32_t position = from.u32();
    require_that(position <= static_cast<uint32_t>(model.manifest().max_length), "a row beyond max_length");
    s.positions_[r] = static_cast<int32_t>(position);
    s.ended_[r] = from.u32() != 0;
  }
  from.section("LAST");
  const std::vector<float> last = from.numbers<float>();
  require_that(last.size() == s.last_.size(), "logits of another number of rows");
  s.last_ = last;
}

void SessionBlob::load_target(Session& s, BlobReader& from) {
  from.section("TARG");
  s.told_ = from.u32() != 0;
  const bool known = from.u32() != 0;
  const double total = from.f64();
  require_that(!known || (std::isfinite(total) && total > 0), "a target length that is none");
  s.target_total_ = known ? std::optional(total) : std::nullopt;
  s.beyond_ = count(from);
}

void SessionBlob::load_source(Session& s, BlobReader& from) {
  const Model& model = *s.model_;
  const Manifest& m = model.manifest();
  from.section("SRCE");
  Session::Source source;
  source.complete = from.u32() != 0;
  const uint64_t length = from.u64();
  require_that(length <= (model.has_encoder() ? static_cast<uint64_t>(m.max_length) : 0), "a source beyond max_length");
  require_that(!source.complete || length > 0, "a complete source of no tokens");
  source.length = static_cast<int64_t>(length);
  for (int64_t* n : {&source.reads, &source.encoded_again, &source.replays, &source.keys_replayed}) *n = count(from);
  source.ids = from.numbers<int32_t>();
  source.rows = from.numbers<float>();
  // Blobs of the first version end here.
  source.predicted_again = from.at_end() ? 0 : count(from);
  const uint64_t open = source.complete ? 0 : length;
  require_that(source.ids.size() == (model.keeps_ids() ? open : 0), "another number of ids of the source");
  require_that(source.rows.size() == (model.keeps_rows() ? open * static_cast<uint64_t>(m.d_model) : 0),
               "another number of rows of the encoder");
  if (!source.ids.empty()) model.check_source(Ids{source.ids.data(), source.length, 1, source.length, nullptr});
  if (!model.frontend()) {
    source.kind = source.length > 0 ? SourceKind::ids : SourceKind::none;
    source.units = source.length;
  } else {
    load_speech(model, from, source);
  }
  s.source_ = std::move(source);
  load_aux(s, from);
}

void SessionBlob::load_aux(Session& s, BlobReader& from) {
  from.section("AUXS");
  auto aux = std::make_shared<Aux>();
  const auto carried = s.model_->carried();
  for (uint32_t n = from.u32(); n > 0; --n) {
    const std::string name = from.text();
    const auto port = carried.find(name);
    require_that(port != carried.end(), "a sequence that no block of the encoder gives");
    AuxValue& value = (*aux)[name];
    value.rows = port->second->shape[2];
    value.width = port->second->shape[3];
    value.data = from.numbers<float>();
    require_that(value.data.size() == static_cast<size_t>(value.rows * value.width), "a sequence of another size");
  }
  if (s.source_.length > 0) {
    for (const auto& [name, port] : carried) require_that(aux->contains(name), "a sequence of the encoder is missing");
    s.source_.aux = std::move(aux);
  }
}

std::unique_ptr<Session> SessionBlob::load(std::shared_ptr<const Model> model, std::span<const std::byte> bytes) {
  BlobReader from(bytes);
  from.section("MODL");
  EncoderIdentity theirs;
  for (uint32_t n = from.u32(); n > 0; --n) {
    theirs.push_back({from.text(), ""});
    theirs.back().value = from.text();
  }
  require_same_model(theirs, identity(*model));
  from.section("ROWS");
  const uint32_t rows = from.u32();
  require_that(rows >= 1 && rows <= 1024, "a number of rows that no session has");
  auto session = std::make_unique<Session>(std::move(model), static_cast<int>(rows));
  load_rows(*session, from);
  load_target(*session, from);
  load_source(*session, from);
  session->reach_ = session->source_.length;
  from.section("STAT");
  each_state(*session, [&](char* state, uint64_t declared) {
    if (const uint64_t saved = from.u64(); saved != declared)
      fail(ATTN_INVALID,
           "the saved session holds a state of {} bytes where the plugin declares {}: another build of it", saved,
           declared);
    const auto content = from.bytes(declared);
    if (declared > 0) std::memcpy(state, content.data(), content.size());
  });
  return session;
}

std::vector<std::byte> Session::save() const { return SessionBlob::save(*this); }

std::unique_ptr<Session> Session::load(std::shared_ptr<const Model> model, std::span<const std::byte> bytes) {
  return SessionBlob::load(std::move(model), bytes);
}

}  // namespace attnkit
