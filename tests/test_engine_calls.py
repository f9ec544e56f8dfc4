"""Which calls a session makes, what they give beside an answer, and what a failure leaves."""

import itertools
import sys
import types

import attrs
import numpy as np
import pytest
from test_engine import (
    APART,
    AS_IF_WRITTEN,
    FILLS,
    IN_GRAPH,
    ONLY_IN_GRAPH,
    STATE,
    agrees,
    held,
    some_tokens,
)
from tiny_bundle import (
    CHUNKS,
    COMBINATION,
    CONTEXT,
    DECODE,
    HIDDEN,
    PLE_ROWS,
    VECTOR,
    VERIFY,
    WINDOW,
    Call,
    prefill,
    tiny_manifest,
    write_bundle,
)
from tiny_reader import Reader, truth

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.feeding import Feeder
from topoc.lowering.engine.predict import CoreMLPredictor
from topoc.lowering.engine.sampling import greedy
from topoc.lowering.engine.schedule import split
from topoc.lowering.engine.speculation import Speculation
from topoc.lowering.manifest import Input, Output, Sink, Source


@pytest.fixture
def made(tmp_path):
    """Write and open a bundle."""
    numbers = itertools.count()

    def make(**options):
        path = tmp_path / str(next(numbers))
        write_bundle(path, tiny_manifest(**options))
        return open_bundle(path)

    return make


def names(manifest, position, tokens, only=None):
    return [(one.name, real) for one, real in split(manifest, position, tokens, only)]


RING = {"write": "slice", **STATE}


@pytest.mark.parametrize(
    ("calls", "position", "tokens", "expected"),
    [
        # a slice of 4 in 6 slots fits at 0, 1 and 2 of each round
        (IN_GRAPH[:2], 0, 4, [("graph_4", 4)]),
        (IN_GRAPH[:2], 2, 4, [("graph_4", 4)]),
        (IN_GRAPH[:2], 3, 4, [("decode", 1)] * 3 + [("decode", 1)]),
        (IN_GRAPH[:2], 3, 7, [("decode", 1)] * 3 + [("graph_4", 4)]),
        (IN_GRAPH[:2], 8, 3, [("decode", 1)] * 3),
        # a host that stores the rows takes any number anywhere
        (IN_GRAPH, 3, 4, [("prefill_7", 4)]),
        (IN_GRAPH, 0, 4, [("graph_4", 4)]),
        (IN_GRAPH, 0, 12, [("prefill_7", 7), ("prefill_7", 5)]),
        # several sizes: the largest that fits where it fits, then the smaller ones
        (ONLY_IN_GRAPH, 0, 9, [("graph_5", 5), ("decode", 1), ("graph_2", 2), ("decode", 1)]),
        (ONLY_IN_GRAPH, 1, 5, [("graph_5", 5)]),
        (ONLY_IN_GRAPH, 2, 5, [("graph_2", 2), ("graph_2", 2), ("decode", 1)]),
        (ONLY_IN_GRAPH, 5, 3, [("decode", 1), ("graph_2", 2)]),
        # one that fills caches only never takes the last token, nor a single one
        (FILLS, 0, 1, [("decode", 1)]),
        (FILLS, 0, 2, [("decode", 1)] * 2),
        (FILLS, 0, 4, [("prefill_4", 3), ("decode", 1)]),
        (FILLS, 0, 8, [("prefill_7", 7), ("decode", 1)]),
        (FILLS, 0, 9, [("prefill_7", 7), ("decode", 1), ("decode", 1)]),
    ],
)
def test_a_run_of_tokens_is_split_by_what_each_function_takes(calls, position, tokens, expected):
    manifest = tiny_manifest(calls=calls, **RING)
    assert names(manifest, position, tokens) == expected


def test_a_filling_prefill_leaves_the_last_token_even_where_it_is_full():
    graph = prefill(4, graph=True, answers=False)
    manifest = tiny_manifest(calls=(DECODE, graph), **RING)
    assert names(manifest, 0, 4) == [("decode", 1)] * 4
    assert names(manifest, 0, 5) == [("graph_4", 4), ("decode", 1)]


def test_a_named_function_is_helped_by_decode_where_it_cannot_serve():
    manifest = tiny_manifest(calls=(*IN_GRAPH, prefill(5, answers=False)), **RING)
    assert names(manifest, 0, 6, "graph_4") == [("graph_4", 4), ("decode", 1), ("decode", 1)]
    assert names(manifest, 0, 6, "prefill_5") == [("prefill_5", 5), ("decode", 1)]
    assert names(manifest, 0, 9, "prefill_7") == [("prefill_7", 7), ("prefill_7", 2)]
    assert names(manifest, 0, 2, "decode") == [("decode", 1)] * 2
    for other in ("verify_3", "nothing"):
        with pytest.raises(TopocError, match=r"run\.no-such-function") as found:
            names(manifest, 0, 6, other)
        assert "graph_4" in found.value.findings[0].help


