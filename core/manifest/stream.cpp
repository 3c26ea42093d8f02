// [stream]: a source that grows while the target is written, and what that means for mechanisms.
#include <algorithm>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"
#include "core/plugin/mechanism.hpp"

namespace attnkit {

void check_stream(const Node& stream, ManifestCheck& check) {
  const TableReader reader(stream, "stream", check.diagnostics);
  if (check.kind_known && check.manifest.kind != ModelKind::encoder_decoder) {
    check.diagnostics.error(ak::not_applicable, stream.place,
                            fmt::format("[stream] is for models with an encoder and a decoder, not for kind \"{}\"",
                                        kind_text(check.manifest.kind)),
                            "remove it");
    return;
  }
  StreamTable& to = check.manifest.stream.emplace();
  to.policy = static_cast<StreamPolicy>(reader.choice("policy").value_or(0));
  to.k = static_cast<int>(reader.integer("k").value_or(to.k));
  to.pre_decision = static_cast<int>(reader.integer("pre_decision").value_or(to.pre_decision));
  // A mistake in it is reported once, and not again as the refusals of mechanisms.
  to.replay = reader.boolean("replay").value_or(true);
  if (to.policy != StreamPolicy::offline) return;
  for (const char* key : {"k", "pre_decision"})
    if (reader.mentioned(key))
      check.diagnostics.error(ak::not_applicable, stream.find(key)->place,
                              fmt::format("\"{}\" is for policy = \"wait-k\" only", key), "remove it");
}

std::string GrowingSequences::follow(const Mechanism& mechanism, BlockChoice& choice, bool replay) {
  std::string refusal;
  for (const attn_port* port : mechanism.ports()) {
    if (port->kind != ATTN_AUX_IN || !names_.contains(port->name)) continue;
    if (mechanism.block().causal)
      refusal = fmt::format(
          "it keeps what it made of the sequence \"{}\", which another block makes anew whenever the source grows",
          port->name);
    else if (choice.role == ATTN_DECODER_CROSS && !replay)
      refusal = fmt::format(
          "its state holds what it made of the sequence \"{}\", which another block makes anew whenever the source "
          "grows, so it would have to be filled anew, and [stream] does not say replay = true",
          port->name);
    else if (choice.role == ATTN_DECODER_CROSS)
      choice.replays = true;
  }
  for (const attn_port* port : mechanism.ports()) {
    if (port->kind != ATTN_AUX_OUT) continue;
    if (choice.role == ATTN_DECODER_SELF)
      names_.erase(port->name);
    else
      names_.insert(port->name);
  }
  return refusal;
}

}  // namespace attnkit
