"""As much of SimulEval 1.1.4 as attnkit.simuleval uses, for machines without it, and evaluators that log as it does.

Importing this module makes `import simuleval` find the stand-in.
"""

import sys
import types


class AgentStates:
    def __init__(self):
        self.reset()

    def reset(self):
        self.source, self.target, self.source_sample_rate = [], [], 0
        self.source_finished = self.target_finished = False


class ReadAction:
    pass


class WriteAction:
    def __init__(self, content, finished):
        self.content, self.finished = content, finished


class GenericAgent:
    def __init__(self, args):
        self.args = args
        self.states = self.build_states()
        self.reset()

    def reset(self):
        self.states.reset()

    def pushpop(self, new, finished, rate=0):
        """One segment of the source; the action, or None once the target is finished."""
        states = self.states
        states.source += new
        states.source_finished, states.source_sample_rate = finished, rate
        if states.target_finished:
            return None
        action = self.policy(states)
        if isinstance(action, WriteAction):
            states.target_finished = action.finished
        return action


class TextToTextAgent(GenericAgent):
    pass


class SpeechToTextAgent(GenericAgent):
    pass


class Instance:
    """The log of SimulEval for one input."""

    def __init__(self):
        self.prediction, self.delays, self.finished = [], [], False

    def receive(self, action, delay):
        if self.finished or not isinstance(action, WriteAction):
            # Also where the agent goes on after an end: SimulEval drops what comes first.
            self.finished = action is None
            return
        self.finished = action.finished
        words = action.content.split()
        self.prediction += words
        self.delays += [delay] * len(words)


def evaluate_text(agent, text):
    """A word of the source, an action, and so on until the agent ends."""
    agent.reset()
    words, instance, read = text.split(), Instance(), 0
    while not instance.finished:
        new = words[read:read + 1]
        read += len(new)
        instance.receive(agent.pushpop(new, read == len(words)), read)
    return instance


def evaluate_speech(agent, samples, rate, segment):
    """A segment of samples, an action, and so on until the source ends.  Delays in samples."""
    agent.reset()
    instance = Instance()
    for begin in range(0, len(samples), segment):
        end = min(begin + segment, len(samples))
        instance.receive(agent.pushpop(samples[begin:end], end == len(samples), rate), end)
        if instance.finished:
            agent.reset()
    return instance


simuleval, agents = types.ModuleType("simuleval"), types.ModuleType("simuleval.agents")
agents.__dict__.update({c.__name__: c for c in (AgentStates, ReadAction, WriteAction, TextToTextAgent, SpeechToTextAgent)})
sys.modules.update({"simuleval": simuleval, "simuleval.agents": agents})
