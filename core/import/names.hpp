// The names and layouts of a checkpoint's tensors, in terms of attnkit's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::core {

// A pattern is a name in which {layer} stands for a number from 1, {layer-1} for one from 0, and a * at the end for any
// rest.
struct NameRule {
  std::string ours, theirs;
  bool transposed = false;              // theirs is (inputs, outputs)
  bool flat = false;                    // theirs is (1, outputs) or the like, ours (outputs)
  int part = 1, parts = 1;              // ours is this part of the outputs of theirs
  std::vector<std::string> sizes = {};  // of the parts, in proportion: numbers, or keys of [model]; empty: equal
  float plus = 0;                       // added to every number
};

struct NameMap {
  std::string source;                          // "bert", or the file, for messages
  std::string prefix;                          // may stand before all of their names
  std::map<std::string, std::string> endings;  // the last part of a name: theirs, as the rules have it
  std::vector<std::string> ignored;            // patterns of what the model does without
  std::string positions;  // the mechanism whose tensors are the positions of self attention; empty: none has them
  std::vector<NameRule> rules;
  std::shared_ptr<const NameMap> gguf = {};         // of GGUF files; NULL: they have the same
  std::shared_ptr<const NameMap> ctranslate2 = {};  // of CTranslate2's; NULL: they have the same
  std::shared_ptr<const NameMap> marian = {};       // of npz files; NULL: they have the same

  std::map<std::string, int64_t> numbers = {};  // those that sizes of parts may be

  // A part of `all` equal ones: `own` of them behind `before`.
  struct Share {
    int64_t before = 0, own = 1, all = 1;
  };
  // Throws Error: a size that is no number and not among `numbers`.
  Share share(const NameRule& rule) const;
  // The same with the numbers of a model, those for other formats as well.
  std::shared_ptr<const NameMap> with(const std::map<std::string, int64_t>& of_model) const;

  struct Ours {
    std::string name;
    const NameRule* rule;
  };
  // Returns the tensors made of theirs; none: no rule knows it.
  std::vector<Ours> ours(const std::string& theirs) const;
  bool ignores(const std::string& theirs) const;
  // Returns the name of our tensor there, without the prefix; empty: no rule makes it.
  std::string theirs(const std::string& ours) const;

 private:
  std::string plain(const std::string& theirs) const;  // without prefix, with the endings of the rules
};

// The keys of [model] that may be sizes of parts.
constexpr std::array<std::string_view, 5> part_sizes = {"d_model", "heads", "kv_heads", "head_width", "ffn"};

// Whether a pattern is one.
bool is_pattern(std::string_view pattern);

}  // namespace attnkit::core
