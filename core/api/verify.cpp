// attnkit.h: a model against golden activations.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/api/handles.hpp"
#include "core/base/text.hpp"
#include "core/weights/weights.hpp"

using namespace attnkit::core;

namespace {

using Json = nlohmann::ordered_json;

// The inputs of a file, and what is expected of them.
class Golden {
 public:
  Golden(const Model& model, const std::string& path) : file_(Weights::open(path, "")) {
    if (model.has_encoder()) source_len_ = ints("source_len");
    if (model.has_encoder() && !model.frontend()) source_ids_ = ints("source");
    if (model.has_decoder()) target_len_ = ints("target_len");
    if (model.has_decoder()) target_ids_ = ints("target");
    if (!model.frontend()) return;
    const std::vector<int64_t>& shape = tensor("source").shape;
    if (shape.size() != 3) fail(ATTN_INVALID, "{}: the source must be frames (rows, length, features)", path);
    frames_ = file_.f32("source", shape);
  }

  SourceBatch source() const {
    if (source_len_.empty()) return {};
    const std::vector<int64_t>& shape = tensor("source").shape;
    check_rows("source", 2 + !frames_.empty());
    if (frames_.empty()) return Ids{source_ids_.data(), shape[1], shape[0], shape[1], source_len_.data()};
    return SourceBatch::frames(frames_.data(), shape[1], shape[2], shape[0], source_len_.data());
  }
  Ids target() const {
    if (target_len_.empty()) return {};
    const std::vector<int64_t>& shape = tensor("target").shape;
    check_rows("target", 2);
    return {target_ids_.data(), shape[1], shape[0], shape[1], target_len_.data()};
  }

  // Of the rows of scores.
  const int32_t* lengths(const Model& model) const {
    return model.has_decoder() ? target_len_.data() : model.frontend() ? nullptr : source_len_.data();
  }

  // Compares the real rows of what a layer put out, if the file has it.  lengths NULL: all rows are real.
  void compare(const std::string& layer, const std::vector<int64_t>& shape, const int32_t* lengths, const float* got) {
    if (!file_.find(layer)) return;
    const std::vector<float> expected = file_.f32(layer, shape);
    const int64_t length = shape.size() == 3 ? shape[1] : 1, width = shape.back();
    double worst = 0, largest = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(expected.size()); ++i) {
      if (lengths && i / width % length >= lengths[i / (width * length)]) continue;
      const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      if (difference <= worst || std::isinf(worst)) continue;
      at = i;
      worst = std::isnan(difference) ? INFINITY : difference;
    }
    compared_.insert(layer);
    layers_.push_back({{"layer", layer},
                       {"error", std::isinf(worst) ? Json() : Json(worst)},
                       {"row", at / (width * length)},
                       {"position", at / width % length},
                       {"channel", at % width},
                       {"largest", largest}});
  }

  Json layers() const {
    static const std::set<std::string> inputs = {"source", "source_len", "target", "target_len"};
    for (const StoredTensor& t : file_.tensors())
      if (!inputs.count(t.name) && !compared_.count(t.name))
        fail(ATTN_INVALID, "{}: {} is no layer of this model", file_.path(), quote(t.name));
    return layers_;
  }

 private:
  const StoredTensor& tensor(const std::string& name) const {
    const StoredTensor* t = file_.find(name);
    if (!t) fail(ATTN_INVALID, "{}: holds no {}, which the model takes", file_.path(), quote(name));
    return *t;
  }
  std::vector<int32_t> ints(const std::string& name) const {
    const StoredTensor& t = tensor(name);
    if (t.dtype != "I32") fail(ATTN_INVALID, "{}: {} must be I32, not {}", file_.path(), quote(name), t.dtype);
    std::vector<int32_t> values(t.data.size() / sizeof(int32_t));
    std::memcpy(values.data(), t.data.data(), t.data.size());
    return values;
  }
  void check_rows(const std::string& name, size_t dimensions) const {
    const std::vector<int64_t>&shape = tensor(name).shape, &lengths = tensor(name + "_len").shape;
    if (shape.size() != dimensions || lengths.size() != 1 || shape[0] != lengths[0])
      fail(ATTN_INVALID, "{}: {} is of shape {} and its lengths of shape {}, where they must be {} and (rows)",
           file_.path(), name, shape_text(shape), shape_text(lengths),
           dimensions == 3 ? "(rows, length, features)" : "(rows, length)");
  }

  Weights file_;
  std::vector<int32_t> source_ids_, source_len_, target_ids_, target_len_;
  std::vector<float> frames_;
  std::set<std::string> compared_;
  Json layers_ = Json::array();
};

}  // namespace

int32_t attnkit_model_verify(const attnkit_model* model, const char* golden, attnkit_text** json, attn_error* err) {
  return guard(err, [&] {
    require({{model, "model"}, {golden, "golden"}, {json, "json"}});
    const Model& m = *model->model;
    Golden file(m, golden);
    const SourceBatch source = file.source();
    const Ids target = file.target();
    const int64_t d = m.manifest().d_model;
    Probe probe;
    probe.show = [&](const std::string& layer, const Side& side, const float* x) {
      file.compare(layer, {static_cast<int64_t>(side.lengths.size()), side.length, d}, side.lengths.data(), x);
    };
    const std::vector<int64_t> shape = m.output_shape(source, target);
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> out(static_cast<size_t>(count));
    m.forward(source, target, out.data(), &probe);
    file.compare("logits", shape, shape.size() == 3 ? file.lengths(m) : nullptr, out.data());
    const Json document = {{"schema", "attnkit.verification/1"}, {"golden", golden}, {"layers", file.layers()}};
    *json = new attnkit_text{document.dump(-1, ' ', false, Json::error_handler_t::replace)};
  });
}
