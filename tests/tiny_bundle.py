"""A bundle of two chunks whose packages compute nothing; `tiny_reader` is what they would be.

A sliding layer `near` and a full layer `far`, each a chunk of its own. Their caches stand in
buffers of the host or in states of the packages, apart or together in larger tensors.
"""

import numpy as np
from attrs import evolve, frozen
from tiny_package import write_package

from topoc.lowering.bundle.reader import BundleWriter
from topoc.lowering.manifest import (
    SCHEMA,
    Buffer,
    Copy,
    Function,
    Input,
    Manifest,
    ModelInfo,
    Output,
    PerLayer,
    RopeTable,
    Row,
    Sink,
    Source,
    Step,
    Table,
)

WINDOW, CONTEXT, VOCABULARY, HIDDEN = 6, 40, 97, 2
FILL = -1e4
CHUNKS = ("near", "far")
TAP_SCALE = 0.25
VECTOR = 3  # the width of per-layer vectors
PLE_ROWS = VOCABULARY - 7


@frozen
class Call:
    """A function: whose packages it is in, whether the graph stores its rows, what it sees."""

    name: str
    role: str
    tokens: int
    graph: bool = False
    sees: str = "cache+call"
    packages: str = "shared"  # shared, separate, or both chunks in one package
    answers: bool = True


DECODE, VERIFY = Call("decode", "decode", 1), Call("verify_3", "verify", 3)


def prefill(tokens, **options):
    kind = "graph" if options.get("graph") else "prefill"
    return Call(f"{kind}_{tokens}", "prefill", tokens, **options)


@frozen
class Layout:
    """How the caches of a bundle are kept."""

    write: str
    store: str
    together: bool
    slots: int
    context: int

    @property
    def rule(self):
        return "shift" if self.write == "shift" else "modulo"

    @property
    def dtype(self):
        return "fp16" if self.store == "state" else "fp32"

    def row(self, chunk, holds):
        near = chunk == "near"
        return Row(
            layer=CHUNKS.index(chunk),
            holds=holds,
            heads=1,
            slots=self.slots if near else self.context,
            width=1,
            rule=self.rule,
            window=WINDOW if near else None,
        )

    def place(self, chunk, holds):
        """The buffer of a layer's keys or values, and the row of it."""
        at, second = CHUNKS.index(chunk) if self.together else 0, int(holds == "v")
        prefix = "" if self.together else f"{chunk}."
        return (f"{prefix}kv", 2 * at + second) if self.store == "state" else (prefix + holds, at)

    def buffers(self):
        rows = {}
        for chunk in CHUNKS:
            for holds in "kv":
                rows.setdefault(self.place(chunk, holds)[0], []).append(self.row(chunk, holds))
        return tuple(self._buffer(name, tuple(mine)) for name, mine in rows.items())

    def _buffer(self, name, rows):
        heads, width = (2, 3) if self.together else (1, 1)
        shape = (len(rows), heads, max(row.slots for row in rows), width)
        return Buffer(id=name, shape=shape, dtype=self.dtype, store=self.store, rows=rows)

    def shape(self, name):
        return next(one.shape for one in self.buffers() if one.id == name)


def _input(feature, shape, dtype="fp32", **source):
    return Input(feature=feature, shape=shape, dtype=dtype, source=Source(**source))


def _output(feature, shape, dtype="fp32", **sink):
    return Output(feature=feature, shape=shape, dtype=dtype, sink=Sink(**sink))


def _head(call, head):
    rows = call.tokens if call.role == "verify" else 1
    hidden = _output("hidden_out", (1, HIDDEN, 1, rows), kind="hidden", scale=0.5)
    token = _output("token", (1, 1, 1, rows), "int32", kind="token", probe="inner_logits")
    logits = _output("logits", (1, VOCABULARY, 1, rows), kind="logits")
    topk = (
        _output("ids", (1, 5, 1, rows), "int32", kind="topk_ids"),
        _output("best", (1, 5, 1, rows), kind="topk_logits"),
    )
    return [hidden, *{"argmax": (token,), "logits": (logits,), "topk": topk}[head]]


def _in_graph(layout, call):
    return call.graph or (call.role == "decode" and layout.write != "append")


def _sees(layout, call):
    return "cache" if call.tokens == 1 and _in_graph(layout, call) else call.sees


