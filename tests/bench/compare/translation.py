"""Greedy translation by one Transformer with the same weights: attnkit beside CTranslate2, in turns in one process.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt
    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/translation.py [--batch 1,16,64] [--threads 1,2] [--length 64]

A Transformer-base (d 512, 6 + 6 layers, vocabulary 32,000) with random weights translates `batch` sources of `length` tokens to targets
of that length.  Before anything is timed, both must give the same tokens from the f32 weights.  Prints target tokens a second: the median
over the rounds with quartiles, and the ratio to CTranslate2 with weights of the same type, paired by round.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy

import attnkit
from common import cells, numbers, open_model, tensors

D, HEADS, FFN, LAYERS, VOCABULARY = 512, 8, 2048, 6, 32000
TOKENS = ["<pad>", "<s>", "</s>", "<unk>"] + [f"t{i}" for i in range(VOCABULARY - 4)]
BEGIN, END = 1, 2


def manifest(vocabulary, longest, weight_type, attention):
    lines = "\n".join(f'"{role}" = "{mechanism}"' for role, mechanism in attention.items())
    return f"""schema = "attnkit.model/1"
[model]
name = "transformer-base"
kind = "encoder-decoder"
d_model = {D}
heads = {HEADS}
ffn = {FFN}
norm = "pre"
activation = "relu"
positions = "sinusoidal"
embed_scale = true
tie_embeddings = true
max_length = {longest}
encoder = {{ layers = {LAYERS}, vocab = "{vocabulary}" }}
decoder = {{ layers = {LAYERS}, vocab = "{vocabulary}" }}
[weights]
seed = 1
type = "{weight_type}"
[attention]
default = "softmax"
{lines}
"""


class Attnkit:
    def __init__(self, text, threads):
        self.model = open_model(text, threads)

    def translate(self, sources, length):
        """Greedy, </s> never chosen: what CTranslate2 does below min_decoding_length."""
        sessions = [attnkit.Session(self.model, 1) for _ in sources]
        for session, source in zip(sessions, sources):
            session.read(source)
        scores = numpy.zeros((len(sessions), 1, VOCABULARY), dtype=numpy.float32)
        view = scores[:, 0]
        tokens, made = numpy.full(len(sources), BEGIN), []
        for _ in range(length):
            attnkit.write_all(sessions, [[int(t)] for t in tokens], out=scores)
            view[:, END] = -numpy.inf
            tokens = view.argmax(1)
            made.append(tokens)
        for session in sessions:
            session.close()
        return numpy.stack(made, 1).tolist()


def positions(longest):
    angles = numpy.arange(longest)[:, None] / 10000.0**(numpy.arange(D) // 2 * 2 / D)
    return numpy.where(numpy.arange(D) % 2, numpy.cos(angles), numpy.sin(angles)).astype(numpy.float32)


def converted(model, longest, weight_type, folder):
    """The model as a folder of CTranslate2."""
    import ctranslate2
    from ctranslate2.specs import transformer_spec

    w = tensors(model)
    spec = transformer_spec.TransformerSpec.from_config(LAYERS, HEADS)

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
        stack.position_encodings.encodings = positions(longest)
        norm(stack.layer_norm, f"{name}.norm")
        for i, layer in enumerate(stack.layer, 1):
            attention(layer.self_attention, f"{name}.self.{i}", "qkv", "o")
            if name == "decoder":
                attention(layer.attention, f"{name}.cross.{i}", "q", "kv", "o")
            feed_forward(layer.ffn, f"{name}.ffn.{i}")
    spec.decoder.projection.weight = w["decoder.embed.weight"]
    spec.decoder.projection.bias = numpy.zeros(VOCABULARY, numpy.float32)
    spec.register_source_vocabulary(TOKENS)
    spec.register_target_vocabulary(TOKENS)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=None if weight_type == "f32" else weight_type)
    folder.mkdir()
    spec.save(str(folder))
    return folder


class CTranslate2:
    def __init__(self, folder, weight_type, threads):
        import ctranslate2
        self.model = ctranslate2.Translator(str(folder), intra_threads=threads, inter_threads=1,
                                            compute_type="float32" if weight_type == "f32" else weight_type)

    def translate(self, sources, length):
        out = self.model.translate_batch([[TOKENS[t] for t in s] for s in sources], beam_size=1, max_batch_size=0,
                                         min_decoding_length=length, max_decoding_length=length, max_input_length=0)
        return [[int(t[1:]) + 4 if t[0] == "t" else TOKENS.index(t) for t in r.hypotheses[0]] for r in out]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--batch", type=numbers, default=[1, 16, 64])
    options.add_argument("--threads", type=numbers, default=[1, 2])
    options.add_argument("--length", type=int, default=64)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--types", default="f32,int8")
    options = options.parse_args()
    longest, types = max(512, options.length + 1), options.types.split(",")
    attentions = {"softmax": {}, "relu decoder": {"decoder.self": "relu", "decoder.cross": "relu"}}

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join(TOKENS) + "\n")
        base = Attnkit(manifest(vocabulary, longest, "f32", {}), 2)
        folders = {t: converted(base.model, longest, t, folder / t) for t in types}
        random = numpy.random.default_rng(1)

        print("| threads | batch | weights | who | tokens a second (quartiles) | to CTranslate2 (quartiles) |")
        print("|---|---|---|---|---|---|")
        for threads in options.threads:
            who = {}
            for t in types:
                for name, attention in attentions.items():
                    who[t, f"attnkit, {name}"] = Attnkit(manifest(vocabulary, longest, t, attention), threads)
                who[t, "CTranslate2"] = CTranslate2(folders[t], t, threads)
            for batch in options.batch:
                sources = [random.integers(4, VOCABULARY, options.length).tolist() for _ in range(batch)]
                first = {k: v.translate(sources, options.length) for k, v in who.items()}
                if "f32" in types and first["f32", "attnkit, softmax"] != first["f32", "CTranslate2"]:
                    raise SystemExit(f"batch {batch}: the two give different tokens from the same f32 weights")
                speeds = {k: [] for k in who}
                for _ in range(options.rounds):
                    for k, v in who.items():
                        start = time.perf_counter()
                        v.translate(sources, options.length)
                        speeds[k].append(batch * options.length / (time.perf_counter() - start))
                for (t, name), values in speeds.items():
                    print(f"| {threads} | {batch} | {t} | {name} | {cells(values, speeds[t, 'CTranslate2'])} |", flush=True)


if __name__ == "__main__":
    main()
