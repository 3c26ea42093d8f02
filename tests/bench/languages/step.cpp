// Prints the nanoseconds of a one-token call for each line that it reads.   step MODEL.toml STEPS
#include <attnkit/attnkit.hpp>
#include <chrono>
#include <iostream>

int main(int, char** argv) {
  const attnkit::Model model(attnkit::Runtime(), argv[1]);
  std::vector<float> logits(static_cast<size_t>(model.info().outputs));
  const int steps = std::stoi(argv[2]);
  for (std::string line; std::getline(std::cin, line);) {
    attnkit::Session session(model, 1);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) session.step(i % 16, logits);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    std::cout << took.count() / steps << std::endl;
  }
}
