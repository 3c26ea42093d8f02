"""SimulEval 1.1.4 agents: simuleval --agent-class attnkit.simuleval.TextAgent --attnkit-model MANIFEST --policy wait-k:3."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Optional, Union

from simuleval.agents import AgentStates, ReadAction, SpeechToTextAgent, TextToTextAgent, WriteAction

from .error import INVALID, Error
from .incremental import Incremental
from .model import ModelInfo
from .policy import Policy, WaitK, policy_named
from .runtime import Runtime
from .streaming import open_streaming


class States(AgentStates):  # type: ignore[misc]
    """One input: what the evaluator knows of it, and its session."""

    def reset(self) -> None:
        """A new input."""
        super().reset()
        self.stream: Optional[Incremental] = None
        self.taken = 0


class Agent:
    """The common part of both agents.  All of an input is in its States, so one agent may serve several."""

    # Of SimulEval's agents, and of those below.
    args: argparse.Namespace
    states: States
    may_end_early: bool
    check: Callable[[ModelInfo], None]
    hand: Callable[[Incremental, Any, States], None]

    def __init__(self, args: argparse.Namespace) -> None:
        self.model, self.decide = open_streaming(Runtime(), args.attnkit_model, policy_of(args), args.replay)
        self.check(self.model.info)
        super().__init__(args)  # type: ignore[call-arg]

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """The options of both agents."""
        parser.add_argument("--attnkit-model", metavar="MANIFEST", required=True, help="a manifest, as attnkit stream takes it")
        policy = parser.add_mutually_exclusive_group()
        policy.add_argument("--policy", help="wait-k:K, wait-k:K:PRE_DECISION or offline; default what [stream] in the manifest says")
        policy.add_argument("--waitk", type=int, metavar="K", help="the same as --policy wait-k:K")
        parser.add_argument("--pre-decision", type=int, metavar="N", help="with --waitk: decides every N units; default 1")
        parser.add_argument("--replay", action="store_true", help="as in attnkit stream, for manifests without [stream]")
        parser.add_argument("--limit", type=int, default=0, help="most tokens of an output; default 1.5 times the input and 20")

    def build_states(self) -> States:
        """The states that SimulEval keeps for each input."""
        return States()

    def policy(self, states: Optional[States] = None) -> Union[ReadAction, WriteAction]:
        """Returns the action that SimulEval asks for after each unit."""
        states = self.states if states is None else states
        if states.stream is None:
            states.stream = Incremental(self.model, self.decide, self.args.limit)
        stream, new = states.stream, states.source[states.taken:]
        states.taken += len(new)
        self.hand(stream, new, states)
        if states.source_finished:
            stream.finish()
        words = stream.advance()
        finished = stream.finished and (states.source_finished or self.may_end_early)
        return WriteAction(" ".join(words), finished) if words or finished else ReadAction()


def policy_of(args: argparse.Namespace) -> Optional[Policy]:
    """The policy that the options name; None: the manifest's."""
    if args.waitk is None and args.pre_decision is not None:
        raise Error(INVALID, "--pre-decision needs --waitk; in --policy it is the second number, wait-k:K:PRE_DECISION")
    if args.waitk is not None:
        return WaitK(args.waitk, 1 if args.pre_decision is None else args.pre_decision)
    return policy_named(args.policy) if args.policy else None


class TextAgent(Agent, TextToTextAgent):  # type: ignore[misc]
    """For models that take text."""

    may_end_early = True

    def check(self, info: ModelInfo) -> None:
        """Raises Error for a model of the other kind."""
        if info.sample_rate:
            raise Error(INVALID, "this model takes speech: attnkit.simuleval.SpeechAgent is for it")

    def hand(self, stream: Incremental, new: list[str], _: States) -> None:
        """Gives the session new words."""
        stream.add(" ".join(new))


class SpeechAgent(Agent, SpeechToTextAgent):  # type: ignore[misc]
    """For models that take speech."""

    # SimulEval takes what follows an early end for another input.
    may_end_early = False

    def check(self, info: ModelInfo) -> None:
        """Raises Error for a model of the other kind."""
        if not info.sample_rate:
            raise Error(INVALID, "this model takes text: attnkit.simuleval.TextAgent is for it")

    def hand(self, stream: Incremental, new: list[float], states: States) -> None:
        """Gives the session new samples."""
        if new and states.source_sample_rate != self.model.info.sample_rate:
            raise Error(INVALID, f"the source has {states.source_sample_rate} samples per second, the model takes "
                                 f"{self.model.info.sample_rate}: resample the files")
        stream.add(new)