def test_without_decode_a_prefill_takes_single_tokens():
    manifest = tiny_manifest(calls=(prefill(4), prefill(7)))
    assert names(manifest, 0, 8) == [("prefill_7", 7), ("prefill_4", 1)]


def test_a_verify_takes_as_many_tokens_as_its_largest(made):
    engine = Engine(made(calls=(DECODE, VERIFY, Call("verify_5", "verify", 5))), Reader())
    assert engine.verify([1, 2, 3]).function.name == "verify_3"
    assert engine.verify([1, 2, 3, 4]).function.name == "verify_5"
    with pytest.raises(TopocError, match=r"run\.no-such-function") as found:
        engine.verify([1] * 6)
    assert found.value.findings[0].help.startswith("give 3 or 5, or compile")


def test_a_tap_is_the_stream_after_its_layer(made):
    engine, tokens = Engine(made(taps=True), Reader()), some_tokens(12)
    for end in (7, 8):  # a prefill and a decode
        taps = engine.feed(tokens[engine.position : end]).taps
        assert {layer: x.tolist() for layer, x in taps.items()} == {
            0: [truth(tokens[:end])[-1][0], tokens[end - 1] + 1]
        }
    call = engine.verify(tokens[8:11])
    for row in range(3):
        assert call.result(row).taps[0].tolist() == [truth(tokens)[8 + row][0], tokens[8 + row] + 1]
    assert call.taps[0].shape == (HIDDEN, 3)


def test_marks_are_slots_rows_and_an_index(made):
    """Columns of real rows, none for padding, and none for a row that a later one pushes out."""

    def fed(kind, position, real, tokens, *, rule="modulo"):
        shape = {"slot": (1, 1, WINDOW, tokens), "index": (1,), "last_row": (1, 1, 1, tokens)}[kind]
        source = Source(kind=kind, slots=WINDOW, rule=rule)
        one = Input(feature="f", shape=shape, dtype="fp32", source=source)
        function = attrs.evolve(bundle.manifest.functions[0], tokens=tokens)
        call = types.SimpleNamespace(
            function=function, position=position, real=real, tokens=(1,) * real
        )
        return Feeder(bundle)._made(call, one)

    bundle = made()
    for position, real, tokens in itertools.product((0, 1, 5, 6, 13), (1, 2, 5, 6, 7, 9), (9,)):
        for rule in ("modulo", "shift"):
            marked = fed("slot", position, real, tokens, rule=rule)[0, 0]
            slots = held(rule, WINDOW, position + real)
            for row in range(tokens):
                stays = row < real and position + row in slots
                wanted = [float(stays and a == position + row) for a in slots]
                assert marked[:, row].tolist() == wanted
    assert [fed("index", p, 1, 4).tolist() for p in (0, 5, 6, 13)] == [[0], [5], [0], [1]]
    assert fed("last_row", 3, 2, 4).reshape(-1).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("write", ["blend", "shift"])
def test_a_verify_that_would_push_out_what_it_sees_is_refused(made, write):
    """It sees its rows as if they were written, in a cache of no more slots than the window."""
    engine, tokens = Engine(made(write=write, calls=AS_IF_WRITTEN), Reader()), some_tokens(20)
    for start in range(12):
        if write == "shift":
            with pytest.raises(TopocError, match=r"run\.no-such-function"):
                engine.verify(tokens[start : start + 2])  # a padding row would be shifted in
        if start + 3 <= WINDOW:
            call = engine.verify(tokens[start : start + 3])
            for row in range(3):
                assert agrees(call.result(row), tokens[: start + row + 1])
        else:
            with pytest.raises(TopocError, match=r"run\.window-lost.*`verify_3`"):
                engine.verify(tokens[start : start + 3])
        assert agrees(engine.feed(tokens[start : start + 1]), tokens[: start + 1])


def test_speculation_decodes_where_it_cannot_verify(made):
    prompt = [0, 0]
    plain, drafted = (Engine(made(write="blend", calls=AS_IF_WRITTEN), Reader()) for _ in "ab")
    for engine in (plain, drafted):
        engine.predictor.letters = 1
    speculation = Speculation(drafted)
    found = list(speculation.generate(prompt, 20, greedy, set()))
    assert found == list(plain.generate(prompt, 20, greedy, set()))
    assert speculation.accepted == speculation.drafted > 0


