"""The caches of a session: arrays that the host keeps, and states that the packages hold."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.bundle.writes import states_of, writes_of
from topoc.lowering.engine.call import Call
from topoc.lowering.engine.positions import Array, store
from topoc.lowering.manifest import Buffer, Function, Output, Step


class Instance(Protocol):
    """The packages of a bundle as one session runs them; their states begin with zeros."""

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """Every output feature of the step, and every value named by `probes`.

        `inputs` has no states: the package reads and writes its own.
        """

    def read_state(self, package: str, state: str) -> Array:
        """A copy of what a package holds under this name."""

    def write_state(self, package: str, state: str, value: Array) -> None:
        """Let a package hold these values."""


@define
class Caches:
    """What a session remembers of its tokens.

    `newest` names, of each state, a package that holds it as the last call left it.
    """

    bundle: Bundle
    instance: Instance
    wide: bool
    arrays: dict[str, Array] = field(init=False, repr=False)
    newest: dict[str, str] = field(factory=dict, init=False)
    _buffers: dict[str, Buffer] = field(init=False, repr=False)
    _features: dict[tuple[str, str], str] = field(init=False, repr=False)
    _graph: dict[str, frozenset[str]] = field(init=False, repr=False)
    _changing: str | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        manifest = self.bundle.manifest
        self._buffers = {one.id: one for one in manifest.buffers}
        self.arrays = {
            one.id: np.full(one.shape, one.initial, self._dtype(one))
            for one in manifest.buffers
            if one.store == "io"
        }
        self._features = {
            (step.package, buffer): feature
            for function in manifest.functions
            for step in function.steps
            for feature, buffer in states_of(step)
        }
        self._graph = {one.name: self._written_by(one) for one in manifest.functions}

    def check(self) -> None:
        """Refuse to go on from caches that a failure has left between two calls."""
        if self._changing is not None:
            message = f"`{self._changing}` failed after it had begun to change the caches"
            remedy = "begin a new session and feed the whole text again"
            place = Place(str(self.bundle.path))
            raise TopocError(error("run.half-changed", message, place, help=remedy))

    @contextmanager
    def changing(self, function: Function) -> Iterator[None]:
        """While a call of a function is committed: what fails in it leaves them unusable."""
        self._changing = function.name
        yield
        self._changing = None

    def enter(self, function: Function, step: Step) -> None:
        """Bring the states of a step's package up to date before it runs.

        A step that writes them itself leaves them changed until its call is committed.
        """
        for one in function.copies:
            last = self.newest.get(one.buffer)
            if one.package == step.package and last in one.others:
                self._write(one.package, one.buffer, self._read(last, one.buffer))
        for _, buffer in states_of(step):
            self.newest[buffer] = step.package
            if buffer in self._graph[function.name]:
                self._changing = function.name

    def in_graph(self, function: Function) -> bool:
        """Whether a function's steps write caches themselves, so that a call is kept whole."""
        return bool(self._graph[function.name])

    def replace(self, call: Call, output: Output, value: Array) -> None:
        """Let later steps of a call see rows that a step has made anew."""
        name, first = str(output.sink.name), output.sink.row
        before = call.written.get(name, self.arrays[name])
        if value.shape == before.shape:
            call.written[name] = np.asarray(value, before.dtype)
            return
        whole = before.copy()
        whole[first : first + len(value)] = value
        call.written[name] = whole

    def commit(self, call: Call, real: int) -> None:
        """Keep what a call wrote, and store the first `real` of the rows that it handed out."""
        for name, value in call.written.items():
            self.arrays[name] = value if value.flags.writeable else value.copy()
        for buffer in dict.fromkeys(str(output.sink.name) for output, _ in call.rows if real):
            self._store(call, buffer, real)

    def read(self, name: str) -> Array:
        """What a buffer holds, wherever it is kept; a state that no call has taken holds zeros."""
        buffer = self._buffers[name]
        if buffer.store == "io":
            return self.arrays[name]
        if name not in self.newest:
            return np.zeros(buffer.shape, self._dtype(buffer))
        return self._read(self.newest[name], name)

    def _store(self, call: Call, name: str, real: int) -> None:
        buffer, cache = self._buffers[name], self.read(name)
        for output, value in call.rows:
            if output.sink.name == name:
                for at, rows in enumerate(value, output.sink.row):
                    row, (heads, _, width) = buffer.rows[at], rows.shape
                    target = cache[at, :heads, : row.slots, :width]
                    store(target, rows, row.rule, position=call.position, real=real)
        if buffer.store == "state":
            self._write(self.newest[name], name, cache)

    def _written_by(self, function: Function) -> frozenset[str]:
        """The buffers that have rows which a function's steps write themselves."""
        writes = writes_of(function)
        return frozenset(
            name
            for name, buffer in self._buffers.items()
            if any(writes.in_graph(name, at) for at in range(len(buffer.rows)))
        )

    def _read(self, package: str, buffer: str) -> Array:
        return self.instance.read_state(package, self._features[package, buffer])

    def _write(self, package: str, buffer: str, value: Array) -> None:
        self.instance.write_state(package, self._features[package, buffer], value)

    def _dtype(self, buffer: Buffer) -> type[np.float16 | np.float32]:
        return np.float32 if self.wide or buffer.dtype == "fp32" else np.float16
