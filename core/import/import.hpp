// From a folder as Hugging Face's libraries save it, or a GGUF file, to a manifest that refers to what lies there.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace attnkit::core {

// Of a folder that cannot be imported: one line, and what to do.
class ImportFailure : public std::runtime_error {
 public:
  ImportFailure(const std::string& message, std::string help) : std::runtime_error(message), help_(std::move(help)) {}
  const std::string& help() const { return help_; }

 private:
  std::string help_;
};

struct ImportRequest {
  std::string folder;        // of the checkpoint, or the GGUF file
  std::string manifest;      // where the manifest will be; paths in it are relative to its folder
  std::string name;          // of the model; empty: the folder's or the file's
  std::string architecture;  // a file of one's own; empty: the shipped one that the checkpoint names
};

struct Imported {
  std::string toml;                // the manifest
  std::string architecture;        // "bert"
  std::string weights;             // the file or index
  std::vector<std::string> files;  // all that the manifest refers to and that it was made from
  std::vector<std::string> notes;  // what the folder left open
};

// Reads config.json, tokenizer.json or vocab.txt, and of sentence-transformers modules.json, the pooling and the
// longest text; of the weights their name alone.  Of a GGUF file the metadata.  Throws ImportFailure naming the file,
// the key, what is not supported and what is.
Imported import_folder(const ImportRequest& request);

}  // namespace attnkit::core