# tokens before channels


CHANNELS = {"embedding", "per_layer", "last_row", "value", "tap", "hidden", "logits"}
CHANNELS |= {"topk_ids", "topk_logits"}


def turned(value, kind, verify):
    """A feature's array with tokens first, or back."""
    if kind in {"rope_cos", "rope_sin"}:
        return value.swapaxes(2, 3)
    if kind in CHANNELS:
        return (
            value[:, :, 0].swapaxes(1, 2) if value.ndim == 4 else value.swapaxes(1, 2)[:, :, None]
        )
    if kind in {"token", "token_logit"}:
        return value.reshape((1, -1) if verify else -1)
    return value


def turned_manifest(manifest):
    """Every feature that has channels, with its tokens first; and the logit of the token."""

    def feature(one, end, function):
        port = getattr(one, end)
        shape = turned(np.empty(one.shape), port.kind, function.role == "verify").shape
        return attrs.evolve(one, shape=shape, **{end: attrs.evolve(port, layout="tokens")})

    def step(one, function):
        rows = function.tokens if function.role == "verify" else 1
        sink = Sink(kind="token_logit", scale=0.5)
        logit = Output(feature="token_logit", shape=(1, 1, 1, rows), dtype="fp32", sink=sink)
        told = any(output.sink.kind == "token" for output in one.outputs)
        return attrs.evolve(
            one,
            inputs=tuple(feature(i, "source", function) for i in one.inputs),
            outputs=tuple(feature(o, "sink", function) for o in (*one.outputs, *[logit] * told)),
        )

    functions = (
        attrs.evolve(one, steps=tuple(step(s, one) for s in one.steps))
        for one in manifest.functions
    )
    return attrs.evolve(manifest, functions=tuple(functions))


class Turned(Reader):
    """The same packages behind features with tokens first."""

    def predict(self, step, inputs, probes):
        verify = step.function.startswith("verify")
        kinds = {one.feature: one.source.kind for one in step.inputs}
        kinds |= {one.feature: one.sink.kind for one in step.outputs}
        back = {name: turned(value, kinds[name], verify) for name, value in inputs.items()}
        found = super().predict(step, back, probes)
        for name, value in found.items():
            if name in kinds:
                found[name] = turned(value, kinds[name], verify)
        return found


@pytest.mark.parametrize("head", ["argmax", "logits", "topk"])
def test_tokens_may_come_before_channels(tmp_path, head):
    manifest = tiny_manifest("blend", head=head, taps=True, per_layer=True)
    write_bundle(tmp_path / "b", turned_manifest(manifest))
    write_bundle(tmp_path / "plain", manifest)
    engine = Engine(open_bundle(tmp_path / "b"), Turned())
    plain = Engine(open_bundle(tmp_path / "plain"), Reader())
    tokens = [t % PLE_ROWS for t in some_tokens(24)]
    moments = [], []
    engine.watch, plain.watch = moments[0].append, moments[1].append
    for end in (5, 6, 14, 15):
        fed = [one.feed(tokens[one.position : end]) for one in (engine, plain)]
        assert_alike(*fed)
    calls = [one.verify(tokens[15:18]) for one in (engine, plain)]
    for row in range(3):
        assert_alike(*(call.result(row) for call in calls))
    for ours, theirs in zip(*moments, strict=True):
        for one in theirs.step.inputs:
            value = turned(ours.inputs[one.feature], one.source.kind, verify=False)
            assert np.array_equal(value, theirs.inputs[one.feature])


def assert_alike(found, wanted):
    """Two results, the first with the logit of its token where it has one."""
    for name in ("position", "token"):
        assert getattr(found, name) == getattr(wanted, name)
    for name in ("logits", "topk_ids", "topk_logits", "hidden"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name))
    assert np.array_equal(found.taps[0], wanted.taps[0])
    assert found.token_logit == (None if found.token is None else wanted.hidden[1])


# host tables


def vectors(folder, token):
    """A token's per-layer vectors by the definition, one number after another."""
    table = np.fromfile(folder / "ple.bin", np.int8).reshape(PLE_ROWS, -1).astype(float)
    projection = np.fromfile(folder / "projection.bin", "<f4").reshape(-1, HIDDEN)
    gain, e = np.fromfile(folder / "gain.bin", "<f4"), [token + 1, 1]
    found = []
    for layer in range(len(CHUNKS)):
        channels = range(layer * VECTOR, (layer + 1) * VECTOR)
        raw = [sum(projection[c][i] * e[i] for i in range(HIDDEN)) * 0.3 for c in channels]
        root = (sum(x * x for x in raw) / VECTOR + COMBINATION.eps) ** 0.5
        for c, x, g in zip(channels, raw, gain, strict=True):
            found.append((x / root * g + table[token, c] * 0.25 * 2.0) * 0.7)
    return np.array(found), table[token] * 0.5


