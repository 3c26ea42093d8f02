"""Writes latency.json beside itself: logs and scores from SimulEval.  Needs: pip install simuleval==1.1.4"""

import importlib.metadata
import json
import pathlib
import random
import statistics
from argparse import Namespace
from unittest import mock

from simuleval.data.segments import TextSegment
from simuleval.evaluator import instance as instances
from simuleval.evaluator.scorers.latency_scorer import ALScorer, DALScorer, LAALScorer

PINNED = "1.1.4"
SCORERS = {"al": ALScorer, "laal": LAALScorer, "dal": DALScorer}

# Text: actions of an agent, R a source word, W a word written; the source has `source` words, the reference `reference`.
TEXT = {
    "wait-1 of equal lengths": ("RWRWRWRWRW", 5, 5),
    "wait-3 of equal lengths": ("RRRWRWRWWWW", 5, 6),
    "wait-3 with a long tail": ("RRRWRWRWWWWWWWWW", 5, 6),
    "offline": ("RRRRRRWWWWW", 6, 5),
    "offline, shorter than the reference": ("RRRRRRWW", 6, 9),
    "offline, longer than the reference": ("RRRRRRWWWWWWWWWWWW", 6, 3),
    "ends before the source": ("RRWRW", 8, 6),
    "ends before the source, longer than the reference": ("RWWWWWRWW", 8, 3),
    "never reads again": ("RWWWWWWW", 9, 7),
    "blocks of three": ("RRRWWWRRRWWWRRRWW", 9, 8),
    "nothing until the end, then one word": ("RRRRRRRW", 7, 1),
    "one word of one": ("RW", 1, 1),
    "one word for many": ("RWWWW", 1, 2),
    "one word of a long reference": ("RRW", 2, 11),
    "one word early": ("RW", 12, 4),
    "longer than the reference": ("RRWRWRWRWRWWWWW", 6, 4),
    "shorter than the reference": ("RRWRWRRWRR", 6, 10),
}


def text_case(actions, source, reference):
    """The log of SimulEval itself when an agent acts so."""
    made = instances.TextToTextInstance(0, None, Namespace(eval_latency_unit="word"))
    made.source, made.reference = ["w"] * source, " ".join(["r"] * reference)
    for i, action in enumerate(actions):
        if action == "R":
            made.send_source(None)
        else:
            made.receive_prediction(TextSegment(content="y", finished=i == len(actions) - 1))
    return (made.delays, [], made.source_length, made.reference), actions


def speech_case(seed, chunk, chunks, words, reference, cost, rate=16000):
    """Speech in chunks of `chunk` ms, on a clock that `cost` s of computing a chunk or a word moves.  Writes: chunks
    that had been read, and seconds since the first."""
    draw = random.Random(seed)
    now = [1000.0]
    made = instances.SpeechToTextInstance(0, None, Namespace(eval_latency_unit="word"))
    made.sample_rate_value, made.audio_info, made.tgt_lang = rate, Namespace(samplerate=rate), None
    made.source = [0.0] * (rate * chunk * chunks // 1000 - draw.randrange(1, 2000))
    made.reference = " ".join(["r"] * reference)
    actions = {"chunk_ms": chunk, "samples": len(made.source), "sample_rate": rate, "writes": []}
    with mock.patch.object(instances.time, "time", lambda: now[0]):
        for i in range(chunks):
            made.send_source(chunk)
            now[0] += cost * draw.uniform(0.5, 2)
            for _ in range(draw.randrange(0, 3) if i < chunks - 1 else max(0, words - len(made.delays))):
                if len(made.delays) == words:
                    break
                now[0] += cost * draw.uniform(0.1, 0.5)
                made.receive_prediction(TextSegment(content="y"))
                actions["writes"].append([i + 1, now[0] - 1000.0])
    return (made.delays, made.elapsed, made.source_length, made.reference), actions


SPEECH = {
    "quick": (1, 280, 12, 9, 9, 0.001),
    "quick, longer than the reference": (2, 280, 12, 14, 6, 0.01),
    "quick, shorter than the reference": (3, 280, 12, 5, 12, 0.01),
    "as slow as speech": (4, 280, 10, 8, 8, 0.25),
    "slower than speech": (5, 280, 6, 7, 9, 1.5),
    "later than the whole source at once": (6, 320, 1, 4, 5, 3.0),
    "one word": (7, 320, 3, 1, 1, 0.05),
    "small chunks": (8, 40, 60, 20, 18, 0.004),
    "offline": (9, 3000, 1, 10, 9, 0.2),
    "chunks that are no whole samples": (10, 33, 40, 30, 28, 0.01, 22050),
}


def scored(name, kind, log, actions):
    delays, elapsed, source_length, reference = log
    text = json.dumps({"index": 0, "reference": reference, "source_length": source_length, "delays": delays,
                       "elapsed": elapsed, "prediction": "", "source": ""})
    case = {"name": name, "kind": kind, "delays": delays, "elapsed": elapsed, "source_length": source_length,
            "reference_length": instances.LogInstance(text).reference_length, "actions": actions}
    for key, scorer in SCORERS.items():
        case[key] = scorer().compute(instances.LogInstance(text))
        case[key + "_without_reference"] = scorer(use_ref_len=False).compute(instances.LogInstance(text))
        if elapsed:
            case[key + "_ca"] = scorer(computation_aware=True).compute(instances.LogInstance(text))
    return case


def main():
    version = importlib.metadata.version("simuleval")
    assert version == PINNED, version
    cases = [scored(name, "text", *text_case(*c)) for name, c in TEXT.items()]
    cases += [scored(name, "speech", *speech_case(*c)) for name, c in SPEECH.items()]
    means = {kind: {key: statistics.mean(c[key] for c in cases if c["kind"] == kind) for key in SCORERS}
             for kind in ("text", "speech")}
    lines = ",\n".join(json.dumps(case) for case in cases)
    head = f'{{"simuleval": {json.dumps(version)}, "means": {json.dumps(means)}, "cases": [\n'
    pathlib.Path(__file__).with_suffix(".json").write_text(f"{head}{lines}\n]}}\n", encoding="ascii")


if __name__ == "__main__":
    main()
