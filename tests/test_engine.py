"""The engine against the definition of attention, with a model that tells what it saw."""

import random

import attrs
import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bundle import (
    CHUNKS,
    CONTEXT,
    DECODE,
    VERIFY,
    VOCABULARY,
    WINDOW,
    prefill,
    tiny_manifest,
    write_bundle,
)
from tiny_reader import Reader, truth

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.sampling import greedy
from topoc.lowering.engine.schedule import verify_taking
from topoc.lowering.manifest import Input, Source

W = WINDOW
LAYOUTS = [("shift", W), ("shift", W + 3), ("blend", W), ("blend", W + 3)]
LAYOUTS += [("append", W - 1), ("append", W), ("append", W + 3)]

STATE = {"store": "state"}
IN_GRAPH = (DECODE, prefill(4, graph=True), prefill(7), VERIFY)
ONLY_IN_GRAPH = (DECODE, prefill(2, graph=True), prefill(5, graph=True))
AFTER_THE_WRITE = (DECODE, prefill(4, graph=True, sees="cache"), VERIFY)
APART = (DECODE, prefill(4, packages="separate"), prefill(7), evolve(VERIFY, packages="separate"))
OTHER_WALLS = (DECODE, prefill(4, packages="both"), prefill(7), evolve(VERIFY, packages="both"))
AS_IF_WRITTEN = (DECODE, prefill(7), evolve(VERIFY, sees="cache"))
FILLS = (DECODE, prefill(4, answers=False), prefill(7, answers=False), VERIFY)
FILLS_IN_GRAPH = (DECODE, prefill(4, graph=True, answers=False, packages="both"), VERIFY)

KEPT = {
    "state slice": {"write": "slice", **STATE},
    "state blend": {"write": "blend", **STATE},
    "state shift": {"write": "shift", **STATE},
    "state slice, more slots": {"write": "slice", **STATE, "slots": W + 3},
    "one buffer, shift": {"write": "shift", "together": True},
    "one buffer, blend": {"write": "blend", "together": True},
    "one buffer, append": {"write": "append", "together": True},
    "one state in two packages": {"write": "slice", "together": True, **STATE},
    "one state in two packages, shift": {"write": "shift", "together": True, **STATE},
    "graph writes, shift": {"write": "shift", "calls": IN_GRAPH},
    "graph writes, blend": {"write": "blend", "calls": IN_GRAPH},
    "graph writes, one buffer": {"write": "blend", "together": True, "calls": IN_GRAPH},
    "graph writes, state slice": {"write": "slice", **STATE, "calls": IN_GRAPH},
    "graph writes, state blend": {"write": "blend", **STATE, "calls": IN_GRAPH},
    "graph writes, state shift": {"write": "shift", **STATE, "calls": IN_GRAPH},
    "graph writes alone": {"write": "slice", **STATE, "calls": ONLY_IN_GRAPH},
    "seen after the write": {"write": "blend", "slots": W + 3, "calls": AFTER_THE_WRITE},
    "state seen after the write": {
        "write": "slice",
        **STATE,
        "slots": W + 3,
        "calls": AFTER_THE_WRITE,
    },
    "verified as if written": {"write": "blend", "slots": W + 2, "calls": AS_IF_WRITTEN},
    "verified as if shifted": {"write": "shift", "slots": W + 2, "calls": AS_IF_WRITTEN},
    "packages apart, io": {"write": "blend", "calls": APART},
    "packages apart, state": {"write": "slice", **STATE, "calls": APART},
    "packages apart, one state": {"write": "slice", "together": True, **STATE, "calls": APART},
    "other walls, io": {"write": "append", "calls": OTHER_WALLS},
    "other walls, one buffer": {"write": "shift", "together": True, "calls": OTHER_WALLS},
    "other walls, state": {"write": "blend", **STATE, "calls": OTHER_WALLS},
    "other walls, one state": {"write": "slice", "together": True, **STATE, "calls": OTHER_WALLS},
    "fills only": {"write": "blend", "calls": FILLS},
    "fills only, in the graph": {"write": "blend", "together": True, "calls": FILLS_IN_GRAPH},
    "fills only, state": {"write": "slice", **STATE, "calls": FILLS_IN_GRAPH},
}


