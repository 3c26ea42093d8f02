"""Optuna proposes the placements of attnkit search, which starts this program and speaks with it through its standard input and output.

    attnkit search model.toml --sampler 'python3 -m attnkit.optuna' --per-layer --trials 200
    attnkit search model.toml --sampler 'python3 -m attnkit.optuna NSGAIISampler --front'

The search measures, ranks and keeps the journal (docs/search.md); Optuna needs no storage of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Iterable, Optional

if TYPE_CHECKING:
    import optuna

Placement = dict[str, str]  # by role, or by role and layer, what sits there


class Refusal(Exception):
    """Is told to the search in place of an answer."""


class Study:
    """A study whose trials are placements that attnkit search measures.

    sampler: one of optuna.samplers by name; units: names of a placement's blocks with their choices, as the search sends them; front: quality,
    throughput and memory are its objectives, not the value that ranks; batch: placements of an answer, at most.
    """

    def __init__(self, sampler: str, seed: int, units: list[dict[str, Any]], front: bool = False, batch: int = 4) -> None:
        try:
            import optuna
        except ImportError:
            raise Refusal("attnkit.optuna needs Optuna: pip install optuna, for the Python that runs it") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        kind = getattr(optuna.samplers, sampler, None)
        if not isinstance(kind, type) or not issubclass(kind, optuna.samplers.BaseSampler):
            names = ", ".join(name for name in optuna.samplers.__all__ if name.endswith("Sampler") and not name.startswith("Base"))
            raise Refusal(f"optuna.samplers has no {sampler}; it has {names}")
        chosen: Any = kind  # each has a signature of its own
        self.front, self.batch = front, batch
        self.study = optuna.create_study(sampler=chosen(seed=seed), directions=["maximize", "maximize", "minimize"] if front else ["maximize"])
        self.space: dict[str, optuna.distributions.BaseDistribution] = {
            unit["name"]: optuna.distributions.CategoricalDistribution(unit["choices"]) for unit in units}
        self.failed = optuna.trial.TrialState.PRUNED  # a sampler keeps away from those, and forgets what is FAIL
        self.asked: dict[str, list[optuna.trial.Trial]] = {}  # by placement, until its outcome is there

    def values(self, outcome: dict[str, Any]) -> Optional[list[float]]:
        """The objectives; None: it failed, or is beyond a limit of the search."""
        if not outcome["usable"]:
            return None
        if self.front:
            return [outcome["quality"], outcome["throughput"], outcome["memory"]]
        # With no value that ranks, quality alone tells placements apart.
        return [outcome["quality"] if outcome["rank"] is None else outcome["rank"]]

    def tell(self, outcome: dict[str, Any]) -> None:
        """Takes the outcome of a placement, which need not be one that was asked for."""
        trials = self.asked.pop(_key(outcome["placement"]), None)
        if trials is None:
            self.study.enqueue_trial(outcome["placement"])
            trials = [self.study.ask(self.space)]
        values = self.values(outcome)
        for trial in trials:
            self.study.tell(trial, values, state=self.failed if values is None else None)

    def ask(self, most: int) -> list[Placement]:
        """The placements to measure next."""
        trials = [self.study.ask(self.space) for _ in range(min(most, self.batch))]
        for trial in trials:
            self.asked.setdefault(_key(trial.params), []).append(trial)
        return [trial.params for trial in trials]


def _key(placement: Placement) -> str:
    return json.dumps(placement, sort_keys=True)


def answers(lines: Iterable[str], arguments: argparse.Namespace) -> Iterable[str]:
    """The reply to each line of the search."""
    study: Optional[Study] = None
    for line in lines:
        request = json.loads(line)
        reply: dict[str, Any] = {"id": request["id"], "ok": True, "result": {}}
        try:
            if request["kind"] == "open":
                study = Study(arguments.sampler, request["seed"], request["units"], arguments.front, arguments.batch)
            else:
                assert study is not None, "the first request is no \"open\""
                for outcome in request["finished"]:
                    study.tell(outcome)
                reply["result"] = {"placements": study.ask(request["most"])}
        except Exception as error:  # Optuna's are of many kinds
            said = str(error) if isinstance(error, Refusal) else f"{arguments.sampler}: {error}"
            reply = {"id": request["id"], "ok": False, "error": {"kind": "sampler", "message": " ".join(said.split())}}
        yield json.dumps(reply)


def main() -> None:
    """Answers the search until it ends."""
    parser = argparse.ArgumentParser("python -m attnkit.optuna", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sampler", nargs="?", default="TPESampler", help="one of optuna.samplers (%(default)s)")
    parser.add_argument("--front", action="store_true", help="quality, throughput and memory are the objectives, not the value that ranks")
    parser.add_argument("--batch", type=int, default=4, help="placements that are proposed at once (%(default)s)")
    arguments = parser.parse_args()
    if arguments.batch < 1:
        parser.error(f"--batch {arguments.batch} must be 1 or more")
    out, sys.stdout = sys.stdout, sys.stderr  # the search reads this; what else is printed goes to its workers.log
    for answer in answers(sys.stdin, arguments):
        print(answer, file=out, flush=True)


if __name__ == "__main__":
    main()