def _caches(layout, call, chunk):
    """The inputs and outputs of a chunk's caches in a call."""
    row, keys = layout.row(chunk, "k"), _sees(layout, call)
    where = {"slots": row.slots, "rule": layout.rule}
    mask = {"window": row.window, "keys": keys, "fill": FILL, **where}
    seen = row.slots + (0 if keys == "cache" else call.tokens)
    inputs = [_input(f"{chunk}_mask", (1, 1, call.tokens, seen), kind="mask", **mask)]
    if (_in_graph(layout, call) or keys == "cache") and layout.write == "blend":
        inputs.append(_input(f"{chunk}_slot", (1, 1, row.slots, call.tokens), kind="slot", **where))
    if _in_graph(layout, call) and layout.write == "slice":
        inputs.append(_input(f"{chunk}_index", (1,), "int32", kind="index", **where))
    ends = _state if layout.store == "state" else _io
    more, outputs = ends(layout, call, chunk)
    return inputs + more, outputs


def _state(layout, call, chunk):
    """Both rows at once where the host stores them."""
    name, row = layout.place(chunk, "k")
    shape = layout.shape(name)
    feature = name.replace(".", "_")
    inputs = [_input(feature, shape, "fp16", kind="state", name=name)]
    if _in_graph(layout, call):
        return inputs, []
    made = (2, shape[1], call.tokens, shape[3])
    return inputs, [_output(f"{chunk}_kv_new", made, kind="rows", name=name, row=row)]


def _io(layout, call, chunk):
    """Rows of `near` have the layer's own heads and width, those of `far` the buffer's."""
    inputs, outputs = [], []
    for holds in "kv":
        name, row = layout.place(chunk, holds)
        _, heads, slots, width = layout.shape(name)
        inputs.append(_input(f"{chunk}_{holds}", layout.shape(name), kind="buffer", name=name))
        kind, made = "buffer", (1, heads, slots, width)
        if not _in_graph(layout, call):
            own = chunk == "near"
            kind, made = "rows", (1, 1 if own else heads, call.tokens, 1 if own else width)
        outputs.append(_output(f"{chunk}_{holds}_new", made, kind=kind, name=name, row=row))
    return inputs, outputs


