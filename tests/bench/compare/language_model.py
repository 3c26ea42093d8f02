"""A language model writing with the same weights: attnkit beside PyTorch's (transformers), in turns in one process.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt
    attnkit import FOLDER -o model.toml        # a checkpoint of Hugging Face
    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/language_model.py FOLDER model.toml [--threads 1,2]

One text: a prompt is read (prefill) and continued greedily.  attnkit's weights are f32, bf16 and int8, PyTorch's f32 and bfloat16.  Before
anything is timed both must write the same tokens with f32.  Prints tokens a second, the median over the rounds with quartiles, and the
ratio to PyTorch's f32, paired by round.
"""

import argparse
import re
import time
from pathlib import Path

from common import cells, numbers

import attnkit

PROMPT = "The history of the city begins long before anyone wrote it down. "


class Torch:
    def __init__(self, folder, dtype, threads, **more):
        from transformers import AutoModelForCausalLM
        self.model, self.threads = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **more).eval(), threads

    def write(self, prompt, limit):
        import torch
        torch.set_num_threads(self.threads)
        with torch.inference_mode():
            start = time.perf_counter()
            out = self.model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            read = time.perf_counter()
            made = []
            while len(made) < limit:
                made.append(int(out.logits[0, -1].argmax()))
                out = self.model(torch.tensor([made[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        return made, read - start, time.perf_counter() - read


class Attnkit:
    def __init__(self, manifest, weight_type, threads):
        text = re.sub(r"(?m)^\[weights\]$", f'[weights]\ntype = "{weight_type}"', manifest.read_text())
        self.model = attnkit.Model.from_text(attnkit.Runtime(threads=threads), text, str(manifest.parent))

    def write(self, prompt, limit):
        session = attnkit.Session(self.model)
        start = time.perf_counter()
        session.write([prompt], logits=False)
        read = time.perf_counter()
        made = list(session.generate(limit))
        return made, read - start, time.perf_counter() - read


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("manifest", type=Path)
    options.add_argument("--threads", type=numbers, default=[1, 2])
    options.add_argument("--prompt", type=int, default=128, help="tokens")
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--rounds", type=int, default=7)
    options = options.parse_args()

    from transformers import AutoTokenizer
    prompt = AutoTokenizer.from_pretrained(options.folder)(PROMPT * options.prompt).input_ids[:options.prompt]
    print("| threads | weights | who | read, tokens a second (quartiles) | to PyTorch f32 | written, tokens a second (quartiles) | to PyTorch f32 |")
    print("|---|---|---|---|---|---|---|")
    for threads in options.threads:
        who = {(t, "attnkit"): Attnkit(options.manifest, t, threads) for t in ("f32", "bf16", "int8")}
        who |= {(name, "PyTorch"): Torch(options.folder, dtype, threads) for name, dtype in (("f32", "float32"), ("bf16", "bfloat16"))}
        first = {k: v.write(prompt, options.tokens)[0] for k, v in who.items()}
        if first["f32", "attnkit"] != first["f32", "PyTorch"]:
            raise SystemExit(f"the tokens of the same f32 weights differ: {first['f32', 'attnkit']}, {first['f32', 'PyTorch']}")
        read, written = {k: [] for k in who}, {k: [] for k in who}
        for _ in range(options.rounds):
            for k, v in who.items():
                made, reading, writing = v.write(prompt, options.tokens)
                read[k].append(len(prompt) / reading)
                written[k].append(len(made) / writing)
        for (t, name) in who:
            print(f"| {threads} | {t} | {name} | {cells(read[t, name], read['f32', 'PyTorch'])} | "
                  f"{cells(written[t, name], written['f32', 'PyTorch'])} |", flush=True)


if __name__ == "__main__":
    main()
