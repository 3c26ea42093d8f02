"""Trains one set of weights for every placement and every lag; stops and continues at any point from its checkpoint."""
import argparse

import torch
import torch.nn.functional as F

import utterances
from features import frames
from paths import HERE
from speech_data import LONGEST, Batch, TrainingData, by_rows
from speech_model import MECHANISMS, ROLES, SpeechModel, layers_of, per_role, seen_rows
from model import WIDTH
from training import Training, add_arguments
from vocabulary import PAD

PRE_DECISION = 8  # rows of the encoder, 40 ms each: about what a token of German takes to say
LAGS = (1, 2, 3, 4, 5, 6, 8)
WATCHED = {m: per_role(m, m, m) for m in MECHANISMS}
WATCHED_LAGS = (None, 3)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, HERE / "run", minutes=75)
    parser.add_argument("--rows", type=int, default=3000, help="rows of the encoder per batch")
    return parser.parse_args()


def draw_placement(rng):
    """A quarter all softmax; of the rest half one mechanism per role, half one per layer."""
    def draw():
        return rng.choices(MECHANISMS, (0.4, 0.3, 0.3))[0]
    kind = rng.random()
    if kind < 0.25:
        return WATCHED["softmax"]
    if kind < 0.625:
        return per_role(draw(), draw(), draw())
    return {(role, layer): draw() for role in ROLES for layer in layers_of(role)}


def draw_lag(rng):
    return None if rng.random() < 0.3 else rng.choice(LAGS)


def longest_list(progress):
    """Short lists first: alignment is learned there and carries over."""
    return min(LONGEST, 1 + int(LONGEST * progress / 0.2))


def words_weight(progress):
    """The encoder learns to hear from the words first."""
    return 1.0 if progress < 0.25 else 0.3


class Trainer(Training):
    names = ("loss", "written", "heard")
    log_every = 50

    def __init__(self, options):
        torch.manual_seed(options.seed)
        self.data = TrainingData(options.seed)
        vocabulary = len(self.data.tokenizer.tokens)
        model, average = SpeechModel(vocabulary), SpeechModel(vocabulary)
        model.encoder.features.mean, model.encoder.features.scale = self.data.normalisation()
        self.words = torch.nn.Linear(WIDTH, len(self.data.pool.words) + 1)
        super().__init__(options, {"model": model, "average": average, "words": self.words})
        self.dev = self._dev()

    def _dev(self):
        items = [(frames(utterances.read_wav(HERE / "audio" / "dev" / f"{i:03}.wav")).numpy(), [],
                  self.data.tokenizer.encode(entry["german"]))
                 for i, entry in enumerate(utterances.load("dev")) if i % 2 == 0]
        return [Batch([items[i] for i in group]) for group in by_rows(items, 6000)]

    def batches(self):
        return self.data.chunk(self.chunk, longest_list(self.progress()), self.options.rows)

    def size(self, batch):
        return int(batch.rows.sum())

    def rate(self, step, progress):
        """Warm-up, constant, then linear to zero over the last two thirds: batches are small, so their noise needs it."""
        return min(1.0, step / 300) * min(1.0, 1.5 * (1 - progress))

    def heard(self, encoded, batch):
        """Connectionist temporal classification of the English words, from the encoder's rows."""
        targets = torch.tensor([word for words in batch.words for word in words])
        lengths = torch.tensor([len(words) for words in batch.words])
        with torch.autocast("cpu", enabled=False):
            scores = self.words(encoded.float()).log_softmax(-1).transpose(0, 1)
            return F.ctc_loss(scores, targets, batch.rows, lengths, zero_infinity=True)

    def losses(self, batch, rng):
        placement, lag = draw_placement(rng), draw_lag(rng)
        encoded = self.model.encode(batch.frames, placement)
        seen = seen_rows(batch.rows, batch.entered.shape[1], lag, PRE_DECISION)
        logits = self.model.decode(batch.entered, encoded, seen, placement)
        written = F.cross_entropy(logits.flatten(0, 1).float(), batch.expected.flatten(), ignore_index=PAD)
        heard = self.heard(encoded, batch)
        return [written + words_weight(self.progress()) * heard, written, heard]

    @torch.no_grad()
    def evaluate(self):
        """Percent of dev lists with every token right after its right predecessors."""
        for name, placement in WATCHED.items():
            right = {lag: 0 for lag in WATCHED_LAGS}
            for batch in self.dev:
                encoded = self.average.encode(batch.frames, placement)
                for lag in WATCHED_LAGS:
                    seen = seen_rows(batch.rows, batch.entered.shape[1], lag, PRE_DECISION)
                    top = self.average.decode(batch.entered, encoded, seen, placement).argmax(-1)
                    right[lag] += int(((top == batch.expected) | (batch.expected == PAD)).all(-1).sum())
            total = sum(len(batch.rows) for batch in self.dev)
            self.log(placement=name, exact={str(lag): round(100 * n / total, 1) for lag, n in right.items()})


if __name__ == "__main__":
    Trainer(arguments()).run()
