// Common to a test and the process that goes on with its session.
#pragma once

#include <attnkit/attnkit.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

struct Streamed {
  attnkit::Runtime runtime{1};
  attnkit::Model model{runtime, manifest(), ATTNKIT_MODEL};

  static std::string manifest() {
    std::ifstream in(ATTNKIT_MODEL "/model.toml");
    std::stringstream text;
    text << in.rdbuf() << "\n[stream]\n";
    return text.str();
  }
  attnkit::Ids source() const {
    attnkit::Ids ids = model.tokenize(attnkit::Side::source, "five euros ; the third of march");
    ids.push_back(model.info().end_id);
    return ids;
  }
};

// Reads the rest of the source and decodes; the logits of the first step and the ids after it, as text.
inline std::string finish(const Streamed& o, attnkit::Session& session) {
  const attnkit::Ids source = o.source();
  session.read({source.begin() + 5, source.end()});
  std::vector<float> logits(static_cast<size_t>(o.model.info().outputs));
  attnkit_session* const self = session.get();
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{o.model.info().begin_id}}),
                          logits.data(), o.model.info().outputs);
  std::string text;
  for (const float x : logits) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    text += std::to_string(bits) + " ";
  }
  for (const int32_t id : session.generate()) text += std::to_string(id) + " ";
  return text;
}

inline std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}
