"""The inputs of a call: what each source of the manifest means in numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.call import Call
from topoc.lowering.engine.positions import (
    EMPTY,
    Array,
    key_positions,
    query_positions,
    slots_of,
    visible,
)
from topoc.lowering.engine.tables import HostTables
from topoc.lowering.manifest import Input, SlotRule, Source

DTYPES = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32}
LIMITS = {"fp16": float(np.finfo(np.float16).max), "fp32": float(np.finfo(np.float32).max)}

Feed = Callable[[Input], Array]

T = TypeVar("T")


@define
class Feeder:
    """Makes input features from the manifest's sources."""

    bundle: Bundle
    _tables: HostTables = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._tables = HostTables(self.bundle)

    def check(self, tokens: Sequence[int], position: int) -> None:
        """Refuse tokens that can't be consumed, before anything is computed."""
        model = self.bundle.manifest.model
        if not tokens:
            self._refuse("run.no-tokens", "there is no token to feed", "give at least one")
        for token in tokens:
            if not 0 <= token < model.vocabulary:
                message = f"token {token} is outside the vocabulary of {model.vocabulary}"
                self._refuse("run.unknown-token", message, "use this bundle's tokenizer")
        end = position + len(tokens)
        if end > model.context:
            message = f"{end} tokens don't fit the context of {model.context}"
            remedy = "shorten the prompt, or compile a longer context"
            self._refuse("run.context-full", message, remedy)
        self._tables.check(tokens, end)

    def begin(self, call: Call, buffers: Mapping[str, Array]) -> Feed:
        """What feeds the inputs of one call; what several steps take alike is made once."""
        made: dict[tuple[Source, str, tuple[int, ...]], Array] = {}

        def feed(one: Input) -> Array:
            name = str(one.source.name)
            match one.source.kind:
                case "buffer":
                    return call.written[name] if name in call.written else buffers[name]
                case "value":
                    return call.values[name]
            key = one.source, one.dtype, one.shape
            if key not in made:
                made[key] = self._made(call, one)
            return made[key]

        return feed

    def _made(self, call: Call, one: Input) -> Array:
        """A feature that depends on the call's tokens and positions alone."""
        match one.source.kind:
            case "tokens":
                return _padded(np.asarray([call.tokens], DTYPES[one.dtype]), call)
            case "embedding" | "per_layer":
                return self._rows(call, one)
            case "rope_cos":
                return self._rope(call, one, 0)
            case "rope_sin":
                return self._rope(call, one, 1)
            case "mask":
                return self._mask(call, one)
            case _:
                return self._marked(call, one)

    def _marked(self, call: Call, one: Input) -> Array:
        """Where rows go, or the last of them."""
        marked = np.zeros(one.shape, DTYPES[one.dtype])
        if one.source.kind == "last_row":
            marked.reshape(-1)[call.real - 1] = 1  # (1, 1, 1, T) or (1, T, 1)
            return marked
        slots = _required(one.source.slots)
        rule: SlotRule = _required(one.source.rule)
        taken = slots_of(rule, slots, position=call.position, real=call.real)
        if one.source.kind == "index":
            marked[:] = taken[0]
            return marked
        if one.source.kind != "slot":
            raise AssertionError(one.source.kind)
        rows = np.flatnonzero(taken != EMPTY)
        marked[0, 0, taken[rows], rows] = 1
        return marked

    def _mask(self, call: Call, one: Input) -> Array:
        source, place = one.source, (call.position, call.real, call.function.tokens)
        position, real, tokens = place
        keys = key_positions(
            _required(source.keys),
            _required(source.rule),
            _required(source.slots),
            position=position,
            real=real,
            tokens=tokens,
        )
        queries = query_positions(position=position, real=real, tokens=tokens)
        seen = visible(keys, queries, source.window)
        if not seen.any(axis=1).all():
            message = f"a row of `{one.feature}` at position {position} would see no key"
            self._refuse("run.masked-row", message, "compile the bundle again")
        mask = np.where(seen, 0.0, _required(source.fill)).astype(DTYPES[one.dtype])
        return mask[None, None]

    def _rows(self, call: Call, one: Input) -> Array:
        """What host tables have for the tokens, (1, width, 1, T), scaled and rounded once."""
        if one.source.kind == "per_layer":
            rows = self._tables.per_layer(call.tokens)
        else:
            rows = self._tables.rows(str(one.source.name), call.tokens)
        rows = rows * np.float32(one.source.scale)
        if not (np.abs(rows) <= LIMITS[one.dtype]).all():
            message = f"what `{one.feature}` is fed overflows {one.dtype}"
            self._refuse("run.embedding-overflow", message, "compile with a smaller scale")
        channels = _padded(rows.T.astype(DTYPES[one.dtype]), call)
        if one.source.layout == "tokens":
            return np.ascontiguousarray(channels.T)[None]
        return channels[None, :, None, :]

    def _rope(self, call: Call, one: Input, half: int) -> Array:
        positions = query_positions(
            position=call.position, real=call.real, tokens=call.function.tokens
        )
        rows = self._tables.angles(str(one.source.name), half, positions)
        rows = rows.astype(DTYPES[one.dtype])
        if one.source.layout == "channels":
            rows = rows.T
        return np.ascontiguousarray(rows)[None, None]

    def _refuse(self, code: str, message: str, remedy: str) -> NoReturn:
        raise TopocError(error(code, message, Place(str(self.bundle.path)), help=remedy))


def _padded(value: Array, call: Call) -> Array:
    """The last real row of (…, n), repeated up to the function's rows."""
    missing = call.function.tokens - call.real
    return np.concatenate([value, np.repeat(value[..., -1:], missing, axis=-1)], axis=-1)


def _required(value: T | None) -> T:
    """A field that the opening of the bundle has found present."""
    if value is None:
        raise AssertionError
    return value
