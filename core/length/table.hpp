// A table of how many target positions each source token makes on average, for [length] predict = "lut".
#pragma once

#include <string>
#include <vector>

#include "core/model/vocabulary.hpp"

namespace attnkit {

struct LengthTable {
  std::vector<double> means;  // by id; of tokens that the file does not list: the mean
  int64_t listed = 0;
  double mean = 0;  // of those that are listed, each counted once
};

// File: UTF-8, one token per line: token, TAB, a number from 0.  Throws Error (ATTN_INVALID) naming file and line: no
// lines, a token that the vocabulary lacks or that stood before, no number.
LengthTable read_length_table(const std::string& path, const Vocabulary& vocabulary);

}  // namespace attnkit
