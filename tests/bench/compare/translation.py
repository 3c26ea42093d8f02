"""Greedy translation by one Transformer with the same weights: attnkit beside CTranslate2, in turns in one process.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt
    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/translation.py [--batch 1,16,64] [--threads 1,2] [--length 64]

A Transformer-base (d 512, 6 + 6 layers, vocabulary 32,000) with random weights translates `batch` sources of `length` tokens to targets
of that length.  Before anything is timed, both must give the same tokens from the f32 weights.  Prints target tokens a second: the median
over the rounds with quartiles, and the ratio to CTranslate2 with weights of the same type, paired by round.
"""

import tempfile
from pathlib import Path

import numpy

import attnkit
from common import Lines, in_turns, open_model, options_of, seconds_of
from convert import converted, opened

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
        attnkit.read_all(sessions, [list(source) for source in sources])
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


class CTranslate2:
    def __init__(self, folder, weight_type, threads):
        self.model = opened(folder, weight_type, threads)

    def translate(self, sources, length):
        out = self.model.translate_batch([[TOKENS[t] for t in s] for s in sources], beam_size=1, max_batch_size=0,
                                         min_decoding_length=length, max_decoding_length=length, max_input_length=0)
        return [[int(t[1:]) + 4 if t[0] == "t" else TOKENS.index(t) for t in r.hypotheses[0]] for r in out]


def main():
    options = options_of(__doc__, 7, batch=[1, 16, 64], length=64, types=["f32", "int8"])
    longest, types, lines = max(512, options.length + 1), options.types, Lines(options.results)
    cases = [{"threads": threads, "tokens": options.length, "batch": batch, "idle, ms": idle} for threads in options.threads
             for batch in options.batch for idle in options.idle]
    cases = [case for case in cases if {**case, "weights": types[-1]} not in lines]
    attentions = {"softmax": {}, "relu decoder": {"decoder.self": "relu", "decoder.cross": "relu"}}

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join(TOKENS) + "\n")
        base = Attnkit(manifest(vocabulary, longest, "f32", {}), 2)
        folders = {t: converted(base.model, HEADS, TOKENS, longest, t, folder / t) for t in types}
        random = numpy.random.default_rng(1)

        for threads in sorted({case["threads"] for case in cases}):
            who = {}
            for t in types:
                for name, attention in attentions.items():
                    who[t, f"attnkit, {name}"] = Attnkit(manifest(vocabulary, longest, t, attention), threads)
                who[t, "CTranslate2"] = CTranslate2(folders[t], t, threads)
            for case in (case for case in cases if case["threads"] == threads):
                batch = case["batch"]
                sources = [random.integers(4, VOCABULARY, options.length).tolist() for _ in range(batch)]
                first = {k: v.translate(sources, options.length) for k, v in who.items()}
                if "f32" in types and first["f32", "attnkit, softmax"] != first["f32", "CTranslate2"]:
                    raise SystemExit(f"batch {batch}: the two give different tokens from the same f32 weights")
                speeds = in_turns(who, lambda v: batch * options.length / seconds_of(lambda: v.translate(sources, options.length), case["idle, ms"]),
                                  options.rounds)
                for t in types:
                    lines.add({**case, "weights": t}, "tokens a second", "CTranslate2",
                              {name: values for (of, name), values in speeds.items() if of == t})


if __name__ == "__main__":
    main()
