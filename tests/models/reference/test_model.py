"""The model: padding never matters, decoding is causal, and the fixpoint decoder is greedy decoding."""
import unittest

import torch

from samples import TEXT
from batches import Batch
from generate import read_tsv
from greedy import Encoded, decode, limit
from model import MECHANISMS, Model, per_role
from vocabulary import BOS, EOS, Tokenizer, load

PLACEMENTS = [per_role(m, m, m) for m in MECHANISMS] + [per_role("cosformer", "relu", "leap")]
ALPHA = 1.2


class Untrained(unittest.TestCase):
    """Random weights make every list wrong, the hard case for the fixpoint."""

    def setUp(self):
        torch.manual_seed(3)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        tokenizer = Tokenizer(load())
        self.model = Model(len(tokenizer.tokens)).eval()
        lines = read_tsv(TEXT / "dev.tsv")[0:1300:400]
        self.pairs = [(tokenizer.encode(en), tokenizer.encode(de)) for en, de in lines]

    @torch.no_grad()
    def logits(self, pairs, placement):
        batch = Batch(pairs)
        return self.model(batch.source, batch.lengths, batch.entered, ALPHA * batch.lengths, placement)

    def test_padding(self):
        for placement in PLACEMENTS:
            together = self.logits(self.pairs, placement)
            for row, pair in enumerate(self.pairs):
                alone = self.logits([pair], placement)[0]
                self.assertLess((together[row, :len(alone)] - alone).abs().max(), 1e-9)

    def test_causality(self):
        source, target = self.pairs[-1]
        for placement in PLACEMENTS:
            whole = self.logits([(source, target)], placement)[0]
            short = self.logits([(source, target[:9])], placement)[0]
            self.assertLess((whole[:10] - short).abs().max(), 1e-9)

    @torch.no_grad()
    def token_by_token(self, source, placement):
        batch, ids = Batch([(source, [])]), []
        encoded = self.model.encode(batch.source, batch.lengths, placement)
        while len(ids) < limit(len(source) + 1) and EOS not in ids:
            entered = torch.tensor([[BOS] + ids])
            logits = self.model.decode(entered, encoded, batch.lengths, ALPHA * batch.lengths, placement)
            ids.append(int(logits[0, -1].argmax()))
        return ids

    def test_fixpoint_is_greedy(self):
        for placement in PLACEMENTS:
            outputs = decode(self.model, self.pairs, Encoded(self.model, self.pairs, placement), placement, ALPHA)
            for (source, _), output in zip(self.pairs, outputs):
                self.assertEqual(output.ids, self.token_by_token(source, placement))
                self.assertGreater(output.margin, 0)


if __name__ == "__main__":
    unittest.main()
