"""One call of a function: what it was given, what it left, and the result of a row."""

from collections.abc import Mapping

import numpy as np
from attrs import define, field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.engine.positions import Array
from topoc.lowering.manifest import Function, Layout, Output, Step

SCALED = frozenset({"logits", "topk_logits", "token_logit", "hidden"})


@frozen(kw_only=True, eq=False)
class CallResult:
    """What the model says after the token at `position`; what the bundle doesn't give is None.

    `taps` has the residual stream (H,) after each layer that the topology taps.
    """

    position: int
    token: int | None = None
    logits: Array | None = field(default=None, repr=False)
    topk_ids: Array | None = None
    topk_logits: Array | None = None
    token_logit: float | None = None
    hidden: Array | None = field(default=None, repr=False)
    taps: Mapping[int, Array] = field(factory=dict, repr=False)


@define(kw_only=True, eq=False)
class Call:
    """A call as it goes on: overlays of buffers, rows to commit, values between its steps."""

    number: int
    function: Function
    position: int
    tokens: tuple[int, ...]
    file: str
    values: dict[str, Array] = field(factory=dict, repr=False)
    written: dict[str, Array] = field(factory=dict, repr=False)
    rows: list[tuple[Output, Array]] = field(factory=list, repr=False)
    taps: dict[int, Array] = field(factory=dict, repr=False)  # (H, T), true values
    results: dict[str, tuple[Array, Output]] = field(factory=dict, repr=False)
    probed: Array | None = field(default=None, repr=False)

    @property
    def real(self) -> int:
        """How many of its rows are real tokens."""
        return len(self.tokens)

    def take(self, output: Output, value: Array) -> None:
        """Put an output where its sink says; a buffer's is the caches' to take."""
        sink = output.sink
        match sink.kind:
            case "value":
                self.values[str(sink.name)] = value
            case "rows":
                self.rows.append((output, value))
            case "tap" if sink.layer is not None:
                stream = value[0, :, 0] if sink.layout == "channels" else value[0].T
                self.taps[sink.layer] = stream.astype(np.float32) / np.float32(sink.scale)
            case _:
                self.results[sink.kind] = (value, output)

    def result(self, row: int) -> CallResult:
        """The result of one row; a function that isn't a verify gives its last real row only."""
        rows = {
            kind: self._row(value, row, output.sink.layout)
            for kind, (value, output) in self.results.items()
        }
        for kind in SCALED & rows.keys():
            rows[kind] = rows[kind].astype(np.float32) / self.results[kind][1].sink.scale
        logits = rows.get("logits")
        if logits is None and self.probed is not None:
            logits = self._row(self.probed, row, "channels")
        return CallResult(
            position=self.position + row,
            token=int(rows["token"][0]) if "token" in rows else None,
            logits=logits,
            topk_ids=rows.get("topk_ids"),
            topk_logits=rows.get("topk_logits"),
            token_logit=float(rows["token_logit"][0]) if "token_logit" in rows else None,
            hidden=rows.get("hidden"),
            taps={layer: value[:, row] for layer, value in self.taps.items()},
        )

    def _row(self, value: Array, row: int, layout: Layout) -> Array:
        """One row of a verify, whose rows come first or last; all of anything else."""
        if self.function.role == "verify":
            return value[0, :, 0, row] if layout == "channels" else value[0, row].reshape(-1)
        if row != self.real - 1:
            message = f"`{self.function.name}` tells of its last row, not of row {row}"
            raise TopocError(error("run.no-such-row", message, Place(self.file)))
        return value.reshape(-1)


@frozen(eq=False)
class Moment:
    """One step of a call as it happened, for whoever watches."""

    call: Call
    index: int
    step: Step
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
