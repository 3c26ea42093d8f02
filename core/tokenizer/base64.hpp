// Bytes as text in JSON: RFC 4648, by Boost's iterators.
#pragma once

#include <algorithm>
#include <boost/archive/iterators/base64_from_binary.hpp>
#include <boost/archive/iterators/binary_from_base64.hpp>
#include <boost/archive/iterators/transform_width.hpp>
#include <optional>
#include <string>

namespace attnkit::core {

inline std::string to_base64(std::string bytes) {
  using boost::archive::iterators::base64_from_binary, boost::archive::iterators::transform_width;
  using Letters = base64_from_binary<transform_width<const char*, 6, 8>>;
  const size_t missing = (3 - bytes.size() % 3) % 3;
  bytes.append(missing, '\0');  // the iterators know whole groups alone
  std::string text(Letters(bytes.data()), Letters(bytes.data() + bytes.size()));
  return text.replace(text.size() - missing, missing, missing, '=');
}

// Nothing where it is no base64.
inline std::optional<std::string> from_base64(std::string text) {
  using boost::archive::iterators::binary_from_base64, boost::archive::iterators::transform_width;
  using Bytes = transform_width<binary_from_base64<const char*>, 8, 6>;
  const size_t missing = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::fill(text.end() - static_cast<std::ptrdiff_t>(missing), text.end(), 'A');
  if (text.size() % 4 != 0 || text.find('=') != text.npos) return std::nullopt;
  try {
    std::string bytes(Bytes(text.data()), Bytes(text.data() + text.size()));
    bytes.resize(bytes.size() - missing);
    return bytes;
  } catch (const boost::archive::iterators::dataflow_exception&) {
    return std::nullopt;
  }
}

}  // namespace attnkit::core
