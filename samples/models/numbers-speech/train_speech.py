"""Trains one set of weights for every placement of training.toml and every lag: the options of python -m attnkit.train."""
import sys
import tomllib

import torch
import torch.nn.functional as F

import attnkit
from attnkit.torch import runtime
from attnkit.train.__main__ import parser
from attnkit.train.trainer import Trainer
from paths import HERE
from speech_data import Lists, spoken

OPTIONS = [str(HERE / "training.toml"), "--supernet", "--data", str(HERE / "pool"), "--dev", str(HERE / "audio" / "dev.tsv"), "--tokens", "3000",
           "--optimizer", "muon", "--warmup", "300", "--decay", "0.33", "--baseline-share", "0.25", "--weights", "softmax=1.33",
           "--wait-k", "1,2,3,4,5,6,8", "--f16", "--out", str(HERE / "run")]
OFFLINE = 0.3  # share of the batches that are heard whole


class SpeechTrainer(Trainer):
    """--data is the folder of pool.py, --dev the list of utterances.py, --tokens the encoder's rows in a batch."""

    def examples(self, folder):
        if self.world > 1:
            sys.exit("train_speech.py runs in one process")
        self.pre_decision = tomllib.loads(self.toml)["stream"]["pre_decision"]
        core = attnkit.Model.from_text(runtime(), self.toml, folder)
        data, features = Lists(core, self.options.data, self.options.seed), self.model.encoder.features
        mean, scale = data.normalisation(self.options.tokens)
        features.mean.copy_(mean)
        features.scale.copy_(scale)
        return data, spoken(core, self.options.dev, self.options.dev_examples, 2 * self.options.tokens) if self.options.dev else []

    def make_beside(self):
        """Connectionist temporal classification of the English words: it teaches the encoder to hear."""
        return torch.nn.Linear(self.model.description["d_model"], len(self.data.words) + 1)

    def loss(self, batch, drawn):
        with self.autocast():
            encoded = rows, lengths, _ = self.model.encode(batch.source, batch.source_lengths)
            written = self.model.decode(batch.entered, batch.lengths, encoded, visible=self.visible(batch, drawn), expected=batch.expected,
                                        label_smoothing=self.options.label_smoothing)
        words = torch.tensor([word for words in batch.words for word in words], device=rows.device)
        heard = F.ctc_loss(self.beside(rows.float()).log_softmax(-1).transpose(0, 1), words, lengths,
                           torch.tensor([len(words) for words in batch.words]), zero_infinity=True)
        # The encoder learns to hear from the words first.
        return written + (1.0 if self.progress() < 0.25 else 0.3) * batch.tokens * heard

    def visible(self, batch, drawn):
        """Target i, from 0, sees (k + i) * pre_decision rows; dev is heard whole."""
        if drawn is None or drawn.random() < OFFLINE:
            return None
        rows = batch.source_lengths // self.model.encoder.frontend.subsampling
        seen = (drawn.choice(self.options.wait_k) + torch.arange(batch.entered.shape[1], device=rows.device)) * self.pre_decision
        return seen.minimum(rows[:, None])


if __name__ == "__main__":
    try:
        print(SpeechTrainer(parser().parse_args([*OPTIONS, *sys.argv[1:]])).run())
    except attnkit.Error as e:
        sys.exit(f"error: {e}")
