#include "core/model/model.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/api/describe.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 2}, target = {1, 8, 9, 4, 3};

std::vector<float> forward(const Model& model, const Ids& s, const Ids& t) {
  const bool classifier = model.manifest().head == HeadType::classifier;
  const Ids& last = model.has_decoder() ? t : s;
  std::vector<float> out(static_cast<size_t>(last.batch * (classifier ? 1 : last.length) * model.outputs()), NAN);
  model.forward(s, t, out.data());
  return out;
}

// A transformer in double, straight from the papers: pre-norm or post-norm, softmax attention, ReLU.
struct Reference {
  const TinyModel& tiny;
  using Rows = std::vector<std::vector<double>>;

  std::vector<float> tensor(const std::string& name) const {
    size_t n = 1;
    const std::vector<int64_t> shape = tiny.shapes().at(name);
    for (int64_t dim : shape) n *= static_cast<size_t>(dim);
    return tiny_values(name, n, tiny.seed);
  }
  Rows linear(const Rows& x, const std::string& name, int64_t out) const {
    const std::vector<float> w = tensor(name + ".weight"), b = tensor(name + ".bias");
    Rows y(x.size(), std::vector<double>(out));
    for (size_t r = 0; r < x.size(); ++r)
      for (int64_t o = 0; o < out; ++o) {
        y[r][o] = b[o];
        for (size_t k = 0; k < x[r].size(); ++k) y[r][o] += static_cast<double>(w[o * x[r].size() + k]) * x[r][k];
      }
    return y;
  }
  Rows norm(Rows x, const std::string& name) const {
    const std::vector<float> w = tensor(name + ".weight"), b = tensor(name + ".bias");
    for (auto& row : x) {
      double mean = 0, squares = 0;
      for (double v : row) mean += v / row.size();
      for (double v : row) squares += (v - mean) * (v - mean) / row.size();
      for (size_t i = 0; i < row.size(); ++i) row[i] = (row[i] - mean) / std::sqrt(squares + 1e-5) * w[i] + b[i];
    }
    return x;
  }
  Rows adapt(Rows x, const std::string& path, const std::string& side) const {
    if (!tiny.adapters) return x;
    const std::vector<float> scale = tensor(path + ".softmax.adapter." + side + "_scale"),
                             shift = tensor(path + ".softmax.adapter." + side + "_shift");
    for (auto& row : x)
      for (int i = 0; i < tiny.d; ++i) row[i] = row[i] * scale[i] + shift[i];
    return x;
  }
  // The steps between attention and its output projection: the norm of each head, then the adapter's gain.
  Rows gain(Rows o, const std::string& path, int width) const {
    for (auto& row : o)
      for (int h = 0; tiny.head_norm && h < tiny.heads; ++h) {
        double squares = 0;
        for (int i = h * width; i < (h + 1) * width; ++i) squares += row[i] * row[i] / width;
        for (int i = h * width; i < (h + 1) * width; ++i) row[i] /= std::sqrt(squares + 1e-5);
      }
    if (!tiny.adapters) return o;
    const std::vector<float> factor = tensor(path + ".softmax.adapter.gain");
    for (auto& row : o)
      for (int i = 0; i < tiny.d; ++i) row[i] *= factor[i];
    return o;
  }
  Rows attention(const Rows& x, const Rows& context, const std::string& path, bool causal) const {
    const Rows q = adapt(linear(x, path + ".q", tiny.d), path, "q"),
               k = adapt(linear(context, path + ".k", tiny.d), path, "k");
    const Rows v = linear(context, path + ".v", tiny.d);
    const int width = tiny.d / tiny.heads;
    Rows o(x.size(), std::vector<double>(tiny.d));
    for (int h = 0; h < tiny.heads; ++h)
      for (size_t i = 0; i < x.size(); ++i) {
        double sum = 0;
        std::vector<double> w(causal ? i + 1 : context.size());
        for (size_t j = 0; j < w.size(); ++j) {
          for (int c = h * width; c < (h + 1) * width; ++c) w[j] += q[i][c] * k[j][c];
          sum += w[j] = std::exp(w[j] / std::sqrt(width));
        }
        for (size_t j = 0; j < w.size(); ++j)
          for (int c = h * width; c < (h + 1) * width; ++c) o[i][c] += w[j] / sum * v[j][c];
      }
    return linear(gain(o, path, width), path + ".o", tiny.d);
  }
  template <class F>
  void sublayer(Rows& x, const std::string& norm_name, F&& f) const {
    const Rows y = f(tiny.post_norm ? x : norm(x, norm_name));
    for (size_t r = 0; r < x.size(); ++r)
      for (size_t i = 0; i < x[r].size(); ++i) x[r][i] += y[r][i];
    if (tiny.post_norm) x = norm(x, norm_name);
  }
  Rows embed(const std::vector<int32_t>& ids, const std::string& stack) const {
    const std::vector<float> table = tensor(stack + ".embed.weight"),
                             learned = tiny.learned_positions ? tensor(stack + ".positions.weight") : table;
    Rows x(ids.size(), std::vector<double>(tiny.d));
    for (size_t p = 0; p < ids.size(); ++p)
      for (int i = 0; i < tiny.d; ++i) {
        const double angle = p / std::pow(10000.0, (i - i % 2) / static_cast<double>(tiny.d));
        x[p][i] = table[ids[p] * tiny.d + i] + (tiny.learned_positions ? learned[p * tiny.d + i]
                                                : i % 2                ? std::cos(angle)
                                                                       : std::sin(angle));
      }
    return x;
  }
  Rows stack(const std::vector<int32_t>& ids, const std::string& name, int layers, const Rows* memory) const {
    Rows x = embed(ids, name);
    for (int l = 1; l <= layers; ++l) {
      const std::string n = std::to_string(l), self = name + ".self." + n, cross = "decoder.cross." + n,
                        ffn = name + ".ffn." + n;
      sublayer(x, self + ".norm", [&](const Rows& y) { return attention(y, y, self, name == "decoder"); });
      if (memory) sublayer(x, cross + ".norm", [&](const Rows& y) { return attention(y, *memory, cross, false); });
      sublayer(x, ffn + ".norm", [&](const Rows& y) {
        Rows hidden = linear(y, ffn + ".in", tiny.ffn);
        for (auto& row : hidden)
          for (double& v : row) v = std::max(v, 0.0);
        return linear(hidden, ffn + ".out", tiny.d);
      });
    }
    return tiny.post_norm ? x : norm(x, name + ".norm");
  }
  std::vector<double> logits() const {
    const Rows memory = tiny.encoder_layers ? stack(source, "encoder", tiny.encoder_layers, nullptr) : Rows{};
    const Rows x = stack(target, "decoder", tiny.decoder_layers, tiny.encoder_layers ? &memory : nullptr);
    const std::vector<float> head = tensor(tiny.tie ? "decoder.embed.weight" : "head.weight");
    std::vector<double> out;
    for (const auto& row : x)
      for (int v = 0; v < tiny.vocab; ++v) {
        double sum = 0;
        for (int i = 0; i < tiny.d; ++i) sum += head[v * tiny.d + i] * row[i];
        out.push_back(sum);
      }
    return out;
  }
};

