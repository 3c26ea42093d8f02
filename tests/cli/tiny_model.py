"""A tiny model with random weights, written with the standard library alone: the fixture of the command's tests."""

import hashlib
import json
import math
import pathlib
import random
import struct

WIDTH, HEADS, FFN, CLASSES = 16, 2, 32, 5
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "und", "drei", "zwei", "eins", "vier", "ß"]
TOKENS = ["<pad>", "<s>", "</s>"] + ["\u2581" + word for word in WORDS] + ["\u2581", "-", "s", "Ü"]
ROLES = {"encoder": ["encoder.self"], "decoder": ["decoder.self"],
         "encoder-decoder": ["encoder.self", "decoder.self", "decoder.cross"]}


class Weights:
    """Named f32 tensors that become a safetensors file."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tensors = {}

    def add(self, name, shape, value=None, spread=1.0):
        count = math.prod(shape)
        values = [self.random.gauss(0, spread) if value is None else value for _ in range(count)]
        self.tensors[name] = (shape, values)

    def dense(self, name, out, inner, bias=True):
        self.add(name + ".weight", [out, inner], spread=2 / math.sqrt(inner))
        if bias:
            self.add(name + ".bias", [out], spread=0.1)

    def norm(self, name):
        self.add(name + ".weight", [WIDTH], 1.0)
        self.add(name + ".bias", [WIDTH], 0.0)

    def bytes(self):
        header, data = {}, b""
        for name, (shape, values) in self.tensors.items():
            raw = struct.pack(f"<{len(values)}f", *values)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data


def block(weights, path):
    weights.norm(path + ".norm")
    for port in "qkvo":
        weights.dense(f"{path}.{port}", WIDTH, WIDTH)
    inner = WIDTH // HEADS // 4
    for side in "qk":
        weights.add(f"{path}.leap.{side}_w1", [inner, WIDTH // HEADS])
        weights.add(f"{path}.leap.{side}_b1", [inner])
        weights.add(f"{path}.leap.{side}_w2", [1, inner])
        weights.add(f"{path}.leap.{side}_b2", [1])


def weights_of(kind, head, seed):
    weights = Weights(seed)
    for stack in ("encoder", "decoder"):
        if stack not in kind:
            continue
        weights.add(f"{stack}.embed.weight", [len(TOKENS), WIDTH])
        weights.norm(f"{stack}.norm")
        weights.norm(f"{stack}.ffn.1.norm")
        weights.dense(f"{stack}.ffn.1.in", FFN, WIDTH)
        weights.dense(f"{stack}.ffn.1.out", WIDTH, FFN)
    for role in ROLES[kind]:
        block(weights, role + ".1")
    if head == "classifier":
        weights.dense("head", CLASSES, WIDTH)
    else:
        weights.dense("head", len(TOKENS), WIDTH, bias=False)
    return weights


def manifest(kind, head, attention, extra, digest):
    stacks = "".join(f'{s} = {{ layers = 1, vocab = "vocab.txt" }}\n' for s in ("encoder", "decoder") if s in kind)
    if head == "classifier":
        stacks += f'head = {{ type = "classifier", classes = {CLASSES} }}\n'
    return f"""schema = "attnkit.model/1"
[model]
name = "tiny"
kind = "{kind}"
d_model = {WIDTH}
heads = {HEADS}
ffn = {FFN}
max_length = 64
{stacks}[weights]
file = "tiny.safetensors"
sha256 = "{digest}"
[attention]
{attention}
{extra}"""


def write_bytes_tokenizer(path):
    """A tokenizer.json whose tokens are the bytes, <0x00> to <0xFF>, as those of SentencePiece that spell what has no piece."""
    tokens = TOKENS[:3] + [f"<0x{byte:02X}>" for byte in range(256)]
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i in range(3)]
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": True, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}))


BYTES_DECODER = 'decoder = { layers = 1, vocab = "bytes.json", tokenizer = "huggingface", begin = "<s>", end = "</s>" }'


def write_model(folder, kind="encoder-decoder", head="lm", attention='default = "softmax"', extra="", seed=1, damage=None):
    """Writes model.toml, vocab.txt and tiny.safetensors; damage(weights) may change tensors first.  Returns the manifest."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = weights_of(kind, head, seed)
    if damage:
        damage(weights)
    raw = weights.bytes()
    (folder / "tiny.safetensors").write_bytes(raw)
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in TOKENS), encoding="utf-8")
    path = folder / "model.toml"
    path.write_text(manifest(kind, head, attention, extra, hashlib.sha256(raw).hexdigest()), encoding="utf-8")
    return path
