// The error of a faulty npz file is one line that names the file and the entry; no bytes do harm.
#include "core/base/formats/npz.hpp"

#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/core/base/damaged_file.hpp"

namespace attnkit::core {
namespace {

// An archive, entry by entry.
struct Archive {
  std::string bytes, list;
  uint16_t entries = 0;

  // method 0 or 8; size: what the list says, where that is not so.
  Archive& entry(const std::string& name, const std::string& data, uint16_t method = 0, int64_t size = -1,
                 uint16_t flags = 0) {
    const uint32_t crc =
        static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
    const std::string packed = method == 8 ? deflated(data) : data;
    const auto begin = static_cast<uint32_t>(bytes.size());
    const auto both = [&](std::string& to) {
      append(to, uint16_t{20});
      append(to, flags);
      append(to, method);
      append(to, uint32_t{0});
      append(to, crc);
      append(to, static_cast<uint32_t>(packed.size()));
      append(to, static_cast<uint32_t>(size < 0 ? static_cast<int64_t>(data.size()) : size));
      append(to, static_cast<uint16_t>(name.size()));
      append(to, uint16_t{0});
    };
    bytes += std::string("PK\3\4", 4);
    both(bytes);
    bytes += name + packed;
    list += std::string("PK\1\2", 4);
    append(list, uint16_t{20});
    both(list);
    list += std::string(10, '\0');
    append(list, begin);
    list += name;
    ++entries;
    return *this;
  }
  std::string whole(const std::string& comment = "") const {
    std::string made = bytes + list + std::string("PK\5\6\0\0\0\0", 8);
    append(made, entries);
    append(made, entries);
    append(made, static_cast<uint32_t>(list.size()));
    append(made, static_cast<uint32_t>(bytes.size()));
    append(made, static_cast<uint16_t>(comment.size()));
    return made + comment;
  }
  static std::string deflated(const std::string& data) {
    std::string made(data.size() + 64, '\0');
    z_stream stream{};
    deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
    stream.avail_in = static_cast<uInt>(data.size());
    stream.next_out = reinterpret_cast<Bytef*>(made.data());
    stream.avail_out = static_cast<uInt>(made.size());
    deflate(&stream, Z_FINISH);
    made.resize(stream.total_out);
    deflateEnd(&stream);
    return made;
  }
};

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string made = std::string("\x93NUMPY") + version + '\0';
  if (version == 1)
    append(made, static_cast<uint16_t>(header.size()));
  else
    append(made, static_cast<uint32_t>(header.size()));
  return made + header + data;
}
std::string npy(const char* type, const char* shape, size_t bytes) {
  return npy(std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n",
             std::string(bytes, '\7'));
}

std::string refusal(const std::string& file) { return refusal_by(read_npz, file, "x.npz"); }

std::string good() {
  return Archive()
      .entry("a_W.npy", npy("<f4", "(2, 3)", 24))
      .entry("b.npy", npy("<f2", "(70,)", 140), 8)
      .entry("special:model.yml.npy", npy("|i1", "(4,)", 4))
      .entry("c.npy", npy("<f8", "()", 8))
      .whole("a comment");
}

TEST(Npz, IsRead) {
  const std::string bytes = good();
  const std::vector<NpzTensor> tensors = read_npz(std::as_bytes(std::span(bytes)), "x.npz");
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "a_W");
  EXPECT_EQ(tensors[0].type, "F32");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[0].data.size(), 24u);
  EXPECT_FALSE(tensors[0].owner) << "it lies in the file";
  EXPECT_EQ(tensors[1].type, "F16");
  EXPECT_EQ(tensors[1].data.size(), 140u);
  EXPECT_TRUE(tensors[1].owner);
  EXPECT_EQ(tensors[1].data.back(), std::byte{7});
  EXPECT_EQ(tensors[2].name, "special:model.yml");
  EXPECT_EQ(tensors[3].shape, std::vector<int64_t>{});
  EXPECT_TRUE(is_npz(std::as_bytes(std::span(bytes))));
  const std::string none = Archive().whole();
  EXPECT_TRUE(read_npz(std::as_bytes(std::span(none)), "x.npz").empty());
}

