/* Preloaded into programs that an emulator runs: what they start for the same machine goes through the emulator too.
   The kernel, which is that of another machine, would refuse it; binfmt_misc does the same for the whole system and
   needs its administrator.  EMULATOR: the emulator's command, a list of C strings. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* const emulator[] = {EMULATOR};
enum { words = sizeof emulator / sizeof *emulator };

static int is_emulated(const char* path) {
  Elf64_Ehdr header;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, &header, sizeof header);
  close(file);
  return got == sizeof header && header.e_ident[EI_MAG1] == ELFMAG1 && header.e_machine == EM_AARCH64;
}

static size_t count(char* const argv[]) {
  size_t n = 0;
  while (argv[n]) ++n;
  return n;
}

/* to: words + count(argv) + 3 of them. */
static void wrap(const char* path, char* const argv[], char** to) {
  for (size_t i = 0; i < words; ++i) *to++ = (char*)emulator[i];
  *to++ = (char*)"-0";
  *to++ = argv[0];
  *to++ = (char*)path;
  for (size_t i = 1; argv[i]; ++i) *to++ = argv[i];
  *to = NULL;
}

/* Between fork and this only the system may be called. */
int execve(const char* path, char* const argv[], char* const environment[]) {
  if (!is_emulated(path)) return (int)syscall(SYS_execve, path, argv, environment);
  char* wrapped[words + count(argv) + 3];
  wrap(path, argv, wrapped);
  return (int)syscall(SYS_execve, emulator[0], wrapped, environment);
}

int execv(const char* path, char* const argv[]) { return execve(path, argv, environ); }

int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* files,
                const posix_spawnattr_t* attributes, char* const argv[], char* const environment[]) {
  int (*spawn)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const[],
               char* const[]) = NULL;
  *(void**)&spawn = dlsym(RTLD_NEXT, "posix_spawn");
  if (!is_emulated(path)) return spawn(process, path, files, attributes, argv, environment);
  char* wrapped[words + count(argv) + 3];
  wrap(path, argv, wrapped);
  return spawn(process, emulator[0], files, attributes, wrapped, environment);
}