void expect_near_reference(const TinyModel& tiny) {
  const auto model = load(tiny);
  ASSERT_TRUE(model);
  const std::vector<float> out = forward(*model, tiny.encoder_layers ? ids_of(source) : Ids{}, ids_of(target));
  const std::vector<double> expected = Reference{tiny}.logits();
  double error = 0, scale = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    error += (out[i] - expected[i]) * (out[i] - expected[i]);
    scale += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error), 5e-6 * std::sqrt(scale));
}

TEST(Model, EncoderDecoderEqualsTheReference) { expect_near_reference({}); }

TEST(Model, PostNormLearnedPositionsAndAnUntiedHeadEqualTheReference) {
  TinyModel tiny;
  tiny.post_norm = tiny.learned_positions = true;
  tiny.tie = false;
  expect_near_reference(tiny);
}

// The tiny model with another tie; of the tables that are one, its file has the first name alone.
TinyModel tied(const std::string& tie, std::vector<std::string> gone) {
  TinyModel tiny;
  tiny.tie = false;
  tiny.extra_model = "tie_embeddings = " + tie + "\n";
  tiny.leave_out = std::move(gone);
  return tiny;
}

TEST(Model, EmbeddingsThatAreTiedAreOneTable) {
  const auto of = [](const TinyModel& tiny) { return load(tiny); };
  const int64_t table = TinyModel().vocab * TinyModel().d;
  const auto apart = of(tied("false", {}));
  const auto all = of(tied("[\"source\", \"target\", \"output\"]", {"encoder.embed.weight", "head.weight"}));
  const auto sides = of(tied("[\"source\", \"target\"]", {"encoder.embed.weight"}));
  const auto source_out = of(tied("[\"source\", \"output\"]", {"head.weight"}));
  const auto truth = of(tied("true", {"head.weight"}));
  for (const auto& [model, fewer] : {std::pair(all, 2), {sides, 1}, {source_out, 1}, {truth, 1}})
    EXPECT_EQ(model->parameters(), apart->parameters() - fewer * table);
  const auto row = [](const Embedding& e, int64_t id) {
    std::vector<float> x(static_cast<size_t>(e.width));
    e.row(id, x.data());
    return x;
  };
  for (const auto& model : {all, sides}) {
    const Embedding &source = model->encoder().embedding, &target = model->decoder().embedding;
    EXPECT_EQ(row(source, 5), row(target, 5));
    // In memory once: either the packed layer or the table is the same object.
    EXPECT_EQ(source.table.data(), target.table.data());
    EXPECT_EQ(source.packed.weights(), target.packed.weights());
  }
  EXPECT_NE(row(apart->encoder().embedding, 5), row(apart->decoder().embedding, 5));
  EXPECT_EQ(row(truth->decoder().embedding, 5), row(all->decoder().embedding, 5));
  const auto results = [&](const std::shared_ptr<const Model>& model) {
    return forward(*model, ids_of(source), ids_of(target));
  };
  EXPECT_NE(results(all), results(truth));
  EXPECT_NE(results(sides), results(apart));
  EXPECT_NE(results(source_out), results(apart));
}

