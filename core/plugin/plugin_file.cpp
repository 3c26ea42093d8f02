// Checks of ownership, a bounded look into the ELF file, and the search for the entry point.  Boost.DLL's library_info
// does not serve: in Boost 1.74 it reads .symtab, which stripped libraries lack, and trusts every offset in the file.
#include "core/plugin/plugin_file.hpp"

#include <attnkit/plugin.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view entry_prefix = "attn_plugin_main_v";
constexpr uint64_t this_major = 1;

using Header = std::conditional_t<sizeof(void*) == 8, Elf64_Ehdr, Elf32_Ehdr>;
using Segment = std::conditional_t<sizeof(void*) == 8, Elf64_Phdr, Elf32_Phdr>;
using Section = std::conditional_t<sizeof(void*) == 8, Elf64_Shdr, Elf32_Shdr>;
using Symbol = std::conditional_t<sizeof(void*) == 8, Elf64_Sym, Elf32_Sym>;

constexpr unsigned this_class = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
constexpr unsigned this_order = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
#if defined(__x86_64__)
constexpr unsigned this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned this_machine = EM_AARCH64;
#elif defined(__riscv)
constexpr unsigned this_machine = EM_RISCV;
#else
#error "add this machine's number of elf.h"
#endif

std::string machine_name(unsigned machine) {
  constexpr std::pair<unsigned, const char*> names[] = {{EM_X86_64, "x86-64"},
                                                        {EM_AARCH64, "AArch64"},
                                                        {EM_RISCV, "RISC-V"},
                                                        {EM_386, "x86 (32 bit)"},
                                                        {EM_ARM, "ARM (32 bit)"}};
  for (const auto& [known, name] : names)
    if (known == machine) return name;
  return fmt::format("ELF machine {}", machine);
}

std::string system_reason() { return std::strerror(errno); }

// A file read by absolute place; every read outside it is refused.
class Reader {
 public:
  explicit Reader(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_.get() < 0) fail(ATTN_INVALID, "cannot be opened: {}", system_reason());
    if (fstat(file_.get(), &stat_) != 0) fail(ATTN_INVALID, "cannot be examined: {}", system_reason());
  }

  const struct stat& stat() const { return stat_; }
  uint64_t bytes() const { return static_cast<uint64_t>(stat_.st_size); }

  void need(uint64_t offset, uint64_t n, const char* what) const {
    if (offset > bytes() || n > bytes() - offset)
      fail(ATTN_INVALID, "is damaged or cut short: its {} would end beyond its {} bytes; copy or build it again", what,
           bytes());
  }
  template <class T>
  std::vector<T> read(uint64_t offset, uint64_t count, const char* what) const {
    if (count > bytes() / sizeof(T)) need(bytes(), 1, what);
    need(offset, count * sizeof(T), what);
    std::vector<T> out(count);
    auto* to = reinterpret_cast<char*>(out.data());
    for (uint64_t done = 0, all = count * sizeof(T); done < all;) {
      const ssize_t got = pread(file_.get(), to + done, all - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(ATTN_INVALID, "cannot be read: {}", got < 0 ? system_reason() : "it shrank meanwhile");
      done += static_cast<uint64_t>(got);
    }
    return out;
  }

 private:
  Descriptor file_;
  struct stat stat_ {};
};

// Whoever owns the running library could have changed it, so nothing is lost by trusting him with its plugins too; it
// also keeps root's files trusted in user namespaces, where root's files belong to an unmapped user.
uid_t library_owner() {
  static const uid_t owner = [] {
    struct stat library {};
    return ::stat(own_file().c_str(), &library) == 0 ? library.st_uid : uid_t{0};
  }();
  return owner;
}

void check_trust(const struct stat& stat, const char* what) {
  if (stat.st_mode & S_IWOTH)
    fail(ATTN_INVALID, "{} writable by every user, so anyone could have put code there; remove that with chmod o-w",
         what);
  const uid_t owner = stat.st_uid;
  if (owner != 0 && owner != geteuid() && owner != library_owner())
    fail(ATTN_INVALID, "{} owned by user {}, who is neither root, you, nor the owner of attnkit; copy the plugin", what,
         owner);
}

Header read_header(const Reader& file) {
  constexpr std::string_view magic(ELFMAG, SELFMAG);
  if (file.bytes() < EI_NIDENT) fail(ATTN_INVALID, "is no library: it has only {} bytes", file.bytes());
  const auto ident = file.read<unsigned char>(0, EI_NIDENT, "ELF header");
  if (std::memcmp(ident.data(), magic.data(), magic.size()) != 0) fail(ATTN_INVALID, "is no library: not an ELF file");
  const int wide = ident[EI_CLASS], order = ident[EI_DATA];
  if ((wide != ELFCLASS32 && wide != ELFCLASS64) || (order != ELFDATA2LSB && order != ELFDATA2MSB))
    fail(ATTN_INVALID, "is damaged: its ELF header has class {} and byte order {}", wide, order);
  // e_machine lies at the same place in both classes.
  const auto machine = file.read<uint16_t>(offsetof(Header, e_machine), 1, "ELF header")[0];
  if (ident[EI_DATA] != this_order) fail(ATTN_INVALID, "is built for a machine of the other byte order");
  if (machine != this_machine)
    fail(ATTN_INVALID, "is built for {}, this program runs on {}; install the plugin for this machine",
         machine_name(machine), machine_name(this_machine));
  if (ident[EI_CLASS] != this_class)
    fail(ATTN_INVALID, "is built for {} with addresses of {} bits, this program has {}; install the plugin for it",
         machine_name(machine), ident[EI_CLASS] == ELFCLASS32 ? 32 : 64, 8 * sizeof(void*));
  const Header header = file.read<Header>(0, 1, "ELF header")[0];
  if (header.e_type != ET_DYN) fail(ATTN_INVALID, "is no shared library (ELF type {}, not {})", header.e_type, ET_DYN);
  return header;
}

