// The archive: entries, each a local header (30 bytes, name, more) and its data; the central directory, which lists
// them; the end record, which says where that is.  An entry is an npy file: magic, version, length of a header that is
// a literal of Python, this, the numbers.
#include "core/base/formats/npz.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "core/base/formats/byte_reader.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view local_magic = "PK\3\4", central_magic = "PK\1\2", end_magic = "PK\5\6",
                           npy_magic = "\x93NUMPY", ending = ".npy";
constexpr size_t local_bytes = 30, central_bytes = 46, end_bytes = 22, max_comment = 65535, max_dimensions = 8;
constexpr uint32_t in_zip64 = 0xFFFFFFFF;
constexpr uint16_t stored = 0, deflated = 8, encrypted = 1;
// Deflate makes at most 1032 bytes of one.
constexpr uint64_t max_growth = 1032;

struct Type {
  std::string_view npy;  // without the order of bytes
  const char* name;
  size_t bytes;
};
constexpr Type types[] = {{"f4", "F32", 4}, {"f2", "F16", 2}, {"f8", "F64", 8}, {"i1", "I8", 1},
                          {"u1", "U8", 1},  {"i2", "I16", 2}, {"u2", "U16", 2}, {"i4", "I32", 4},
                          {"u4", "U32", 4}, {"i8", "I64", 8}, {"u8", "U64", 8}, {"b1", "BOOL", 1}};

class NpzReader : ByteReader {
 public:
  using ByteReader::ByteReader;

  std::vector<NpzTensor> read() {
    size_t at = find_end();
    const auto entries = number<uint16_t>(at + 10);
    const auto size = number<uint32_t>(at + 12), begin = number<uint32_t>(at + 16);
    if (number<uint16_t>(at + 4) != 0 || number<uint16_t>(at + 8) != entries)
      broken("is part of an archive of several; one file is supported");
    if (entries == 0xFFFF || size == in_zip64 || begin == in_zip64)
      broken("is a ZIP64 archive; files below 4 GiB are supported");
    if (begin > at || size != at - begin) broken("has no list of entries at byte {}: the file is damaged", begin);
    std::vector<Entry> all;
    for (size_t next = begin, i = 0; i < entries; ++i) all.push_back(read_entry(next, at));
    check_overlaps(all, begin);
    std::vector<NpzTensor> tensors;
    for (const Entry& entry : all) tensors.push_back(tensor(entry));
    return tensors;
  }

 private:
  struct Entry {
    std::string name;
    uint16_t method = 0;
    uint32_t crc = 0;
    uint64_t packed = 0, size = 0, header = 0, begin = 0;  // header and begin: bytes of the file
  };

  // Behind it stands only a comment, whose length it says.
  size_t find_end() const {
    if (bytes().size() >= end_bytes) {
      const size_t last = bytes().size() - end_bytes, first = last - std::min(last, max_comment);
      for (size_t at = last + 1; at-- > first;)
        if (text(at, 4) == end_magic && number<uint16_t>(at + 20) == last - at) return at;
    }
    broken("has no end of a ZIP archive: the file is cut off");
  }

  Entry read_entry(size_t& at, size_t end) const {
    if (end - at < central_bytes || text(at, 4) != central_magic)
      broken("has no entry at byte {} of its list: the file is damaged", at);
    Entry made;
    const auto flags = number<uint16_t>(at + 8);
    made.method = number<uint16_t>(at + 10);
    made.crc = number<uint32_t>(at + 16);
    made.packed = number<uint32_t>(at + 20);
    made.size = number<uint32_t>(at + 24);
    const auto name = number<uint16_t>(at + 28), more = number<uint16_t>(at + 30), comment = number<uint16_t>(at + 32);
    made.header = number<uint32_t>(at + 42);
    if (end - at - central_bytes < size_t{name} + more + comment)
      broken("has no entry at byte {} of its list: the file is damaged", at);
    made.name = text(at + central_bytes, name);
    if (made.name.empty() || valid_utf8(made.name) < made.name.size() || made.name.find('\0') != std::string::npos)
      broken("has an entry whose name is none: {}", quote(made.name));
    if (flags & encrypted) broken("entry {} is encrypted", quote(made.name));
    if (made.method != stored && made.method != deflated)
      broken("entry {} is compressed in way {}; stored and deflated ones are supported", quote(made.name), made.method);
    if (made.packed == in_zip64 || made.size == in_zip64 || made.header == in_zip64)
      broken("is a ZIP64 archive; files below 4 GiB are supported");
    if (text(made.header, 4) != local_magic)
      broken("entry {} is not at byte {}: the file is damaged", quote(made.name), made.header);
    made.begin = made.header + local_bytes + number<uint16_t>(made.header + 26) + number<uint16_t>(made.header + 28);
    part(made.begin, made.packed);
    at += central_bytes + name + more + comment;
    return made;
  }

  // So that no small file makes many large tensors of the same bytes.
  void check_overlaps(const std::vector<Entry>& entries, uint64_t list) const {
    std::vector<const Entry*> sorted;
    std::set<std::string> names;
    for (const Entry& entry : entries) {
      sorted.push_back(&entry);
      if (!names.insert(entry.name).second) broken("has {} twice", quote(entry.name));
    }
    std::ranges::sort(sorted, {}, &Entry::header);
    for (size_t i = 0; i < sorted.size(); ++i)
      if (sorted[i]->begin + sorted[i]->packed > (i + 1 < sorted.size() ? sorted[i + 1]->header : list))
        broken("entry {} overlaps what is behind it", quote(sorted[i]->name));
  }