@pytest.fixture(scope="session")
def bundles(tmp_path_factory):
    """Bundles by what is asked of `tiny_manifest`, each written once."""
    root = tmp_path_factory.mktemp("bundles")
    asked = {(write, slots): {"write": write, "slots": slots} for write, slots in LAYOUTS} | KEPT
    made = {}
    for at, (name, options) in enumerate(asked.items()):
        write_bundle(root / str(at), tiny_manifest(**options))
        made[name] = open_bundle(root / str(at))
    return made


@pytest.fixture(params=LAYOUTS, ids=lambda one: f"{one[0]}-{one[1]}")
def bundle(request, bundles):
    return bundles[request.param]


@pytest.fixture(params=[*LAYOUTS, *KEPT], ids=str)
def any_bundle(request, bundles):
    return bundles[request.param]


def some_tokens(count, seed=0):
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(count)]


def agrees(result, tokens):
    """Whether a result is what the definition gives after all of `tokens`."""
    near, far = truth(tokens)[-1]
    told = result.hidden.tolist() == [near, far] and result.position == len(tokens) - 1
    return told and result.token == far % VOCABULARY


def saw(tokens, position):
    """What the definition lets the sliding layer see at a position."""
    return [(a, tokens[a]) for a in range(max(0, position - W + 1), position + 1)]


def test_every_decode_step_sees_its_window(any_bundle):
    engine, tokens = Engine(any_bundle, Reader()), some_tokens(CONTEXT)
    for p in range(CONTEXT):
        assert agrees(engine.feed(tokens[p : p + 1]), tokens[: p + 1])
        assert engine.predictor.seen[-1][0] == saw(tokens, p)


@pytest.mark.parametrize("start", [0, 1, W - 1, W, W + 1, 2 * W, 2 * W + 1])
@pytest.mark.parametrize("count", [1, W - 1, W, W + 1, 2 * W + 3])
@pytest.mark.parametrize("only", [None, "prefill_4", "prefill_7"])
def test_a_prompt_at_any_position_then_decode_then_a_second_turn(bundle, start, count, only):
    engine, tokens = Engine(bundle, Reader()), some_tokens(CONTEXT)
    for p in range(start):
        engine.feed(tokens[p : p + 1], only="decode")
    end = start + count
    assert agrees(engine.feed(tokens[start:end], only=only), tokens[:end])
    for p in range(end, min(end + W + 1, CONTEXT)):
        assert agrees(engine.feed(tokens[p : p + 1]), tokens[: p + 1])
    turn = engine.position
    if turn < CONTEXT:
        assert agrees(engine.feed(tokens[turn:], only=only), tokens)


def test_every_real_row_of_a_prefill_sees_its_window(any_bundle):
    engine, tokens = Engine(any_bundle, Reader()), some_tokens(2 * W + 3)
    taken = []
    engine.watch = lambda moment: taken.append(moment.call) if moment.index == 0 else None
    engine.feed(tokens)
    rows = [
        seen[t]
        for call, seen in zip(taken, engine.predictor.seen, strict=True)
        for t in range(call.real)
    ]
    assert rows == [saw(tokens, p) for p in range(len(tokens))]


def test_a_short_call_repeats_the_last_real_row_everywhere(bundle):
    engine, moments = Engine(bundle, Reader()), []
    engine.watch = moments.append
    engine.feed(some_tokens(5), only="prefill_7")
    for moment in moments:
        for one in moment.step.inputs:
            value = np.asarray(moment.inputs[one.feature])
            if one.source.kind in {"embedding", "rope_cos", "rope_sin"}:
                assert (value[..., 4:] == value[..., 4:5]).all()
            if one.source.kind == "mask":
                assert (value[:, :, 4:] == value[:, :, 4:5]).all()
                assert (value[..., -2:] != 0).all()  # the padding's own keys


def test_tokens_are_padded_by_the_last_real_one(tmp_path):
    manifest = tiny_manifest()
    with_ids = attrs.evolve(manifest, functions=tuple(_with_ids(f) for f in manifest.functions))
    write_bundle(tmp_path / "b", with_ids)
    moments = []
    Engine(open_bundle(tmp_path / "b"), Reader(), watch=moments.append).feed(
        [5, 9], only="prefill_4"
    )
    assert moments[0].inputs["ids"].tolist() == [[5, 9, 9, 9]]


