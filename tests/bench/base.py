"""A Transformer-base (6 + 6 layers, d_model 512, vocabulary 32,000) with weights from a seed, for the benchmarks here."""
import pathlib

VOCABULARY, BEGIN, END = 32000, 1, 2
MANIFEST = """schema = "attnkit.model/1"
[model]
name = "transformer-base"
kind = "encoder-decoder"
d_model = 512
heads = 8
ffn = 2048
embed_scale = true
tie_embeddings = true
encoder = {{ layers = 6, vocab = "vocab.txt" }}
decoder = {{ layers = 6, vocab = "vocab.txt" }}
[weights]
{weights}
[attention]
default = "softmax"
"""


def write(folder, name, weights):
    """Writes a manifest with these lines in [weights], and its vocabulary; gives its path."""
    folder = pathlib.Path(folder)
    (folder / "vocab.txt").write_text("\n".join(["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, VOCABULARY))]) + "\n")
    (folder / name).write_text(MANIFEST.format(weights=weights))
    return str(folder / name)


def quartiles(samples, digits=1):
    """Median and quartiles as text."""
    ordered = sorted(samples)
    at = [ordered[round(q * (len(ordered) - 1))] for q in (0.5, 0.25, 0.75)]
    return "{} ({} to {})".format(*(f"{n:.{digits}f}" for n in at))
