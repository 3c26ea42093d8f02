"""attnkit import of a GGUF file: transformers' numbers on the same dequantised weights, its own vocabulary, and clear errors."""
import json
import pathlib
import re
import struct
import unittest

from command import CommandTest, attnkit

HERE = pathlib.Path(__file__).parent / "gguf"
TEXTS = ["The attention of each head.", "12 naïve 東京 😀", "  a\tb"]
TOKENIZER = HERE.parent.parent / "core" / "tokenizer" / "golden" / "smollm.json"


def tensors(path):
    """Type, shape and bytes of each tensor of a safetensors file."""
    bytes_ = path.read_bytes()
    begin = 8 + int.from_bytes(bytes_[:8], "little")
    header = json.loads(bytes_[8:begin])
    return {name: (t["dtype"], t["shape"], bytes_[begin:][slice(*t["data_offsets"])]) for name, t in header.items() if name != "__metadata__"}


def with_keys(bytes_, **keys):
    """A file with more metadata, integers and floats; what follows stays aligned."""
    def entry(key, kind, value):
        return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
    made = b"".join(entry(key.replace("__", "."), *((6, struct.pack("<f", value)) if isinstance(value, float) else (4, struct.pack("<I", value))))
                    for key, value in keys.items())
    padding = -(len(made) + len(entry("x.pad", 8, struct.pack("<Q", 0)))) % 32
    made += entry("x.pad", 8, struct.pack("<Q", padding) + b"x" * padding)
    count = struct.unpack_from("<Q", bytes_, 16)[0] + len(keys) + 1
    return bytes_[:16] + struct.pack("<Q", count) + made + bytes_[24:]


