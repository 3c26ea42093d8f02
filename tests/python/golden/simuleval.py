"""Writes simuleval.json: what SimulEval 1.1.4 logs and scores for attnkit's agent on 50 lists of the sample model.

PYTHONPATH=build/lib/attnkit/python python tests/python/golden/simuleval.py     (needs simuleval==1.1.4)
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = SOURCE / "samples/models/numbers-en-de"
POLICIES = {"wait-k:1": ["--policy", "wait-k:1"], "wait-k:3": ["--waitk", "3"],
            "wait-k:2:3": ["--waitk", "2", "--pre-decision", "3"]}


def evaluate(options, folder):
    """The log and the scores of one run."""
    subprocess.run([sys.executable, "-m", "simuleval.cli", "--agent-class", "attnkit.simuleval.TextAgent", "--attnkit-model",
                    SAMPLE / "model.toml", *options, "--source", folder / "source.txt", "--target", folder / "target.txt", "--output",
                    folder / "out", "--quality-metrics", "BLEU", "--latency-metrics", "AL", "LAAL", "DAL"], check=True)
    with open(folder / "out/scores.tsv", encoding="utf-8") as file:
        scores, = csv.DictReader(file, delimiter="\t")
    log = map(json.loads, (folder / "out/instances.log").read_text(encoding="utf-8").splitlines())
    return {"scores": {name: float(score) for name, score in scores.items()},
            "instances": [{"prediction": i["prediction"], "delays": i["delays"]} for i in log]}


def main():
    pairs = [line.split("\t") for line in (SAMPLE / "dev.tsv").read_text(encoding="utf-8").splitlines()[::40]]
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for side, name in enumerate(("source.txt", "target.txt")):
            (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
        for policy, options in POLICIES.items():
            golden[policy] = evaluate(options, folder)
    text = json.dumps(golden, ensure_ascii=False).replace(' {"prediction"', '\n{"prediction"')
    pathlib.Path(__file__).with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
