"""The inputs of a call: what each source of the manifest means in numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.call import Call
from topoc.lowering.engine.positions import Array, key_positions, query_positions, slot_of, visible
from topoc.lowering.manifest import Input, Source, Table

DTYPES = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32, "int8": np.int8}
LIMITS = {"fp16": float(np.finfo(np.float16).max), "fp32": float(np.finfo(np.float32).max)}

Feed = Callable[[Input], Array]

T = TypeVar("T")


@define
class Feeder:
    """Makes input features from the manifest's sources; tables stay on disk, mapped."""

    bundle: Bundle
    _ropes: dict[str, Array] = field(init=False, repr=False)
    _tables: dict[str, Array] = field(init=False, repr=False)
    _scales: dict[str, Array] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        manifest, path = self.bundle.manifest, self.bundle.path
        self._ropes = {
            name: np.load(path / rope.path, mmap_mode="r") for name, rope in manifest.ropes.items()
        }
        self._tables = {
            name: np.memmap(path / t.path, f"<{_code(t)}", "r", shape=(t.rows, t.width))
            for name, t in manifest.tables.items()
        }
        self._scales = {
            name: np.memmap(path / t.scales, "<f4", "r", shape=(t.rows, 1))
            for name, t in manifest.tables.items()
            if t.scales is not None
        }

    def check(self, tokens: Sequence[int], position: int) -> None:
        """Refuse tokens that can't be consumed, before anything is computed."""
        manifest = self.bundle.manifest
        if not tokens:
            self._refuse("run.no-tokens", "there is no token to feed", "give at least one")
        for token in tokens:
            if not 0 <= token < manifest.model.vocabulary:
                message = f"token {token} is outside the vocabulary of {manifest.model.vocabulary}"
                self._refuse("run.unknown-token", message, "use this bundle's tokenizer")
        end = position + len(tokens)
        if end > manifest.model.context:
            message = f"{end} tokens don't fit the context of {manifest.model.context}"
            self._refuse(
                "run.context-full", message, "shorten the prompt, or compile a longer context"
            )
        for name, rope in manifest.ropes.items():
            if end > rope.positions:
                message = f"position {end - 1} is beyond the {rope.positions} of rope `{name}`"
                self._refuse(
                    "run.position-beyond-table", message, "compile with a longer rope table"
                )

    def begin(self, call: Call, buffers: Mapping[str, Array]) -> Feed:
        """What feeds the inputs of one call; a mask that several steps take is made once."""
        masks: dict[tuple[Source, str], Array] = {}

        def feed(one: Input) -> Array:
            source = one.source
            match source.kind:
                case "buffer":
                    name = str(source.name)
                    return call.written.get(name, buffers[name])
                case "value":
                    return call.values[str(source.name)]
                case "mask":
                    key = (source, one.dtype)
                    if key not in masks:
                        masks[key] = self._mask(call, one)
                    return masks[key]
                case _:
                    return self._made(call, one)

        return feed

    def _made(self, call: Call, one: Input) -> Array:
        """A feature that depends on the call's tokens and positions alone."""
        dtype = DTYPES[one.dtype]
        match one.source.kind:
            case "tokens":
                return np.asarray(_padded(call), dtype).reshape(one.shape)
            case "embedding":
                return self._embedding(call, one)
            case "rope_cos":
                return self._rope(call, one, 0)
            case "rope_sin":
                return self._rope(call, one, 1)
            case "slot":
                marked = np.zeros(one.shape, dtype)
                slots = _required(one.source.slots)
                slot = slot_of(_required(one.source.rule), slots, call.position)
                marked[0, 0, slot, 0] = 1
                return marked
            case "last_row":
                marked = np.zeros(one.shape, dtype)
                marked[0, 0, 0, call.real - 1] = 1
                return marked
            case kind:
                raise AssertionError(kind)

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

    def _embedding(self, call: Call, one: Input) -> Array:
        name = str(one.source.name)
        table, ids = self.bundle.manifest.tables[name], np.asarray(_padded(call))
        rows = self._tables[name][ids].astype(np.float32)
        if name in self._scales:
            rows = rows * self._scales[name][ids]
        rows = rows * np.float32(table.multiplier) * np.float32(one.source.scale)
        dtype = DTYPES[one.dtype]
        if not (np.abs(rows) <= LIMITS[one.dtype]).all():
            message = f"an embedding of `{name}` overflows {one.dtype}"
            self._refuse("run.embedding-overflow", message, "compile with a smaller scale")
        return np.ascontiguousarray(rows.T.astype(dtype))[None, :, None, :]

    def _rope(self, call: Call, one: Input, half: int) -> Array:
        positions = query_positions(
            position=call.position, real=call.real, tokens=call.function.tokens
        )
        rows = self._ropes[str(one.source.name)][half][positions]
        return np.ascontiguousarray(rows.T.astype(DTYPES[one.dtype]))[None, None]

    def _refuse(self, code: str, message: str, remedy: str) -> NoReturn:
        raise TopocError(error(code, message, Place(str(self.bundle.path)), help=remedy))


def _padded(call: Call) -> tuple[int, ...]:
    """The call's tokens, the last one repeated up to the function's rows."""
    return call.tokens + call.tokens[-1:] * (call.function.tokens - call.real)


def _code(table: Table) -> str:
    return {"fp16": "f2", "fp32": "f4", "int8": "i1"}[table.dtype]


def _required(value: T | None) -> T:
    """A field that the opening of the bundle has found present."""
    if value is None:
        raise AssertionError
    return value
