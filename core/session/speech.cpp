#include "core/session/speech.hpp"

#include <algorithm>
#include <cmath>

namespace attnkit {
namespace {

void require_that(bool right, const char* what) {
  if (!right) fail(ATTN_INVALID, "the saved session contradicts itself or its model: {}", what);
}

}  // namespace

void save_speech(const Session::Source& source, BlobWriter& to) {
  to.section("SPCH");
  to.u32(static_cast<uint32_t>(source.kind));
  to.u64(static_cast<uint64_t>(source.units));
  to.numbers(source.front);
  to.numbers(source.waiting.samples);
  to.u32(static_cast<uint32_t>(source.waiting.rows.size()));
  for (const std::vector<float>& rows : source.waiting.rows) to.numbers(rows);
}

void load_speech(const Model& model, BlobReader& from, Session::Source& to) {
  const Frontend& frontend = *model.frontend();
  const Manifest& m = model.manifest();
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
  const int64_t kept = to.complete || model.encoder().appends() ? 0 : to.length * m.d_model;
  require_that(static_cast<int64_t>(to.front.size()) == kept, "another number of rows of the front end");
  to.waiting.samples = from.numbers<float>();
  for (uint32_t n = from.u32(); n > 0; --n) to.waiting.rows.push_back(from.numbers<float>());
  const bool waits = begun && !to.complete;
  require_that(
      waits ? frontend.fits(to.waiting, to.kind, to.units) : to.waiting.samples.empty() && to.waiting.rows.empty(),
      "another amount of speech that waits");
}

}  // namespace attnkit
