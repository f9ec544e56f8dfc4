"""The features that the device runtime of CoreML-LLM knows, by name, order and shape.

Tokens come first in hidden states, (1, T, H), and in rotary rows, (1, 1, T, D); caches, masks and
write masks are laid out as ours are. The KV of the last sliding and of the last full layer that
own any travel as `kv13` and `kv14`, whatever their numbers. The runtime feeds every input that it
knows of to every chunk, so each chunk declares them all.

Names and shapes: conversion/build_verify_chunks.py and models/gemma4_swa_chunks.py of CoreML-LLM
as of 2026-05-06 (72178c6).
"""

from attrs import define, evolve, field

from topoc.dsl.model import Chunk, Function, Kind, Topology
from topoc.lowering.build.chunk import PER_LAYER
from topoc.lowering.build.handling import is_kv_value
from topoc.lowering.ir import Binding, Input, Op, Output, Program, TensorType, Value
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.feature import FromTokens, Greatest, Keep, ToTokens, View
from topoc.lowering.ops.heads import TokenRows
from topoc.lowering.ops.norm import RmsNorm
from topoc.lowering.verify import verify

# The order of a chunk's inputs.
ORDER = (
    "hidden_states", "causal_mask_full", "causal_mask_sliding", "update_mask", "update_indicator",
    "per_layer_raw", "per_layer_combined", "cos_s", "sin_s", "cos_f", "sin_f",
    "K_sliding_in", "V_sliding_in", "K_full_in", "V_full_in",
    "kv13_k", "kv13_v", "kv14_k", "kv14_v",
)  # fmt: skip
# What every chunk of a function takes, whether it reads it or not.
COMMON = frozenset({"causal_mask_full", "causal_mask_sliding", "cos_s", "sin_s", "cos_f", "sin_f"})
OUT = (
    "token_id", "token_ids", "token_logit", "hidden_states_out", "per_layer_combined_out",
    "K_sliding_out", "V_sliding_out", "K_full_out", "V_full_out",
    "new_K_sliding", "new_V_sliding", "new_K_full", "new_V_full",
    "kv13_k", "kv13_v", "kv14_k", "kv14_v",
)  # fmt: skip

FUNCTION = {"decode": "decode_q1", "verify": "verify_q{tokens}"}


def dressed(
    topology: Topology, function: Function, programs: tuple[tuple[Chunk, Program], ...]
) -> tuple[tuple[Chunk, Program], ...]:
    """The programs of one function, in the runtime's features and under its function name."""
    common = COMMON | ({"update_mask"} if function.role == "decode" else set())
    found = [(chunk, _Dressing(topology, function, program).run()) for chunk, program in programs]
    known = {one.value.name: one for _, program in found for one in program.inputs}
    wanted = [known[name] for name in ORDER if name in common and name in known]
    name = FUNCTION[function.role].format(tokens=function.tokens)
    complete = tuple(
        (chunk, evolve(_completed(program, wanted), name=name)) for chunk, program in found
    )
    for _, program in complete:
        verify(program)
    return complete


def _completed(program: Program, wanted: list[Input]) -> Program:
    """With the inputs that it lacks, taken in by an op that nothing reads."""
    mine = {one.value.name for one in program.inputs}
    lacking = [one for one in wanted if one.value.name not in mine]
    held = tuple(
        Binding((Value(f"{one.value.name}_kept", one.value.type),), Keep(one.value))
        for one in lacking
    )
    inputs = sorted((*program.inputs, *lacking), key=lambda one: ORDER.index(one.value.name))
    return evolve(program, inputs=tuple(inputs), bindings=(*held, *program.bindings))