def _with_ids(function):
    ids = Input(
        feature="ids", shape=(1, function.tokens), dtype="int32", source=Source(kind="tokens")
    )
    first = attrs.evolve(function.steps[0], inputs=(*function.steps[0].inputs, ids))
    return attrs.evolve(function, steps=(first, *function.steps[1:]))


def held(rule, slots, committed):
    """The position in each slot by the definition, one after another; None where it is empty."""
    found = [None] * slots
    for a in range(max(0, committed - slots), committed):
        found[a % slots if rule == "modulo" else slots - committed + a] = a
    return found


def assert_holds(engine, tokens):
    """Each row of each buffer holds what the slot rule says of the tokens that were consumed."""
    assert engine.position == len(tokens)
    near = [near for near, _ in truth(tokens)]
    for buffer in engine.bundle.manifest.buffers:
        cache = engine.caches.read(buffer.id)
        for at, row in enumerate(buffer.rows):
            values = [t + 1 for t in tokens] if CHUNKS[row.layer] == "near" else near
            for slot, a in enumerate(held(row.rule, row.slots, len(tokens))):
                if a is not None:
                    wanted = a + 1 if row.holds == "k" else values[a]
                    assert cache[at, 0, slot, 0] == wanted, (buffer.id, at, slot)


def functions_of(bundle, *roles):
    return [one.name for one in bundle.manifest.functions if one.role in roles]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_split_into_calls_changes_the_answer_or_the_caches(bundles, data):
    bundle = bundles[data.draw(st.sampled_from([*LAYOUTS, *KEPT]))]
    tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=CONTEXT))
    engine = Engine(bundle, Reader())
    ways = [None, *functions_of(bundle, "decode", "prefill")]
    ways += ["verify"] * bool(functions_of(bundle, "verify"))
    while engine.position < len(tokens):
        start = engine.position
        end = start + data.draw(st.integers(1, len(tokens) - start))
        only = data.draw(st.sampled_from(ways))
        if only == "verify":
            wrong = data.draw(st.integers(0, 2))
            right = tokens[start : min(end, start + 3 - wrong)]
            drafts = [*right, *[7] * wrong][: CONTEXT - start]
            if verify_taking(bundle.manifest, len(drafts)) is None:
                engine.feed(tokens[start : start + 1])
                continue
            call = engine.verify(drafts)
            for row in range(call.real):
                assert agrees(call.result(row), [*tokens[:start], *drafts[: row + 1]])
            engine.accept(call, data.draw(st.integers(0, min(len(right), call.real))))
        else:
            assert agrees(engine.feed(tokens[start:end], only=only), tokens[:end])
        assert_holds(engine, tokens[: engine.position])


def test_a_rejected_draft_leaves_no_trace(any_bundle):
    if not functions_of(any_bundle, "verify"):
        return
    engine, tokens = Engine(any_bundle, Reader()), some_tokens(CONTEXT)
    engine.feed(tokens[:9])
    call = engine.verify([3, 4, 5])
    engine.accept(call, 0)
    call = engine.verify([tokens[9], 4, 5])
    engine.accept(call, 1)
    assert agrees(engine.feed(tokens[10:14]), tokens[:14])
    with pytest.raises(TopocError, match=r"run\.stale-call"):
        engine.accept(call, 1)


def test_a_prompt_is_split_by_the_rule(bundles):
    engine, taken = Engine(bundles["append", W], Reader()), []
    engine.watch = lambda m: (
        taken.append((m.call.function.name, m.call.real)) if not m.index else None
    )
    for count, calls in {
        1: [("decode", 1)],
        2: [("prefill_4", 2)],
        5: [("prefill_7", 5)],
        8: [("prefill_7", 7), ("decode", 1)],
        10: [("prefill_7", 7), ("prefill_4", 3)],
    }.items():
        engine.reset()
        taken.clear()
        engine.feed(some_tokens(count))
        assert taken == calls


def test_generates_until_eos_which_is_not_given(bundles):
    engine, prompt = Engine(bundles["blend", W], Reader()), [2, 7, 11]
    history, expected = list(prompt), []
    for _ in range(8):
        expected.append(truth(history)[-1][1] % VOCABULARY)
        history.append(expected[-1])
    assert list(engine.generate(prompt, 8, greedy, set())) == expected
    stop = expected[4]
    engine.reset()
    assert list(engine.generate(prompt, 8, greedy, {stop})) == expected[: expected.index(stop)]


