"""Threads on a machine that others use too.

Two threads meet at the end of every operation, so when another program holds a core they can be slower than one.
Which is faster changes by the minute; a few steps of each tell.
"""
import time

import torch

TRIAL, PERIOD = 8, 120


class SharedCores:
    def __init__(self, threads):
        self.choices = [threads, 1]
        self.seconds_per_token = [0.0, 0.0]
        self.step = self.tokens = 0
        self.start = time.monotonic()
        torch.set_num_threads(threads)

    def stepped(self, tokens):
        """To be called after every step, with the tokens it took."""
        self.step = (self.step + 1) % PERIOD
        self.tokens += tokens
        trial, rest = divmod(self.step, TRIAL)
        if rest or trial > 2:
            return
        if trial:
            self.seconds_per_token[trial - 1] = (time.monotonic() - self.start) / self.tokens
        best = self.seconds_per_token.index(min(self.seconds_per_token))
        torch.set_num_threads(self.choices[trial] if trial < 2 else self.choices[best])
        self.start, self.tokens = time.monotonic(), 0
