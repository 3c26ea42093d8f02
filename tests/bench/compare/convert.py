"""The weights of an attnkit translator as a folder of CTranslate2."""

import ctranslate2
import numpy
from ctranslate2.specs import transformer_spec

from common import tensors


def positions(longest, width):
    angles = numpy.arange(longest)[:, None] / 10000.0**(numpy.arange(width) // 2 * 2 / width)
    return numpy.where(numpy.arange(width) % 2, numpy.cos(angles), numpy.sin(angles)).astype(numpy.float32)


def converted(model, heads, tokens, longest, weight_type, folder):
    """Norms before the sublayers, ReLU, sinusoids, scaled embeddings, that of the decoder tied to the output; softmax everywhere.

    tokens: the vocabulary of both sides, with <s>, </s> and <unk>.
    """
    w = tensors(model)
    layers = sum(name.startswith("encoder.ffn.") and name.endswith(".in.bias") for name in w)
    spec = transformer_spec.TransformerSpec.from_config(layers, heads)

    def linear(to, *names):
        to.weight = numpy.concatenate([w[n + ".weight"] for n in names])
        to.bias = numpy.concatenate([w[n + ".bias"] for n in names])

    def norm(to, name):
        to.gamma, to.beta = w[name + ".weight"], w[name + ".bias"]

    def feed_forward(to, name):
        norm(to.layer_norm, name + ".norm")
        linear(to.linear_0, name + ".in")
        linear(to.linear_1, name + ".out")

    def attention(to, name, *parts):
        norm(to.layer_norm, name + ".norm")
        for at, letters in zip(to.linear, parts):
            linear(at, *(f"{name}.{letter}" for letter in letters))

    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = stack.embeddings[0] if name == "encoder" else stack.embeddings
        embeddings.weight, embeddings.multiply_by_sqrt_depth = w[f"{name}.embed.weight"], True
        stack.scale_embeddings = True
        stack.position_encodings.encodings = positions(longest, embeddings.weight.shape[1])
        norm(stack.layer_norm, f"{name}.norm")
        for i, layer in enumerate(stack.layer, 1):
            attention(layer.self_attention, f"{name}.self.{i}", "qkv", "o")
            if name == "decoder":
                attention(layer.attention, f"{name}.cross.{i}", "q", "kv", "o")
            feed_forward(layer.ffn, f"{name}.ffn.{i}")
    spec.decoder.projection.weight = w["decoder.embed.weight"]
    spec.decoder.projection.bias = numpy.zeros(len(tokens), numpy.float32)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=None if weight_type == "f32" else weight_type)
    folder.mkdir()
    spec.save(str(folder))
    return folder


def opened(folder, weight_type, threads):
    return ctranslate2.Translator(str(folder), intra_threads=threads, inter_threads=1, compute_type="float32" if weight_type == "f32" else weight_type)
