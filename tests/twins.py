"""Twins: the shipped topologies of Gemma 4, compiled for a tiny model of as many layers."""

from functools import cache
from pathlib import Path

import torch
from attrs import define, evolve, frozen
from tiny_gemma4 import E2B, E4B, WINDOW, tiny_gemma4

from topoc.dsl.load import load
from topoc.dsl.model import Scheme
from topoc.dsl.resolve.quantize import ROLES
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle, open_bundle
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.ir import DType
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.request import Request

TOPOLOGIES = Path(__file__).parents[1] / "topologies"
W = WINDOW
CONTEXT = 64
TOKENS = (2, 0, 130, 5, 7, *((37 * i) % 131 for i in range(45)))
STARTS = (0, 1, W - 1, W, 2 * W + 1)
FULL_WINDOW = 24  # of `wfa`: it slides within the tokens
TILE = 20  # of `flash`: three tiles and a shorter one


@frozen
class Twin:
    """A shipped topology, and what makes it small."""

    name: str
    dimensions: tuple[tuple[str, int], ...]
    define: tuple[tuple[str, float], ...] = (("C", CONTEXT),)

    @property
    def keeps_attention(self) -> bool:
        """Whether it sees what the checkpoint sees."""
        return self.name != "wfa"


_E2B, _E4B = tuple(E2B.items()), tuple(E4B.items())
_LONG = (("C", 512),)  # its calls are longer than the small context

TWINS = {
    one.name: one
    for one in (
        Twin("swa4", _E2B),
        Twin("stateless4", _E2B),
        Twin("threeway", _E2B),
        Twin("threeway_prefill4", _E2B, _LONG),
        Twin("topology_i", _E2B),
        Twin("merged2", _E2B),
        Twin("merged1", _E2B),
        Twin("lite2", _E2B),
        Twin("wfa", _E2B, (("C", CONTEXT), ("FW", FULL_WINDOW))),
        Twin("flash", _E2B, (("C", CONTEXT), ("TILE", TILE))),
        Twin("stateful4", _E2B),
        Twin("stateful3", _E2B),
        Twin("stateful1", _E2B),
        Twin("padded32", _E2B),
        Twin("prefill4", _E2B, _LONG),
        Twin("verify4", _E2B),
        Twin("swa4_8k", _E2B),
        Twin("head_split16", _E2B),
        Twin("e4b_swa4", _E4B),
        Twin("e4b_threeway", _E4B),
    )
}


@define
class Windowed(Oracle):
    """The reference, if full attention saw a window of positions only."""

    window: int = 0

    def logits(self, tokens):
        """As the oracle's, under masks of our own."""
        ahead = torch.arange(len(tokens))[None, :] - torch.arange(len(tokens))[:, None]
        widths = {"sliding_attention": W, "full_attention": self.window}
        masks = {kind: _hidden((ahead > 0) | (ahead <= -width)) for kind, width in widths.items()}
        ids, rows = torch.tensor([list(tokens)]), torch.arange(len(tokens))
        found = self.model(ids, attention_mask=masks, use_cache=False, logits_to_keep=rows)
        return found.logits[0].float().numpy()


def _hidden(where):
    return torch.where(where, torch.finfo(torch.float32).min, 0.0)[None, None]


SAME_ARITHMETIC = frozenset({"threeway", "topology_i", "merged2", "merged1"})
"""Those that run the ops of `swa4` in chunks of another cut."""


@frozen
class Checkpoint:
    """A tiny checkpoint and transformers' own model of it."""

    folder: Path
    oracle: Oracle

    @classmethod
    def make(cls, folder: Path, **dimensions):
        """Draw one."""
        return cls(folder, Oracle(tiny_gemma4(folder, **dimensions)))

    def reference(self, twin: Twin) -> Oracle:
        """What a twin is held against."""
        if twin.keeps_attention:
            return self.oracle
        return Windowed(self.oracle.model, FULL_WINDOW)


def int4(bits=4):
    """The scheme that shipped layouts have for weights: a table for every 32 output channels."""
    return (Scheme(name="palettize", arguments=(("bits", bits), ("group", 32), ("lut", "fp16"))),)


WHOLE = (Scheme(name="none"),)


def with_weights(topology, schemes):
    """A topology whose matrices all have these schemes."""
    recipes = (
        evolve(one, schemes=schemes) if one.role in ROLES["weights"] else one
        for one in topology.recipes
    )
    return evolve(topology, recipes=tuple(recipes))


def resolved(twin: Twin, checkpoint: Path, functions=None, schemes=WHOLE):
    """The topology of a twin, all its functions or some; its matrices whole, or as it is said."""
    file = TOPOLOGIES / f"{twin.name}.topo"
    topology, findings = load(file, define=dict(twin.define), model=checkpoint / "config.json")
    assert topology is not None, findings
    kept = tuple(one for one in topology.functions if functions is None or one.name in functions)
    return with_weights(evolve(topology, functions=kept), schemes)


def requested(twin: Twin, checkpoint: Path, precision: str, **options) -> Request:
    """A compile of a twin; verdicts and placement findings do not stop it here."""
    return _request(resolved(twin, checkpoint, **options), checkpoint, precision)


def _request(topology, checkpoint: Path, precision: str) -> Request:
    return Request(
        topology=topology,
        architecture=read(checkpoint),
        reader=open_checkpoint(str(checkpoint)),
        precision=DType(precision),
        revisit="the twins",
    )


def bundled(topology, checkpoint: Path, target: Path, precision: str) -> Bundle:
    """The bundle of a topology of a tiny checkpoint."""
    compile_bundle(_request(topology, checkpoint, precision), target)
    return open_bundle(target)


def compiled(twin: Twin, checkpoint: Path, target: Path, precision: str, **options) -> Bundle:
    """The bundle of a twin."""
    compile_bundle(requested(twin, checkpoint, precision, **options), target)
    return open_bundle(target)


@cache
def _predictor(path, build, rounding):
    del build
    return InterpreterPredictor(open_bundle(path), rounding)


def session(bundle: Bundle, *, rounding=False) -> Engine:
    """An engine that gives logits."""
    predictor = _predictor(bundle.path, bundle.manifest.build, rounding)
    return Engine(bundle, predictor, want_logits=True)
