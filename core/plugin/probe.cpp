// Requests that tell a mechanism's abilities apart, and their answers as JSON.
#include "core/plugin/probe.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/roles.hpp"
#include "core/base/text.hpp"
#include "core/plugin/mechanism.hpp"

namespace attnkit::core {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t both_totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
constexpr int64_t length = 512, long_length = 4096;
constexpr int32_t d_model = 128, heads = 4;

// Either the answer or the refusal.
struct Answer {
  std::optional<attn_info> info;
  std::string refusal;
  bool faulty = false;  // it is no refusal, the plugin broke the contract
};

template <class Ask>
Answer answer_of(Ask&& ask) {
  try {
    return {ask(), {}};
  } catch (const Error& e) {
    return {std::nullopt, e.what(), e.code() == ATTN_INTERNAL};
  } catch (const std::exception& e) {
    return {std::nullopt, e.what()};
  }
}

void add_refusal(const Answer& refused, Json& to) {
  to["refusal"] = refused.refusal;
  if (refused.faulty) to["faulty"] = true;
}

struct Asker {
  const Mechanism& mechanism;

  Answer whole(uint32_t totals) const { return ask(cpu_request(totals, 1, 1, length, length, 0)); }
  // One query and one key, the state then holding `capacity` keys.
  Answer stream(uint32_t totals, int64_t capacity = length) const {
    return ask(cpu_request(ATTN_STREAM | totals, 1, 1, 1, 1, capacity - 1));
  }

  Answer ask(attn_request request) const {
    const int32_t device = request.device_type = mechanism.plugin().table.device_type;
    // A plan for another device may need one.
    return answer_of([&] { return device == 1 ? mechanism.plan(request).info() : mechanism.ask(request); });
  }
};

// Returns the smallest set of totals under which `ask` is answered, given that it is with both.
template <class Ask>
Json lengths_needed(Ask&& ask) {
  if (ask(0u).info) return Json::array();
  if (ask(ATTN_KNOWS_Q_TOTAL).info) return {"query"};
  if (ask(ATTN_KNOWS_K_TOTAL).info) return {"key"};
  return {"query", "key"};
}

Json stream_of(const Asker& asker) {
  const Answer first = asker.stream(both_totals);
  Json out = {{"fits", first.info.has_value()}};
  if (!first.info) {
    add_refusal(first, out);
    return out;
  }
  const Answer later = asker.stream(both_totals, long_length);
  out["lengths"] = lengths_needed([&](uint32_t totals) { return asker.stream(totals); });
  out["growing_source"] = asker.stream(ATTN_KNOWS_Q_TOTAL).info.has_value();
  out["rewinds"] = (first.info->flags & ATTN_REWINDS) != 0;
  out["state_bytes"] = {{"512", first.info->state_bytes}};
  out["state_bytes"]["4096"] = later.info ? Json(later.info->state_bytes) : Json(later.refusal);
  out["flops"] = first.info->flops;
  return out;
}

std::string dtype_of(const attn_port& port) {
  const char* code = port.dtype_code == 2 ? "f" : port.dtype_code == 4 ? "bf" : port.dtype_code == 0 ? "i" : "type";
  return code + std::to_string(port.dtype_bits);
}

Json tensors_of(const Mechanism& mechanism) {
  Json out = Json::array();
  for (const attn_port* port : mechanism.ports()) {
    if (port->kind != ATTN_LEARNED && port->kind != ATTN_TABLE) continue;
    out.push_back({{"name", port->name},
                   {"kind", port->kind == ATTN_LEARNED ? "learned" : "table"},
                   {"dtype", dtype_of(*port)},
                   {"shape", std::vector<int64_t>(port->shape, port->shape + port->ndim)},
                   {"per_model", (port->flags & ATTN_PER_MODEL) != 0},
                   {"doc", clean_line(port->doc != nullptr ? port->doc : "")}});
  }
  return out;
}

void describe(const Mechanism& mechanism, Json& out) {
  const Asker asker{mechanism};
  const Answer whole = asker.whole(both_totals);
  out["fits"] = whole.info.has_value();
  if (whole.info) {
    out["lengths"] = lengths_needed([&](uint32_t totals) { return asker.whole(totals); });
    out["flops"] = whole.info->flops;
    out["bytes_read"] = whole.info->bytes_read;
    out["bytes_written"] = whole.info->bytes_written;
    out["scratch_bytes"] = whole.info->scratch_bytes;
  } else {
    add_refusal(whole, out);
  }
  out["stream"] = stream_of(asker);
  out["tensors"] = tensors_of(mechanism);
}

}  // namespace

Json probe(const Plugin& plugin) {
  Json places = Json::array();
  for (const auto& [role, causal] : {std::pair(ATTN_ENCODER_SELF, 0u), std::pair(ATTN_ENCODER_SELF, 1u),
                                     std::pair(ATTN_DECODER_SELF, 1u), std::pair(ATTN_DECODER_CROSS, 0u)}) {
    Json& place = places.emplace_back(Json{{"role", role_name(role)}, {"causal", causal != 0}});
    const attn_block block = {sizeof(attn_block), role, causal, heads, d_model, d_model / heads, heads, 0};
    std::shared_ptr<const Mechanism> mechanism;
    const Answer made = answer_of([&] {
      mechanism = Mechanism::create(plugin, block, default_options(plugin));
      return attn_info{};
    });
    place["fits"] = made.info.has_value();
    if (mechanism)
      describe(*mechanism, place);
    else
      add_refusal(made, place);
  }
  return places;
}

}  // namespace attnkit::core
