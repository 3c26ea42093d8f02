// Checks of a plugin's file before any of it runs.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/conformance/law.hpp"
#include "core/plugin/plugin_file.hpp"

namespace attnkit::core::conformance {

namespace {

constexpr const char* kEntry = "attn_plugin_main_v1";

// The headers of a file that file.elf accepted.  Never reads outside it.
class Elf {
 public:
  explicit Elf(const std::string& path) : file_(MappedFile::open(path)), header_(read<Elf64_Ehdr>(0)) {
    hold(header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_shentsize == sizeof(Elf64_Shdr),
         "is no 64-bit ELF file with sections");
  }

  // The next checks refer to this.
  std::vector<Elf64_Phdr> segments() const { return list<Elf64_Phdr>(header_.e_phoff, header_.e_phnum); }

  template <class T>
  struct Table {
    std::vector<T> entries;
    std::string_view strings;
    const char* text(uint64_t at) const {
      hold(at < strings.size() && strings.find('\0', at) != strings.npos, "is damaged: a name lies outside its table");
      return strings.data() + at;
    }
  };
  template <class T>
  Table<T> section(uint32_t type) const {
    const auto sections = list<Elf64_Shdr>(header_.e_shoff, header_.e_shnum);
    for (const Elf64_Shdr& s : sections) {
      if (s.sh_type != type) continue;
      hold(s.sh_link < sections.size(), "is damaged: a section has no names");
      const auto text = bytes(sections[s.sh_link].sh_offset, sections[s.sh_link].sh_size);
      return {list<T>(s.sh_offset, s.sh_size / sizeof(T)), {reinterpret_cast<const char*>(text.data()), text.size()}};
    }
    return {};
  }

 private:
  std::span<const std::byte> bytes(uint64_t offset, uint64_t size) const {
    hold(offset <= file_->bytes().size() && size <= file_->bytes().size() - offset, "is damaged or cut short");
    return file_->bytes().subspan(offset, size);
  }
  template <class T>
  T read(uint64_t offset) const {
    T out;
    std::memcpy(&out, bytes(offset, sizeof out).data(), sizeof out);
    return out;
  }
  template <class T>
  std::vector<T> list(uint64_t offset, uint64_t count) const {
    hold(count <= file_->bytes().size() / sizeof(T), "is damaged or cut short");
    const auto from = bytes(offset, count * sizeof(T));
    std::vector<T> out(count);
    if (count > 0) std::memcpy(out.data(), from.data(), from.size());
    return out;
  }

  std::shared_ptr<const MappedFile> file_;
  Elf64_Ehdr header_;
};

void elf(const Trial& trial) { read_plugin_file(trial.file); }

// Names of what it defines for others, with these bindings; versions define symbols without a place.
std::vector<std::string> exported(const std::string& file, std::initializer_list<int> bindings) {
  const Elf opened(file);
  const auto symbols = opened.section<Elf64_Sym>(SHT_DYNSYM);
  std::vector<std::string> names;
  for (const Elf64_Sym& s : symbols.entries) {
    const int binding = ELF64_ST_BIND(s.st_info), seen = ELF64_ST_VISIBILITY(s.st_other);
    if (s.st_shndx == SHN_UNDEF || s.st_shndx == SHN_ABS || seen == STV_HIDDEN || seen == STV_INTERNAL) continue;
    if (std::find(bindings.begin(), bindings.end(), binding) != bindings.end())
      names.push_back(symbols.text(s.st_name));
  }
  return names;
}

void exports(const Trial& trial) {
  for (const std::string& name : exported(trial.file, {STB_GLOBAL, STB_WEAK}))
    hold(name == kEntry, "exports {}; it may meet another library's, hide all but {} with a version script", name,
         kEntry);
}

void unique(const Trial& trial) {
  const auto names = exported(trial.file, {STB_GNU_UNIQUE});
  hold(names.empty(), "has the unique symbol {}, which all libraries of a process share: build with -fno-gnu-unique",
       names.empty() ? "" : names[0]);
}

void search_path(const Trial& trial) {
  const Elf file(trial.file);
  const auto dynamic = file.section<Elf64_Dyn>(SHT_DYNAMIC);
  for (const Elf64_Dyn& entry : dynamic.entries) {
    if (entry.d_tag != DT_RPATH && entry.d_tag != DT_RUNPATH) continue;
    for (const std::string& part : split(dynamic.text(entry.d_un.d_val), ':'))
      hold(part.starts_with("$ORIGIN"), "looks for libraries in {}, not beside itself ($ORIGIN): link without -rpath",
           quote(part));
  }
}

// Libraries of a system, a compiler or CUDA.
constexpr std::string_view common[] = {"ld-linux",    "libc.",      "libm.",    "libmvec.",  "libstdc++.", "libgcc_s.",
                                       "libpthread.", "libdl.",     "librt.",   "libc++.",   "libc++abi.", "libunwind.",
                                       "libcuda.",    "libcudart.", "libcudnn", "libcublas", "libnvrtc"};

void needs(const Trial& trial) {
  const Elf file(trial.file);
  const auto dynamic = file.section<Elf64_Dyn>(SHT_DYNAMIC);
  std::string others;
  for (const Elf64_Dyn& entry : dynamic.entries) {
    if (entry.d_tag != DT_NEEDED) continue;
    const std::string_view name = dynamic.text(entry.d_un.d_val);
    hold(name.find('/') == name.npos, "needs the library {} by a path, which other machines lack: link it by its name",
         name);
    hold(!name.starts_with("libattnkit"),
         "needs {}, its own host, of which a process would have two: use plugin.h alone", name);
    const auto is_common = [&](std::string_view known) { return name.starts_with(known); };
    if (std::none_of(std::begin(common), std::end(common), is_common)) (others += others.empty() ? "" : ", ") += name;
  }
  if (!others.empty()) throw Remark{"it needs " + others + ", which many machines lack: ship that with it"};
}

void hardened(const Trial& trial) {
  const Elf file(trial.file);
  for (const Elf64_Phdr& s : file.segments()) {
    if (s.p_type == PT_GNU_STACK)
      hold((s.p_flags & PF_X) == 0, "asks for an executable stack: link with -z noexecstack");
    if (s.p_type == PT_LOAD)
      hold((s.p_flags & (PF_X | PF_W)) != (PF_X | PF_W), "has memory that is both code and writable");
  }
  const auto dynamic = file.section<Elf64_Dyn>(SHT_DYNAMIC);
  for (const Elf64_Dyn& entry : dynamic.entries)
    hold(entry.d_tag != DT_TEXTREL && !(entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_TEXTREL)),
         "has relocations in its code: build with -fPIC");
}

constexpr Check all[] = {
    {"file", "elf", "it is a library for this machine that exports attn_plugin_main_v1 and that others cannot change",
     elf, nullptr, kAnywhere, Draws::none, true},
    {"file", "exports", "it exports its entry and nothing else", exports, nullptr},
    {"file", "unique", "it has no unique symbols", unique, nullptr},
    {"file", "search_path", "it looks for libraries nowhere but beside itself", search_path, nullptr},
    {"file", "needs", "it needs no library by a path, nor attnkit itself", needs, nullptr},
    {"file", "hardened", "no executable stack, no writable code, no relocations in code", hardened, nullptr},
};

}  // namespace

const std::span<const Check> file_checks = all;

}  // namespace attnkit::core::conformance