void check_segments(const Reader& file, const Header& header) {
  if (header.e_phentsize != sizeof(Segment)) fail(ATTN_INVALID, "is damaged: bad size of its program headers");
  for (const auto& segment : file.read<Segment>(header.e_phoff, header.e_phnum, "program headers")) {
    if (segment.p_type == PT_LOAD) file.need(segment.p_offset, segment.p_filesz, "code or data");
  }
}

bool is_exported_function(const Symbol& symbol) {
  const auto bind = symbol.st_info >> 4, type = symbol.st_info & 0xF, seen = symbol.st_other & 3;
  return symbol.st_shndx != SHN_UNDEF && (bind == STB_GLOBAL || bind == STB_WEAK) && type == STT_FUNC &&
         (seen == STV_DEFAULT || seen == STV_PROTECTED);
}

// Majors N of all functions attn_plugin_main_v<N> that the file exports.
std::vector<uint64_t> entry_majors(const Reader& file, const Header& header) {
  if (header.e_shentsize != sizeof(Section)) fail(ATTN_INVALID, "is damaged: bad size of its section headers");
  const auto sections = file.read<Section>(header.e_shoff, header.e_shnum, "section headers");
  const auto table =
      std::find_if(sections.begin(), sections.end(), [](const Section& s) { return s.sh_type == SHT_DYNSYM; });
  if (table == sections.end()) fail(ATTN_INVALID, "is no attnkit plugin: it has no table of exported symbols");
  if (table->sh_link >= sections.size()) fail(ATTN_INVALID, "is damaged: its symbol table has no names");
  const Section& strings = sections[table->sh_link];
  const auto text = file.read<char>(strings.sh_offset, strings.sh_size, "symbol names");

  std::vector<uint64_t> majors;
  for (const auto& symbol : file.read<Symbol>(table->sh_offset, table->sh_size / sizeof(Symbol), "symbols")) {
    if (!is_exported_function(symbol) || symbol.st_name >= text.size()) continue;
    const char* begin = text.data() + symbol.st_name;
    const std::string_view name(begin, strnlen(begin, text.size() - symbol.st_name));
    if (!name.starts_with(entry_prefix)) continue;
    if (const auto major = parse_number<uint64_t>(name.substr(entry_prefix.size()))) majors.push_back(*major);
  }
  return majors;
}

void check_majors(const std::vector<uint64_t>& majors) {
  if (std::find(majors.begin(), majors.end(), this_major) != majors.end()) return;
  if (majors.empty()) fail(ATTN_INVALID, "is no attnkit plugin: it does not export attn_plugin_main_v{}", this_major);
  const uint64_t newest = *std::max_element(majors.begin(), majors.end());
  fail(ATTN_INVALID, "is built for major {} of the plugin interface, this attnkit has major {}; update {}", newest,
       this_major, newest > this_major ? "attnkit" : "the plugin");
}

struct FreeString {
  void operator()(char* text) const { std::free(text); }
};

}  // namespace

void check_plugin_folder(const std::string& folder) {
  struct stat stat {};
  if (::stat(folder.c_str(), &stat) != 0) {
    if (errno == ENOENT) fail(ATTN_INVALID, "does not exist");
    fail(ATTN_INVALID, "cannot be examined: {}", system_reason());
  }
  if (!S_ISDIR(stat.st_mode)) fail(ATTN_INVALID, "is no folder");
  check_trust(stat, "is");
}

PluginFile read_plugin_file(const std::string& path) {
  const std::unique_ptr<char, FreeString> real(realpath(path.c_str(), nullptr));
  if (!real) fail(ATTN_INVALID, "cannot be opened: {}", system_reason());
  PluginFile result;
  result.path = real.get();

  const Reader file(result.path);
  if (!S_ISREG(file.stat().st_mode)) fail(ATTN_INVALID, "is no regular file");
  check_trust(file.stat(), "is");
  struct stat folder {};
  const auto parent = result.path.substr(0, std::max<size_t>(result.path.rfind('/'), 1));
  if (::stat(parent.c_str(), &folder) != 0) fail(ATTN_INVALID, "lies in an unreadable folder: {}", system_reason());
  check_trust(folder, "lies in a folder that is");

  const Header header = read_header(file);
  check_segments(file, header);
  check_majors(entry_majors(file, header));
  result.device = file.stat().st_dev;
  result.inode = file.stat().st_ino;
  result.bytes = file.stat().st_size;
  result.modified = int64_t{file.stat().st_mtim.tv_sec} * 1'000'000'000 + file.stat().st_mtim.tv_nsec;
  return result;
}

}  // namespace attnkit::core
