// A file of packed layers in the user's folder for caches: what one start has packed the next one maps, and processes
// share its pages.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

namespace attnkit::core {

class MappedFile;

class PackedCache {
 public:
  // of: all that the layers depend on but their names, in one line.  A file that is there and is not of this, or not
  // whole, is not used; one that is not there is no problem.
  PackedCache(std::string path, std::string of);

  // Why a file that is there is not used; empty: it is, or there is none.
  const std::string& problem() const { return problem_; }
  // The bytes of a layer, at a multiple of 64; empty: it is not there.
  std::span<const std::byte> find(const std::string& layer) const;
  // Takes a layer as not there, as one whose bytes are not those of its shape.
  void drop(const std::string& layer);
  std::shared_ptr<const void> owner() const;
  // A layer that the file lacks.  owner: of the bytes.
  void add(const std::string& layer, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  // Whether those are worth a new file.
  bool wants_writing() const;
  // Puts a file with all layers in the place of the old one, at once or not at all.  Returns why not, or nothing;
  // nothing as well where another process is writing it.
  std::string write() const;

 private:
  struct Layer {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  void read();

  std::string path_, of_, problem_;
  std::shared_ptr<const MappedFile> file_;  // NULL: none that is used
  std::map<std::string, Layer> found_, added_;
};

}  // namespace attnkit::core