def test_per_layer_vectors_are_made_by_the_host(made):
    bundle, moments = made(per_layer=True), []
    engine = Engine(bundle, Reader(), watch=moments.append)
    engine.feed([4, 0, 89], only="prefill_4")
    vector, row = moments[0].inputs["vectors"], moments[0].inputs["rows"]
    assert vector.shape == (1, len(CHUNKS) * VECTOR, 1, 4)
    for at, token in enumerate([4, 0, 89, 89]):
        wanted, looked_up = vectors(bundle.path, token)
        assert np.allclose(vector[0, :, 0, at], wanted * 0.5, rtol=1e-5, atol=1e-6)  # its scale
        assert np.array_equal(row[0, :, 0, at], looked_up)
    assert np.array_equal(vector[..., 3], vector[..., 2])


def test_a_token_without_a_row_is_refused_before_anything_runs(made):
    engine = Engine(made(per_layer=True), Reader())
    engine.feed([2, PLE_ROWS - 1])
    with pytest.raises(TopocError, match=rf"run\.no-row.*token {PLE_ROWS} .*`ple`"):
        engine.feed([2, PLE_ROWS])
    assert engine.position == 2


def test_tables_are_mapped_and_not_read(made):
    tables = Feeder(made(per_layer=True))._tables
    angles = (half for both in tables._ropes.values() for half in both)
    for one in (*tables._rows.values(), *tables._scales.values(), *angles):
        assert isinstance(one, np.memmap)
    assert all(isinstance(one, np.memmap) for one in tables._combination)


# states


class Failing(Reader):
    """Fails on demand at a package, or when it is given a state."""

    broken = ""

    def predict(self, step, inputs, probes):
        if self.broken and step.package.startswith(self.broken):
            raise KeyboardInterrupt
        return super().predict(step, inputs, probes)

    def write_state(self, package, state, value):
        if self.broken == "write" and package.startswith("far"):
            raise KeyboardInterrupt
        super().write_state(package, state, value)


@pytest.mark.parametrize("calls", [None, APART], ids=["shared", "apart"])
def test_a_call_that_failed_while_it_changed_states_ends_the_session(made, calls):
    engine, tokens = Engine(made(calls=calls, **RING), Failing()), some_tokens(20)
    engine.feed(tokens[:8])
    engine.predictor.broken = "far"  # `near` has written by then
    with pytest.raises(KeyboardInterrupt):
        engine.feed(tokens[8:9], only="decode")
    engine.predictor.broken = ""
    for going_on in (engine.feed, engine.verify, engine.check):
        with pytest.raises(TopocError, match=r"run\.half-changed.*`decode`"):
            going_on(tokens[8:9])
    engine.reset()
    assert agrees(engine.feed(tokens), tokens)


def test_a_call_that_leaves_states_alone_may_fail(made):
    """The host stores the rows of a prefill or a verify, and it has not begun to."""
    engine, tokens = Engine(made(**RING), Failing()), some_tokens(20)
    engine.feed(tokens[:8])
    engine.predictor.broken = "far"
    for failing in (engine.feed, engine.verify):
        with pytest.raises(KeyboardInterrupt):
            failing(tokens[8:11])
    engine.predictor.broken = ""
    assert agrees(engine.feed(tokens[8:]), tokens)


def test_a_commit_that_failed_half_way_ends_the_session(made):
    engine, tokens = Engine(made(**RING), Failing()), some_tokens(20)
    engine.feed(tokens[:8])
    engine.predictor.broken = "write"
    with pytest.raises(KeyboardInterrupt):
        engine.feed(tokens[8:11])
    engine.predictor.broken = ""
    with pytest.raises(TopocError, match=r"run\.half-changed.*`prefill_4`"):
        engine.feed(tokens[8:11])


def test_a_copy_that_failed_is_made_again(made):
    engine, tokens = Engine(made(calls=APART, **RING), Failing()), some_tokens(20)
    engine.feed(tokens[:8], only="decode")
    engine.predictor.broken = "write"
    with pytest.raises(KeyboardInterrupt):
        engine.verify(tokens[8:11])
    engine.predictor.broken = ""
    assert agrees(engine.feed(tokens[8:]), tokens)


