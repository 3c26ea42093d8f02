// Whole sequences, several sessions in one call, rows, attention weights.   batch MODEL.toml "text"
#include <cstdio>
#include <numeric>

#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 3) return usage(argv, "MODEL.toml \"text\"");
  const auto [model, ids] = open(argv);
  const int64_t outputs = model.info().outputs, keys = std::ssize(ids);
  const attnkit::Ids begin{model.info().begin_id};
  const attnkit::Batch source({&ids, 1}), target({&begin, 1});
  const auto logits = [&](std::vector<float>& data) { return attnkit::tensor(data.data(), {1, 1, outputs}); };

  // Teacher forcing at once, and the encoder's part by itself.
  std::vector<float> whole(outputs), rest(outputs);
  model.forward(source, target, logits(whole));
  model.decode(model.encode(source), target, logits(rest));
  std::printf("decode is forward: %d\n", whole == rest);

  // Two sessions read and write in one call; one by itself writes in the shortest way.
  attnkit::Session first(model, 1), second(model, 1), alone(model, 1), rows(model, 2);
  attnkit_session* const both[] = {first.get(), second.get()};
  for (attnkit::Session* session : {&first, &second, &alone}) session->set_length(12.5);
  attnkit::Session::read_all(both, attnkit::Batch(std::vector{ids, ids}));
  std::vector<float> written(2 * outputs), step(outputs);
  attnkit::Session::write(both, attnkit::Batch(std::vector{begin, begin}), written.data(), outputs);
  alone.read(ids);
  alone.step(begin[0], step);
  const auto middle = written.begin() + outputs;
  std::printf("sessions agree: %d\n",
              std::equal(written.begin(), middle, middle) && std::equal(step.begin(), step.end(), middle));

  // Both go on to the end, where one of them may come first.
  std::vector<attnkit::Ids> made = attnkit::Session::generate_all(model, both);
  for (size_t i = 0; i < made.size(); ++i)
    if (made[i].empty()) made[i] = attnkit::Session::generate_all(model, {both + i, 1}).front();
  if (made[0] != made[1]) return 1;

  // Two rows of one session change places.
  rows.read(ids);
  attnkit_session* const self = rows.get();
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector{begin, begin}));
  rows.reorder(std::vector<uint32_t>{1, 0});

  // (4 heads, 1 query, keys) of the first cross attention.
  std::vector<float> weights(4 * keys);
  model.attention(ATTN_DECODER_CROSS, 1, ids, begin, attnkit::tensor(weights.data(), {4, 1, keys}));
  std::printf("weights sum to %.3f\n", std::accumulate(weights.begin(), weights.begin() + keys, 0.0f));
} catch (const std::exception& e) {
  return failed(e);
}
