// The text of a recording.   transcribe MODEL.toml RECORDING.wav
#include "common.hpp"

// The samples of a WAV file of 16 bits, one channel and this rate.
std::vector<float> samples_of(const std::string& file, uint32_t rate) {
  const auto number = [&](size_t at, size_t bytes) {
    uint32_t value = 0;
    while (bytes-- > 0) value = value << 8 | static_cast<unsigned char>(file.at(at + bytes));
    return value;
  };
  bool good = false;  // what the fmt chunk says
  size_t at = 12;
  for (; file.substr(at, 4) != "data"; at += 8 + number(at + 4, 4) + number(at + 4, 4) % 2)
    if (file.substr(at, 4) == "fmt ")
      good = number(at + 10, 2) == 1 && number(at + 12, 4) == rate && number(at + 22, 2) == 16;
  if (!good || !file.starts_with("RIFF") || file.substr(8, 4) != "WAVE") throw std::out_of_range("format");
  std::vector<float> samples(std::min<size_t>(number(at + 4, 4), file.size() - at - 8) / 2);
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>(static_cast<int16_t>(number(at + 8 + 2 * i, 2))) / 32768;
  return samples;
}

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml RECORDING.wav");
  const attnkit::Model model(attnkit::Runtime(), argv[1]);
  attnkit::Session session(model, 1);
  session.read(samples_of(contents(argv[2]), model.info().sample_rate));
  std::cout << model.detokenize(attnkit::Side::target, session.generate()) << '\n';
} catch (const std::out_of_range&) {
  std::cerr << argv[2] << ": no WAV file of 16 bits and one channel at the model's rate\n";
  return 1;
} catch (const std::exception& e) {
  return failed(e);
}
