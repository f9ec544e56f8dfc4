"""From a call's result to the next token."""

from collections.abc import Callable

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.engine.call import CallResult
from topoc.lowering.engine.positions import Array
from topoc.lowering.manifest import Manifest

PLACE = Place("manifest.json", "functions")


def sampler(
    manifest: Manifest, *, temperature: float = 0.0, top_k: int | None = None, seed: int = 0
) -> Callable[[CallResult], int]:
    """Greedy at temperature 0; else drawn from the `top_k` best, or from all.

    What the bundle's head can't serve is refused here, before anything runs.
    """
    if temperature == 0:
        return greedy
    sinks = [o for f in manifest.functions for step in f.steps for o in step.outputs]
    kinds = {one.sink.kind for one in sinks}
    if "logits" not in kinds and "topk_logits" not in kinds:
        raise _no_logits()
    given = [o.shape[1] for o in sinks if o.sink.kind == "topk_logits"]
    if "logits" not in kinds and top_k is not None and top_k > min(given):
        raise _too_many(top_k, min(given))
    return Sampler(temperature, top_k, seed)


def greedy(result: CallResult) -> int:
    """The best token; the lowest id of equals where the host decides."""
    if result.token is not None:
        return result.token
    if result.topk_ids is not None:
        return int(result.topk_ids[0])
    if result.logits is not None:
        return int(np.argmax(result.logits))
    raise _no_logits()


@define
class Sampler:
    """Draws from softmax(logits / temperature); the same seed draws the same tokens."""

    temperature: float
    top_k: int | None
    seed: int
    _random: np.random.Generator = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def __call__(self, result: CallResult) -> int:
        """The next token."""
        ids, logits = _candidates(result, self.top_k)
        scaled = logits.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max())
        return int(self._random.choice(ids, p=weights / weights.sum()))


def _candidates(result: CallResult, top_k: int | None) -> tuple[Array, Array]:
    """Ids and logits to draw from, the best first where a number of them is asked for."""
    if result.logits is not None:
        ids = np.arange(result.logits.size)
        if top_k is not None:
            ids = np.argsort(-result.logits, kind="stable")[:top_k]
        return ids, result.logits[ids]
    if result.topk_ids is None or result.topk_logits is None:
        raise _no_logits()
    if top_k is not None and top_k > result.topk_ids.size:
        raise _too_many(top_k, result.topk_ids.size)
    return result.topk_ids[:top_k], result.topk_logits[:top_k]


def _no_logits() -> TopocError:
    message = "the bundle gives the best token alone, and sampling needs logits"
    remedy = "compile with `head(logits)` or `head(topk = 40)`, or leave the temperature at 0"
    return TopocError(error("run.no-logits", message, PLACE, help=remedy))


def _too_many(asked: int, given: int) -> TopocError:
    message = f"the bundle gives the {given} best logits and {asked} are asked for"
    remedy = f"ask for at most {given}, or compile with `head(topk = {asked})`"
    return TopocError(error("run.no-logits", message, PLACE, help=remedy))