@pytest.mark.parametrize("options", [{"write": "blend"}, RING], ids=["io", "state"])
def test_a_part_of_what_the_graph_wrote_cannot_be_kept(made, options):
    engine = Engine(made(calls=IN_GRAPH, **options), Reader())
    call = engine._call(engine.bundle.manifest.functions[1], [1, 2, 3, 4])
    with pytest.raises(TopocError, match=r"run\.written-in-graph"):
        engine.accept(call, 3)
    engine.accept(call, 4)


class Counting(Reader):
    """Counts the states that are moved."""

    def __init__(self):
        super().__init__()
        self.moved = []

    def read_state(self, package, state):
        self.moved.append(("read", package))
        return super().read_state(package, state)

    def write_state(self, package, state, value):
        self.moved.append(("write", package))
        super().write_state(package, state, value)


def test_states_are_moved_only_where_another_package_changed_them(made):
    engine, tokens = Engine(made(calls=APART, **RING), Counting()), some_tokens(30)

    def moves(count, only):
        engine.predictor.moved.clear()
        engine.feed(tokens[engine.position : engine.position + count], only=only)
        return [what for what, package in engine.predictor.moved if package.startswith("near")]

    assert moves(3, "decode") == []
    assert moves(4, "prefill_4") == ["read", "write", "read", "write"]  # a copy, then the rows
    assert moves(4, "prefill_4") == ["read", "write"]
    assert moves(1, "decode") == ["read", "write"]
    assert moves(1, "decode") == []
    engine.predictor.moved.clear()
    engine.accept(engine.verify(tokens[:3]), 0)
    assert [what for what, _ in engine.predictor.moved] == ["read", "write"] * 2


# Core ML, by a stand-in for coremltools


class Model:
    """An MLModel whose packages are the reader's."""

    def __init__(self, reader, path, function):
        self.reader, self.function = reader, function
        self.package = path.rpartition("/")[2]

    def step(self):
        steps = (s for f in self.reader.manifest.functions for s in f.steps)
        return next(s for s in steps if (s.package, s.function) == (self.package, self.function))

    def make_state(self):
        self.reader.begun.append(self.package)
        held = [one for one in self.step().inputs if one.source.kind == "state"]
        return State({one.feature: np.zeros(one.shape, np.float32) for one in held})

    def predict(self, inputs, state=None):
        own = {} if state is None else state.values
        reader = Reader()
        reader.states = {(self.package, name): value for name, value in own.items()}
        found = reader.predict(self.step(), inputs, ())
        assert reader.states.keys() == {(self.package, name) for name in own}
        return found


class State:
    """An MLState: read and written by name."""

    def __init__(self, values):
        self.values = values

    def read_state(self, name):
        return self.values[name].copy()

    def write_state(self, name, value):
        assert value.shape == self.values[name].shape
        assert value.flags.c_contiguous
        self.values[name][:] = value


@pytest.fixture
def coreml(monkeypatch):
    """A predictor of Core ML for a bundle, and the packages that a state was made of."""

    def predictor(bundle):
        reader = types.SimpleNamespace(manifest=bundle.manifest, begun=[])

        def load(path, compute_units, function_name):
            assert compute_units == "CPU_AND_NE"
            return Model(reader, path, function_name)

        stand_in = types.SimpleNamespace(
            models=types.SimpleNamespace(MLModel=load),
            ComputeUnit=types.SimpleNamespace(CPU_AND_NE="CPU_AND_NE"),
        )
        monkeypatch.setitem(sys.modules, "coremltools", stand_in)
        monkeypatch.setattr(sys, "platform", "darwin")
        return CoreMLPredictor(bundle), reader.begun

    return predictor


@pytest.mark.parametrize("calls", [None, APART, IN_GRAPH], ids=["shared", "apart", "graph"])
def test_core_ml_keeps_one_state_a_package_and_session(made, coreml, calls):
    predictor, begun = coreml(made(calls=calls, **RING))
    tokens, sessions = some_tokens(CONTEXT), [Engine(predictor.bundle, predictor) for _ in "ab"]
    for end in (3, 5, 12, 13, 16):
        for engine, mine in zip(sessions, (tokens, tokens[::-1]), strict=True):
            assert agrees(engine.feed(mine[engine.position : end]), mine[:end])
    for engine, mine in zip(sessions, (tokens, tokens[::-1]), strict=True):
        call = engine.verify([mine[16], 3, 4])
        assert agrees(call.result(2), [*mine[:16], mine[16], 3, 4])
        engine.accept(call, 1)
        assert agrees(engine.feed(mine[17:30]), mine[:30])
    used = {package for package in begun if begun.count(package) == len(sessions)}
    assert used == set(begun)