def test_refuses_what_cannot_be_fed_before_anything_changes(bundles):
    engine = Engine(bundles["append", W], Reader())
    engine.feed(some_tokens(30))
    before = {name: value.copy() for name, value in engine.caches.arrays.items()}
    for tokens, code in (
        ([], "run.no-tokens"),
        ([VOCABULARY], "run.unknown-token"),
        ([-1], "run.unknown-token"),
        (some_tokens(CONTEXT - 29), "run.context-full"),
    ):
        with pytest.raises(TopocError, match=code.replace(".", r"\.")):
            engine.feed(tokens)
    with pytest.raises(TopocError, match=r"run\.no-such-function.*") as found:
        engine.feed([1], only="nothing")
    assert "decode" in found.value.findings[0].help
    assert engine.position == 30
    assert all((engine.caches.arrays[name] == value).all() for name, value in before.items())


def test_a_position_beyond_the_rope_table_is_refused(tmp_path):
    manifest = tiny_manifest()
    ropes = {name: attrs.evolve(r, positions=9) for name, r in manifest.ropes.items()}
    write_bundle(tmp_path / "b", attrs.evolve(manifest, ropes=ropes))
    engine = Engine(open_bundle(tmp_path / "b"), Reader())
    engine.feed(some_tokens(9))
    with pytest.raises(TopocError, match=r"run\.position-beyond-table"):
        engine.feed([1])


def test_a_failing_step_leaves_the_session_as_it_was(bundle):
    class Failing(Reader):
        def predict(self, step, inputs, probes):
            if step.package.startswith("far") and self.broken:
                raise KeyboardInterrupt
            return super().predict(step, inputs, probes)

    tokens, reader = some_tokens(12), Failing()
    reader.broken = False
    engine = Engine(bundle, reader)
    engine.feed(tokens[:8])
    reader.broken = True
    for only in ("decode", "prefill_4"):
        with pytest.raises(KeyboardInterrupt):
            engine.feed(tokens[8:9], only=only)
    reader.broken = False
    assert agrees(engine.feed(tokens[8:]), tokens)


@pytest.mark.parametrize("spoil", ["missing", "shape"])
def test_a_predictor_that_gives_something_else_is_refused(bundles, spoil):
    class Spoiled(Reader):
        def predict(self, step, inputs, probes):
            made = dict(super().predict(step, inputs, probes))
            made["near_k_new"] = made["near_k_new"][:, :, :0]
            if spoil == "missing":
                del made["near_k_new"]
            return made

    code = {"missing": r"run\.missing-output", "shape": r"run\.output-shape"}[spoil]
    with pytest.raises(TopocError, match=code):
        Engine(bundles["append", W], Spoiled()).feed([1])


def test_fp16_caches_round_once_and_stay_wide_for_a_wide_predictor(tmp_path):
    manifest = tiny_manifest()
    buffers = tuple(attrs.evolve(b, dtype="fp16") for b in manifest.buffers)

    def half(one):
        end = getattr(one, "source", None) or one.sink
        return attrs.evolve(one, dtype="fp16") if end.kind in {"buffer", "rows"} else one

    functions = tuple(
        attrs.evolve(
            f,
            steps=tuple(
                attrs.evolve(
                    s, inputs=tuple(map(half, s.inputs)), outputs=tuple(map(half, s.outputs))
                )
                for s in f.steps
            ),
        )
        for f in manifest.functions
    )
    write_bundle(tmp_path / "b", attrs.evolve(manifest, buffers=buffers, functions=functions))
    bundle = open_bundle(tmp_path / "b")
    engine = Engine(bundle, Reader())
    engine.feed(some_tokens(5))
    assert {b.dtype for b in engine.caches.arrays.values()} == {np.dtype(np.float16)}
    reader = Reader()
    reader.wide = True
    engine, tokens = Engine(bundle, reader), some_tokens(20)
    assert agrees(engine.feed(tokens), tokens)
    assert {b.dtype for b in engine.caches.arrays.values()} == {np.dtype(np.float32)}