TEST(Model, ATableOfTheTiedSideInTheFileIsLeftOver) {
  TempFolder folder;
  write_tiny(folder, tied("[\"source\", \"target\", \"output\"]", {"head.weight"}));
  Diagnostics d;
  EXPECT_EQ(Model::load(runtime(), tied("[\"source\", \"target\", \"output\"]", {}).manifest(), folder.path(), d),
            nullptr);
  ASSERT_EQ(d.sorted().size(), 1u);
  EXPECT_NE(d.sorted()[0].message.find("\"encoder.embed.weight\""), std::string::npos) << d.sorted()[0].message;
}

TEST(Model, ScoresAreMultipliedByTheHeadsScale) {
  const auto of = [](const std::string& key) {
    TinyModel tiny;
    tiny.extra_model = key;
    const auto model = load(tiny);
    return forward(*model, ids_of(source), ids_of(target));
  };
  const std::vector<float> plain = of(""), half = of("head_scale = 0.5\n");
  EXPECT_EQ(of("head_scale = false\n"), plain);
  EXPECT_EQ(of("head_scale = 1\n"), plain);
  EXPECT_EQ(of("head_scale = true\n"), of("head_scale = 0.25\n")) << "d_model is 16";
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(half[i], plain[i] / 2);
}

TEST(Model, ANormBehindTheStacksIsThereOrNot) {
  const auto of = [](bool post, const std::string& key, std::vector<std::string> gone,
                     std::map<std::string, std::vector<int64_t>> more = {}) {
    TinyModel tiny;
    tiny.post_norm = post;
    tiny.extra_model = key;
    tiny.leave_out = std::move(gone);
    tiny.more = std::move(more);
    const auto model = load(tiny);
    return forward(*model, ids_of(source), ids_of(target));
  };
  const std::vector<std::string> norms = {"encoder.norm.weight", "encoder.norm.bias", "decoder.norm.weight",
                                          "decoder.norm.bias"};
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const std::string& name : norms) shapes[name] = {TinyModel().d};
  const auto pre = of(false, "", {}), post = of(true, "", {});
  EXPECT_EQ(of(false, "final_norm = true\n", {}), pre);
  EXPECT_EQ(of(true, "final_norm = false\n", {}), post);
  EXPECT_NE(of(false, "final_norm = false\n", norms), pre);
  EXPECT_NE(of(true, "final_norm = true\n", {}, shapes), post);
}

