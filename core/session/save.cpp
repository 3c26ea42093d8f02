// Sessions to bytes and back; the format is that of core/session/blob.hpp.
#include <algorithm>
#include <cmath>

#include "core/manifest/manifest.hpp"
#include "core/model/encoded.hpp"
#include "core/session/blob.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

// In the words of the first version where it had the same.
std::string prediction(const Model& model) {
  const Manifest& m = model.manifest();
  const bool later = m.predict == Predict::lut || m.predict == Predict::network;
  return later ? model.length()->identity
               : fmt::format("{} {} {}", static_cast<int>(m.predict), m.alpha, m.fixed_length);
}

// Everything that decides what a session of this model computes; saved: as a session has it that was saved before
// mechanisms got the options of today.
EncoderIdentity identity(const Model& model, const EncoderIdentity& saved = {}) {
  const Manifest& m = model.manifest();
  EncoderIdentity traits = model_traits(m);
  traits.add("decoder.layers", m.decoder.layers);
  traits.add("a source that grows", m.stream ? "possible" : "not possible");
  traits.add("the prediction of lengths", prediction(model));
  // Sessions that were saved before these keys came have no word of them.
  if (m.decoder.zero_begin) traits.add("decoder.zero_begin", true);
  if (m.head_scale == 1 / std::sqrt(static_cast<float>(m.d_model)))
    traits.add("head_scale", true);
  else if (m.head_scale != 1)
    traits.add("head_scale", m.head_scale);
  if (m.max_target() != m.max_length) traits.add("decoder.max_length", m.max_target());
  if (!m.forced.empty() || !m.suppressed.empty() || !m.suppressed_first.empty())
    traits.add("[decode]", fmt::format("forced {}; suppress {}; suppress_first {}", fmt::join(m.forced, " "),
                                       fmt::join(m.suppressed, " "), fmt::join(m.suppressed_first, " ")));
  if (m.min_decode_length > 0 || m.force_end)
    traits.add("where targets may end", fmt::format("from {} tokens on{}", m.min_decode_length,
                                                    m.force_end ? fmt::format(", at {}", m.max_decode_length) : ""));
  for (const Block* block : model.blocks()) {
    const BlockChoice& c = block->choice();
    const Plugin& plugin = block->mechanism().plugin();
    const attn_block& b = block->mechanism().block();
    const std::string& path = block->path();
    const auto before = std::ranges::find(saved, path, &EncoderTrait::name);
    traits.add(path, use_text(plugin, c.options, before == saved.end() ? nullptr : &before->value));
    traits.add("the state revision of " + path, plugin.table.state_revision);
    const int64_t keys = block->mechanism().key_heads();
    traits.add("the width of " + path,
               fmt::format("{} heads{} of {} and {}, f32", b.heads,
                           keys < b.heads ? fmt::format(", {} of keys,", keys) : "", b.key_width, b.head_width));
    traits.add("filling anew of " + path, c.replays);
  }
  traits.add("sha256 of the weights", model.digest());
  return traits;
}

void require_same_model(const EncoderIdentity& theirs, const EncoderIdentity& ours) {
  require_same(theirs, ours, "the session was saved from another model", "here");
  if (theirs.size() != ours.size())
    fail(ATTN_INVALID, "the session was saved from another model: {} properties there, {} here", theirs.size(),
         ours.size());
}

void require_that(bool right, const char* what) {
  if (!right) fail(ATTN_INVALID, "the saved session contradicts itself or its model: {}", what);
}

// A number that can be counted on from without overflow.
int64_t count(BlobReader& from) {
  const uint64_t n = from.u64();
  require_that(n < uint64_t{1} << 62, "a count that no session reaches");
  return static_cast<int64_t>(n);
}

void save_speech(const Session::Source& source, BlobWriter& to) {
  to.section("SPCH");
  to.u32(static_cast<uint32_t>(source.kind));
  to.u64(static_cast<uint64_t>(source.units));
  to.numbers(source.front);
  to.numbers(source.waiting.samples);
  to.u32(static_cast<uint32_t>(source.waiting.rows.size()));
  for (const std::vector<float>& rows : source.waiting.rows) to.numbers(rows);
}

// length and complete of `to` are known.
void load_speech(const Model& model, BlobReader& from, Session::Source& to) {
  const Frontend& frontend = *model.frontend();
  from.section("SPCH");
  const uint32_t kind = from.u32();
  require_that(kind == static_cast<uint32_t>(SourceKind::none) || kind == static_cast<uint32_t>(SourceKind::samples) ||
                   kind == static_cast<uint32_t>(SourceKind::frames),
               "a source that is no speech");
  to.kind = static_cast<SourceKind>(kind);
  const uint64_t units = from.u64();
  const bool begun = to.kind != SourceKind::none;
  require_that(units < uint64_t{1} << 40 && (begun || units == 0), "another amount of speech");
  to.units = static_cast<int64_t>(units);
  require_that(!begun || frontend.rows(to.kind, to.units) == to.length, "another number of rows of the source");
  require_that(begun || to.length == 0, "rows of a source that was not read");
  to.front = from.numbers<float>();
  const int64_t kept = to.complete || model.encoder().appends() ? 0 : to.length * model.manifest().d_model;
  require_that(static_cast<int64_t>(to.front.size()) == kept, "another number of rows of the front end");
  to.waiting.samples = from.numbers<float>();
  for (uint32_t n = from.u32(); n > 0; --n) to.waiting.rows.push_back(from.numbers<float>());
  require_that(begun && !to.complete ? frontend.fits(to.waiting, to.kind, to.units)
                                     : to.waiting.samples.empty() && to.waiting.rows.empty(),
               "another amount of speech that waits");
}

}  // namespace

