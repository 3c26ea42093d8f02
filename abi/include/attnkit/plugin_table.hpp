// The C table of a mechanism and the noexcept functions in it; included by plugin.hpp, not by authors.
#ifndef ATTNKIT_PLUGIN_TABLE_HPP
#define ATTNKIT_PLUGIN_TABLE_HPP

namespace attnkit {

// Writes an error if the caller wants one, cut at a whole character, and returns its code.
inline int32_t fail(attn_error* error, int32_t code, const char* message, int32_t where = -1) noexcept {
  if (error != nullptr && ATTN_HAS(attn_error, error, message)) {
    error->code = code;
    error->where = where;
    size_t n = std::min(std::strlen(message), sizeof error->message - 1);
    if (message[n] != '\0')
      while (n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0) == 0x80) --n;
    std::memcpy(error->message, message, n);
    error->message[n] = '\0';
  }
  return code;
}

// Runs f; whatever it throws becomes a code.
template <class F>
int32_t guarded(attn_error* error, F&& f) noexcept {
  try {
    f();
    return ATTN_OK;
  } catch (const Refusal& refusal) {
    return fail(error, refusal.code(), refusal.what(), refusal.where());
  } catch (const std::bad_alloc&) {
    return fail(error, ATTN_NO_MEMORY, "out of memory: free some, or ask for smaller bounds");
  } catch (const std::exception& other) {
    return fail(error, ATTN_INTERNAL, other.what());
  } catch (...) {
    return fail(error, ATTN_INTERNAL, "the plugin threw something that is no std::exception");
  }
}

template <class T>
struct Table {
  struct Made {
    Made(const attn_block& block, const Values& values) : ports(block.heads), mech(block, values, ports) {}
    Ports ports;
    T mech;
  };
  struct Planned {
    const Made* made;
    attn_request request;
    attn_info info;
    typename T::Plan plan;
  };

  // The options as C structs.  Made once, in main.
  struct Schema {
    Schema() {
      for (Option& option : options) {
        option.schema.n_choices = static_cast<uint32_t>(option.choices.size());
        option.schema.choices = option.choices.data();
        list.push_back(&option.schema);
      }
    }
    Options options = T::options();
    std::vector<const attn_option*> list;
  };
  static const Schema& schema() {
    static const Schema made;
    return made;
  }

  static const Made& made(const attn_mech* mech) { return *reinterpret_cast<const Made*>(mech); }

  static int32_t create(const attn_block* block, const attn_value* values, attn_mech** mech,
                        const attn_port* const** ports, uint32_t* n_ports, attn_error* error) noexcept {
    return guarded(error, [&] {
      check::block(*block);
      auto made = std::make_unique<Made>(*block, Values(values, schema().options));
      *ports = made->ports.list().data();
      *n_ports = static_cast<uint32_t>(made->ports.list().size());
      *mech = reinterpret_cast<attn_mech*>(made.release());
    });
  }

  static void destroy(attn_mech* mech) noexcept { delete reinterpret_cast<Made*>(mech); }

  static int32_t fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor,
                      attn_error* error) noexcept {
    return guarded(error, [&] {
      const auto& ports = made(mech).ports.list();
      if (port >= ports.size()) throw invalid("port ", port, " does not exist: there are ", ports.size());
      const int64_t count = check::stored(*ports[port], *tensor);
      if constexpr (requires(const T& t) { t.fill(port, seed, static_cast<float*>(nullptr), count); })
        made(mech).mech.fill(port, seed, static_cast<float*>(tensor->data), count);
      else
        throw invalid("port \"", ports[port]->name, "\" has no initial content");
    });
  }

  static int32_t plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                      attn_error* error) noexcept {
    return guarded(error, [&] {
      check::request(*request, T::about.device_type);
      attn_request known{};  // of a newer host's request, the part known here
      std::memcpy(&known, request, std::min<size_t>(request->struct_size, sizeof known));
      known.struct_size = sizeof known;
      attn_info answer{};
      answer.struct_size = sizeof answer;
      auto data = made(mech).mech.plan(known, answer);
      if (plan != nullptr)
        *plan = reinterpret_cast<attn_plan*>(new Planned{&made(mech), known, answer, std::move(data)});
      if (info != nullptr && info->struct_size > sizeof info->struct_size)
        std::memcpy(&info->flags, &answer.flags,
                    std::min<size_t>(info->struct_size, sizeof answer) - offsetof(attn_info, flags));
    });
  }

  static void plan_free(attn_plan* plan) noexcept { delete reinterpret_cast<Planned*>(plan); }

  static int32_t run(const attn_plan* plan, const attn_run* run, attn_error* error) noexcept {
    return guarded(error, [&] {
      const auto& planned = *reinterpret_cast<const Planned*>(plan);
      check::run(planned.made->ports.list(), planned.request, planned.info, *run);
      planned.made->mech.run(planned.plan, *run);
    });
  }

  static const attn_plugin& table() {
    static const attn_plugin made{sizeof(attn_plugin),
                                  ATTN_ABI_MINOR,
                                  T::about.oldest_host_minor,
                                  T::about.device_type,
                                  T::about.name,
                                  T::about.summary,
                                  T::about.citation,
                                  T::about.state_revision,
                                  schema().list.data(),
                                  static_cast<uint32_t>(schema().list.size()),
                                  0,
                                  create,
                                  destroy,
                                  fill,
                                  plan,
                                  plan_free,
                                  run,
                                  nullptr};
    return made;
  }

  static int32_t main(const attn_host* host, const attn_plugin** plugin, attn_error* error) noexcept {
    return guarded(error, [&] {
      if (!ATTN_HAS(attn_host, host, oldest_plugin_minor)) throw invalid("attn_host is shorter than its first version");
      if (host->abi_minor + 1 < T::about.oldest_host_minor + 1)  // nvcc warns of comparing unsigned with 0
        throw unsupported("plugin \"", T::about.name, "\" needs a host of attnkit ABI 1.", T::about.oldest_host_minor,
                          " or newer and this host is 1.", host->abi_minor, ": update the host");
      if (host->oldest_plugin_minor > ATTN_ABI_MINOR)
        throw unsupported("plugin \"", T::about.name, "\" was built for attnkit ABI 1.", ATTN_ABI_MINOR,
                          " and this host accepts 1.", host->oldest_plugin_minor, " or newer: update the plugin");
      *plugin = &table();
    });
  }
};

}  // namespace attnkit
#endif
