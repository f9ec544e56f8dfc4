"""The growing program of one chunk function."""

from attrs import define, evolve, field

from topoc.dsl.source import Span
from topoc.lowering.ir import (
    Binding,
    DType,
    Input,
    Op,
    Output,
    Program,
    TensorType,
    Value,
    Weight,
)
from topoc.lowering.manifest import Sink, Source


@define(eq=False, repr=False)
class Scope:
    """Collects inputs, bindings and outputs; `layer` and `span` mark what is bound meanwhile."""

    dtype: DType
    layer: int | None = None
    span: Span | None = None
    _inputs: dict[str, Input] = field(factory=dict)
    _fed: dict[Source, Value] = field(factory=dict)
    _bindings: list[Binding] = field(factory=list)
    _outputs: list[Output] = field(factory=list)
    _renamed: dict[Value, Value] = field(factory=dict)

    def input(
        self, name: str, shape: tuple[int, ...], source: Source, dtype: DType | None = None
    ) -> Value:
        """The input that is fed from `source`; its name gains a suffix if another source has it."""
        if source in self._fed:
            return self._fed[source]
        unique = name if name not in self._inputs else f"{name}_{len(self._inputs)}"
        value = Value(unique, TensorType(dtype or self.dtype, shape))
        self._inputs[unique] = Input(value, source)
        self._fed[source] = value
        return value

    def bind(self, name: str, op: Op) -> Value:
        """The only result of an op; inside a layer its name tells the layer."""
        value = Value(self._name(name), op.result_type())
        self._bindings.append(Binding((value,), op, self.layer, self.span))
        return value

    def bind_all(self, names: tuple[str, ...], op: Op) -> tuple[Value, ...]:
        """All results of an op."""
        types = op.result_types()
        values = tuple(Value(self._name(n), t) for n, t in zip(names, types, strict=True))
        self._bindings.append(Binding(values, op, self.layer, self.span))
        return values

    def output(self, value: Value, sink: Sink, name: str = "") -> None:
        """Let the host take a value, by its own name or a new one that it then has everywhere."""
        self._outputs.append(Output(value, sink))
        if name:
            self._renamed[value] = evolve(value, name=name)

    def weight(self, role: str, shape: tuple[int, ...], offset: float = 0.0) -> Weight:
        """A checkpoint tensor in the element type of the program."""
        return Weight(role, TensorType(self.dtype, shape), offset)

    def rows(self, role: str, shape: tuple[int, ...], first: int, stop: int) -> Weight:
        """A run of rows of a checkpoint tensor."""
        type_ = TensorType(self.dtype, (stop - first, *shape[1:]))
        return Weight(role, type_, first=first)

    def program(self, name: str) -> Program:
        """What was collected."""
        new = self._renamed
        bindings = tuple(map(self._final, self._bindings))
        outputs = tuple(Output(new.get(one.value, one.value), one.sink) for one in self._outputs)
        return Program(name, tuple(self._inputs.values()), bindings, outputs)

    def _final(self, binding: Binding) -> Binding:
        """The binding, with the names that its values have as outputs."""
        new = self._renamed
        if new.keys().isdisjoint(binding.results) and new.keys().isdisjoint(binding.op.operands):
            return binding
        results = tuple(new.get(value, value) for value in binding.results)
        return evolve(binding, results=results, op=binding.op.with_operands(new))

    def _name(self, name: str) -> str:
        return name if self.layer is None else f"l{self.layer}_{name}"
