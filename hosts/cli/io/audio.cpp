#include "hosts/cli/io/audio.hpp"

#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;
using File = std::unique_ptr<SNDFILE, int (*)(SNDFILE*)>;

constexpr sf_count_t block = 1 << 16;
constexpr float max_sample = 16;             // the library has the same bound
constexpr uint32_t unfinished = 0x7ff00000;  // from here on the size was unknown when the header was written to a pipe

uint32_t number_at(const char* bytes, bool little) {
  uint32_t n = 0;
  for (int i = 0; i < 4; ++i) n = n << 8 | static_cast<unsigned char>(bytes[little ? 3 - i : i]);
  return n;
}

// Bytes of samples that the header of a RIFF file, or of RIFX with its bytes the other way round, promises and the file
// lacks; libsndfile passes over that.
uint64_t bytes_missing(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code bad;
  const uint64_t size = fs::file_size(path, bad);
  char header[12];
  if (bad || !file.read(header, 12)) return 0;
  const bool little = std::memcmp(header, "RIFF", 4) == 0;
  if (!little && std::memcmp(header, "RIFX", 4) != 0) return 0;
  for (uint64_t at = 12; file.seekg(static_cast<std::streamoff>(at)) && file.read(header, 8);) {
    const uint64_t bytes = number_at(header + 4, little), end = at + 8 + bytes;
    if (std::memcmp(header, "data", 4) == 0) return bytes >= unfinished || end <= size ? 0 : end - size;
    at = end + bytes % 2;
  }
  return 0;
}

File open_file(const std::string& path, const std::string& origin, SF_INFO& info) {
  std::error_code bad;
  const fs::file_status status = fs::status(path, bad);
  if (!fs::exists(status)) fail(Exit::data, "{}: there is no such file", origin);
  if (fs::is_directory(status)) fail(Exit::data, "{}: is a folder, not an audio file", origin);
  if (!fs::is_regular_file(status))
    fail(Exit::data, "{}: is no regular file; --audio - reads raw samples from standard input", origin);
  if (fs::file_size(path, bad) == 0) fail(Exit::data, "{}: is empty", origin);
  if (!std::ifstream(path)) fail(Exit::data, "{}: cannot be opened: {}", origin, std::strerror(errno));
  File file(sf_open(path.c_str(), SFM_READ, &info), sf_close);
  if (!file) fail(Exit::data, "{}: is no WAV, FLAC or OGG file that can be read: {}", origin, sf_strerror(nullptr));
  const int type = info.format & SF_FORMAT_TYPEMASK;
  if (type != SF_FORMAT_WAV && type != SF_FORMAT_WAVEX && type != SF_FORMAT_FLAC && type != SF_FORMAT_OGG)
    fail(Exit::data, "{}: is no WAV, FLAC or OGG file: convert it with sox {} out.wav", origin, shell_word(path));
  return file;
}

void check_format(const std::string& path, const std::string& origin, const SF_INFO& info, int64_t rate) {
  const std::string remedy = fmt::format("convert it with sox {} -r {} -c 1 out.wav", shell_word(path), rate);
  if (info.channels != 1)
    fail(Exit::data, "{}: has {} channels, the model takes one: {}", origin, info.channels, remedy);
  if (info.samplerate != rate)
    fail(Exit::data, "{}: has {} samples a second, the model takes {}: {}", origin, info.samplerate, rate, remedy);
}

void check_length(const std::string& origin, int64_t samples, const SpeechFormat& format) {
  const auto seconds = [&](int64_t n) { return format.shape.ms(n) / 1000; };
  if (samples == 0) fail(Exit::data, "{}: holds no samples", origin);
  if (format.window > 0) {
    if (samples > format.window && !format.any_length)
      fail(Exit::data, "{}: {} samples are {:.2f} s, and this model takes up to {:g} s at once: split the recording",
           origin, samples, seconds(samples), seconds(format.window));
    return;
  }
  if (samples < format.shape.samples(1))
    fail(Exit::data, "{}: {} samples ({:.3f} s) are less than the {} that the first row of the encoder needs", origin,
         samples, seconds(samples), format.shape.samples(1));
  if (const int64_t max = format.longest(); samples > max)
    fail(Exit::data, "{}: {:.2f} s are {} rows of the encoder, the model's max_length is {}, {:.2f} s: split it",
         origin, seconds(samples), format.shape.rows(samples), format.max_rows, seconds(max));
}

