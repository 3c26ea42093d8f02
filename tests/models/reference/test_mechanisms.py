"""Holds mechanisms.py against the float64 golden cases.

The cases are found through ATTNKIT_GOLDEN or in shared/golden beside a parent of this folder.
"""
import json
import os
import unittest
from pathlib import Path

import torch

import mechanisms

KINDS = ("softmax", "relu", "cosformer", "leap", "leap_waitk")


def golden_path():
    candidates = [parent / "shared/golden/golden.json" for parent in Path(__file__).resolve().parents]
    if "ATTNKIT_GOLDEN" in os.environ:
        candidates.insert(0, Path(os.environ["ATTNKIT_GOLDEN"]))
    return next((path for path in candidates if path.exists()), None)


def tensor(values):
    return None if values is None else torch.tensor(values, dtype=torch.float64)


def mask_of(case, n, m):
    """[N, M]: which keys a query may use."""
    mask = torch.ones(n, m, dtype=torch.bool)
    if case["params"].get("causal"):
        mask = mask.tril()
    if "visible" in case["params"]:
        mask = torch.arange(m) < torch.tensor(case["params"]["visible"])[:, None]
    if "kmask" in case["in"]:
        mask = mask & torch.tensor(case["in"]["kmask"], dtype=torch.bool)
    return mask


def output(case):
    params, given = case["params"], case["in"]
    q, k, v = (tensor(given[name])[None, None] for name in "QKV")
    mask = mask_of(case, q.shape[-2], k.shape[-2])
    guard = {"guard": params.get("den"), "eps": params.get("eps")}
    if case["kind"] == "softmax":
        return mechanisms.softmax(q, k, v, mask)
    if case["kind"] == "relu":
        return mechanisms.relu(q, k, v, mask, **guard)
    if case["kind"] == "cosformer":
        return mechanisms.cosformer(q, k, v, params["N"], params["M"], mask, **guard)
    modules = [tuple(tensor(given[side][name]) for name in ("W1", "b1", "W2", "b2")) for side in ("pq", "pk")]
    return mechanisms.leap(q, k, v, *modules, mask, **guard)


@unittest.skipIf(golden_path() is None, "no golden.json")
class Golden(unittest.TestCase):
    def test_agreement(self):
        cases = [c for c in json.loads(golden_path().read_text())["cases"] if c["kind"] in KINDS]
        self.assertGreater(len(cases), 100)
        for case in cases:
            with self.subTest(case["name"]):
                expected = tensor(case["out"]["O"])
                error = (output(case)[0, 0] - expected).abs().max().item()
                self.assertLessEqual(error, 1e-12 * max(1.0, expected.abs().max().item()))


if __name__ == "__main__":
    unittest.main()
