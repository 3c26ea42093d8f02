"""BLEU and chrF of what attnkit run writes, by sacrebleu, with its signatures: python evaluate.py ATTNKIT MANIFEST TSV.

Intervals are 95 % percentiles over resampled sentences, the same samples for every model of a file.
"""
import argparse
import contextlib
import hashlib
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from digests import digest, hashes, named
from sacrebleu.metrics import BLEU, CHRF

SAMPLES = 1000


def resampled(metric, hypotheses, references, seed):
    """(the score, as sacrebleu has it; that of each sample)"""
    statistics = np.array(metric._extract_corpus_statistics(hypotheses, [references]))  # noqa: SLF001, it scores sums of these
    drawn = np.random.default_rng(seed)
    scores = [metric._compute_score_from_stats(list(statistics[drawn.integers(0, len(statistics), len(statistics))].sum(0))).score  # noqa: SLF001
              for _ in range(SAMPLES)]
    return metric.corpus_score(hypotheses, [references]), np.array(scores)


def interval(scores):
    return np.percentile(scores, [2.5, 97.5])


def written(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


class Journal:
    """What was made of a manifest before, and what is made now: a file of JSON, a line each.  Without a file only what is made now."""

    def __init__(self, file):
        self.file, self.known = file, {}
        lines = file.read_bytes().split(b"\n") if file and file.exists() else [b""]
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that was cut when a run was stopped
                self.known.update([json.loads(line)])
        self.end = "\n" if lines[-1] else ""  # of that line

    def value(self, make, attnkit, manifest, *arguments):
        """make(attnkit, manifest, *arguments); known by the manifest's text, the weights and pieces that it names, and the arguments."""
        of = [make.__name__, manifest.read_text(encoding="utf-8"), *map(digest, named(manifest)), arguments]
        key = hashlib.sha256(json.dumps(of).encode()).hexdigest()
        if key not in self.known:
            self.known[key] = make(attnkit, manifest, *arguments)
            if self.file:
                with open(self.file, "a", encoding="utf-8") as journal:
                    journal.write(self.end + json.dumps([key, self.known[key]], ensure_ascii=False) + "\n")
                self.end = ""
        return self.known[key]


def translations(attnkit, manifest, sources, beams):
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = written(pathlib.Path(folder) / "inputs", sources), pathlib.Path(folder) / "outputs"
        subprocess.run([attnkit, "run", manifest, "--file", inputs, "--output", outputs, "--beams", str(beams), "--progress", "none"], check=True)
        return outputs.read_text(encoding="utf-8").split("\n")[:len(sources)]


def surprises(attnkit, manifest, sources, references):
    """(-ln p(reference | source), its tokens) of each sentence."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, targets = written(pathlib.Path(folder) / "inputs", sources), written(pathlib.Path(folder) / "targets", references)
        said = subprocess.run([attnkit, "run", manifest, "--file", inputs, "--target-file", targets, "--limit", "1", "--json", "--progress", "none"],
                              check=True, capture_output=True).stdout
    return [(r["nll"], r["reference_tokens"]) for r in json.loads(said)["results"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("manifest", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path, help="lines of source TAB reference")
    parser.add_argument("--lines", type=int, help="only so many, from the file's beginning")
    parser.add_argument("--beams", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="writes the translations here, one a line")
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()][:options.lines]
    sources, references = map(list, zip(*rows))
    hypotheses = translations(options.attnkit, options.manifest, sources, options.beams)
    if options.out:
        written(options.out, hypotheses)
    hashes(options.manifest, options.data)
    print(f"{len(rows)} lines, {options.beams} beams")
    for metric in (BLEU(), CHRF()):
        score, scores = resampled(metric, hypotheses, references, options.seed)
        low, high = interval(scores)
        print(f"{score.name} {score.score:.2f} (95 %: {low:.2f} to {high:.2f}, {SAMPLES} samples)  {metric.get_signature()}")


if __name__ == "__main__":
    main()