def _step(layout, call, chunks, head, *, taps, per_layer):
    """One package's part of a call."""
    row, turn = (1, HIDDEN, 1, call.tokens), (1, 1, 1, call.tokens)
    inputs, outputs = [], []
    for chunk in chunks:
        more, made = _caches(layout, call, chunk)
        inputs += [one for one in more if one not in inputs]
        outputs += made
        inputs += [_input(f"{chunk}_cos", turn, kind="rope_cos", name=f"rope_{chunk}")]
        inputs += [_input(f"{chunk}_sin", turn, kind="rope_sin", name=f"rope_{chunk}")]
    if "near" in chunks:
        inputs += [_input("near_x", row, kind="embedding", name="embed", scale=0.5)]
        if per_layer:
            shape = (1, len(CHUNKS) * VECTOR, 1, call.tokens)
            inputs += [_input("vectors", shape, kind="per_layer", scale=0.5)]
            inputs += [_input("rows", shape, kind="embedding", name="ple")]
        if taps:
            outputs += [_output("tap", row, kind="tap", layer=0, scale=TAP_SCALE)]
    else:
        inputs += [_input("far_x", row, kind="value", name="between")]
    if "far" not in chunks:
        outputs += [_output("near_y", row, kind="value", name="between", scale=0.5)]
    elif call.answers:
        outputs += _head(call, head)
        if call.role == "prefill":
            inputs += [_input("last", turn, kind="last_row")]
    name = {"shared": chunks[0], "separate": f"{chunks[0]}.{call.name}", "both": "both"}
    return Step(
        package=f"{name[call.packages]}.mlpackage",
        function=call.name,
        unit="ane",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def _function(layout, call, head, **options):
    walls = [CHUNKS] if call.packages == "both" else [(chunk,) for chunk in CHUNKS]
    batch = call.graph and call.tokens > 1
    rings = {layout.row(chunk, "k").slots for chunk in CHUNKS}
    return Function(
        name=call.name,
        role=call.role,
        tokens=call.tokens,
        steps=tuple(_step(layout, call, chunks, head, **options) for chunks in walls),
        full_only=(batch and layout.write in {"shift", "slice"})
        or (call.tokens > 1 and call.sees == "cache" and layout.write == "shift"),
        unwrapped=tuple(sorted(rings)) if batch and layout.write == "slice" else (),
        answers=call.answers,
    )


def _held(function):
    """Each package of a function with the states that it holds."""
    return dict.fromkeys(
        (step.package, one.source.name)
        for step in function.steps
        for one in step.inputs
        if one.source.kind == "state"
    )


def _with_copies(functions):
    everywhere = sorted({pair for function in functions for pair in _held(function)})

    def others(package, buffer):
        return tuple(p for p, name in everywhere if name == buffer and p != package)

    return tuple(
        evolve(
            function,
            copies=tuple(
                Copy(buffer=buffer, package=package, others=others(package, buffer))
                for package, buffer in _held(function)
                if others(package, buffer)
            ),
        )
        for function in functions
    )


def tiny_manifest(
    write="append",
    *,
    store="io",
    together=False,
    calls=None,
    slots=WINDOW,
    head="argmax",
    context=CONTEXT,
    taps=False,
    per_layer=False,
):
    """With decode, prefills of 4 and 7 and a verify of 3, or the `calls` that are asked for."""
    layout = Layout(write, store, together, slots, context)
    calls = calls or (DECODE, prefill(4), prefill(7), VERIFY)
    model = ModelInfo(
        family="tiny",
        layers=2,
        hidden=HIDDEN,
        vocabulary=VOCABULARY,
        context=context,
        bos=(2,),
        eos=(1,),
        config_sha256="c",
        weights_sha256="w",
    )
    rope = {f"rope_{c}": RopeTable(path=f"{c}.npy", positions=context, width=1) for c in CHUNKS}
    functions = tuple(
        _function(layout, call, head, taps=taps, per_layer=per_layer) for call in calls
    )
    tables = {"embed": _table("embed", VOCABULARY, HIDDEN, 4.0)}
    if per_layer:
        tables["ple"] = _table("ple", PLE_ROWS, len(CHUNKS) * VECTOR, 2.0)
    return Manifest(
        schema=SCHEMA,
        build="b",
        name="tiny",
        status="works",
        precision="fp32",
        toolchain={"topoc": "0"},
        target={"unit": "ane"},
        model=model,
        tables=tables,
        ropes=rope,
        buffers=layout.buffers(),
        functions=_with_copies(functions),
        tokenizer=(),
        per_layer=COMBINATION if per_layer else None,
    )


def _table(name, rows, width, multiplier):
    return Table(
        path=f"{name}.bin",
        dtype="int8",
        rows=rows,
        width=width,
        multiplier=multiplier,
        scales=f"{name}.scale.bin",
    )


COMBINATION = PerLayer(
    embedding="embed",
    rows="ple",
    projection="projection.bin",
    gain="gain.bin",
    dtype="fp32",
    layers=len(CHUNKS),
    width=VECTOR,
    eps=1e-3,
    projection_factor=0.3,
    combined_factor=0.7,
)


def write_files(folder, manifest):
    """The host tables: row t of the embedding is (t + 1, 1) after scale and multiplier."""
    for table in manifest.tables.values():
        ids = np.arange(table.rows)
        rows = np.stack([ids + 1, np.ones_like(ids)], axis=1)
        if table.width != HIDDEN:
            rows = np.random.default_rng(1).integers(-127, 128, (table.rows, table.width))
        rows.astype(np.int8).tofile(folder / table.path)
        np.full(table.rows, 0.25, "<f4").tofile(folder / table.scales)
    for rope in manifest.ropes.values():
        cos = np.arange(1.0, rope.positions + 1)[:, None]
        with (folder / rope.path).open("wb") as file:
            np.save(file, np.stack([cos, -cos]).astype(np.float32))
    if manifest.per_layer is not None:
        random = np.random.default_rng(2)
        channels = manifest.per_layer.layers * manifest.per_layer.width
        projection = random.normal(size=(channels, HIDDEN)).astype("<f4")
        projection.tofile(folder / manifest.per_layer.projection)
        random.normal(size=VECTOR).astype("<f4").tofile(folder / manifest.per_layer.gain)
    steps = [step for one in manifest.functions for step in one.steps]
    for package in {step.package for step in steps}:
        mine = {step.function: step for step in steps if step.package == package}
        write_package(folder / package, mine.values(), manifest.build)


def write_bundle(path, manifest):
    """The whole bundle; the manifest as it was sealed."""
    with BundleWriter(path) as writer:
        write_files(writer.directory, manifest)
        return writer.seal(manifest)
