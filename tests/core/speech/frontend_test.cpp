// The front end of speech against its formulas in double, and split in every way.
#include "core/speech/frontend.hpp"

#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

struct Shape {
  int layers, kernel, stride;
};

const std::vector<Shape> shapes = {{1, 3, 2}, {2, 3, 2}, {3, 3, 2}, {2, 2, 2}, {2, 5, 2},
                                   {1, 1, 1}, {2, 3, 1}, {2, 4, 3}, {4, 3, 2}};

constexpr int bins = 6, channels = 20, d_model = 17;

std::vector<float> random_numbers(size_t n, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

SpeechTable table_of(const Shape& shape) {
  SpeechTable table;
  table.features = {8000, bins, 25, 10};
  table.layers = shape.layers;
  table.kernel = shape.kernel;
  table.stride = shape.stride;
  table.channels = channels;
  return table;
}

struct FrontendWeights {
  std::vector<float> mean, scale;
  std::vector<std::vector<float>> conv_weight, conv_bias;
  std::vector<float> out_weight, out_bias;
};

FrontendWeights weights_of(const Shape& shape) {
  FrontendWeights w;
  w.mean = random_numbers(bins, 3, 1);
  w.scale = random_numbers(bins, 0.5f, 2);
  for (int l = 0; l < shape.layers; ++l) {
    const size_t in = l == 0 ? bins : channels;
    w.conv_weight.push_back(random_numbers(in * static_cast<size_t>(shape.kernel) * channels, 0.3f, 10u + l));
    w.conv_bias.push_back(random_numbers(channels, 0.3f, 20u + l));
  }
  w.out_weight = random_numbers(d_model * channels, 0.3f, 30);
  w.out_bias = random_numbers(d_model, 0.3f, 31);
  return w;
}

Frontend make(const Shape& shape, Activation activation = Activation::relu) {
  const FrontendWeights w = weights_of(shape);
  std::vector<Dense> convolutions;
  for (size_t l = 0; l < w.conv_weight.size(); ++l)
    convolutions.push_back(
        convolution_of(l == 0 ? bins : channels, channels, shape.kernel, w.conv_weight[l], w.conv_bias[l]));
  return Frontend(table_of(shape), activation, w.mean, w.scale, convolutions,
                  Dense(channels, d_model, w.out_weight, w.out_bias));
}

using Rows = std::vector<std::vector<double>>;

double activated(double x, Activation activation) {
  return activation == Activation::relu ? std::max(x, 0.0) : 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

// Output i of a layer sees its input's rows stride i - (kernel - stride) on, zeros before the first.
Rows convolved(const Rows& in, const Shape& s, const std::vector<float>& weight, const std::vector<float>& bias,
               Activation activation) {
  Rows out;
  const size_t width = in.empty() ? 1 : in[0].size();
  for (int i = 0; s.stride * i + s.stride - 1 < static_cast<int>(in.size()); ++i) {
    std::vector<double> row(channels);
    for (size_t c = 0; c < channels; ++c) {
      double sum = bias[c];
      for (int k = 0; k < s.kernel; ++k) {
        const int at = s.stride * i - (s.kernel - s.stride) + k;
        for (size_t j = 0; at >= 0 && j < width; ++j)
          sum += weight[(c * width + j) * static_cast<size_t>(s.kernel) + static_cast<size_t>(k)] *
                 in[static_cast<size_t>(at)][j];
      }
      row[c] = activated(sum, activation);
    }
    out.push_back(row);
  }
  return out;
}

std::vector<float> expected_rows(const std::vector<float>& frames, const Shape& s, Activation activation) {
  const FrontendWeights w = weights_of(s);
  Rows x;
  for (size_t t = 0; t < frames.size() / bins; ++t) {
    x.emplace_back(bins);
    for (size_t b = 0; b < bins; ++b)
      x[t][b] = (static_cast<double>(frames[t * bins + b]) - w.mean[b]) * static_cast<double>(w.scale[b]);
  }
  for (size_t l = 0; l < w.conv_weight.size(); ++l) x = convolved(x, s, w.conv_weight[l], w.conv_bias[l], activation);
  std::vector<float> out;
  for (const std::vector<double>& row : x)
    for (size_t o = 0; o < d_model; ++o) {
      double sum = w.out_bias[o];
      for (size_t c = 0; c < channels; ++c) sum += static_cast<double>(w.out_weight[o * channels + c]) * row[c];
      out.push_back(static_cast<float>(sum));
    }
  return out;
}

Threads& threads() {
  static Threads two(2);
  return two;
}

std::vector<float> whole(const Frontend& frontend, SourceKind kind, const std::vector<float>& units, size_t width) {
  Frontend::Waiting waiting = frontend.start();
  return frontend.take(threads(), waiting, kind, units.data(), static_cast<int64_t>(units.size() / width));
}

TEST(Frontend, EqualsItsFormulasInDouble) {
  const std::vector<float> frames = random_numbers(50 * bins, 5, 3);
  for (const Shape& s : shapes)
    for (const Activation activation : {Activation::relu, Activation::gelu}) {
      const Frontend frontend = make(s, activation);
      const std::vector<float> found = whole(frontend, SourceKind::frames, frames, bins),
                               expected = expected_rows(frames, s, activation);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_LT(relative_error(found, expected), 5e-6) << s.layers << " " << s.kernel << " " << s.stride;
    }
}

TEST(Frontend, EveryLengthInEverySplitGivesTheSameRows) {
  const std::vector<float> frames = random_numbers(50 * bins, 5, 3);
  for (const Shape& s : shapes) {
    const Frontend frontend = make(s);
    const std::vector<float> all = whole(frontend, SourceKind::frames, frames, bins);
    for (int64_t length = 0; length <= 50; ++length) {
      int64_t rows = length;
      for (int l = 0; l < s.layers; ++l) rows /= s.stride;
      EXPECT_EQ(frontend.rows(SourceKind::frames, length), rows);
      for (const int64_t chunk : {1, 2, 3, 7, 50}) {
        Frontend::Waiting waiting = frontend.start();
        std::vector<float> made;
        for (int64_t i = 0; i < length; i += chunk) {
          const int64_t n = std::min(chunk, length - i);
          const auto more = frontend.take(threads(), waiting, SourceKind::frames, frames.data() + i * bins, n);
          made.insert(made.end(), more.begin(), more.end());
          EXPECT_TRUE(frontend.fits(waiting, SourceKind::frames, i + n));
          EXPECT_FALSE(s.stride > 1 && frontend.fits(waiting, SourceKind::frames, i + n + 1));
        }
        ASSERT_EQ(made, std::vector<float>(all.begin(), all.begin() + rows * d_model)) << length << " by " << chunk;
      }
    }
  }
}

TEST(Frontend, SamplesInEverySplitGiveTheSameRows) {
  const Frontend frontend = make({2, 3, 2});
  const std::vector<float> samples = speech(3001);
  const std::vector<float> all = whole(frontend, SourceKind::samples, samples, 1);
  ASSERT_EQ(all.size(), static_cast<size_t>(frontend.rows(SourceKind::samples, 3001) * d_model));
  for (const size_t chunk : {1u, 79u, 80u, 81u, 199u, 200u, 440u, 1000u}) {
    Frontend::Waiting waiting = frontend.start();
    std::vector<float> made;
    for (size_t i = 0; i < samples.size(); i += chunk) {
      const auto n = static_cast<int64_t>(std::min(chunk, samples.size() - i));
      const auto more = frontend.take(threads(), waiting, SourceKind::samples, samples.data() + i, n);
      made.insert(made.end(), more.begin(), more.end());
      EXPECT_TRUE(frontend.fits(waiting, SourceKind::samples, static_cast<int64_t>(i) + n));
    }
    ASSERT_EQ(made, all) << chunk;
  }
}

TEST(Frontend, KnowsWhereRowsEnd) {
  const Frontend frontend = make({2, 3, 2});
  EXPECT_EQ(frontend.end_of_row(SourceKind::samples, 0), 200 + 3 * 80);
  EXPECT_EQ(frontend.end_of_row(SourceKind::frames, 2), 12);
  for (int64_t row = 0; row < 20; ++row)
    for (const SourceKind kind : {SourceKind::samples, SourceKind::frames}) {
      EXPECT_EQ(frontend.rows(kind, frontend.end_of_row(kind, row)), row + 1);
      EXPECT_EQ(frontend.rows(kind, frontend.end_of_row(kind, row) - 1), row);
    }
  EXPECT_DOUBLE_EQ(frontend.seconds(SourceKind::samples, 4000), 0.5);
  EXPECT_DOUBLE_EQ(frontend.seconds(SourceKind::frames, 0), 0);
  EXPECT_DOUBLE_EQ(frontend.seconds(SourceKind::frames, 2), 0.035);
  EXPECT_THROW(frontend.require_row(SourceKind::samples, 439), Error);
  frontend.require_row(SourceKind::samples, 440);
}

}  // namespace
}  // namespace attnkit::test
