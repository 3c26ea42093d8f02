"""Trains the model of a manifest on pairs of texts, and writes a folder that libattnkit loads.

    python -m attnkit.train model.toml --data train.tsv --dev dev.tsv --out run --minutes 60

The same command goes on where it was stopped, even by kill -9, from the checkpoint in --out.  Several processes: torchrun
--nproc-per-node 2 -m attnkit.train ..., which take --tokens each; also on several nodes, of which the first has --out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Callable, Sequence, TypeVar

from .._arguments import MOST_THREADS

Number = TypeVar("Number", int, float)


def positive(kind: Callable[[str], Number], most: float = math.inf) -> Callable[[str], Number]:
    most = min(most, 2**53) if kind is int else most  # what is made of such whole numbers fits a float, and 64 bits

    def read(text: str) -> Number:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is above {most:.0f}")
        return value
    return read


def seed(text: str) -> int:
    value = int(text)
    if not -2**63 <= value < 2**64:  # torch's
        raise argparse.ArgumentTypeError(f"{text} has more than 64 bits")
    return value


def not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def lags(text: str) -> list[int]:
    return [positive(int)(k) for k in text.split(",")]


def weights(text: str) -> dict[str, float]:
    return {name: positive(float, 1e9)(value) for name, value in (item.split("=") for item in text.split(","))}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m attnkit.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("manifest", help="what to train; its [weights] say what to begin with")
    add("--data", required=True, help="lines of source TAB target (or class), or FILE.py:FUNCTION, which gives pairs for (seed, chunk, progress)")
    add("--dev", help="lines to judge by")
    add("--dev-examples", type=positive(int), default=400, help="how many of them (%(default)s)")
    add("--out", default="run", help="folder of checkpoint, log and model (%(default)s)")
    add("--dir", help="what paths in the manifest are relative to (its own folder)")
    budget = made.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=positive(float), default=60.0, help="budget in time (%(default)s)")
    budget.add_argument("--steps", type=positive(int), help="budget in steps")
    add("--tokens", type=positive(int), default=4000, help="tokens per batch and process, padding included (%(default)s)")
    add("--accumulate", type=positive(int), default=1, help="batches per step, at the end of a pass what is left (%(default)s)")
    add("--optimizer", choices=("adamw", "muon"), default="adamw", help="muon: of the linear layers, AdamW for the rest (%(default)s)")
    add("--lr", type=positive(float), default=2e-3, help="AdamW's (%(default)s)")
    add("--muon-lr", type=positive(float), default=0.02, help="(%(default)s)")
    add("--weight-decay", type=not_negative, default=0.01, help="AdamW's, of matrices (%(default)s)")
    add("--warmup", type=positive(int), default=400, help="steps (%(default)s)")
    add("--schedule", choices=("constant", "linear", "cosine"), default="linear", help="how the rate falls to 0 (%(default)s)")
    add("--decay", type=share, default=0.5, help="fraction of the budget after which it falls (%(default)s)")
    add("--clip", type=positive(float), default=1.0, help="largest norm of the gradient (%(default)s)")
    add("--label-smoothing", type=share, default=0.0, help="(%(default)s)")
    add("--dropout", type=share, default=0.0, help="of embeddings and of what every layer adds (%(default)s)")
    add("--teacher", metavar="MANIFEST", help="another model of the same text, whose probabilities are learnt in place of the data's tokens")
    add("--average", type=share, default=0.998, help="of the running average, which is what is judged and exported (%(default)s)")
    add("--wait-k", type=lags, help="trains for simultaneous decoding; several, as 1,3,5: each example draws one")
    add("--prefixes", action="store_true",
        help="with --wait-k, for an encoder that sees ahead: each source ends at a row drawn at random, and what is written there is learnt alone")
    add("--predicted-lengths", type=share, default=0.6,
        help="share of batches in which mechanisms are told the predicted length of the target, not about the true one (%(default)s)")
    add("--supernet", action="store_true", help="one set of weights for all placements of [search] space")
    add("--weights", type=weights, help="how often mechanisms are drawn: softmax=2,bigbird=0.5; the others 1")
    add("--baseline-share", type=share, default=0.2, help="share of steps that the manifest's own placement gets (%(default)s)")
    add("--per-layer-share", type=share, default=0.5, help="share of the others with a mechanism per layer (%(default)s)")
    add("--sandwich", type=positive(int), metavar="N", help="every step trains the manifest's own placement and N drawn ones")
    add("--no-bf16", dest="bf16", action="store_false", help="no bfloat16 products where the machine has them")
    add("--bf16-until", type=share, default=0.92, help="fraction of the budget (%(default)s)")
    add("--patience", type=positive(int), help="stops after so many evaluations without a better loss")
    add("--evaluate-every", type=positive(float), default=4.0, metavar="MINUTES", help="(%(default)s)")
    add("--evaluate-steps", type=positive(int), metavar="STEPS", help="in place of --evaluate-every")
    add("--checkpoint-every", type=positive(float), default=2.0, metavar="MINUTES", help="(%(default)s)")
    add("--log-every", type=positive(int), default=100, metavar="STEPS", help="(%(default)s)")
    add("--f16", action="store_true", help="exports the weights rounded to f16, in a file of half the size")
    add("--seed", type=seed, default=1, help="(%(default)s)")
    add("--device", default="cpu", help="cpu, or cuda: mechanisms by their CUDA variants, each process of a node on a GPU of its own (%(default)s)")
    add("--threads", type=positive(int, MOST_THREADS), help="of torch and of the plugins (torch's default)")
    add("--timeout", type=positive(float, 1e6), default=10.0, metavar="MINUTES", help="how long one process waits for another (%(default)s)")
    add("--compile", action="store_true", help="torch.compile, of what lies around attention; takes a minute at the start")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """arguments: of the command line; None: the process's own."""
    options = parser().parse_args(arguments)
    try:
        from ..torch import runtime  # noqa: F401, before torch itself: it sets how torch's threads wait
    except ImportError as e:
        sys.exit(f"error: attnkit.train needs PyTorch: python3 -m pip install torch ({e})")
    from ..error import Error
    from .processes import Lost
    from .trainer import Trainer
    try:
        manifest = Trainer(options).run()
    except Lost as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        os._exit(1)
    except Error as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt as e:
        print(e, file=sys.stderr)
        sys.exit(130)
    if manifest:
        print(manifest)


if __name__ == "__main__":
    main()
