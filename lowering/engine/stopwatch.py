"""How long the steps of a bundle take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter

from attrs import define, field, frozen

from topoc.dsl.plain import Plain
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.caches import Instance
from topoc.lowering.engine.driver import Engine, Predictor
from topoc.lowering.engine.positions import Array
from topoc.lowering.manifest import Function, Step

Clock = Callable[[], float]


@define
class Stopwatch:
    """A predictor that notes the seconds of each step that another computes."""

    predictor: Predictor
    clock: Clock = perf_counter
    noted: list[tuple[Step, float]] = field(factory=list, init=False, repr=False)

    @property
    def wide(self) -> bool:
        """As the other's."""
        return self.predictor.wide

    def begin(self) -> "Timed":
        """A session of the other, under the clock."""
        return Timed(self.predictor.begin(), self)


@define
class Timed:
    """A session whose steps are timed."""

    instance: Instance
    watch: Stopwatch

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """What the other gives."""
        before = self.watch.clock()
        found = self.instance.predict(step, inputs, probes)
        self.watch.noted.append((step, self.watch.clock() - before))
        return found

    def read_state(self, package: str, state: str) -> Array:
        """As the other's."""
        return self.instance.read_state(package, state)

    def write_state(self, package: str, state: str, value: Array) -> None:
        """As the other's."""
        self.instance.write_state(package, state, value)


@frozen(kw_only=True, eq=False, repr=False)
class Figure(Plain):
    """The times of a function, or of its step in one package, a round each, in ms."""

    function: str
    package: str | None
    rounds: tuple[float, ...]

    @property
    def ms(self) -> float:
        """The median."""
        return median(self.rounds)


def measure(
    bundle: Bundle,
    predictor: Predictor,
    functions: Sequence[Function],
    *,
    rounds: int,
    warm: int,
    clock: Clock = perf_counter,
) -> Iterator[Figure]:
    """Figures of each step of these functions, and then of the whole call with the host's part.

    The first `warm` calls of each are left out: they load the package.
    """
    watch = Stopwatch(predictor, clock)
    session = Engine(bundle, watch)
    for function in functions:
        turns = [_turn(session, watch, function) for _ in range(warm + rounds)][warm:]
        columns = list(zip(*turns, strict=True))
        packages = [*(step.package for step in function.steps), None]
        for package, column in zip(packages, columns, strict=True):
            yield Figure(function=function.name, package=package, rounds=column)


def _turn(session: Engine, watch: Stopwatch, function: Function) -> tuple[float, ...]:
    """The ms of each step of one call, and of the call."""
    if session.position + function.tokens > session.bundle.manifest.model.context:
        session.reset()
    watch.noted.clear()
    before = watch.clock()
    _call(session, function)
    whole = watch.clock() - before
    own = [seconds for step, seconds in watch.noted if step in function.steps]
    return tuple(1000 * seconds for seconds in (*own, whole))


def _call(session: Engine, function: Function) -> None:
    """One call with all its rows; the shapes are fixed, so that any tokens do."""
    vocabulary = session.bundle.manifest.model.vocabulary
    tokens = [at % vocabulary for at in range(function.tokens)]
    if function.role == "verify":
        session.verify(tokens)
    else:
        session.feed(tokens, only=function.name)
