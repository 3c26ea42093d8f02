"""One set of weights for every placement that a manifest's [search.space] allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

import attnkit

from ..error import INVALID, Error
from ._bound import runtime
from ._safetensors import tensors_of
from .._toml import tables_of, toml_text
from .attention import Attention
from .model import Model

if TYPE_CHECKING:
    import pathlib
    from random import Random

    from .._types import Path


class Supernet(Model):
    """Supernet.from_manifest("model.toml"): a Model whose blocks hold each mechanism of [search.space] beside the others.

    The mechanisms of a block share its projections; what is a mechanism's own (adapters, LEARNED tensors) each has for itself.
    candidates: by block, the mechanisms that may sit there, the manifest's own first.  place() chooses among them.
    """

    def __init__(self, toml: str, folder: Path | str = ".") -> None:
        super().__init__(toml, folder)
        self.baseline = {block["block"]: block["mechanism"] for block in self.description["blocks"]}
        self.candidates = {name: [mechanism] for name, mechanism in self.baseline.items()}
        self._knows = {(b["block"], b["mechanism"]): (b["knows_q_total"], b["knows_k_total"]) for b in self.description["blocks"]}
        self._options = {(b["block"], b["mechanism"]): b["options"] for b in self.description["blocks"]}
        tables = tables_of(toml)
        space = tables.get("search", {}).get("space")
        if not space:
            raise Error(INVALID, "the manifest has no [search] space, which says what a supernet is to hold: add one, or train a Model")
        for role, entries in space.items():
            for entry in entries:
                self._add(tables, role, entry)
        self.place(self.baseline)

    def _add(self, tables: dict[str, Any], role: str, entry: Any) -> None:
        """Adds what an entry of the space comes to in the blocks of a role, as core reads it."""
        attention = {**tables.get("attention", {}), role: entry}
        attention["override"] = [o for o in attention.get("override", []) if o["block"] != role]
        with attnkit.Model.from_text(runtime(), toml_text({**tables, "attention": attention}), self.folder) as core:
            blocks, stored = core.describe()["blocks"], tensors_of(core.weights())
        had = set(self.state_dict())
        for block in blocks:
            if block["role"] != role:
                continue
            name, mechanism, options = block["block"], block["mechanism"], block["options"]
            if self._options.setdefault((name, mechanism), options) != options:
                raise Error(INVALID, f"{name} may have {mechanism} with two sets of options, whose tensors would have one name: keep one")
            if mechanism in self.candidates[name]:
                continue
            self._block(name).add(mechanism, self._common(mechanism), **options)
            self.candidates[name].append(mechanism)
            self._knows[name, mechanism] = block["knows_q_total"], block["knows_k_total"]
        # With projections that no mechanism before it had.
        self.load_state_dict({n: t for n, t in stored.items() if n not in had}, strict=False)

    def place(self, placement: Mapping[str, str]) -> None:
        """Uses these mechanisms from now on; placement: by block ("encoder.self.1"), or by role; what it leaves out stays."""
        for name, candidates in self.candidates.items():
            mechanism = placement.get(name, placement.get(name.rsplit(".", 1)[0]))
            if mechanism is None:
                continue
            if mechanism not in candidates:
                raise Error(INVALID, f"{name} has {', '.join(candidates)}, not {mechanism}: [search] space says what it holds")
            self._block(name).mechanism = mechanism
            getattr(self, name.split(".")[0]).knows[name] = self._knows[name, mechanism]

    def export(self, folder: Path, **options: Any) -> pathlib.Path:
        """As Model.export, of the manifest's own placement, which is what the folder's manifest says."""
        placed = {name: self._block(name).mechanism for name in self.candidates}
        self.place(self.baseline)
        try:
            return super().export(folder, **options)
        finally:
            self.place(placed)

    def _block(self, name: str) -> Attention:
        stack, kind, layer = name.split(".")
        return getattr(self, stack).block(kind, layer)

    def draw(self, random: Random, weights: dict[str, float] | None = None, baseline: float = 0.2,
             per_layer: float = 0.5) -> dict[str, str]:
        """A random placement: with these probabilities the baseline, and otherwise one mechanism per layer instead of per role.

        Per role those are drawn that all its layers have; where there are none, the baseline stays.  random: a random.Random.  weights:
        by mechanism, how often it is drawn relative to 1.
        """
        if random.random() < baseline:
            return dict(self.baseline)
        by_layer, weights = random.random() < per_layer, weights or {}
        places = {name: name if by_layer else name.rsplit(".", 1)[0] for name in self.candidates}
        common: dict[str, list[str]] = {}
        for name, place in places.items():
            common[place] = [mechanism for mechanism in common.get(place, self.candidates[name]) if mechanism in self.candidates[name]]
        drawn = {place: random.choices(of, [weights.get(mechanism, 1.0) for mechanism in of])[0] for place, of in common.items() if of}
        return {name: drawn.get(place, self.baseline[name]) for name, place in places.items()}

    def uniform(self, mechanism: str) -> dict[str, str]:
        """The baseline with one mechanism wherever it may sit."""
        return {name: mechanism if mechanism in candidates else self.baseline[name] for name, candidates in self.candidates.items()}

    @property
    def mechanisms(self) -> list[str]:
        """All that any block holds, the baseline's first."""
        return list(dict.fromkeys([*self.baseline.values(), *(m for each in self.candidates.values() for m in each)]))
