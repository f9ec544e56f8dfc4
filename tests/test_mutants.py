"""Each feature of the compiler and the engine, broken on purpose, moves the logits off the gate."""

import numpy as np
import pytest
from attrs import evolve
from compiled import compile_text, engine_of, topology_text, with_manifest
from tiny_gemma import WINDOW, tiny_gemma3

from topoc.lowering.engine import caches, feeding
from topoc.lowering.engine.driver import Engine
from topoc.lowering.parity.gates import LIMITS
from topoc.lowering.parity.oracle import Oracle

TOKENS = [2, 0, 130, 5, 7] + [(37 * i) % 131 for i in range(30)]
FUNCTIONS = "decode, prefill(tokens = 7)"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants")
    return folder, Oracle(tiny_gemma3(folder, kv_heads=2)).logits(TOKENS)


@pytest.fixture(scope="module", params=["shift", "blend", "append"])
def bundle(request, checkpoint):
    text = topology_text(f"kv {{ all: write {request.param} }}", functions=FUNCTIONS)
    target = checkpoint[0] / request.param
    return compile_text(text, checkpoint[0], target, precision="fp32")


def error(bundle, reference):
    """The worst |Δlogit| in standard deviations: a short prefill, decode, a second turn, decode."""
    engine, worst, fed = engine_of(bundle), 0.0, 0
    for count in [5, *[1] * WINDOW, 10, *[1] * 6]:
        logits = engine.feed(TOKENS[fed : fed + count]).logits
        fed += count
        worst = max(worst, float(np.abs(logits - reference[fed - 1]).max()))
    return worst / reference.std()


def remasked(bundle, change):
    """The bundle with another source for every mask."""

    def source(one):
        return evolve(one, source=change(one.source)) if one.source.kind == "mask" else one

    functions = tuple(
        evolve(
            function,
            steps=tuple(
                evolve(step, inputs=tuple(map(source, step.inputs))) for step in function.steps
            ),
        )
        for function in bundle.manifest.functions
    )
    return with_manifest(bundle, functions=functions)


def swapped_ropes(bundle):
    ropes = bundle.manifest.ropes
    return with_manifest(bundle, ropes=dict(zip(ropes, reversed(ropes.values()), strict=True)))


def no_root_of_hidden(bundle):
    tables = {"embed": evolve(bundle.manifest.tables["embed"], multiplier=1.0)}
    return with_manifest(bundle, tables=tables)


MANIFESTS = {
    "window one wider": lambda b: remasked(
        b, lambda s: evolve(s, window=s.window and s.window + 1)
    ),
    "window one narrower": lambda b: remasked(
        b, lambda s: evolve(s, window=s.window and s.window - 1)
    ),
    "rope tables swapped": swapped_ropes,
    "no multiplier on the embedding": no_root_of_hidden,
}


def test_bundle_itself_keeps_the_gate(bundle, checkpoint):
    assert error(bundle, checkpoint[1]) <= LIMITS["i"]


@pytest.mark.parametrize("mutant", MANIFESTS)
def test_mutant_manifest_fails(bundle, checkpoint, mutant):
    assert error(MANIFESTS[mutant](bundle), checkpoint[1]) > 10 * LIMITS["i"]


def padding_committed(monkeypatch):
    """All rows of a call are stored, and counted on from the real ones."""
    rule = caches.store

    def all_rows(cache, rows, slots, *, position, **_):
        rule(cache, rows, slots, position=position, real=rows.shape[-2])

    monkeypatch.setattr(caches, "store", all_rows)


def newest_row_lost(monkeypatch):
    """What the call leaves in a cache lacks its last row: the slot keeps what it held."""
    accept = Engine.accept

    def forgetful(self, call, real):
        before = {name: cache.copy() for name, cache in self.caches.arrays.items()}
        accept(self, call, real)
        for buffer in self.bundle.manifest.buffers:
            row, cache = buffer.rows[0], self.caches.arrays[buffer.id]
            (last,) = feeding.slots_of(row.rule, row.slots, position=self.position - 1, real=1)
            cache[..., last, :] = before[buffer.id][..., last, :]

    monkeypatch.setattr(Engine, "accept", forgetful)


def row_before_the_last(monkeypatch):
    """The head reads the row before the last real one."""
    made = feeding.Feeder._made

    def earlier(self, call, one):
        found = made(self, call, one)
        return np.roll(found, -1, 3) if one.source.kind == "last_row" else found

    monkeypatch.setattr(feeding.Feeder, "_made", earlier)


@pytest.mark.parametrize("mutant", [padding_committed, newest_row_lost, row_before_the_last])
def test_mutant_engine_fails(bundle, checkpoint, monkeypatch, mutant):
    mutant(monkeypatch)

    assert error(bundle, checkpoint[1]) > 10 * LIMITS["i"]


def tile_order(monkeypatch):
    """Query head h reads KV head h mod G, not h // (N / G)."""
    from topoc.lowering.emit.mil import environment
    from topoc.lowering.ops.attention import Attention

    emit = environment._EMITTERS[Attention]

    def tiled(op, env):
        one, heads, tokens, width = op.q.shape
        groups = op.k.shape[1]
        split = env.op(
            "reshape", part="t1", x=env[op.q], shape=(heads // groups, groups, tokens, width)
        )
        turned = env.op("transpose", part="t2", x=split, perm=(1, 0, 2, 3))
        env.vars[op.q] = env.op("reshape", part="t3", x=turned, shape=(one, heads, tokens, width))
        return emit(op, env)

    monkeypatch.setitem(environment._EMITTERS, Attention, tiled)


def plain_gain(monkeypatch):
    """The gain is the stored weight, not one more."""
    from topoc.lowering.build.scope import Scope

    weight = Scope.weight
    monkeypatch.setattr(Scope, "weight", lambda self, role, shape, *_: weight(self, role, shape))


def mean_subtracted(monkeypatch):
    """A plain layer norm in place of the mirrored one."""
    from topoc.lowering.emit.mil import environment
    from topoc.lowering.ops.norm import RmsNorm

    def layer_norm(op, env):
        gamma = env.op(
            "slice_by_size",
            part="g",
            x=env.weight(op.gain, "twice"),
            begin=(0,),
            size=op.gain.type.shape,
        )
        shape = [1] * len(op.x.shape)
        shape[op.axis] = op.gain.type.shape[0]
        gain = env.op("reshape", part="r", x=gamma, shape=tuple(shape))
        normal = env.op("layer_norm", part="n", x=env[op.x], axes=(op.axis,), epsilon=op.eps)
        return env.op("mul", x=normal, y=gain)

    monkeypatch.setitem(environment._EMITTERS, RmsNorm, layer_norm)


def erf_gelu(monkeypatch):
    """GELU in its exact form."""
    from topoc.lowering.emit.mil import environment
    from topoc.lowering.ops.elementwise import Activation

    monkeypatch.setitem(
        environment._EMITTERS, Activation, lambda op, env: env.op("gelu", x=env[op.x], mode="EXACT")
    )


@pytest.mark.parametrize("mutant", [tile_order, plain_gain, mean_subtracted, erf_gelu])
def test_mutant_compiler_fails(checkpoint, tmp_path, monkeypatch, mutant):
    folder, reference = checkpoint
    mutant(monkeypatch)
    text = topology_text("kv { sliding: write shift }", functions=FUNCTIONS)
    broken = compile_text(text, folder, tmp_path / "broken", precision="fp32")

    assert error(broken, reference) > 2 * LIMITS["i"]