std::vector<std::byte> Session::save() const {
  check_usable();
  BlobWriter to;
  to.section("MODL");
  const EncoderIdentity traits = identity(*model_);
  to.u32(static_cast<uint32_t>(traits.size()));
  for (const EncoderTrait& t : traits) {
    to.text(t.name);
    to.text(t.value);
  }
  to.section("ROWS");
  to.u32(static_cast<uint32_t>(rows()));
  for (size_t r = 0; r < positions_.size(); ++r) {
    to.u32(static_cast<uint32_t>(positions_[r]));
    to.u32(ended_[r]);
  }
  to.section("TARG");
  to.u32(length_set_);
  to.u32(target_total_.has_value());
  to.f64(target_total_.value_or(0));
  to.u64(static_cast<uint64_t>(beyond_));
  to.section("LAST");
  to.numbers(last_);
  to.section("SRCE");
  to.u32(source_.complete);
  for (const int64_t n : {source_.length, source_.reads, source_.encoded_again, source_.replays, source_.keys_replayed})
    to.u64(static_cast<uint64_t>(n));
  to.numbers(source_.ids);
  to.numbers(source_.rows);
  to.u64(static_cast<uint64_t>(source_.predicted_again));
  if (model_->frontend()) save_speech(source_, to);
  to.section("AUXS");
  const Aux none;
  const Aux& aux = source_.aux ? *source_.aux : none;
  to.u32(static_cast<uint32_t>(aux.size()));
  for (const auto& [name, value] : aux) {
    to.text(name);
    to.numbers(value.data);
  }
  to.section("STAT");
  std::vector<char> state;
  for (const States& s : states(reach_))
    for (size_t block = 0; block < s.bytes.size(); ++block) {
      state.resize(s.bytes[block]);
      s.arena.save(block, s.slot, state.data(), s.bytes[block]);
      to.u64(s.bytes[block]);
      to.bytes(state.data(), s.bytes[block]);
    }
  return to.finish();
}

std::unique_ptr<Session> Session::load(std::shared_ptr<const Model> model, std::span<const std::byte> bytes) {
  BlobReader from(bytes);
  from.section("MODL");
  EncoderIdentity theirs;
  for (uint32_t n = from.u32(); n > 0; --n) {
    theirs.push_back({from.text(), ""});
    theirs.back().value = from.text();
  }
  require_same_model(theirs, identity(*model, theirs));
  from.section("ROWS");
  const uint32_t rows = from.u32();
  require_that(rows >= 1 && rows <= 1024, "a number of rows that no session has");
  auto session = std::make_unique<Session>(std::move(model), static_cast<int>(rows));
  session->load_rows(from);
  session->load_source(from);
  session->reach_ = session->source_.length;
  from.section("STAT");
  for (const States& s : session->states(session->reach_))
    for (size_t block = 0; block < s.bytes.size(); ++block) {
      const uint64_t declared = s.bytes[block];
      if (const uint64_t saved = from.u64(); saved != declared)
        fail(ATTN_INVALID,
             "the saved session holds a state of {} bytes where the plugin declares {}: another build of it", saved,
             declared);
      s.arena.load(block, s.slot, from.bytes(declared).data(), declared);
    }
  return session;
}

void Session::load_rows(BlobReader& from) {
  for (size_t r = 0; r < positions_.size(); ++r) {
    const uint32_t position = from.u32();
    require_that(position <= static_cast<uint32_t>(model_->manifest().max_target()), "a row beyond max_length");
    positions_[r] = static_cast<int32_t>(position);
    ended_[r] = from.u32() != 0;
  }
  from.section("LAST");
  std::vector<float> last = from.numbers<float>();
  require_that(last.size() == last_.size(), "logits of another number of rows");
  last_ = std::move(last);
  from.section("TARG");
  length_set_ = from.u32() != 0;
  const bool known = from.u32() != 0;
  const double total = from.f64();
  require_that(!known || (std::isfinite(total) && total > 0), "a target length that is none");
  target_total_ = known ? std::optional(total) : std::nullopt;
  beyond_ = count(from);
}

void Session::load_source(BlobReader& from) {
  const Manifest& m = model_->manifest();
  from.section("SRCE");
  Source source;
  source.complete = from.u32() != 0;
  const uint64_t length = from.u64(), open = source.complete ? 0 : length;
  require_that(length <= (model_->has_encoder() ? static_cast<uint64_t>(m.max_length) : 0),
               "a source beyond max_length");
  require_that(!source.complete || length > 0, "a complete source of no tokens");
  source.length = static_cast<int64_t>(length);
  for (int64_t* n : {&source.reads, &source.encoded_again, &source.replays, &source.keys_replayed}) *n = count(from);
  source.ids = from.numbers<int32_t>();
  source.rows = from.numbers<float>();
  // Blobs of the first version end here.
  source.predicted_again = from.at_end() ? 0 : count(from);
  require_that(source.ids.size() == (model_->keeps_ids() ? open : 0), "another number of ids of the source");
  require_that(source.rows.size() == (model_->keeps_rows() ? open * static_cast<uint64_t>(m.d_model) : 0),
               "another number of rows of the encoder");
  if (!source.ids.empty()) model_->check_source(Ids{source.ids.data(), source.length, 1, source.length, nullptr});
  if (model_->frontend()) {
    load_speech(*model_, from, source);
  } else {
    source.kind = source.length > 0 ? SourceKind::ids : SourceKind::none;
    source.units = source.length;
  }
  from.section("AUXS");
  auto aux = std::make_shared<Aux>();
  const auto carried = model_->carried();
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
  if (source.length > 0) {
    for (const auto& [name, port] : carried) require_that(aux->contains(name), "a sequence of the encoder is missing");
    source.aux = std::move(aux);
  }
  source_ = std::move(source);
}

}  // namespace attnkit::core