TEST(Model, HasTheBiasesThatItSays) {
  const auto of = [](const std::string& said, std::vector<std::string> kinds) {
    TinyModel tiny;
    tiny.extra_model = "bias = " + said + "\n";
    for (const auto& [name, shape] : tiny.shapes()) {
      const size_t end = name.rfind(".bias"), dot = name.rfind('.', end - 1);
      if (end == std::string::npos || dot == std::string::npos) continue;
      const std::string kind = name.substr(dot + 1, end - dot - 1);
      if (kind != "norm" && std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) tiny.leave_out.push_back(name);
    }
    const auto model = load(tiny);
    return forward(*model, ids_of(source), ids_of(target));
  };
  EXPECT_EQ(of("[\"q\", \"k\", \"v\"]", {"q", "k", "v"}), of("\"qkv\"", {"q", "k", "v"}));
  EXPECT_EQ(of("[]", {}), of("\"none\"", {}));
  const auto none = of("\"none\"", {});
  for (const char* one : {"q", "v", "o", "in", "out"})
    EXPECT_NE(of(std::string("[\"") + one + "\"]", {one}), none) << one;
}

TEST(Model, DecoderOnlyEqualsTheReference) {
  TinyModel tiny;
  tiny.kind = "decoder";
  tiny.encoder_layers = 0;
  expect_near_reference(tiny);
}

TEST(Model, AdaptersFoldedIntoTheProjectionsEqualTheReference) {
  TinyModel tiny;
  tiny.adapters = tiny.head_norm = true;
  tiny.adapted = {"softmax"};
  expect_near_reference(tiny);
}

TEST(Model, AdaptersAreForModelsThatSaySo) {
  TinyModel plain, stored;
  stored.adapted = {"softmax"};
  EXPECT_EQ(forward(*load(plain), ids_of(source), ids_of(target)),
            forward(*load(stored), ids_of(source), ids_of(target)));
}

TEST(Model, AMissingAdapterIsAWarning) {
  TinyModel tiny;
  tiny.adapters = true;
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  EXPECT_TRUE(Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("no adapters"), std::string::npos);
}

TEST(Model, ClassifierPoolsTrueRowsOnly) {
  TinyModel tiny;
  tiny.kind = "encoder";
  tiny.decoder_layers = 0;
  tiny.classes = 4;
  const auto model = load(tiny);
  std::vector<int32_t> padded = source;
  padded.insert(padded.end(), {-9, 99, 99});  // what stands in padding is never looked at
  const int32_t length = static_cast<int32_t>(source.size());
  Ids ids = ids_of(padded);
  ids.lens = &length;
  EXPECT_EQ(forward(*model, ids_of(source), {}), forward(*model, ids, {}));
}

TEST(Model, ShowsEveryLayerByItsName) {
  const auto model = load(TinyModel());
  std::vector<std::string> shown;
  Probe probe;
  probe.show = [&](const std::string& layer, const Side&, const float*) { shown.push_back(layer); };
  model->forward(ids_of(source), ids_of(target), nullptr, &probe);
  EXPECT_EQ(shown, (std::vector<std::string>{"encoder.self.1", "encoder.ffn.1", "encoder.self.2", "encoder.ffn.2",
                                             "encoder", "decoder.self.1", "decoder.cross.1", "decoder.ffn.1",
                                             "decoder.self.2", "decoder.cross.2", "decoder.ffn.2", "decoder"}));
}

// Of a batch, whose rows differ in length.
TEST(Model, EmbeddingsAreTheMeanOfRealRowsOrTheFirstAndMayBeNormalised) {
  const int64_t d = 16, length = static_cast<int64_t>(source.size());
  std::vector<int32_t> both = source;
  both.insert(both.end(), {9, 8, 2, -1, -1, -1});
  const int32_t lengths[] = {static_cast<int32_t>(length), 3};
  Ids ids = ids_of(both, 2);
  ids.lens = lengths;
  for (const bool first : {false, true})
    for (const bool normalised : {false, true}) {
      TinyModel tiny;
      tiny.kind = "encoder";
      tiny.decoder_layers = 0;
      tiny.tie = false;
      tiny.leave_out = {"head.weight"};
      tiny.extra_model = "head = { type = \"embedding\", pool = \"" + std::string(first ? "first" : "mean") +
                         "\", normalise = " + (normalised ? "true" : "false") + " }\n";
      const auto model = load(tiny);
      std::vector<float> rows, got(2 * d, NAN);
      Probe probe;
      probe.show = [&](const std::string& layer, const Side&, const float* x) {
        if (layer == "encoder") rows.assign(x, x + 2 * length * d);
      };
      model->forward(ids, {}, got.data(), &probe);
      for (int64_t b = 0; b < 2; ++b) {
        const int64_t n = first ? 1 : lengths[b];
        std::vector<double> expected(d);
        double squares = 0;
        for (int64_t c = 0; c < d; ++c) {
          for (int64_t i = 0; i < n; ++i) expected[c] += rows[(b * length + i) * d + c] / static_cast<double>(n);
          squares += expected[c] * expected[c];
        }
        for (int64_t c = 0; c < d; ++c)
          ASSERT_NEAR(got[b * d + c], expected[c] / (normalised ? std::sqrt(squares) : 1), 1e-5) << b << ", " << c;
      }
    }
}