void check_samples(const std::string& origin, std::span<const float> samples) {
  // Negated, so that NaN is found.
  const auto bad = std::find_if(samples.begin(), samples.end(), [](float x) { return !(std::abs(x) <= max_sample); });
  if (bad != samples.end())
    fail(Exit::data, "{}: sample {} is {}, where numbers from -1 to 1 are samples", origin, bad - samples.begin(),
         *bad);
}

// Libsndfile passes over missing or spoilt pages of an OGG file; only its log reports them.
bool has_hole(SNDFILE* file) {
  char log[2048] = "";
  sf_command(file, SFC_GET_LOG_INFO, log, sizeof log);
  return std::strstr(log, "reports a hole") != nullptr;
}

std::vector<float> read_all(SNDFILE* file, const std::string& origin, sf_count_t promised) {
  std::vector<float> samples;
  for (sf_count_t n = block; n == block;) {
    check_interrupt();
    const size_t before = samples.size();
    samples.resize(before + static_cast<size_t>(block));
    n = std::max<sf_count_t>(0, sf_readf_float(file, samples.data() + before, block));
    samples.resize(before + static_cast<size_t>(n));
  }
  if (sf_error(file) != SF_ERR_NO_ERROR) fail(Exit::data, "{}: is damaged: {}", origin, sf_strerror(file));
  if (has_hole(file)) fail(Exit::data, "{}: is damaged: a part of it is missing or spoilt", origin);
  if (static_cast<sf_count_t>(samples.size()) < promised)
    fail(Exit::data, "{}: is damaged or cut off: it ends after {} samples, before the end that it announces", origin,
         samples.size());
  return samples;
}

std::vector<float> read_file_samples(const std::string& path, const std::string& origin, const SpeechFormat& format) {
  SF_INFO info{};
  const File file = open_file(path, origin, info);
  check_format(path, origin, info, format.shape.sample_rate);
  if (const uint64_t missing = bytes_missing(path); missing > 0)
    fail(Exit::data, "{}: is cut off: {} bytes of the samples that its header announces are missing", origin, missing);
  const bool known = info.frames != std::numeric_limits<sf_count_t>::max();
  if (known) check_length(origin, info.frames, format);
  // A FLAC file may leave its length open; of an OGG file the end is missing then.
  const bool open = !known && (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC;
  return read_all(file.get(), origin, open ? 0 : info.frames);
}

std::vector<float> read_standard_input(const std::string& origin) {
  const std::string bytes = read_file("-");
  if (bytes.size() % 2 != 0) note(fmt::format("attnkit: {}: the last byte is half a sample and ignored\n", origin));
  return samples_of(bytes);
}

}  // namespace

SpeechFormat speech_format(const search::TaskFacts& facts) {
  return {stream::speech_shape(facts.info), facts.info.max_length, facts.frames * facts.info.frame_shift};
}

std::vector<float> read_audio(const std::string& path, const std::string& origin, const SpeechFormat& format) {
  std::vector<float> samples = path == "-" ? read_standard_input(origin) : read_file_samples(path, origin, format);
  check_length(origin, static_cast<int64_t>(samples.size()), format);
  check_samples(origin, samples);
  return samples;
}

std::vector<int64_t> window_ends(std::span<const float> samples, int64_t window, int64_t sample_rate) {
  const auto total = static_cast<int64_t>(samples.size());
  const int64_t width = sample_rate / 10, step = sample_rate / 100;
  std::vector<int64_t> ends;
  for (int64_t begin = 0; total - begin > window; begin = ends.back()) {
    const int64_t last = begin + window;
    int64_t end = last;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t at = last - window / 6; at + width <= last; at += step) {
      double energy = 0;
      for (const float x : samples.subspan(static_cast<size_t>(at), static_cast<size_t>(width)))
        energy += static_cast<double>(x) * x;
      if (energy > least) continue;
      least = energy;
      end = at + width / 2;
    }
    ends.push_back(end);
  }
  ends.push_back(total);
  return ends;
}

std::vector<float> samples_of(std::span<const char> bytes) {
  std::vector<float> samples(bytes.size() / 2);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto low = static_cast<unsigned char>(bytes[2 * i]), high = static_cast<unsigned char>(bytes[2 * i + 1]);
    samples[i] = static_cast<float>(static_cast<int16_t>(low | high << 8)) / 32768;
  }
  return samples;
}

}  // namespace attnkit::cli
