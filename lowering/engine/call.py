"""One call of a function: what it was given, what it left, and the result of a row."""

from collections.abc import Mapping

import numpy as np
from attrs import define, field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.engine.positions import Array
from topoc.lowering.manifest import Function, Output, Step


@frozen(kw_only=True, eq=False)
class CallResult:
    """What the model says after the token at `position`; what the bundle doesn't give is None."""

    position: int
    token: int | None = None
    logits: Array | None = field(default=None, repr=False)
    topk_ids: Array | None = None
    topk_logits: Array | None = None
    hidden: Array | None = field(default=None, repr=False)


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
    rows: dict[str, Array] = field(factory=dict, repr=False)
    results: dict[str, tuple[Array, Output]] = field(factory=dict, repr=False)
    probed: Array | None = field(default=None, repr=False)

    @property
    def real(self) -> int:
        """How many of its rows are real tokens."""
        return len(self.tokens)

    def take(self, output: Output, value: Array) -> None:
        """Put an output where its sink says."""
        sink = output.sink
        match sink.kind:
            case "value":
                self.values[str(sink.name)] = value
            case "buffer":
                self.written[str(sink.name)] = value
            case "rows":
                self.rows[str(sink.name)] = value
            case _:
                self.results[sink.kind] = (value, output)

    def result(self, row: int) -> CallResult:
        """The result of one row; a function that isn't a verify gives its last real row only."""
        rows = {kind: self._row(value, row) for kind, (value, _) in self.results.items()}
        for kind in ("logits", "topk_logits", "hidden"):
            if kind in rows:
                rows[kind] = rows[kind].astype(np.float32) / self.results[kind][1].sink.scale
        logits = rows.get("logits")
        if logits is None and self.probed is not None:
            logits = self._row(self.probed, row)
        return CallResult(
            position=self.position + row,
            token=int(rows["token"][0]) if "token" in rows else None,
            logits=logits,
            topk_ids=rows.get("topk_ids"),
            topk_logits=rows.get("topk_logits"),
            hidden=rows.get("hidden"),
        )

    def _row(self, value: Array, row: int) -> Array:
        """One row of (1, C, 1, T) of a verify; all of anything else."""
        if self.function.role == "verify":
            return value[0, :, 0, row]
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
