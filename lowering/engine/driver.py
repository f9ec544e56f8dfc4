"""The driver of any bundle: it follows the manifest and knows no feature or file by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Protocol

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.call import Call, CallResult, Moment
from topoc.lowering.engine.feeding import Feeder
from topoc.lowering.engine.positions import Array, store
from topoc.lowering.engine.schedule import split, with_role
from topoc.lowering.manifest import Function, Output, Step


class Predictor(Protocol):
    """What computes one step from its features."""

    @property
    def wide(self) -> bool:
        """Whether it computes in fp32 whatever features declare; caches then stay fp32 too."""

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """Every output feature of the step, and every value named by `probes`."""


Watch = Callable[[Moment], None]
Sampler = Callable[[CallResult], int]


@define
class Engine:
    """A session: the caches of a bundle, and how many tokens stand in them."""

    bundle: Bundle
    predictor: Predictor
    want_logits: bool = field(default=False, kw_only=True)
    watch: Watch | None = field(default=None, kw_only=True)
    position: int = field(default=0, init=False)
    buffers: dict[str, Array] = field(init=False, repr=False)
    _feeder: Feeder = field(init=False, repr=False)
    _calls: Iterator[int] = field(factory=count, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._feeder = Feeder(self.bundle)
        self.reset()

    def reset(self) -> None:
        """Begin again: every buffer at its initial value, at position 0."""
        self.position = 0
        self.buffers = {
            buffer.id: np.full(
                buffer.shape,
                buffer.initial,
                np.float32 if self.predictor.wide or buffer.dtype == "fp32" else np.float16,
            )
            for buffer in self.bundle.manifest.buffers
        }

    def check(self, tokens: Sequence[int]) -> None:
        """Raise TopocError for tokens that can't be consumed here, before anything is computed."""
        self._feeder.check(tokens, self.position)

    def feed(self, tokens: Sequence[int], *, only: str | None = None) -> CallResult:
        """Consume tokens by the fewest calls, or by the function `only`; the last row's result."""
        self._feeder.check(tokens, self.position)
        result: CallResult | None = None
        taken = 0
        for function, real in split(self.bundle.manifest, len(tokens), only):
            call = self._call(function, tokens[taken : taken + real])
            self.accept(call, real)
            result = call.result(real - 1)
            taken += real
        if result is None:
            raise AssertionError  # `check` refuses an empty prompt, and `split` covers the rest
        return result

    def verify(self, tokens: Sequence[int]) -> Call:
        """Compute a row for each of these tokens and commit none; `accept` takes a prefix."""
        self._feeder.check(tokens, self.position)
        function = with_role(self.bundle.manifest, "verify", len(tokens))
        return self._call(function, tokens)

    def accept(self, call: Call, real: int) -> None:
        """Commit the first `real` tokens of a call that began where the session stands."""
        if call.position != self.position or not 0 <= real <= call.real:
            message = (
                f"{real} of the {call.real} tokens at position {call.position}"
                f" can't be committed at position {self.position}"
            )
            raise TopocError(error("run.stale-call", message, Place(str(self.bundle.path))))
        if real < call.real and call.written:
            message = f"`{call.function.name}` wrote its caches in the graph and can't keep a part"
            raise TopocError(error("run.written-in-graph", message, Place(str(self.bundle.path))))
        self.buffers.update(call.written)
        for buffer in self.bundle.manifest.buffers:
            if buffer.id in call.rows:
                self.buffers[buffer.id] = store(
                    self.buffers[buffer.id],
                    call.rows[buffer.id],
                    buffer.rule,
                    position=self.position,
                    real=real,
                )
        self.position += real

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampler: Sampler,
        eos: AbstractSet[int],
    ) -> Iterator[int]:
        """Yield the tokens that follow the prompt, up to one of `eos`, which is not yielded.

        Generation also ends where the context is full.

        The last token, or the eos, is not fed: a further turn begins its prompt with it.
        """
        waiting: Sequence[int] = prompt
        for made in range(max_tokens):
            if made and self.position == self.bundle.manifest.model.context:
                return
            token = sampler(self.feed(waiting))
            if token in eos:
                return
            yield token
            waiting = (token,)

    def _call(self, function: Function, tokens: Sequence[int]) -> Call:
        """Run the steps of a function; nothing of the session changes."""
        call = Call(
            number=next(self._calls),
            function=function,
            position=self.position,
            tokens=tuple(tokens),
            file=str(self.bundle.path),
        )
        feed = self._feeder.begin(call, self.buffers)
        for index, step in enumerate(function.steps):
            inputs = {one.feature: feed(one) for one in step.inputs}
            probes = self._probes(step)
            outputs = self.predictor.predict(step, inputs, probes)
            for one in step.outputs:
                call.take(one, self._checked(step, one, outputs))
            for one in step.outputs:
                if one.sink.probe in probes:
                    call.probed = np.asarray(outputs[one.sink.probe], np.float32)
            if self.watch is not None:
                self.watch(Moment(call, index, step, inputs, outputs))
        return call

    def _probes(self, step: Step) -> tuple[str, ...]:
        """The values inside the package to ask for, where logits are wanted and not given."""
        if not self.want_logits:
            return ()
        sinks = [one.sink for one in step.outputs if one.sink.kind == "token"]
        missing = [one for one in sinks if one.probe is None]
        if missing and not any(one.sink.kind == "logits" for one in step.outputs):
            message = f"`{step.package}` gives a token and names no logits to look at"
            raise TopocError(error("run.no-logits", message, Place(str(self.bundle.path))))
        return tuple(one.probe for one in sinks if one.probe is not None)

    def _checked(self, step: Step, output: Output, outputs: Mapping[str, Array]) -> Array:
        """The output feature, which has the shape that the manifest declares."""
        place = Place(str(self.bundle.path / step.package), output.feature)
        if output.feature not in outputs:
            message = f"`{step.function}` gave no `{output.feature}`"
            raise TopocError(error("run.missing-output", message, place))
        value = outputs[output.feature]
        if tuple(value.shape) != output.shape:
            message = f"`{output.feature}` is {tuple(value.shape)}, not {output.shape}"
            raise TopocError(error("run.output-shape", message, place))
        return value