class Gguf(CommandTest):
    def edited(self, *changes):
        bytes_ = (HERE / "tiny.gguf").read_bytes()
        for old, new in changes:
            self.assertEqual(len(old), len(new))
            self.assertIn(old, bytes_)
            bytes_ = bytes_.replace(old, new, 1)
        file = self.folder / "tiny.gguf"
        file.write_bytes(bytes_)
        return file

    def imported(self, file=HERE / "tiny.gguf"):
        manifest = self.folder / "model.toml"
        self.run_ok("import", file, "-o", manifest, "--architecture", HERE / "tiny.toml")
        return manifest

    def refused(self, file, message, code=6):
        manifest = self.folder / "refused.toml"
        result = attnkit("import", file, "-o", manifest, "--architecture", HERE / "tiny.toml")
        self.assertEqual(result.code, code, result.err)
        self.assertIn(message, result.err)
        self.assertFalse(manifest.exists())

    def test_every_layer_is_that_of_transformers(self):
        layers = self.run_ok("verify", self.imported(), "--golden", HERE / "golden.safetensors", "--json").json()["layers"]
        self.assertEqual([layer["layer"] for layer in layers], ["decoder.ffn.1", "decoder", "logits"])
        for layer in layers:
            self.assertLessEqual(layer["error"], 1e-5, layer)
            self.assertGreater(layer["largest"], 0.1, layer)

    def test_weights_keep_the_types_of_the_file(self):
        """Only inputs are rounded, to 8 bits; and int4 in a file of attnkit's own has the offsets of Q4_1."""
        text = self.imported().read_text()
        self.assertNotIn("type =", text)
        manifest = self.folder / "stored.toml"
        for kind, most in (("stored", 0.03), ("int4", 0.3)):  # int4 takes four bits of Q8_0 away
            manifest.write_text(text.replace("[weights]\n", f'[weights]\ntype = "{kind}"\n'))
            layers = attnkit("verify", manifest, "--golden", HERE / "golden.safetensors", "--json").json()["layers"]
            errors = [layer["error"] / layer["largest"] for layer in layers]
            self.assertGreater(max(errors), 1e-4)
            self.assertLess(max(errors), most)
        self.run_ok("quantize", manifest, "-o", self.folder / "made", "--type", "int4")
        written = tensors(self.folder / "made" / "weights.safetensors")
        name = "decoder.self.1.q.weight"
        self.assertEqual(written[name + ".offset"][:2], written[name + ".scale"][:2])
        self.run_ok("bundle", self.folder / "made" / "model.toml", "-o", self.folder / "bundle")
        outputs = [self.run_ok("run", made, "--text", "the of", "--limit", 8).out
                   for made in (manifest, self.folder / "made" / "model.toml", self.folder / "bundle" / "model.toml")]
        self.assertEqual(outputs, outputs[:1] * 3)
        self.assertEqual(tensors(self.folder / "bundle" / "weights.safetensors"), written)
        manifest.write_text(text.replace("[weights]\n", '[weights]\ntype = "stored"\n'))
        result = attnkit("bundle", manifest, "-o", self.folder / "refused")
        self.assertNotEqual(result.code, 0)
        self.assertIn('[weights] type = "stored" keeps what the file has', result.err)

    def test_other_architectures_are_those_of_golden(self):
        """tests/import/golden has what transformers makes of the same weights."""
        for name in ("llama3", "qwen2", "qwen3"):
            manifest = self.folder / f"{name}.toml"
            self.run_ok("import", HERE / f"{name}.gguf", "-o", manifest)
            layers = self.run_ok("verify", manifest, "--golden", HERE.parent / "golden" / name / "golden.safetensors", "--json").json()["layers"]
            self.assertEqual([layer["layer"] for layer in layers], ["decoder.ffn.1", "decoder", "logits"])
            for layer in layers:
                self.assertLessEqual(layer["error"], 1e-5, (name, layer))

    def test_rope_freqs_are_the_positions_of_llama3(self):
        manifest = self.folder / "llama3.toml"
        self.run_ok("import", HERE / "llama3.gguf", "-o", manifest)
        self.assertIn("factors = [1, 1", manifest.read_text())
        bent = (HERE / "llama3.gguf").read_bytes().replace(b"rope_freqs.weight", b"rope_fraqs.weight", 1)
        (self.folder / "bent.gguf").write_bytes(bent)
        result = attnkit("import", self.folder / "bent.gguf", "-o", self.folder / "bent.toml")
        self.assertEqual(result.code, 5, result.err)
        self.assertIn("rope_fraqs.weight", result.err)

    def test_texts_end_where_llama_cpp_ends_them(self):
        whole = (HERE / "llama3.gguf").read_bytes()
        file, manifest = self.folder / "ends.gguf", self.folder / "ends.toml"
        file.write_bytes(with_keys(whole, tokenizer__ggml__eot_token_id=502, tokenizer__ggml__eom_token_id=503))
        self.run_ok("import", HERE / "llama3.gguf", "-o", manifest)
        self.assertIn('more_ends = ["</s>"]', manifest.read_text())
        self.run_ok("import", file, "-o", manifest)
        self.assertIn('more_ends = ["</s>", "<|502|>"]', manifest.read_text())
        # By what they are called.
        file.write_bytes(whole.replace(b"<|501|>", b"[EOT]xx", 1).replace(b"\7\0\0\0\0\0\0\0<|500|>", b"\7\0\0\0\0\0\0\0<|end|>", 1))
        self.run_ok("import", file, "-o", manifest)
        self.assertIn('more_ends = ["</s>", "<|end|>"]', manifest.read_text())

    def test_a_factor_of_attention_is_refused(self):
        file = self.folder / "factor.gguf"
        for factor, code in ((1.0, 0), (1.25, 6)):
            file.write_bytes(with_keys((HERE / "llama3.gguf").read_bytes(), llama__rope__scaling__attn_factor=factor))
            said = self.run_code(code, "import", file, "-o", self.folder / "factor.toml").err
            self.assertEqual('rope.scaling.attn_factor is 1.25, which "llama" does not support; 1.0 is' in said, code == 6)

    def test_texts_are_those_of_its_tokenizer(self):
        theirs = self.folder / "theirs.toml"
        ours = self.imported()
        text = re.sub('vocab = "[^"]*"', f'vocab = "{TOKENIZER}"', ours.read_text())
        theirs.write_text(text.replace('tokenizer = "gguf"', 'tokenizer = "huggingface", end = "<|end|>"'))
        texts = [argument for text in TEXTS for argument in ("--text", text)]
        results = self.run_ok("tokenize", ours, *texts, "--json").json()["results"]
        self.assertEqual(results, self.run_ok("tokenize", theirs, *texts, "--json").json()["results"])
        self.assertEqual([result["text"] for result in results], TEXTS)
        run = [self.run_ok("run", manifest, *texts, "--limit", 8).lines() for manifest in (ours, theirs)]
        self.assertEqual(*run)

    def test_tokens_are_those_of_transformers(self):
        manifest = self.imported()
        manifest.write_text(manifest.read_text() + '\n[decode]\nearly_stop = "never"\n')
        for text, searches in json.loads((HERE / "texts.json").read_text()).items():
            for key, beams in (("greedy", 1), ("beams", 4)):
                made = self.run_ok("run", manifest, "--text", text, "--limit", 12, "--beams", beams, "--json").json()["results"][0]
                self.assertEqual((made["ids"], made["output"]), (searches[key]["ids"], searches[key]["text"]), (text, key))

    def test_a_text_without_a_beginning_must_not_be_empty(self):
        result = attnkit("run", self.imported(), "--text", "")
        self.assertEqual(result.code, 6, result.err)
        self.assertIn("--text 1: is empty, and a text of this model begins with no token of its own", result.err)

    def test_types_that_are_not_supported(self):
        name = b"token_embd.weight\2\0\0\0"
        whole = (HERE / "tiny.gguf").read_bytes()
        at = whole.index(name) + len(name) + 16  # behind two sizes
        for kind, says in ((13, "Q5_K"), (10, "Q2_K"), (99, "99")):
            (self.folder / "bent.gguf").write_bytes(whole[:at] + kind.to_bytes(4, "little") + whole[at + 4:])
            self.refused(self.folder / "bent.gguf", f'tensor "token_embd.weight" has type {says}, which is not supported; ')

    def test_mistakes(self):
        self.refused(self.edited((b"gpt2.block_count", b"gpt2.block_xount")), "gpt2.block_count is not there")
        self.refused(self.edited((b"\4\0\0\0\0\0\0\0gpt2", b"\4\0\0\0\0\0\0\0gpt5")),
                     'general.architecture "gpt5" is not supported; gpt2 are')
        self.refused(self.edited((b"output_norm.bias", b"output_norm.bxas")), 'no tensor "decoder.norm.bias"', 5)
        self.refused(self.edited((b"output_norm.bias", b"surprise.tensor.")), 'tensor "surprise.tensor." of shape 32 belongs to nothing in this model', 5)
        wide = b"gpt2.feed_forward_length" + struct.pack("<II", 4, 64)
        self.refused(self.edited((wide, wide.replace(b"\x40", b"\x30"))), '("blk.0.ffn_up.weight" in the file) is 64x32, the model needs 48x32', 5)
        self.refused(self.edited((b"ggml.pre\x08\0\0\0\6\0\0\0\0\0\0\0smollm", b"ggml.pre\x08\0\0\0\6\0\0\0\0\0\0\0gollum")),
                     'tokenizer.ggml.pre is "gollum", which is not supported')
        whole = (HERE / "tiny.gguf").read_bytes()
        for n in (0, 3, 20, 5000, len(whole) - 1):
            (self.folder / "cut.gguf").write_bytes(whole[:n])
            self.refused(self.folder / "cut.gguf", "cut.gguf: ")
        self.refused(HERE / "tiny.toml", "is a file, and no GGUF file")
        self.refused(HERE / "nothing.gguf", "is no folder and no file")


if __name__ == "__main__":
    unittest.main()