TEST(Model, RowsOfABatchAreIndependentAndPaddingDoesNotMatter) {
  for (const char* mechanism : {"softmax", "relu", "cosformer"}) {
    TinyModel tiny;
    tiny.attention = std::string("default = \"") + mechanism + "\"\n";
    tiny.tail = "[length]\npredict = \"ratio\"\nalpha = 0.9\n";
    const auto model = load(tiny);
    const std::vector<float> alone = forward(*model, ids_of(source), ids_of(target));
    std::vector<int32_t> sources = {10, 9, 8, 7, 6, 5, 4, 3}, targets = {1, 5, 5, 5, 5, 5, 5};
    sources.insert(sources.end(), source.begin(), source.end());
    sources.resize(16, -1);
    targets.insert(targets.end(), target.begin(), target.end());
    targets.resize(14, -1);
    const int32_t source_lens[] = {8, static_cast<int32_t>(source.size())},
                  target_lens[] = {7, static_cast<int32_t>(target.size())};
    Ids s = ids_of(sources, 2), t = ids_of(targets, 2);
    s.lens = source_lens;
    t.lens = target_lens;
    const std::vector<float> both = forward(*model, s, t);
    const size_t row = both.size() / 2;
    for (size_t i = 0; i < row; ++i)
      ASSERT_EQ(both[row + i], i < alone.size() ? alone[i] : 0.0f) << mechanism << " at " << i;
  }
}

TEST(Model, TheFutureDoesNotChangeThePast) {
  const auto model = load({});
  std::vector<int32_t> other = target;
  other.back() = 10;
  const std::vector<float> a = forward(*model, ids_of(source), ids_of(target)),
                           b = forward(*model, ids_of(source), ids_of(other));
  for (size_t i = 0; i < a.size() - model->outputs(); ++i) ASSERT_EQ(a[i], b[i]);
}

TEST(Model, AttentionWeightsSumToOneAndAreCausal) {
  TinyModel tiny;
  tiny.max_length = 64;
  const auto model = load(tiny);
  std::vector<int32_t> longer(30, 5);  // more keys than a head is wide, so that several passes are needed
  std::vector<float> weights(2 * 30 * 30, NAN);
  const Probe probe{ATTN_DECODER_SELF, 2, weights.data()};
  model->forward(ids_of(source), ids_of(longer), nullptr, &probe);
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 30; ++i) {
      double sum = 0;
      for (int j = 0; j < 30; ++j) {
        sum += weights[(h * 30 + i) * 30 + j];
        if (j > i) {
          EXPECT_EQ(weights[(h * 30 + i) * 30 + j], 0);
        }
      }
      EXPECT_NEAR(sum, 1, 1e-5);
    }
}

TEST(Model, RefusesWrongIds) {
  const auto model = load({});
  std::vector<float> out(1000);
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{3, 11}, {-1}, std::vector<int32_t>(41, 3)})
    EXPECT_THROW(model->forward(ids_of(bad), ids_of(target), out.data()), Error);
  const int32_t length = 9;
  Ids ids = ids_of(source);
  ids.lens = &length;
  EXPECT_THROW(model->forward(ids, ids_of(target), out.data()), Error);
}

TEST(Model, ZeroLengthsGiveNothing) {
  const auto model = load({});
  std::vector<float> out(static_cast<size_t>(model->outputs()), 1.0f);
  model->forward(Ids{source.data(), 0, 1, 0, nullptr}, ids_of(std::vector<int32_t>{1}), out.data());
  for (float v : out) EXPECT_TRUE(std::isfinite(v));
  model->forward(Ids{source.data(), 0, 0, 0, nullptr}, {target.data(), 0, 0, 0, nullptr}, out.data());
}

