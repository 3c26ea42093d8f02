"""An imported model of 100 MB has its weights in memory once, as they were packed: half as much again suffices to open and run it.

All that is resident meanwhile, pages of the file and the program among it, is little more.
"""
import functools
import json
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import unittest

from command import COMMAND, CommandTest, attnkit

HERE = pathlib.Path(__file__).parent
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}


def tensors():
    """Names of llama's checkpoints and of GGUF, and shapes."""
    width, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    yield "model.embed_tokens.weight", "token_embd.weight", [504, width]
    yield "lm_head.weight", "output.weight", [504, width]
    yield "model.norm.weight", "output_norm.weight", [width]
    for layer in range(SIZES["num_hidden_layers"]):
        for theirs, other, shape in (("input_layernorm", "attn_norm", [width]), ("post_attention_layernorm", "ffn_norm", [width]),
                                     ("self_attn.q_proj", "attn_q", [width, width]), ("self_attn.k_proj", "attn_k", [width, width]),
                                     ("self_attn.v_proj", "attn_v", [width, width]), ("self_attn.o_proj", "attn_output", [width, width]),
                                     ("mlp.gate_proj", "ffn_gate", [inner, width]), ("mlp.up_proj", "ffn_up", [inner, width]),
                                     ("mlp.down_proj", "ffn_down", [width, inner])):
            yield f"model.layers.{layer}.{theirs}.weight", f"blk.{layer}.{other}.weight", shape


def numbers(count, block=random.Random(1)):
    """Bytes of so many numbers, 4,096 of which repeat."""
    part = struct.pack("<4096f", *(block.gauss(0, 0.05) for _ in range(4096)))
    return (part * (count // 4096 + 1))[:4 * count]


def count_of(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_folder(folder):
    shutil.copytree(HERE / "golden/llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **SIZES}))
    header, at = {}, 0
    for name, _, shape in tensors():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count_of(shape)]}
        at += 4 * count_of(shape)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, shape in tensors():
            file.write(numbers(count_of(shape)))
    return folder / "model.safetensors"


def write_gguf(path):
    """As the F32 of llama.cpp, with the vocabulary of golden/llama."""
    document = json.loads((HERE / "golden/llama/tokenizer.json").read_text())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    tokens += [f"<|{i}|>" for i in range(len(tokens), 504)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in document["model"]["merges"]]

    def text(one):
        return struct.pack("<Q", len(one.encode())) + one.encode()

    def value(one):
        if isinstance(one, str):
            return struct.pack("<I", 8) + text(one)
        if isinstance(one, float):
            return struct.pack("<If", 6, one)
        if isinstance(one, int):
            return struct.pack("<II", 4, one)
        return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(text, one))

    metadata = {"general.architecture": "llama", "llama.embedding_length": 512, "llama.attention.head_count": 8, "llama.attention.head_count_kv": 8,
                "llama.feed_forward_length": 1536, "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.context_length": 64,
                "llama.block_count": 8, "llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": 64, "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": 503}
    header = b"GGUF" + struct.pack("<IQQ", 3, len(list(tensors())), len(metadata))
    header += b"".join(text(key) + value(one) for key, one in metadata.items())
    at = 0
    for _, name, shape in tensors():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, at)
        at += 4 * count_of(shape)
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for _, _, shape in tensors():
            file.write(numbers(count_of(shape)))
    return path


class Memory(CommandTest):
    def check(self, checkpoint, file):
        manifest, size = self.folder / "model.toml", file.stat().st_size
        self.run_ok("import", checkpoint, "-o", manifest)
        self.assertGreater(size, 100e6)

        def with_at_most(part):
            most = int(part * size)
            limit = functools.partial(resource.setrlimit, resource.RLIMIT_DATA, (most, most))
            return attnkit("run", manifest, "--text", "of each head", "--limit", 4, "--threads", 1, preexec_fn=limit).code
        self.assertEqual(with_at_most(1.5), 0)
        self.assertNotEqual(with_at_most(0.5), 0)
        # All that is resident, pages of the file too.
        running = subprocess.Popen([COMMAND, "run", manifest, "--text", "of each head", "--limit", "4", "--threads", "1"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(running.returncode, 0)
        self.assertLess(used.ru_maxrss * 1024, 1.6 * size)

    def test_of_safetensors(self):
        file = write_folder(self.folder / "llama")
        self.check(file.parent, file)

    def test_of_gguf(self):
        file = write_gguf(self.folder / "llama.gguf")
        self.check(file, file)


if __name__ == "__main__":
    unittest.main()
