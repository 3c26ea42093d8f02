// Any bytes as a saved session whose frame and checksum are right, and honest ones with bytes changed; what is accepted
// must then behave as a session does.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/session/session.hpp"

namespace {

using namespace attnkit::core;
using Bytes = std::vector<std::byte>;

// A model and honest sessions of it, saved at several moments.
struct Kind {
  std::shared_ptr<const Model> model;
  std::vector<Bytes> saved;
};

Kind kind_of(const std::string& folder, const char* attention, const char* stream, bool causal) {
  const std::string text = std::string(
                               "schema = \"attnkit.model/1\"\n[model]\nname = \"tiny\"\n"
                               "kind = \"encoder-decoder\"\nd_model = 8\nheads = 2\nffn = 8\nmax_length = 12\n"
                               "tie_embeddings = true\nencoder = { layers = 1, vocab = \"vocab.txt\"") +
                           (causal ? ", causal = true" : "") +
                           " }\ndecoder = { layers = 1, vocab = \"vocab.txt\" }\n[weights]\nseed = 1\n[attention]\n" +
                           attention + "[length]\npredict = \"fixed\"\nlength = 8\n" + stream;
  Diagnostics diagnostics;
  const auto runtime = std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, 1, 1);
  Kind kind{Model::load(runtime, text, folder, diagnostics), {}};
  if (!kind.model) std::abort();
  for (const int rows : {1, 2}) {
    Session session(kind.model, rows);
    Session* const self = &session;
    const auto save = [&] { kind.saved.push_back(session.save()); };
    const int32_t ids[] = {3, 4, 5, 6, 2}, tokens[] = {1, 1};
    save();
    session.read(Ids{ids, 3, 1, 3, nullptr}, *stream == '\0');
    Session::write({&self, 1}, {tokens, 1, rows, 1, nullptr}, nullptr);
    save();
    if (*stream != '\0') session.read(Ids{ids + 3, 2, 1, 2, nullptr}, true);
    save();
  }
  return kind;
}

std::vector<Kind> make_kinds() {
  std::string folder = "/tmp/session_fuzz-XXXXXX";
  if (!mkdtemp(folder.data())) std::abort();
  std::ofstream(folder + "/vocab.txt") << "<pad>\n<s>\n</s>\n\u2581a\n\u2581b\n\u2581c\n\u2581d\n";
  return {
      kind_of(folder, "default = \"softmax\"\n", "[stream]\n", true),
      kind_of(folder, "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n", "[stream]\nreplay = true\n", true),
      kind_of(folder, "default = \"luna\"\n\"decoder.self\" = \"local\"\n", "[stream]\nreplay = true\n", false),
      kind_of(folder, "default = \"relu\"\n", "", false)};
}

// Turns `data` into edits of a blob: where (2 bytes), what (0 to 3: set, insert, remove, cut), and a value.
void edit(Bytes& blob, const uint8_t* data, size_t size) {
  for (; size >= 4; data += 4, size -= 4) {
    const size_t at = (data[0] | static_cast<size_t>(data[1]) << 8) % (blob.size() + 1);
    const auto place = blob.begin() + static_cast<std::ptrdiff_t>(at);
    if (data[2] % 8 == 1)
      blob.insert(place, std::byte{data[3]});
    else if (at < blob.size() && data[2] % 8 == 2)
      blob.erase(place);
    else if (data[2] % 8 == 3)
      blob.resize(at);
    else if (at < blob.size())
      blob[at] = std::byte{data[3]};
  }
}

// The size and the checksum that the content asks for.
void seal(Bytes& blob) {
  const uint64_t size = blob.size() + sizeof(Digest);
  if (blob.size() >= 24) std::memcpy(blob.data() + 16, &size, sizeof size);
  const Digest digest = sha256(blob);
  const auto* bytes = reinterpret_cast<const std::byte*>(digest.data());
  blob.insert(blob.end(), bytes, bytes + sizeof digest);
}

template <class F>
void attempt(F&& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

void use(Session& session) {
  Session* const self = &session;
  const std::vector<int32_t> tokens(static_cast<size_t>(session.rows()), 4);
  const int32_t ids[] = {5, 2};
  const auto write = [&] { Session::write({&self, 1}, {tokens.data(), 1, session.rows(), 1, nullptr}, nullptr); };
  session.save();
  attempt(write);
  attempt([&] { session.clone(); });
  attempt([&] { session.read(Ids{ids, 2, 1, 2, nullptr}, session.position(0) % 2 == 0); });
  attempt(write);
  attempt([&] { session.generate(3); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Kind> kinds = make_kinds();
  if (size == 0) return 0;
  const Kind& kind = kinds[data[0] % kinds.size()];
  const size_t which = data[0] / kinds.size() % (kind.saved.size() + 1);
  Bytes blob;
  if (which < kind.saved.size()) {
    blob = kind.saved[which];
    blob.resize(blob.size() - sizeof(Digest));
    edit(blob, data + 1, size - 1);
  } else {
    const auto* bytes = reinterpret_cast<const std::byte*>(data + 1);
    blob.assign(bytes, bytes + size - 1);
  }
  seal(blob);
  attempt([&] { use(*Session::load(kind.model, blob)); });
  return 0;
}
