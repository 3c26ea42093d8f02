// Files that are no usable plugin are refused before anything of them runs.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/base/error.hpp"
#include "core/plugin/plugin_file.hpp"
#include "core/plugin/registry.hpp"
#include "temp_folder.hpp"

using namespace attnkit::core;

namespace {

const std::string good = ABI_PLUGINS "/mean.so";

// The one sentence of a folder with one file in it.
std::string only_refusal(const TempFolder& folder) {
  const Registry registry({folder.path()});
  EXPECT_EQ(registry.plugins().size(), 0u);
  EXPECT_EQ(registry.skipped().size(), 1u);
  return registry.skipped().empty() ? "" : registry.skipped()[0].reason;
}

std::string refusal_of(const std::string& bytes) {
  const TempFolder folder;
  folder.write("x.so", bytes);
  return only_refusal(folder);
}

// The good plugin with its ELF header changed.
template <class Change>
std::string refusal_with(Change&& change) {
  std::string bytes = read_bytes(good);
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  change(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return refusal_of(bytes);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(BrokenFile, Empty) { EXPECT_EQ(refusal_of(""), "is no library: it has only 0 bytes"); }

TEST(BrokenFile, Text) { EXPECT_EQ(refusal_of("INPUT(libattnkit.so.1)\n"), "is no library: not an ELF file"); }

TEST(BrokenFile, Folder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "x.so");
  EXPECT_EQ(only_refusal(folder), "is no regular file");
}

TEST(BrokenFile, Pipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "x.so").c_str(), 0600), 0);
  EXPECT_EQ(only_refusal(folder), "is no regular file");
}

TEST(BrokenFile, DanglingLink) {
  const TempFolder folder;
  std::filesystem::create_symlink(folder / "nothing", folder / "x.so");
  EXPECT_EQ(only_refusal(folder), "cannot be opened: No such file or directory");
}

TEST(BrokenFile, OtherClassMachineOrderAndType) {
  const auto narrow = refusal_with([](Elf64_Ehdr& h) { h.e_ident[EI_CLASS] = ELFCLASS32, h.e_machine = EM_386; });
  EXPECT_TRUE(has(narrow, "is built for x86 (32 bit), this program runs on ")) << narrow;
  const auto other = refusal_with([](Elf64_Ehdr& h) { h.e_machine = h.e_machine == EM_RISCV ? EM_X86_64 : EM_RISCV; });
  EXPECT_TRUE(has(other, "is built for ")) << other;
#if defined(__x86_64__)
  EXPECT_EQ(refusal_with([](Elf64_Ehdr& h) { h.e_machine = EM_AARCH64; }),
            "is built for AArch64, this program runs on x86-64; install the plugin for this machine");
#elif defined(__aarch64__)
  EXPECT_EQ(refusal_with([](Elf64_Ehdr& h) { h.e_machine = EM_X86_64; }),
            "is built for x86-64, this program runs on AArch64; install the plugin for this machine");
#endif
  const auto order = refusal_with([](Elf64_Ehdr& h) { h.e_ident[EI_DATA] = ELFDATA2MSB; });
  EXPECT_EQ(order, "is built for a machine of the other byte order");
  const auto no_class = refusal_with([](Elf64_Ehdr& h) { h.e_ident[EI_CLASS] = 0; });
  EXPECT_EQ(no_class, "is damaged: its ELF header has class 0 and byte order 1");
  const auto no_order = refusal_with([](Elf64_Ehdr& h) { h.e_ident[EI_DATA] = 7; });
  EXPECT_EQ(no_order, "is damaged: its ELF header has class 2 and byte order 7");
  const auto object = refusal_with([](Elf64_Ehdr& h) { h.e_type = ET_REL; });
  EXPECT_EQ(object, "is no shared library (ELF type 1, not 3)");
}

TEST(BrokenFile, HeadersThatPointOutside) {
  EXPECT_TRUE(has(refusal_with([](Elf64_Ehdr& h) { h.e_shoff = UINT64_MAX - 8; }), "is damaged or cut short"));
  EXPECT_TRUE(has(refusal_with([](Elf64_Ehdr& h) { h.e_phoff = uint64_t{1} << 62; }), "is damaged or cut short"));
  EXPECT_TRUE(has(refusal_with([](Elf64_Ehdr& h) { h.e_shnum = 65000; }), "is damaged or cut short"));
  EXPECT_TRUE(has(refusal_with([](Elf64_Ehdr& h) { h.e_shentsize = 3; }), "is damaged"));
  EXPECT_TRUE(has(refusal_with([](Elf64_Ehdr& h) { h.e_shnum = 0; }), "no table of exported symbols"));
}

TEST(BrokenFile, CutAtEveryLength) {
  const TempFolder folder;
  const std::string path = folder.copy(good, "x.so");
  for (size_t n = std::filesystem::file_size(path); n > 0; n -= std::min<size_t>(n, n > 1500 ? 61 : 1)) {
    std::filesystem::resize_file(path, n - 1);
    EXPECT_THROW(read_plugin_file(path), Error) << n - 1;
  }
}

TEST(BrokenFile, DamagedAnywhereIsReadSafely) {
  const TempFolder folder;
  const std::string bytes = read_bytes(good);
  std::mt19937 random(2);
  for (int trial = 0; trial < 600; ++trial) {
    std::string damaged = bytes;
    const size_t parts[] = {64, 600, bytes.size()};
    for (int i = 0; i < 4; ++i) damaged[random() % parts[trial % 3]] = static_cast<char>(random());
    // Section headers stand at the end.
    if (trial % 2) damaged[bytes.size() - 1 - random() % 1600] = static_cast<char>(random());
    try {
      read_plugin_file(folder.write("x.so", damaged));
    } catch (const Error&) {
      // Either answer is right; a crash is not.
    }
  }
}

TEST(BrokenFile, StrippedPluginIsStillOne) {
  const TempFolder folder;
  const std::string path = folder.copy(good, "mean.so");
  if (std::system(("strip " + path + " 2> /dev/null").c_str()) != 0) GTEST_SKIP() << "no strip here";
  EXPECT_NO_THROW(read_plugin_file(path));
}

TEST(UntrustedFile, WritableByEveryone) {
  const TempFolder folder;
  ASSERT_EQ(chmod(folder.copy(good, "mean.so").c_str(), 0666), 0);
  EXPECT_EQ(only_refusal(folder),
            "is writable by every user, so anyone could have put code there; remove that with chmod o-w");
}

TEST(UntrustedFile, InAFolderWritableByEveryone) {
  const TempFolder folder;
  folder.copy(good, "mean.so");
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  EXPECT_TRUE(has(only_refusal(folder), "is writable by every user"));
  // Also when the way to it is a link from a good folder.
  const TempFolder links;
  std::filesystem::create_symlink(folder / "mean.so", links / "mean.so");
  EXPECT_TRUE(has(only_refusal(links), "lies in a folder that is writable by every user"));
}

TEST(UntrustedFile, OfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const TempFolder folder;
  ASSERT_EQ(chown(folder.copy(good, "mean.so").c_str(), 12345, 12345), 0);
  EXPECT_EQ(only_refusal(folder),
            "is owned by user 12345, who is neither root, you, nor the owner of attnkit; copy the plugin");
}

TEST(UntrustedFile, WritableByAGroupIsTrusted) {
  const TempFolder folder;
  ASSERT_EQ(chmod(folder.copy(good, "mean.so").c_str(), 0664), 0);
  EXPECT_NO_THROW(read_plugin_file(folder / "mean.so"));
}

}  // namespace
