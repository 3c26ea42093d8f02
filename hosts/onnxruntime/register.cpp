// RegisterCustomOps: what ONNX Runtime calls in a library of operators; the operator attnkit.Block.
#include <limits>
#include <map>
#include <new>

#include "hosts/onnxruntime/kernel.hpp"

namespace attnkit::ort {

namespace {

// Returns what f throws as the runtime's status; NULL: nothing.
template <class F>
Status* guarded(const Api& api, const std::string& place, F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Failure& e) {
    return e.status;
  } catch (const Error& e) {
    const int code = e.code() == ATTN_INVALID       ? invalid_argument
                     : e.code() == ATTN_UNSUPPORTED ? not_implemented
                                                    : failed;
    return api.create_status(code, (place + e.what()).c_str());
  } catch (const std::bad_alloc&) {
    return api.create_status(failed, "attnkit.Block: out of memory");
  } catch (const std::exception& e) {
    return api.create_status(failed, e.what());
  }
}

struct Made {
  const Api& api;
  Kernel kernel;
};

Status* create(const Operator*, const Api* api, const KernelInfo* info, void** made) {
  return guarded(*api, Kernel::place(*api, info) + ": ", [&] { *made = new Made{*api, Kernel(*api, info)}; });
}

Status* compute(void* made, Context* context) {
  const Made& m = *static_cast<Made*>(made);
  return guarded(m.api, "", [&] { m.kernel.run(context); });
}

// Inputs are as the attribute `names` says them, of any type.  Outputs: o, state, the AUX_OUT ports in their order.
Operator block() {
  Operator op{};
  op.version = version;
  op.name = [](const Operator*) { return "Block"; };
  op.provider = [](const Operator*) -> const char* { return nullptr; };
  op.inputs = [](const Operator*) -> size_t { return 1; };
  op.input_type = [](const Operator*, size_t) { return undefined; };
  op.input_kind = [](const Operator*, size_t) { return variadic; };
  op.input_memory = [](const Operator*, size_t) { return 0; };
  op.least_inputs = [](const Operator*) { return 1; };
  op.inputs_alike = [](const Operator*) { return 0; };
  op.outputs = [](const Operator*) -> size_t { return 2 + Kernel::max_carried; };
  op.output_type = [](const Operator*, size_t i) { return i == 1 ? u8 : f32; };
  op.output_kind = [](const Operator*, size_t) { return optional; };
  op.try_create = create;
  op.try_compute = compute;
  op.destroy = [](void* made) { delete static_cast<Made*>(made); };
  op.first_version = [](const Operator*) { return 1; };
  op.last_version = [](const Operator*) { return std::numeric_limits<int>::max(); };
  return op;
}

// Sessions hold on to the domain and its operator: one for each runtime in the process, as long as that lives.
Domain* domain_of(const Api& api) {
  static std::mutex mutex;
  static std::map<const Api*, Domain*> made;
  static const Operator op = block();
  const std::lock_guard lock(mutex);
  Domain*& domain = made[&api];
  if (!domain) {
    Domain* fresh = nullptr;
    check(api.create_domain("attnkit", &fresh));
    std::unique_ptr<Domain, void (*)(Domain*)> owned(fresh, api.release_domain);
    check(api.add_to_domain(fresh, &op));
    domain = owned.release();
  }
  return domain;
}

}  // namespace

}  // namespace attnkit::ort

// Adds the domain "attnkit" to the options of a session.
extern "C" __attribute__((visibility("default"))) attnkit::ort::Status* RegisterCustomOps(
    attnkit::ort::SessionOptions* options, const attnkit::ort::ApiBase* base) {
  using namespace attnkit::ort;
  const Api* api = base->api(version);
  if (!api) {
    api = base->api(1);
    const std::string found = base->version();
    return api ? api->create_status(not_implemented, ("onnxruntime " + found + " is too old: attnkit.Block needs 1." +
                                                      std::to_string(version) + " or later")
                                                         .c_str())
               : nullptr;
  }
  return guarded(*api, "", [&] { check(api->add_domain(options, domain_of(*api))); });
}
