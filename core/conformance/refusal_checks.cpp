// Laws of refusing: a code, one good sentence, and nothing written.
#include <cstring>

#include "core/base/error.hpp"
#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

// A request that it takes; ends the law where it takes none.
attn_request taken(const Law& law) {
  const attn_request r = make_request(2, 8, law.keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
  law.may_refuse([&] { Planned(law.mech(), r); });
  return r;
}

// plan must refuse as unsupported and touch nothing but the error.
void hold_refused(const Law& law, const attn_request& r, const char* what) {
  const attn_plugin& plugin = law.mech().plugin();
  attn_info info, before;
  std::memset(&info, 0x5A, sizeof info);
  info.struct_size = sizeof info;
  before = info;
  attn_plan* plan = nullptr;
  Later longer(empty_error());
  attn_error& error = longer.known;
  const auto ask = [&](attn_plan** to, attn_error* err) {
    return boundary("plan", [&] { return plugin.plan(law.mech().get(), &r, &info, to, err); });
  };
  const int32_t code = ask(&plan, &error);
  hold(code == ATTN_UNSUPPORTED, "{} must be refused as ATTN_UNSUPPORTED, and plan answered {}", what, code);
  hold(plan == nullptr && std::memcmp(&before, &info, sizeof info) == 0,
       "plan refuses {} and writes its answer all the same", what);
  hold(error.code == code && error.where == -1, "plan refuses {} with code {} and its error holds {} about {}", what,
       code, error.code, error.where);
  hold(longer.unknown == ~uint64_t{0}, "plan writes past the attn_error that it knows");
  const std::string message = message_of(error);
  hold(message.size() > 10 && message.find('\n') == std::string::npos,
       "plan refuses {} and not in words of one line, but with \"{}\"", what, message);
  hold(ask(nullptr, nullptr) == code, "plan refuses {} otherwise where plan and error are NULL", what);
}

void bidirectional(Law& law) {
  attn_request r = taken(law);
  r.flags |= ATTN_STREAM;
  hold_refused(law, r, "a stream of bidirectional self attention");
}

void training(Law& law) {
  if (law.mech().plugin().backward) throw NotApplicable{"it has a backward pass"};
  attn_request r = taken(law);
  r.flags |= ATTN_TRAIN;
  hold_refused(law, r, "training without backward");
}

void wide(Law& law) {
  attn_request r = taken(law);
  r.dtype_bits = 64;
  if (law.mech().plugin().backward) r.flags |= ATTN_STREAM;
  hold_refused(law, r, law.mech().plugin().backward ? "f64 with state" : "f64 without gradients");
}

void types(Law& law) {
  attn_request r = taken(law);
  r.dtype_code = 0;
  hold_refused(law, r, "sequences of integers");
}

constexpr Check all[] = {
    {"refusal", "bidirectional", "bidirectional self attention refuses to stream", nullptr, bidirectional, kEncoder,
     Draws::none},
    {"refusal", "training", "without backward it refuses to train", nullptr, training, kAnywhere, Draws::none},
    {"refusal", "f64", "f64 is refused without gradients or with state", nullptr, wide, kAnywhere, Draws::none},
    {"refusal", "types", "element types that it does not compute in are refused", nullptr, types, kAnywhere,
     Draws::none},
};

}  // namespace

const std::span<const Check> refusal_checks = all;

}  // namespace attnkit::core::conformance
