"""An architecture of one's own is one file, as docs/importing.md says."""
import json
import re
import unittest

from arrays import read_safetensors, write_safetensors
from imported import GOLDEN, HERE, SUPPORTED, ImportTest


class OwnArchitecture(ImportTest):
    def test_is_one_file(self):
        folder, own = self.copy("bert"), self.folder / "own.toml"
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "bertling"}))
        shipped = (HERE.parent.parent / "architectures/bert.toml").read_text()
        own.write_text(shipped.replace('model_type = ["bert"]', 'model_type = ["bertling"]'))
        self.refused(folder, 'model_type "bertling" is not supported; ' + SUPPORTED)
        manifest = self.imported(folder, "--architecture", own)
        self.assertIn('names = "own.toml"', manifest.read_text())
        self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--tolerance", "1e-5")
        self.refused(GOLDEN / "bert", "is of model_type \"bert\"; ", "--architecture", own)
        own.write_text(shipped.replace("[tensors]", "[tensor]"))
        self.refused(folder, "own.toml:", "--architecture", own)

    def refused(self, folder, message, *more):
        result = self.run_code(6, "import", folder, "-o", self.folder / "x.toml", *more)
        self.assertIn(message, result.err)
        self.assertFalse((self.folder / "x.toml").exists())


class Walk(ImportTest):
    """The file that docs/importing.md writes step by step imports the checkpoint that it describes."""

    def test_imports_bertling(self):
        page = (HERE.parent.parent / "docs/importing.md").read_text().split("## Adding an architecture")[1]
        own = self.folder / "bertling.toml"
        own.write_text("".join(re.findall(r"(?ms)^```toml\n(.*?)^```$", page)))
        folder = self.copy("bert")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({
            "model_type": "bertling", "width": config["hidden_size"], "heads": config["num_attention_heads"],
            "inner": config["intermediate_size"], "act": "gelu", "position_rows": config["max_position_embeddings"] + 2,
            "depth": config["num_hidden_layers"], "words": config["vocab_size"]}))
        write_safetensors(folder / "model.safetensors", bertling(read_safetensors(folder / "model.safetensors")))
        manifest = self.imported(folder, "--architecture", own)
        self.assertIn("max_length = 48\n", manifest.read_text())
        layers = self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--json").json()["layers"]
        self.assertLessEqual(max(layer["error"] for layer in layers), 1e-5)


def bertling(bert):
    """The same numbers under bertling's names: q, k and v are one tensor, the output lies the other way."""
    def values(name):
        return bert[name][1]
    words, (rows, width) = bert["embeddings.word_embeddings.weight"], bert["embeddings.position_embeddings.weight"][0]
    first_type = values("embeddings.token_type_embeddings.weight")[:width]
    places = [x + first_type[i % width] for i, x in enumerate(values("embeddings.position_embeddings.weight"))]
    made = {"bertling.words.weight": words, "bertling.pooler.weight": ([1], [0.0]),
            "bertling.places.weight": ([rows + 2, width], [9.0] * 2 * width + places)}
    for part in ("weight", "bias"):
        made[f"bertling.words.norm.{part}"] = bert[f"embeddings.LayerNorm.{part}"]
        for layer in range(2):
            theirs, ours = f"encoder.layer.{layer}.", f"bertling.blocks.{layer}."
            qkv = [x for p in ("query", "key", "value") for x in values(f"{theirs}attention.self.{p}.{part}")]
            made[f"{ours}qkv.{part}"] = ([3 * width] + [width] * (part == "weight"), qkv)
            shape, out = bert[f"{theirs}attention.output.dense.{part}"]
            turned = [out[r * width + c] for c in range(width) for r in range(width)] if part == "weight" else out
            made[f"{ours}out.{part}"] = (shape, turned)
            for name, other in (("norm1", "attention.output.LayerNorm"), ("up", "intermediate.dense"), ("down", "output.dense"),
                                ("norm2", "output.LayerNorm")):
                made[f"{ours}{name}.{part}"] = bert[f"{theirs}{other}.{part}"]
    return made


if __name__ == "__main__":
    unittest.main()
