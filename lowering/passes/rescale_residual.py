"""Keep the residual stream inside fp16, exactly."""

from typing import ClassVar

from attrs import define, evolve, field, frozen

from topoc.lowering.ir import Binding, Input, Op, Output, Program, Value
from topoc.lowering.ops.elementwise import Add, Copy, Scale, ScaleBy
from topoc.lowering.ops.head import SelectToken
from topoc.lowering.ops.linear import Embed, Linear
from topoc.lowering.ops.norm import RmsNorm
from topoc.lowering.ops.quantize import QuantizeDequantize
from topoc.lowering.passes.rewrite import Pass


@frozen(eq=False, repr=False)
class RescaleResidual(Pass):
    """Hold the residual stream of each layer at a power of two of its true value.

        %n = rms_norm(%x, @in, eps=e)           %s = scale(%x, s7 / s6)
        %b = rms_norm(%branch, @post)           %n = rms_norm(%s, @in, eps=e * s7^2)
        %y = add(%x, %b)                  -->   %b = rms_norm(%branch, @post * s7)
                                                %y = add(%s, %b)

    A norm takes out the scale of what it reads, so only its epsilon changes; a projection that
    reads the stream without a norm takes it out through its weights, and the steps of int8 before
    it shrink along. What is added gets the scale through the gain of its last norm, or else through
    its projection. `scales` has one entry a layer and one for the final norm; where two neighbours
    differ, one multiplication switches. Powers of two are exact, so fp32 programs compute what they
    did before.
    """

    name: ClassVar[str] = "rescale-residual"
    scales: tuple[float, ...] = ()

    def run(self, program: Program) -> Program:
        """Rescale, or return the program as it is where no scale differs from one."""
        if all(scale == 1.0 for scale in self.scales):
            return program
        return _Rescaling(self.scales, program).run()


@define(eq=False, repr=False)
class _Rescaling:
    """The walk over one program; `at` tells the scale of each value of the residual stream."""

    scales: tuple[float, ...]
    program: Program
    at: dict[Value, float] = field(factory=dict)
    switched: dict[Value, Value] = field(factory=dict)
    done: dict[Value, Binding] = field(factory=dict)

    def run(self) -> Program:
        inputs = tuple(self._entered(one) for one in self.program.inputs)
        for binding in self.program.bindings:
            self._visit(binding)
        outputs = tuple(self._left(one) for one in self.program.outputs)
        bindings = tuple(dict.fromkeys(self.done.values()))
        return evolve(self.program, inputs=inputs, bindings=bindings, outputs=outputs)

    def _entered(self, one: Input) -> Input:
        """The stream enters at the scale of the layer before, or of the first one."""
        reader = self._reader(one.value)
        if one.source.kind not in {"embedding", "value"} or reader is None:
            return one
        if not _reads_stream(reader.op, one.value):
            return one
        layer = next((b.layer for b in self.program.bindings if b.layer is not None), None)
        before = len(self.scales) - 2 if layer is None else max(layer - 1, 0)
        self.at[one.value] = self.scales[before]
        return evolve(one, source=evolve(one.source, scale=self.scales[before]))

    def _reader(self, value: Value) -> Binding | None:
        """The first op that reads a value; of one that goes through int8, what reads it then."""
        found = next((b for b in self.program.bindings if value in b.op.operands), None)
        if found is not None and isinstance(found.op, QuantizeDequantize):
            return self._reader(found.result)
        return found

    def _left(self, one: Output) -> Output:
        if one.value not in self.at:
            return one
        return evolve(one, sink=evolve(one.sink, scale=self.at[one.value]))

    def _visit(self, binding: Binding) -> None:
        op = binding.op
        if isinstance(op, Scale) and isinstance(self._producer(op.x), Embed):
            self._keep(evolve(binding, op=evolve(op, factor=op.factor * self.scales[0])))
            self.at[binding.result] = self.scales[0]
        elif not any(value in self.at for value in op.operands):
            self._keep(binding)
        elif isinstance(op, (SelectToken, Copy)):
            self._keep(binding)
            self.at[binding.result] = self.at[op.x]
        elif isinstance(op, QuantizeDequantize):
            self._keep(evolve(binding, op=evolve(op, scale=op.scale * self.at[op.x])))
            self.at[binding.result] = self.at[op.x]
        else:
            self._rescale(binding)

    def _rescale(self, binding: Binding) -> None:
        """A norm or a sum that reads the stream."""
        scale = self._scale_of(binding)
        for value in binding.op.operands:
            if value in self.at and self.at[value] != scale:
                self._switch(binding, value, scale)
        op = binding.op.with_operands(self.switched)
        if isinstance(op, RmsNorm):
            self._keep(evolve(binding, op=evolve(op, eps=op.eps * scale**2)))
        elif isinstance(op, Linear):
            self._keep(evolve(binding, op=evolve(op, weight=op.weight.scaled(1 / scale))))
        elif isinstance(op, ScaleBy):
            self._keep(evolve(binding, op=op))
            self.at[binding.result] = scale
        elif isinstance(op, Add):
            self._scale_branch(op.y, scale)
            self._keep(evolve(binding, op=op))
            self.at[binding.result] = scale
        else:
            message = f"{op.mnemonic} reads the residual stream; no rescale is known for it"
            raise NotImplementedError(message)

    def _scale_of(self, reader: Binding) -> float:
        """A layer's scale; before the first layer the stream has what it came with."""
        if reader.layer is not None:
            return self.scales[reader.layer]
        if isinstance(reader.op, Linear):
            return self.at[reader.op.x]
        return self.scales[-1]

    def _switch(self, reader: Binding, value: Value, scale: float) -> None:
        """Bring a value of the stream to another scale, once for all of its later readers."""
        new = self.switched.get(value)
        if new is None:
            new = Value(f"{value.name}_rescaled", value.type)
            factor = scale / self.at[value]
            self._keep(Binding((new,), Scale(value, factor), reader.layer, reader.span))
            self.switched[value] = new
        self.at[new] = scale

    def _scale_branch(self, branch: Value, scale: float) -> None:
        binding = self.done[branch]
        op = binding.op
        if isinstance(op, RmsNorm):
            op = evolve(op, gain=op.gain.scaled(scale))
        elif isinstance(op, Linear):
            op = evolve(op, weight=op.weight.scaled(scale))
        else:
            message = f"{op.mnemonic} ends a residual branch; no rescale is known for it"
            raise NotImplementedError(message)
        self._keep(evolve(binding, op=op))

    def _producer(self, value: Value) -> object:
        binding = self.done.get(value)
        return None if binding is None else binding.op

    def _keep(self, binding: Binding) -> None:
        self.done.update(dict.fromkeys(binding.results, binding))


def _reads_stream(reader: Op, value: Value) -> bool:
    """Whether an op reads a value as the residual stream: unnormalised, whatever its scale."""
    if isinstance(reader, Linear):  # a head reads what was normalised in the chunk before
        return reader.weight.role not in {"embed", "head"}
    if isinstance(reader, Add):
        return reader.x == value
    return isinstance(reader, (RmsNorm, SelectToken, Copy))