  NpzTensor tensor(const Entry& entry) const {
    NpzTensor made;
    std::span<const std::byte> npy = part(entry.begin, entry.packed);
    if (entry.method == stored && entry.packed != entry.size)
      broken("entry {} is stored and has {} bytes of {}", quote(entry.name), entry.packed, entry.size);
    if (entry.method == deflated) {
      const auto own = std::make_shared<const std::vector<std::byte>>(inflated(entry, npy));
      npy = *own;
      made.owner = own;
    }
    if (!entry.name.ends_with(ending)) broken("entry {} is no array: its name ends in no .npy", quote(entry.name));
    made.name = entry.name.substr(0, entry.name.size() - ending.size());
    read_header(npy, made);
    return made;
  }

  std::vector<std::byte> inflated(const Entry& entry, std::span<const std::byte> packed) const {
    if (entry.size > entry.packed * max_growth + max_growth)
      broken("entry {} would make {} bytes of {}, which nothing that is deflated does", quote(entry.name), entry.size,
             entry.packed);
    std::vector<std::byte> made(entry.size);
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
    stream.avail_in = static_cast<uInt>(packed.size());
    stream.next_out = reinterpret_cast<Bytef*>(made.data());
    stream.avail_out = static_cast<uInt>(made.size());
    const int end = inflate(&stream, Z_FINISH);
    const bool whole = end == Z_STREAM_END && stream.avail_out == 0 && stream.avail_in == 0;
    inflateEnd(&stream);
    const auto* first = reinterpret_cast<const Bytef*>(made.data());
    if (!whole || crc32(0, first, static_cast<uInt>(made.size())) != entry.crc)
      broken("entry {} is damaged: it does not make the bytes that the archive says", quote(entry.name));
    return made;
  }

  void read_header(std::span<const std::byte> npy, NpzTensor& to) const {
    const std::string_view bytes = text_of(npy);
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
    if (bytes.size() < 12 || !bytes.starts_with(npy_magic))
      broken("entry {} is no array of NumPy", quote(to.name + std::string(ending)));
    const size_t version = byte(6), begin = version == 1 ? 10 : 12;
    if (version < 1 || version > 3) broken("array {} is of version {}; 1 to 3 are supported", quote(to.name), version);
    const size_t length = byte(8) | byte(9) << 8 | (version > 1 ? byte(10) << 16 | byte(11) << 24 : 0);
    if (length > bytes.size() - begin) broken("array {} has a header that is cut off", quote(to.name));
    const std::string_view header = bytes.substr(begin, length);
    to.data = npy.subspan(begin + length);
    uint64_t size = read_type(header, to);
    read_shape(header, to);
    for (const int64_t n : to.shape)
      if (__builtin_mul_overflow(size, static_cast<uint64_t>(n), &size))
        broken("array {} has a size that overflows 64 bits", quote(to.name));
    if (size != to.data.size())
      broken("array {} has {} bytes, its header says {}", quote(to.name), to.data.size(), size);
  }

  // Returns the value of 'key': in the header, which is a dictionary of Python.
  std::string_view value(std::string_view header, std::string_view key, const NpzTensor& of) const {
    for (const char mark : {'\'', '"'}) {
      const std::string quoted = mark + std::string(key) + mark;
      size_t at = header.find(quoted);
      if (at == std::string_view::npos) continue;
      at = header.find_first_not_of(' ', at + quoted.size());
      if (at == std::string_view::npos || header[at] != ':') continue;
      at = header.find_first_not_of(' ', at + 1);
      if (at != std::string_view::npos) return header.substr(at);
    }
    broken("array {} has a header without {}", quote(of.name), quote(key));
  }

  // Returns the bytes of a number.
  uint64_t read_type(std::string_view header, NpzTensor& to) const {
    if (!value(header, "fortran_order", to).starts_with("False"))
      broken("array {} lies column by column; rows are supported", quote(to.name));
    const std::string_view text = value(header, "descr", to);
    const size_t end = text.find(text.front(), 1);
    const std::string_view type = text.substr(1, end == std::string_view::npos ? 0 : end - 1);
    for (const Type& known : types)
      if (type.size() == 3 && type.substr(1) == known.npy && (type[0] == '<' || (type[0] == '|' && known.bytes == 1))) {
        to.type = known.name;
        return known.bytes;
      }
    broken("array {} has the type {}, which is not supported", quote(to.name), quote(text.substr(0, 16)));
  }

  // (), (3,) or (3, 4).
  void read_shape(std::string_view header, NpzTensor& to) const {
    const std::string_view text = value(header, "shape", to);
    const size_t end = text.find(')');
    if (text.front() == '(' && end != std::string_view::npos) {
      bool sound = true;
      std::string_view left = text.substr(1, end - 1);
      while (left.find_first_not_of(' ') != std::string_view::npos) {
        const size_t comma = std::min(left.find(','), left.size());
        std::string_view one = left.substr(0, comma);
        one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
        one = one.substr(0, one.find_last_not_of(" L") + 1);
        const auto n = parse_number<int64_t>(one);
        sound = sound && n && *n >= 0 && to.shape.size() < max_dimensions;
        if (!sound) break;
        to.shape.push_back(*n);
        left.remove_prefix(std::min(comma + 1, left.size()));
      }
      if (sound) return;
    }
    broken("array {} has a shape that is none: {}", quote(to.name), quote(text.substr(0, 32)));
  }
};

}  // namespace

bool is_npz(std::span<const std::byte> bytes) {
  return ByteReader::text_of(bytes).starts_with(local_magic) || ByteReader::text_of(bytes).starts_with(end_magic);
}

std::vector<NpzTensor> read_npz(std::span<const std::byte> bytes, const std::string& path) {
  return NpzReader(bytes, path).read();
}

}  // namespace attnkit::core
