// Laws of the table itself: names, docs, ports, options, stored tensors.
#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"
#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

void texts(const Trial& trial) {
  const attn_plugin& p = load(trial.file);
  for (const auto& [what, text] : {std::pair("summary", p.summary), std::pair("citation", p.citation),
                                   std::pair("state_revision", p.state_revision)})
    hold(text != nullptr && *text != '\0', "its {} is empty", what);
}

void options(const Trial& trial) {
  const attn_plugin& p = load(trial.file);
  if (p.n_options == 0) throw NotApplicable{"it has no options"};
  for (uint32_t i = 0; i < p.n_options; ++i) {
    const attn_option& o = *p.options[i];
    hold(std::strlen(o.doc) > 10, "option {} has no sentence that says what it does, but \"{}\"", o.name, o.doc);
    if (o.fallback.type == ATTN_BOOL || o.fallback.type == ATTN_TEXT)
      hold(o.min == 0 && o.max == 0, "option {} is no number and has the bounds {} and {}", o.name, o.min, o.max);
  }
}

void ports(Law& law) {
  for (const attn_port* port : law.mech().ports()) {
    const std::string doc = port->doc != nullptr ? port->doc : "";
    hold(doc.size() > 3, "port {} is described as \"{}\": say in more than 3 bytes what it holds", port->name, doc);
    const bool sequence = port->kind <= ATTN_OUTPUT, aux = port->kind >= ATTN_AUX_IN;
    if (sequence || aux)
      hold(port->ndim == 4 && port->shape[0] == 0 && port->shape[3] > 0 &&
               (aux ? port->shape[1] == 1 : port->shape[2] == 0),
           "port {} is a sequence of {} dimensions, ({}, {}, {}, {}), not (0, heads, rows, width)", port->name,
           port->ndim, port->shape[0], port->shape[1], port->shape[2], port->shape[3]);
    if (port->kind == ATTN_OUTPUT && (port->flags & ATTN_RAW))
      hold(port->shape[1] * port->shape[3] == law.mech().block().d_model,
           "port {} is added as it is, {} heads of width {}, and the model is {} wide: refuse such a block", port->name,
           port->shape[1], port->shape[3], law.mech().block().d_model);
    if (aux) hold(port->shape[2] > 0, "port {} is an auxiliary sequence of no row", port->name);
  }
}

void equal_ports(Law& law) {
  const Mechanism again(law.mech().plugin(), law.mech().block(), law.place().settings);
  hold(law.mech().ports().size() == again.ports().size(), "it has {} ports and then {} for the same block and values",
       law.mech().ports().size(), again.ports().size());
  for (size_t i = 0; i < again.ports().size(); ++i) {
    const attn_port &a = law.port(i), &b = *again.ports()[i];
    hold(std::strcmp(a.name, b.name) == 0 && a.kind == b.kind && a.flags == b.flags && a.dtype_code == b.dtype_code &&
             a.dtype_bits == b.dtype_bits && a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape),
         "port {} differs from {} of the same block and values", a.name, b.name);
  }
}

void fills(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  if (!law.has(ATTN_LEARNED) && !law.has(ATTN_TABLE)) throw NotApplicable{"it stores no tensors"};
  for (size_t i = 0; i < law.mech().ports().size(); ++i) {
    const attn_port& port = law.port(i);
    if (port.kind != ATTN_LEARNED && port.kind != ATTN_TABLE) continue;
    hold(plugin.fill != nullptr, "port {} is stored and nobody fills it", port.name);
    const auto filled = [&](uint64_t seed) {
      Array a = Array::stored(port);
      law.mech().fill(i, seed, a.tensor());
      hold(a.gaps_intact(), "fill writes past the end of port {}", port.name);
      return a;
    };
    hold(same_bits(filled(5), filled(5)), "port {} is filled otherwise with the same seed", port.name);
    hold(port.dtype_code != 2 || all_finite(filled(5)), "port {} is not filled, or not with finite numbers", port.name);
  }
}

void refuses_to_fill(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  if (!plugin.fill) throw NotApplicable{"it has no function fill"};
  for (size_t i = 0; i < law.mech().ports().size(); ++i) {
    if (law.port(i).kind == ATTN_LEARNED || law.port(i).kind == ATTN_TABLE) continue;
    float x = 0;
    attn_tensor t{};
    t.data = &x;
    const int32_t code =
        boundary("fill", [&] { return plugin.fill(law.mech().get(), static_cast<uint32_t>(i), 1, &t, nullptr); });
    hold(code == ATTN_INVALID, "fill of port {}, which is not stored, answers {}, not ATTN_INVALID", law.port(i).name,
         code);
  }
}

constexpr Check all[] = {
    {"table", "texts", "summary, citation and state_revision say something", texts, nullptr},
    {"table", "options", "each option has a sentence, and bounds if it is a number", options, nullptr},
    {"table", "ports", "each port has a description and the shape of its kind", nullptr, ports},
    {"table", "equal_ports", "equal blocks and values get equal ports", nullptr, equal_ports},
    {"table", "fill", "stored tensors are filled from the seed alone, with finite numbers", nullptr, fills},
    {"table", "refuses_to_fill", "a port that is not stored is not filled", nullptr, refuses_to_fill, kAnywhere,
     Draws::none},
};

}  // namespace

const std::span<const Check> table_checks = all;

}  // namespace attnkit::core::conformance
