"""Spoken phrases for training: pool/ keeps the frames of each phrase, its texts and its speaker.

Lists are put together from frames while training, so every phrase is spoken once and used in many lists.
"""
import argparse
import json
import random
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import attnkit
from paths import HERE, PhraseSource
from speakers import SPEAKERS, WORDS_PER_MINUTE, frames, join, speak

FOLDER = HERE / "pool"
SHARD = 1000
EDGE = 0.05  # seconds of silence around a phrase


def make_shard(index, seed):
    model = attnkit.Model(attnkit.Runtime(threads=1), HERE / "training.toml")
    rng, source = random.Random(f"{seed}:{index}:voices"), PhraseSource("train", f"{seed}:{index}")
    texts, parts = [], []
    for _ in range(SHARD):
        english, german = source.phrase()
        speaker = rng.randrange(len(SPEAKERS))
        spoken = speak(english, SPEAKERS[speaker], rng.randint(*WORDS_PER_MINUTE))
        parts.append(frames(model, join([spoken], [EDGE, EDGE])).astype(np.float16))
        texts.append([english, german, speaker, len(parts[-1])])
    np.save(FOLDER / f"{index}.npy.part.npy", np.concatenate(parts))
    (FOLDER / f"{index}.npy.part.npy").rename(FOLDER / f"{index}.npy")
    (FOLDER / f"{index}.json.part").write_text(json.dumps(texts), encoding="utf-8")
    (FOLDER / f"{index}.json.part").rename(FOLDER / f"{index}.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phrases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.phrases % SHARD:
        parser.error(f"--phrases {options.phrases}: give a multiple of {SHARD}")
    FOLDER.mkdir(exist_ok=True)
    wanted = [i for i in range(options.phrases // SHARD) if not (FOLDER / f"{i}.json").exists()]
    with ProcessPoolExecutor(options.workers) as workers:
        for index, _ in zip(wanted, workers.map(make_shard, wanted, [options.seed] * len(wanted))):
            print(f"shard {index}: {SHARD} phrases", flush=True)


if __name__ == "__main__":
    main()