TEST(DescribeModel, TellsTheGridAndTheCosts) {
  const std::string json = describe_model(*load({}), {8, 64});
  for (const char* part : {"\"attnkit.model-description/1\"", "\"decoder.cross.2\"", "\"state_bytes\"", "\"line\""})
    EXPECT_NE(json.find(part), std::string::npos) << part;
  EXPECT_THROW(describe_model(*load({}), {0}), Error);
}

using Json = nlohmann::json;

TEST(DescribeModel, LeavesOutFlopsThatDoNotFit) {
  TinyModel tiny;
  tiny.encoder_layers = 40;
  const auto model = load(tiny);
  for (const int64_t length : {1000, 100'000'000}) {
    const Json described = Json::parse(describe_model(*model, {length}));
    long double sum = 0;
    for (const Json& block : described["blocks"]) sum += block["costs"][0].at("flops").get<uint64_t>();
    const Json& cost = described["costs"][0];
    EXPECT_EQ(cost.contains("flops"), sum < 0x1p64L) << length;
    if (cost.contains("flops")) {
      EXPECT_GE(cost["flops"].get<uint64_t>(), sum);
    }
  }
}

TEST(DescribeModel, TellsTheHead) {
  EXPECT_EQ(Json::parse(describe_model(*load({}), {}))["head"], (Json{{"type", "lm"}}));
  TinyModel tiny;
  tiny.kind = "encoder";
  tiny.decoder_layers = 0;
  tiny.classes = 4;
  tiny.tie = false;
  EXPECT_EQ(Json::parse(describe_model(*load(tiny), {}))["head"],
            (Json{{"type", "classifier"}, {"classes", 4}, {"pool", "mean"}, {"of", nullptr}, {"hidden", 0}}));
}

TEST(DescribeModel, WritesEveryBlockAsTomlThatMeansTheSame) {
  TinyModel tiny;
  tiny.attention = "default = { use = \"relu\", eps = 0.25 }\n\"decoder.self\" = \"softmax\"\n";
  const Json blocks = Json::parse(describe_model(*load(tiny), {}))["blocks"];
  tiny.attention = "default = " + blocks[0]["toml"].get<std::string>() +
                   "\n\"decoder.self\" = " + blocks[2]["toml"].get<std::string>() + "\n";
  EXPECT_NE(tiny.attention.find("{ use = \"relu\", "), std::string::npos) << tiny.attention;
  const Json again = Json::parse(describe_model(*load(tiny), {}))["blocks"];
  for (size_t i = 0; i < blocks.size(); ++i)
    for (const char* key : {"block", "mechanism", "options", "toml"}) EXPECT_EQ(again[i][key], blocks[i][key]);
}

TEST(DescribeModel, TellsWhatASearchMayTry) {
  EXPECT_TRUE(Json::parse(describe_model(*load({}), {}))["search"].is_null());
  TinyModel tiny;
  tiny.tail =
      "[search]\nspace = { \"encoder.self\" = [\"softmax\", { use = \"relu\", eps = 0.25 }] }\n"
      "baseline = \"softmax\"\ndata = \"/dev.tsv\"\nlimits = { max_state = \"1KiB\" }\n";
  EXPECT_EQ(Json::parse(describe_model(*load(tiny), {}))["search"], Json::parse(R"({
    "space": {"encoder.self": [
      {"label": "softmax", "toml": "\"softmax\"", "mechanism": "softmax"},
      {"label": "relu{eps = 0.25}", "toml": "{ use = \"relu\", eps = 0.25 }", "mechanism": "relu"}]},
    "strategy": "grid", "per_layer": false, "metric": null, "data": "/dev.tsv", "test": null, "rank": "rcp_mem",
    "length": 512, "lengths": [64, 512, 4096],
    "baseline": {"label": "softmax", "toml": "\"softmax\"", "mechanism": "softmax"},
    "trials": 64, "seed": 1, "limits": {"min_quality_ratio": null, "max_state": 1024, "max_latency": null},
    "exponents": {"throughput": 1.0, "quality": 1.0, "memory": 1.0}, "quality_weight": 1.0})"));
}

}  // namespace
}  // namespace attnkit::test
