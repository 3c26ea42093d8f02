// Tiles of AMX: 16 rows of 64 bytes each, whose products of bytes are summed exactly.  Linux gives them to a process
// that asks; what their shapes are belongs to a thread.
#pragma once

namespace attnkit::core::dense {

#if defined(__x86_64__)
#define ATTNKIT_AMX "avx512f,avx512vl,avx512bw,amx-tile,amx-int8"

// Whether this process has tiles of bytes.  The first call asks for them.
bool has_amx();

// The tiles of this thread for as long as it lives: nothing else on the thread uses tiles meanwhile.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles();
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // The rows of 4 and 5 have `inputs` bytes, at most 64; 4 has `first` rows and 5 `second`, at most 16.  6 and 7 have
  // four of these inputs in a row.  0 and 1 take products of 4, 2 and 3 those of 5.
  static void shape(int first, int second, int inputs = 64);
};
#else
inline bool has_amx() { return false; }
#endif

}  // namespace attnkit::core::dense
