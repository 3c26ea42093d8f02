// One number for all tensors of a model, wherever they came from: what sessions that were saved are compared by.
#include "core/model/model.hpp"
#include "core/base/sha256.hpp"

namespace attnkit {
namespace {

void add(Sha256& to, const std::vector<float>& numbers) { to.add_numbers(std::span(numbers)); }

void add(Sha256& to, const LayerNorm& norm) {
  add(to, norm.weight);
  add(to, norm.bias);
}

void add(Sha256& to, const Attention& attention) {
  if (!attention.block) return;
  add(to, attention.norm);
  attention.block->digest(to);
}

void add(Sha256& to, const Transformer& stack, bool learned_positions) {
  add(to, stack.embedding.table);
  if (learned_positions) add(to, stack.embedding.positions);
  for (const Layer& layer : stack.layers) {
    add(to, layer.self);
    add(to, layer.cross);
    add(to, layer.feed_forward.norm);
    to.add_numbers(layer.feed_forward.in.numbers());
    to.add_numbers(layer.feed_forward.out.numbers());
  }
  add(to, stack.norm);
}

}  // namespace

void Block::digest(Sha256& to) const {
  for (const Dense& projection : projections_) to.add_numbers(projection.numbers());
  for (const Stored& stored : stored_) {
    add(to, stored.f32);
    to.add(stored.raw);
  }
  to.add_numbers(out_.numbers());
}

const std::string& Model::digest() const {
  std::call_once(digested_, [this] {
    Sha256 all;
    const bool learned = manifest_.positions == Positions::learned;
    if (frontend_) frontend_->digest(all);
    add(all, encoder_, learned);
    add(all, decoder_, learned);
    all.add_numbers(head_hidden_.numbers());
    all.add_numbers(head_.numbers());
    digest_ = hex(all.digest());
  });
  return digest_;
}

}  // namespace attnkit