TEST(Npz, MistakesAreNamed) {
  const std::string sound = npy("<f4", "(2, 3)", 24);
  const auto one = [](const std::string& data, uint16_t method = 0, int64_t size = -1, uint16_t flags = 0) {
    return Archive().entry("w.npy", data, method, size, flags).whole();
  };
  const auto changed = [&](size_t from_end, char to) {
    std::string bytes = Archive().entry("w.npy", sound).whole();
    bytes[bytes.size() - from_end] = to;
    return bytes;
  };
  Archive other;
  other.entry("w.npy", sound, 8).list[16] ^= 1;  // of its checksum
  struct Mistake {
    std::string file;
    const char* message;
  };
  for (const Mistake& mistake : std::initializer_list<Mistake>{
           {"PK\3\4", "has no end of a ZIP archive: the file is cut off"},
           {changed(18, 1), "is part of an archive of several"},
           {changed(6, 9), "has no list of entries at byte"},
           {changed(13, 1), "is part of an archive of several"},
           {one(sound, 9), "entry \"w.npy\" is compressed in way 9; stored and deflated ones are supported"},
           {one(sound, 0, -1, 1), "entry \"w.npy\" is encrypted"},
           {one(sound, 0, 3), "entry \"w.npy\" is stored and has"},
           {one(sound, 8, 1 << 30), "entry \"w.npy\" would make 1073741824 bytes of"},
           {one(sound, 8, 50), "entry \"w.npy\" is damaged"},
           {other.whole(), "entry \"w.npy\" is damaged"},
           {one(sound, 0, 0xFFFFFFFF), "is a ZIP64 archive; files below 4 GiB are supported"},
           {Archive().entry("w.npy", sound).entry("w.npy", sound).whole(), "has \"w.npy\" twice"},
           {Archive().entry("w.txt", sound).whole(), "entry \"w.txt\" is no array: its name ends in no .npy"},
           {Archive().entry("\xff", sound).whole(), "has an entry whose name is none: "},
           {one("abc"), "entry \"w.npy\" is no array of NumPy"},
           {one(npy(std::string("{}"), "", char{9})), "array \"w\" is of version 9; 1 to 3 are supported"},
           {one(npy("{}", "")), "array \"w\" has a header without \"fortran_order\""},
           {one(npy("<f4", "(2, 3)", 20)), "array \"w\" has 20 bytes, its header says 24"},
           {one(npy(">f4", "(2, 3)", 24)), "array \"w\" has the type \"'>f4', 'fortran_\", which is not supported"},
           {one(npy("<c8", "(3,)", 24)), "array \"w\" has the type"},
           {one(npy("<f4", "(2, -3)", 24)), "array \"w\" has a shape that is none: "},
           {one(npy("<f4", "(1,1,1,1,1,1,1,1,1)", 4)), "array \"w\" has a shape that is none: "},
           {one(npy("<f4", "(4294967296, 4294967296)", 4)), "array \"w\" has a size that overflows 64 bits"},
           {one(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", std::string(4, 'x'))),
            "array \"w\" lies column by column; rows are supported"},
       })
    EXPECT_EQ(refusal(mistake.file).rfind(mistake.message, 0), 0u) << mistake.message << "\n" << refusal(mistake.file);
}

// Two entries of the same bytes would make large tensors of a small file.
TEST(Npz, OverlapsAreRefused) {
  Archive archive;
  archive.entry("a.npy", npy("<f4", "(2, 3)", 24));
  const std::string first = archive.list;
  archive.list += first;
  archive.list[first.size() + 46] = 'b';
  ++archive.entries;
  EXPECT_EQ(refusal(archive.whole()).rfind("entry \"", 0), 0u);
  EXPECT_NE(refusal(archive.whole()).find("overlaps what is behind it"), std::string::npos);
}

TEST(Npz, EveryBeginningIsCutOff) { expect_beginnings_refused(read_npz, good()); }

TEST(Npz, SurvivesDamage) {
  const std::string whole = good();
  expect_damage_survived(read_npz, whole, whole.size(), 2000);
}

}  // namespace
}  // namespace attnkit::core