@define(eq=False, repr=False)
class _Dressing:
    """One program on its way into the runtime's features."""

    topology: Topology
    function: Function
    program: Program
    renamed: dict[Value, Value] = field(factory=dict)
    before: list[Binding] = field(factory=list)
    after: list[Binding] = field(factory=list)

    def run(self) -> Program:
        inputs = tuple(self._input(one) for one in self.program.inputs)
        outputs = [made for one in self.program.outputs for made in self._outputs(one)]
        outputs += self._last_hidden()
        outputs.sort(key=lambda one: OUT.index(one.value.name))
        found = (*self.before, *self.program.bindings, *self.after)
        return evolve(
            self.program,
            inputs=inputs,
            bindings=tuple(self._renamed(one) for one in found),
            outputs=tuple(outputs),
        )

    def _input(self, one: Input) -> Input:
        name, source, value = self._input_name(one.source), one.source, one.value
        if source.kind in {"rope_cos", "rope_sin"}:
            return self._entering(one, name, TokenRows, (0, 1, 3, 2))
        if source.kind == "embedding" or (source.kind == "value" and not _is_kv(source)):
            return self._entering(one, name, FromTokens, (0, 3, 1))
        new = evolve(value, name=name)
        self.renamed[value] = new
        return Input(new, source)

    def _entering(
        self, one: Input, name: str, op: type[FromTokens | TokenRows], axes: tuple[int, ...]
    ) -> Input:
        """A feature with tokens before channels, brought into our layout."""
        shape = tuple(one.value.shape[axis] for axis in axes)
        new = Value(name, TensorType(one.value.type.dtype, shape))
        self.before.append(Binding((one.value,), op(new)))
        return Input(new, evolve(one.source, layout="tokens"))

    def _input_name(self, source: Source) -> str:
        if source.kind in {"rope_cos", "rope_sin"}:
            return f"{source.kind[5:]}_{str(source.name)[0]}"
        if source.kind == "mask":
            return f"causal_mask_{self._seeing(source.window).value}"
        if source.kind == "buffer":
            return self._cache_name(str(source.name), "in")
        if source.kind == "value" and _is_kv(source):
            return self._shared_name(str(source.name))
        if source.kind == "slot":
            return "update_indicator" if self.function.role == "verify" else "update_mask"
        names = {"ple_table": "per_layer_raw", PER_LAYER: "per_layer_combined"}
        return names.get(str(source.name), "hidden_states")  # an embedding, or a value of a step

    def _seeing(self, window: int | None) -> Kind:
        """The kind of layer that sees such a window; the two kinds' differ."""
        kinds = self.topology.layers.layers
        return next(
            kinds[block.index].kind
            for block in self.topology.blocks
            if block.attention.window == window
        )

    def _cache_name(self, buffer: str, ending: str) -> str:
        """`K_sliding_in` of `chunk1.k_sliding`."""
        holds, kind = buffer.rpartition(".")[2].split("_", 1)
        return f"{holds.upper()}_{kind}_{ending}"

    def _shared_name(self, value: str) -> str:
        """`kv13_k` of `l13.k`, by the kind of the layer."""
        layer, holds = value.removeprefix("l").split(".")
        kind = self.topology.layers.layers[int(layer)].kind
        return f"kv{13 if kind is Kind.SLIDING else 14}_{holds}"

    def _outputs(self, one: Output) -> list[Output]:
        sink, value = one.sink, one.value
        if sink.kind == "buffer":
            return [self._leaving(one, self._cache_name(str(sink.name), "out"))]
        if sink.kind == "rows":
            holds, kind = str(sink.name).rpartition(".")[2].split("_", 1)
            return [self._leaving(one, f"new_{holds.upper()}_{kind}")]
        if sink.kind == "value" and _is_kv(sink):
            return [self._leaving(one, self._shared_name(str(sink.name)))]
        if sink.kind == "value":
            name = "per_layer_combined_out" if sink.name == PER_LAYER else "hidden_states_out"
            return [self._made(name, ToTokens(value), evolve(sink, layout="tokens"))]
        return self._tokens(one)

    def _leaving(self, one: Output, name: str) -> Output:
        """The same value by another name."""
        new = evolve(one.value, name=name)
        self.renamed[one.value] = new
        return Output(new, one.sink)

    def _tokens(self, one: Output) -> list[Output]:
        """The token and, of a call of one, its logit."""
        sink = evolve(one.sink, layout="tokens")
        if self.function.role == "verify":
            rows = (1, self.function.tokens)
            return [self._made("token_ids", View(one.value, rows), sink)]
        token = self._made("token_id", View(one.value, (1,)), sink)
        logits = self._operand_of(one.value)
        best = Value("token_greatest", TensorType(logits.type.dtype, (1, 1, 1, 1)))
        self.after.append(Binding((best,), Greatest(logits)))
        sunk = Sink(kind="token_logit", layout="tokens")
        return [token, self._made("token_logit", View(best, (1,)), sunk)]

    def _last_hidden(self) -> list[Output]:
        """With the head, the stream after the final norm; of a verify, before it."""
        for binding in self.program.bindings:
            op = binding.op
            if isinstance(op, RmsNorm) and op.gain.role == "norm":
                last = len(self.topology.blocks) - 1
                tap = Sink(kind="tap", layer=last, layout="tokens")
                if self.function.role == "verify":
                    return [self._made("hidden_states_out", ToTokens(op.x), tap)]
                sink = Sink(kind="hidden", layout="tokens")
                return [self._made("hidden_states_out", ToTokens(binding.result), sink)]
        return []

    def _made(self, name: str, op: Op, sink: Sink) -> Output:
        value = Value(name, op.result_type())
        self.after.append(Binding((value,), op))
        return Output(value, sink)

    def _operand_of(self, value: Value) -> Value:
        """What the op reads whose result this is."""
        binding = self.program.producer(value)
        assert binding is not None  # noqa: S101 — outputs are results
        return binding.op.operands[0]

    def _renamed(self, binding: Binding) -> Binding:
        results = tuple(self.renamed.get(value, value) for value in binding.results)
        return evolve(binding, results=results, op=binding.op.with_operands(self.renamed))


def _is_kv(port: Source | Sink) -> bool:
    return port.name is not None and is_kv_value(port.name)
