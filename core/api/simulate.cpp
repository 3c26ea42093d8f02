// attnkit.h: simultaneous decoding.
#include <algorithm>

#include "core/api/handles.hpp"
#include "core/session/simultaneous.hpp"

using namespace attnkit;

namespace {

Units units_of(const Model& model, const attn_tensor* tensor, const attnkit_stream_options& options) {
  const SourceBatch source = to_source(model, tensor, nullptr);
  if (source.batch != 1 || source.length < 1)
    fail(ATTN_INVALID, "the source must be one row of at least one {}", model.frontend() ? "sample or frame" : "id");
  if (options.ends && options.units == 0) fail(ATTN_INVALID, "options.ends has no units");
  if (options.units > static_cast<uint64_t>(source.length))
    fail(ATTN_INVALID, "{} units for {} {}: each has at least one", options.units, source.length,
         unit_name(source.kind));
  return {source, options.ends ? std::span(options.ends, options.units) : std::span<const int64_t>()};
}

}  // namespace

int32_t attnkit_session_simulate(attnkit_session* session, const attn_tensor* source,
                                 const attnkit_stream_options* options, int32_t* ids, uint64_t* n, attn_error* err) {
  return guard(err, [&] {
    require(session, "session");
    require(options, "options");
    require(ids, "ids");
    require(n, "n");
    if (options->struct_size < sizeof(attnkit_stream_options))
      fail(ATTN_INVALID, "options.struct_size {} is below {}", options->struct_size, sizeof(attnkit_stream_options));
    require(reinterpret_cast<const void*>(options->decide), "options.decide");
    const Session::Use use(*session->session);
    const std::vector<int32_t> made =
        simulate(*session->session, units_of(session->session->model(), source, *options), *options);
    std::copy(made.begin(), made.end(), ids);
    *n = made.size();
  });
}
