// A convolutional predictor of durations over the encoder's rows, for [length] predict = "network".
//
// Ren et al.: FastSpeech, NeurIPS 2019, arXiv:1905.09263, 3.3; for whole targets Agostinelli and Chen: Modular
// Linearized Attention, ECML 2023.
//
//   h1 = LayerNorm(ReLU(conv1(rows)))    conv: kernel 3, zeros before the first and behind the last row
//   h2 = LayerNorm(ReLU(conv2(h1)))
//   N  = sum over rows of max(0, round(exp(out(h2)) - 1)), then within [1, max_length]; halves round to even
#pragma once

#include "core/length/length.hpp"

namespace attnkit {

// Tensors of manifest.length_file: length.conv.1.weight (C, D, 3), .bias (C), length.conv.1.norm.weight, .bias (C), the
// same for conv.2 with (C, C, 3), length.out.weight (1, C), .bias (1); C is read from the file.  NULL after a
// diagnostic.  Throws Stopped.
std::unique_ptr<const Length> open_length_network(const Manifest& manifest, Diagnostics& diagnostics);

}  // namespace attnkit
