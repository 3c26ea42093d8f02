"""Text translated by a trained softmax model with the same weights: attnkit run beside CTranslate2, greedily and with four beams, in turns.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt
    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/text.py build/bin/attnkit MODEL.toml test.tsv [--beside OTHER.toml ...]

Says of how many lines both write the same text in f32, then BLEU and target tokens a second by batch: medians over the rounds with quartiles, and
the ratio to CTranslate2 with weights of the same type, paired by round.  Splitting into pieces counts, opening the model does not.  A model
that CTranslate2 cannot have the weights of (adapters, head_norm, another mechanism) goes --beside.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sentencepiece
from sacrebleu.metrics import BLEU

import attnkit
from common import cells, numbers
from convert import converted, opened

sys.path.append(str(Path(__file__).resolve().parents[3] / "samples/models/debian-en-de"))
from digests import hashes  # noqa: E402

LIMIT = 256


class Attnkit:
    def __init__(self, command, manifest, weight_type, threads, folder):
        text = manifest.read_text(encoding="utf-8")
        text = re.sub(r'"((?:weights|pieces)\.[a-z]+)"', lambda m: f'"{manifest.parent.absolute() / m[1]}"', text)
        self.manifest = folder / f"{manifest.parent.name}.{weight_type}.{threads}.toml"
        self.manifest.write_text(text.replace("[weights]\n", f'[weights]\ntype = "{weight_type}"\n'), encoding="utf-8")
        self.command, self.threads = command, threads

    def translate(self, lines, batch, beams):
        """(the texts, their tokens, seconds)"""
        inputs = self.manifest.with_suffix(".txt")
        inputs.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        said = json.loads(subprocess.run([self.command, "run", self.manifest, "--file", inputs, "--batch", str(batch), "--beams", str(beams), "--limit", str(LIMIT),
                                          "--threads", str(self.threads), "--json", "--progress", "none"], check=True, stdout=subprocess.PIPE).stdout)
        return [r["output"] for r in said["results"]], said["summary"]["tokens"], said["summary"]["seconds"]


class CTranslate2:
    def __init__(self, folder, pieces, weight_type, threads, patience):
        self.model, self.pieces, self.patience = opened(folder, weight_type, threads), pieces, patience

    def translate(self, lines, batch, beams):
        start = time.perf_counter()
        sources = [[*pieces, "</s>"] for pieces in self.pieces.encode(lines, out_type=str)]
        made = self.model.translate_batch(sources, beam_size=beams, max_batch_size=batch, length_penalty=1, max_decoding_length=LIMIT, max_input_length=0,
                                          **({"patience": self.patience} if beams > 1 else {}))
        texts = [self.pieces.decode(r.hypotheses[0]) for r in made]
        seconds = time.perf_counter() - start
        return texts, sum(len(r.hypotheses[0]) + 1 for r in made), seconds  # with </s>, as attnkit counts


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("attnkit", help="the command")
    options.add_argument("model", type=Path)
    options.add_argument("data", type=Path, help="lines of source TAB reference")
    options.add_argument("--beside", type=Path, action="append", default=[], help="a manifest that is timed beside both")
    options.add_argument("--same", type=int, default=500, help="lines whose texts are compared (%(default)s)")
    options.add_argument("--lines", type=int, default=128, help="lines that are timed (%(default)s)")
    options.add_argument("--batch", type=numbers, default=[1, 16, 64])
    options.add_argument("--beams", type=numbers, default=[1, 4])
    options.add_argument("--threads", type=numbers, default=[1, 2])
    options.add_argument("--types", default="f32,int8")
    options.add_argument("--patience", type=float, default=100, help="CTranslate2's; 100: no beam is given up that may still win, as here; 1: its own (%(default)g)")
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    hashes(options.model, *options.beside, options.data)
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()]
    sources, references = map(list, zip(*rows))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(options.model.parent / "pieces.model"))
    tokens = [pieces.id_to_piece(i) for i in range(len(pieces))]
    types = options.types.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with attnkit.Model(attnkit.Runtime(), str(options.model)) as model:
            folders = {t: converted(model, model.describe()["heads"], tokens, LIMIT + 1, t, folder / t) for t in types}
        made = {}
        for threads in options.threads:
            for t in types:
                made[threads, t, "attnkit"] = Attnkit(options.attnkit, options.model, t, threads, folder)
                for other in options.beside:
                    made[threads, t, f"attnkit, {other.stem}"] = Attnkit(options.attnkit, other, t, threads, folder)
                made[threads, t, "CTranslate2"] = CTranslate2(folders[t], pieces, t, threads, options.patience)
        threads, t = options.threads[-1], types[0]
        print("| beams | who | weights | lines as CTranslate2 writes them in f32 | BLEU |\n|---|---|---|---|---|")
        for beams in options.beams:
            theirs = None
            for (n, kind, who), translator in sorted(made.items(), key=lambda item: item[0][2] != "CTranslate2"):
                if n != threads:
                    continue
                texts = translator.translate(sources[:options.same], 16, beams)[0]
                theirs = theirs or texts
                same = sum(a == b for a, b in zip(texts, theirs))
                print(f"| {beams} | {who} | {kind} | {same} of {len(texts)} | {BLEU().corpus_score(texts, [references[:options.same]]).score:.2f} |", flush=True)
        print("\n| beams | threads | batch | weights | who | tokens a second (quartiles) | to CTranslate2 (quartiles) |\n|---|---|---|---|---|---|---|")
        for beams in options.beams:
            for threads in options.threads:
                for batch in options.batch:
                    who = {(kind, name): m for (n, kind, name), m in made.items() if n == threads}
                    speeds = {key: [] for key in who}
                    for _ in range(options.rounds):
                        for key, translator in who.items():
                            _, count, seconds = translator.translate(sources[:options.lines], batch, beams)
                            speeds[key].append(count / seconds)
                    for (kind, name), values in speeds.items():
                        print(f"| {beams} | {threads} | {batch} | {kind} | {name} | {cells(values, speeds[kind, 'CTranslate2'])} |", flush=True)


if __name__ == "__main__":
    main()
