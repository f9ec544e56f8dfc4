"""The driver of any bundle: it follows the manifest and knows no feature or file by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Protocol

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.caches import Caches, Instance
from topoc.lowering.engine.call import Call, CallResult, Moment
from topoc.lowering.engine.feeding import Feeder
from topoc.lowering.engine.positions import Array
from topoc.lowering.engine.schedule import no_verify, sees_all, split, verify_taking
from topoc.lowering.manifest import Function, Output, Step


class Predictor(Protocol):
    """What computes steps; it may serve several sessions, each by an instance of its own."""

    @property
    def wide(self) -> bool:
        """Whether it computes in fp32 whatever features declare; caches then stay fp32 too."""

    def begin(self) -> Instance:
        """The packages as a new session has them: every state at zero."""


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
    caches: Caches = field(init=False, repr=False)
    _feeder: Feeder = field(init=False, repr=False)
    _calls: Iterator[int] = field(factory=count, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._feeder = Feeder(self.bundle)
        self.reset()

    def reset(self) -> None:
        """Begin again: every buffer at its initial value, at position 0."""
        self.position = 0
        self.caches = Caches(self.bundle, self.predictor.begin(), self.predictor.wide)

    def check(self, tokens: Sequence[int]) -> None:
        """Raise TopocError for tokens that can't be consumed here, before anything is computed."""
        self.caches.check()
        self._feeder.check(tokens, self.position)

    def feed(self, tokens: Sequence[int], *, only: str | None = None) -> CallResult:
        """Consume tokens as `schedule` splits them, or by the function `only`; the last answer.

        What fails leaves the session after the last call that was committed. If the failing call
        had begun to change caches where they are, the session can't go on, and says so.
        """
        self.check(tokens)
        result: CallResult | None = None
        taken = 0
        for function, real in split(self.bundle.manifest, self.position, len(tokens), only):
            call = self._call(function, tokens[taken : taken + real])
            self.accept(call, real)
            result = call.result(real - 1)
            taken += real
        if result is None:
            raise AssertionError  # `check` refuses an empty prompt, and `split` covers the rest
        return result

    def verify(self, tokens: Sequence[int]) -> Call:
        """Compute a row for each of these tokens and commit none; `accept` takes a prefix."""
        self.check(tokens)
        function = verify_taking(self.bundle.manifest, len(tokens))
        if function is None:
            raise no_verify(self.bundle.manifest, len(tokens))
        if not sees_all(function, self.position, len(tokens)):
            message = f"`{function.name}` loses positions of a window at position {self.position}"
            place = Place(str(self.bundle.path))
            remedy = "go on with `decode`, or verify fewer tokens"
            raise TopocError(error("run.window-lost", message, place, help=remedy))
        return self._call(function, tokens)

    def accept(self, call: Call, real: int) -> None:
        """Commit the first `real` tokens of a call that began where the session stands."""
        if call.position != self.position or not 0 <= real <= call.real:
            message = (
                f"{real} of the {call.real} tokens at position {call.position}"
                f" can't be committed at position {self.position}"
            )
            raise TopocError(error("run.stale-call", message, Place(str(self.bundle.path))))
        if real < call.real and self.caches.in_graph(call.function):
            message = f"`{call.function.name}` wrote its caches in the graph and can't keep a part"
            raise TopocError(error("run.written-in-graph", message, Place(str(self.bundle.path))))
        with self.caches.changing(call.function):
            self.caches.commit(call, real)
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
        """Run the steps of a function; only states that it writes itself change."""
        call = Call(
            number=next(self._calls),
            function=function,
            position=self.position,
            tokens=tuple(tokens),
            file=str(self.bundle.path),
        )
        feed = self._feeder.begin(call, self.caches.arrays)
        for index, step in enumerate(function.steps):
            self.caches.enter(function, step)
            inputs = {one.feature: feed(one) for one in step.inputs if one.source.kind != "state"}
            probes = self._probes(step)
            outputs = self.caches.instance.predict(step, inputs, probes)
            self._take(call, step, outputs, probes)
            if self.watch is not None:
                self.watch(Moment(call, index, step, inputs, outputs))
        return call

    def _take(
        self, call: Call, step: Step, outputs: Mapping[str, Array], probes: Sequence[str]
    ) -> None:
        """Put each output where its sink says."""
        for one in step.outputs:
            value = self._checked(step, one, outputs)
            if one.sink.kind == "buffer":
                self.caches.replace(call, one, value)
            else:
                call.take(one, value)
        for probe in probes:
            call.probed = np.asarray(outputs[probe], np.float32)

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
