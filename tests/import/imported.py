"""The common part of the tests of `attnkit import`: the tiny random models of golden/ (make_golden.py), and importing them."""
import base64
import pathlib
import re
import shutil
import struct

from command import CommandTest

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden"
MODELS = ["bert", "bert-sharded", "distilbert", "roberta", "xlm-roberta"]
DECODERS = ["gemma", "gpt2", "llama", "llama-attention-bias", "llama-longrope", "llama-mlp-bias", "llama3", "mistral", "phi3", "qwen2", "qwen2-window",
            "qwen3"]
# After the last layer of these nothing is left to do, or a norm.
POST_NORM, PRE_NORM = ["bart", "marian"], ["m2m100", "mt5", "nllb", "t5", "t5-gated"]
TRANSLATORS = POST_NORM + PRE_NORM
SUPPORTED = "bart, bert, distilbert, gemma, gpt2, llama, m2m_100, marian, mistral, mt5, phi3, qwen2, qwen3, roberta, xlm-roberta, t5, whisper"
SPEECH = ["whisper"]
SENTENCES = ["The attention of each head.", "", "Unaffable tokens run: 3.14!", "naïve façade мир", "a " * 80]
RECORDINGS = [argument for i in (1, 2) for argument in ("--audio", GOLDEN / "whisper" / f"{i}.wav")]


def spiece(tokenizer):
    """SentencePiece's file of a tokenizer.json's pieces, in protocol buffers."""

    def field(number, value):
        if isinstance(value, float):
            return bytes([number << 3 | 5]) + struct.pack("<f", value)
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def varint(value):
        made = b""
        while value > 127:
            made, value = made + bytes([value & 127 | 128]), value >> 7
        return made + bytes([value])

    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    pieces = [field(1, text.encode()) + field(2, float(score)) + field(3, kinds.get(text, 1)) for text, score in tokenizer["model"]["vocab"]]
    charsmap = base64.b64decode(tokenizer["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    return b"".join(field(1, piece) for piece in pieces) + field(2, field(3, 1) + field(42, 2)) + field(3, field(2, charsmap))


class ImportTest(CommandTest):
    def copy(self, name):
        folder = self.folder / name
        shutil.copytree(GOLDEN / name, folder)
        return folder

    def imported(self, folder, *more):
        manifest = self.folder / "model.toml"
        self.run_ok("import", folder, "-o", manifest, *more)
        return manifest

    def written(self, manifest, text, *more):
        """The result for one text."""
        return self.run_ok("run", manifest, "--text", text, *more, "--json").json()["results"][0]

    def compare_searches(self, manifest, golden, what):
        """The ids of up to 12 tokens that another library writes of each text greedily, and with four beams until none can be better;
        and their texts, where it has them."""
        manifest.write_text(re.sub('early_stop = "(guess|shrink)"', 'early_stop = "never"', manifest.read_text()))
        for text, searches in golden.items():
            for beams, expected in ((1, searches["greedy"]), (4, searches["beams"])):
                made = self.written(manifest, text, "--limit", 12, "--beams", beams)
                ids, back = (expected["ids"], expected["text"]) if isinstance(expected, dict) else (expected, made["output"])
                self.assertEqual((made["ids"], made["output"].strip()), (ids, back.strip()), (what, text, beams))
