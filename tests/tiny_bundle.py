"""A bundle of two chunks whose packages compute nothing; `tiny_reader` is what they would be."""

import numpy as np
from tiny_package import write_package

from topoc.lowering.bundle.reader import BundleWriter
from topoc.lowering.manifest import (
    SCHEMA,
    Buffer,
    Function,
    Input,
    Manifest,
    ModelInfo,
    Output,
    RopeTable,
    Sink,
    Source,
    Step,
    Table,
)

WINDOW, CONTEXT, VOCABULARY, HIDDEN = 6, 40, 97, 2
FILL = -1e4


def _input(feature, shape, dtype="fp32", **source):
    return Input(feature=feature, shape=shape, dtype=dtype, source=Source(**source))


def _output(feature, shape, dtype="fp32", **sink):
    return Output(feature=feature, shape=shape, dtype=dtype, sink=Sink(**sink))


def _head(role, tokens, head):
    rows = tokens if role == "verify" else 1
    hidden = _output("hidden_out", (1, HIDDEN, 1, rows), kind="hidden", scale=0.5)
    token = _output("token", (1, 1, 1, rows), "int32", kind="token", probe="inner_logits")
    logits = _output("logits", (1, VOCABULARY, 1, rows), kind="logits")
    topk = (
        _output("ids", (1, 5, 1, rows), "int32", kind="topk_ids"),
        _output("best", (1, 5, 1, rows), kind="topk_logits"),
    )
    return (hidden, *{"argmax": (token,), "logits": (logits,), "topk": topk}[head])


def _caches(chunk, window, slots, write, tokens):
    """The cache's inputs and outputs in a call."""
    in_graph = tokens == 1 and write != "append"
    rule = "shift" if write == "shift" else "modulo"
    keys = "cache" if in_graph else "cache+call"
    shape = (1, 1, slots, 1)
    mask = {"window": window, "slots": slots, "rule": rule, "keys": keys, "fill": FILL}
    seen = slots + (0 if in_graph else tokens)
    inputs = [_input("mask", (1, 1, tokens, seen), kind="mask", **mask)]
    if in_graph and write == "blend":
        inputs.append(_input("slot", (1, 1, slots, 1), kind="slot", slots=slots, rule=rule))
    outputs = []
    for holds in "kv":
        name = f"{chunk}.{holds}"
        inputs.append(_input(holds, shape, kind="buffer", name=name))
        made = shape if in_graph else (1, 1, tokens, 1)
        outputs.append(
            _output(f"{holds}_new", made, kind="buffer" if in_graph else "rows", name=name)
        )
    return inputs, outputs


def _function(name, role, tokens, *, chunks, write, head):
    row = (1, HIDDEN, 1, tokens)
    steps = []
    for at, (chunk, window, slots) in enumerate(chunks):
        inputs, outputs = _caches(chunk, window, slots, write, tokens)
        turn = (1, 1, 1, tokens)
        inputs += [_input("cos", turn, kind="rope_cos", name=f"rope_{chunk}")]
        inputs += [_input("sin", turn, kind="rope_sin", name=f"rope_{chunk}")]
        if at == 0:
            inputs += [_input("x", row, kind="embedding", name="embed", scale=0.5)]
            outputs += [_output("y", row, kind="value", name="between", scale=0.5)]
        else:
            inputs += [_input("x", row, kind="value", name="between")]
            outputs += _head(role, tokens, head)
            if role == "prefill":
                inputs += [_input("last", turn, kind="last_row")]
        step = {"package": f"{chunk}.mlpackage", "function": name, "unit": "ane"}
        steps.append(Step(**step, inputs=tuple(inputs), outputs=tuple(outputs)))
    return Function(name=name, role=role, tokens=tokens, steps=tuple(steps))


def tiny_manifest(write="append", *, prefills=(4, 7), slots=WINDOW, head="argmax", context=CONTEXT):
    """A sliding chunk `near` and a full chunk `far`, with decode, prefills and a verify of 3."""
    chunks = (("near", WINDOW, slots), ("far", None, context))
    calls = [("decode", "decode", 1)]
    calls += [(f"prefill_{n}", "prefill", n) for n in prefills]
    calls += [("verify_3", "verify", 3)]
    buffers = tuple(
        Buffer(
            id=f"{chunk}.{holds}",
            shape=(1, 1, count, 1),
            dtype="fp32",
            holds=holds,
            layers=(layer,),
            rule="shift" if write == "shift" else "modulo",
            window=window,
        )
        for layer, (chunk, window, count) in enumerate(chunks)
        for holds in "kv"
    )
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
    rope = {
        f"rope_{c}": RopeTable(path=f"{c}.npy", positions=context, width=1) for c, _, _ in chunks
    }
    return Manifest(
        schema=SCHEMA,
        build="b",
        name="tiny",
        status="works",
        precision="fp32",
        toolchain={"topoc": "0"},
        target={"unit": "ane"},
        model=model,
        tables={
            "embed": Table(
                path="embed.bin",
                dtype="int8",
                rows=VOCABULARY,
                width=HIDDEN,
                multiplier=4.0,
                scales="embed.scale.bin",
            )
        },
        ropes=rope,
        buffers=buffers,
        functions=tuple(_function(*call, chunks=chunks, write=write, head=head) for call in calls),
        tokenizer=(),
    )


def write_files(folder, manifest):
    """The host tables: row t of the embedding is (t + 1, 1) after scale and multiplier."""
    ids = np.arange(VOCABULARY)
    rows = np.stack([ids + 1, np.ones_like(ids)], axis=1).astype(np.int8)
    for table in manifest.tables.values():
        rows.tofile(folder / table.path)
        np.full(VOCABULARY, 0.25, "<f4").tofile(folder / table.scales)
    for rope in manifest.ropes.values():
        cos = np.arange(1.0, rope.positions + 1)[:, None]
        with (folder / rope.path).open("wb") as file:
            np.save(file, np.stack([cos, -cos]).astype(np.float32))
    steps = [step for one in manifest.functions for step in one.steps]
    for package in {step.package for step in steps}:
        mine = {step.function: step for step in steps if step.package == package}
        write_package(folder / package, mine.values(), manifest.build)


def write_bundle(path, manifest):
    """The whole bundle; the manifest as it was sealed."""
    with BundleWriter(path) as writer:
        write_files(writer.directory, manifest)
        return writer.seal(manifest)
