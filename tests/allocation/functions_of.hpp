// Is the program within certain functions?  By the symbol tables of its files, hidden functions among them.
#pragma once

#include <elf.h>
#include <execinfo.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace attnkit::test {

// Every function, of the program and of the libraries of this tree, whose name has a part in it.
class Functions {
 public:
  explicit Functions(const char* part) : part_(part) {
    void* first = nullptr;
    backtrace(&first, 1);  // which loads what it needs
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          const std::string path = *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
          if (path == "/proc/self/exe" || path.find("attnkit") != path.npos)
            static_cast<Functions*>(self)->read(path, info->dlpi_addr);
          return 0;
        },
        this);
  }

  bool empty() const { return ends_.empty(); }

  // Is one of them on the stack?  Allocates nothing.
  bool are_running() const {
    void* stack[256];
    const int n = backtrace(stack, 256);
    for (int i = 0; i < n; ++i) {
      const auto at = reinterpret_cast<uintptr_t>(stack[i]) - 1;
      const auto behind = ends_.upper_bound(at);
      if (behind != ends_.begin() && at < std::prev(behind)->second) return true;
    }
    return false;
  }

 private:
  void read(const std::string& path, uintptr_t base) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (bytes.size() < sizeof(Elf64_Ehdr)) return;
    const auto at = [&](uint64_t offset, auto& to) { std::memcpy(&to, bytes.data() + offset, sizeof to); };
    Elf64_Ehdr header;
    at(0, header);
    for (uint64_t s = 0; s < header.e_shnum; ++s) {
      Elf64_Shdr section, texts;
      at(header.e_shoff + s * header.e_shentsize, section);
      if (section.sh_type != SHT_SYMTAB) continue;
      at(header.e_shoff + uint64_t{section.sh_link} * header.e_shentsize, texts);
      for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
        Elf64_Sym symbol;
        at(section.sh_offset + i * sizeof symbol, symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
        const char* const name = bytes.data() + texts.sh_offset + symbol.st_name;
        if (std::strstr(name, part_)) ends_[base + symbol.st_value] = base + symbol.st_value + symbol.st_size;
      }
    }
  }

  const char* part_;
  std::map<uintptr_t, uintptr_t> ends_;  // by begin
};

}  // namespace attnkit::test
