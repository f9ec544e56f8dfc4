"""Each rule of the runtime contract, broken on purpose, changes what the model sees."""

import attrs
import numpy as np
import pytest
from test_engine import (
    APART,
    IN_GRAPH,
    OTHER_WALLS,
    STATE,
    agrees,
    some_tokens,
)
from tiny_bundle import CONTEXT, WINDOW, tiny_manifest, write_bundle
from tiny_reader import Reader

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine import caches, feeding, positions, schedule
from topoc.lowering.engine.caches import Caches
from topoc.lowering.engine.driver import Engine

W = WINDOW


def wider_window(monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(
        feeding, "visible", lambda k, q, w: rule(k, q, None if w is None else w + 1)
    )


def narrower_window(monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(
        feeding, "visible", lambda k, q, w: rule(k, q, None if w is None else w - 1)
    )


def future_is_seen(monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(feeding, "visible", lambda k, q, w: rule(k, q + 1, w and w + 1))


def empty_slots_are_seen(monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(
        feeding,
        "visible",
        lambda k, q, w: rule(k, q, w) | np.broadcast_to(k == -1, (len(q), len(k))),
    )


def padding_keys_repeat_the_last_position(monkeypatch):
    rule = feeding.key_positions

    def repeated(keys, *a, position, real, tokens):
        found = rule(keys, *a, position=position, real=real, tokens=tokens)
        return (
            found
            if keys == "cache"
            else np.where(
                np.arange(len(found)) >= len(found) - tokens + real, position + real - 1, found
            )
        )

    monkeypatch.setattr(feeding, "key_positions", repeated)


def cache_mask_of_the_call_before(monkeypatch):
    rule = feeding.key_positions

    def stale(keys, *a, position, real, tokens):
        back = 1 if keys == "cache" and position else 0
        return rule(keys, *a, position=position - back, real=real, tokens=tokens)

    monkeypatch.setattr(feeding, "key_positions", stale)


def padding_rows_are_committed(monkeypatch):
    def greedy(cache, rows, rule, *, position, real):
        positions.store(cache, rows, rule, position=position, real=rows.shape[-2])

    monkeypatch.setattr(caches, "store", greedy)


def one_row_too_few_is_committed(monkeypatch):
    def short(cache, rows, rule, *, position, real):
        positions.store(cache, rows, rule, position=position, real=real - 1)

    monkeypatch.setattr(caches, "store", short)


def rows_are_not_committed(monkeypatch):
    monkeypatch.setattr(caches, "store", lambda *_, **__: None)


def rows_are_stored_a_slot_late(monkeypatch):
    def late(cache, rows, rule, *, position, real):
        positions.store(cache, rows, rule, position=position, real=real)
        cache[:] = np.roll(cache, 1, axis=-2)

    monkeypatch.setattr(caches, "store", late)


def the_first_rows_of_a_long_prefill_are_kept(monkeypatch):
    def early(cache, rows, rule, *, position, real):
        fitting = min(real, cache.shape[-2])
        positions.store(cache, rows, rule, position=position, real=fitting)

    monkeypatch.setattr(caches, "store", early)


def the_row_before_the_last_is_selected(monkeypatch):
    _spoil(monkeypatch, "last_row", lambda value: np.roll(value, -1, axis=3))


def the_row_after_the_last_is_selected(monkeypatch):
    _spoil(monkeypatch, "last_row", lambda value: np.roll(value, 1, axis=3))


def sine_and_cosine_are_swapped(monkeypatch):
    _spoil(monkeypatch, "rope_cos", lambda value: -value)


def the_embedding_is_not_scaled(monkeypatch):
    _spoil(monkeypatch, "embedding", lambda value: value * 2)


def the_slot_is_one_late(monkeypatch):
    _spoil(monkeypatch, "slot", lambda value: np.roll(value, 1, axis=2))


def _spoil(monkeypatch, kind, how):
    made = feeding.Feeder._made

    def spoiled(self, call, one):
        value = made(self, call, one)
        return how(value) if one.source.kind == kind else value

    monkeypatch.setattr(feeding.Feeder, "_made", spoiled)


def positions_are_one_late(monkeypatch):
    rope = feeding.Feeder._rope

    def late(self, call, one, half):
        return rope(
            self, attrs.evolve(call, position=min(call.position + 1, CONTEXT - 8)), one, half
        )

    monkeypatch.setattr(feeding.Feeder, "_rope", late)


def padding_repeats_the_first_row(monkeypatch):
    """The last real row is what a head without a selector reads in a padding row."""
    monkeypatch.setattr(
        feeding,
        "query_positions",
        lambda position, real, tokens: np.roll(
            positions.query_positions(position=position, real=real, tokens=tokens), 1
        ),
    )


EVERYWHERE = [
    wider_window,
    narrower_window,
    future_is_seen,
    empty_slots_are_seen,
    padding_keys_repeat_the_last_position,
    padding_rows_are_committed,
    one_row_too_few_is_committed,
    rows_are_not_committed,
    rows_are_stored_a_slot_late,
    the_first_rows_of_a_long_prefill_are_kept,
    the_row_before_the_last_is_selected,
    the_row_after_the_last_is_selected,
    sine_and_cosine_are_swapped,
    the_embedding_is_not_scaled,
    positions_are_one_late,
    padding_repeats_the_first_row,
]


def the_wrap_is_ignored(monkeypatch):
    _room(monkeypatch, unwrapped=())


def short_calls_are_made_of_full_ones(monkeypatch):
    _room(monkeypatch, full_only=False)


def _room(monkeypatch, **changes):
    rule = schedule.room
    monkeypatch.setattr(
        schedule, "room", lambda one, *where: rule(attrs.evolve(one, **changes), *where)
    )


def padding_rows_have_slots(monkeypatch):
    marked = feeding.Feeder._marked

    def all_rows(self, call, one):
        if one.source.kind == "slot":
            missing = one.shape[-1] - call.real
            call = attrs.evolve(call, tokens=call.tokens + call.tokens[-1:] * missing)
        return marked(self, call, one)

    monkeypatch.setattr(feeding.Feeder, "_marked", all_rows)


def the_index_is_one_late(monkeypatch):
    _spoil(monkeypatch, "index", lambda value: (value + 1) % W)


def a_copy_is_forgotten(monkeypatch):
    enter = Caches.enter
    monkeypatch.setattr(
        Caches, "enter", lambda self, one, step: enter(self, attrs.evolve(one, copies=()), step)
    )


def a_state_is_copied_from_the_package_that_did_not_change_it(monkeypatch):
    enter = Caches.enter

    def stale(self, one, step):
        enter(self, one, step)
        self.newest = dict.fromkeys(self.newest, "near.mlpackage")

    monkeypatch.setattr(Caches, "enter", stale)


def rows_go_into_the_first_row(monkeypatch):
    _sunk(monkeypatch, lambda sink: attrs.evolve(sink, row=0))


def _sunk(monkeypatch, change):
    rule = Caches._store

    def stored(self, call, name, real):
        rows = [(attrs.evolve(o, sink=change(o.sink)), value) for o, value in call.rows]
        rule(self, attrs.evolve(call, rows=rows), name, real)

    monkeypatch.setattr(Caches, "_store", stored)


def parts_of_a_buffer_replace_it_whole(monkeypatch):
    rule = Caches.replace

    def replaced(self, call, output, value):
        call.written.pop(output.sink.name, None)
        rule(self, call, output, value)

    monkeypatch.setattr(Caches, "replace", replaced)


def a_rejected_row_is_committed(monkeypatch):
    commit = Caches.commit
    monkeypatch.setattr(Caches, "commit", lambda self, call, _: commit(self, call, call.real))


def a_verify_sees_its_later_rows(monkeypatch):
    rule = feeding.visible

    def leaking(keys, queries, window):
        if len(queries) == 3:  # the verify's alone
            return rule(keys, np.full(3, queries[-1]), window and window + 2)
        return rule(keys, queries, window)

    monkeypatch.setattr(feeding, "visible", leaking)


LAYOUTS = {
    "shift": {"write": "shift"},
    "blend": {"write": "blend"},
    "append": {"write": "append"},
    "state": {"write": "slice", **STATE},
    "graph": {"write": "slice", **STATE, "calls": IN_GRAPH},
    "graph shift": {"write": "shift", "calls": IN_GRAPH},
    "graph blend": {"write": "blend", "calls": IN_GRAPH},
    "apart": {"write": "slice", **STATE, "calls": APART},
    "one buffer": {"write": "blend", "together": True},
    "one state": {"write": "slice", "together": True, **STATE, "calls": OTHER_WALLS},
}
MUTANTS = [(mutant, write) for mutant in EVERYWHERE for write in ("shift", "blend", "append")]
MUTANTS += [(cache_mask_of_the_call_before, write) for write in ("shift", "blend", "state")]
MUTANTS += [(the_slot_is_one_late, "blend"), (the_index_is_one_late, "state")]
MUTANTS += [(the_wrap_is_ignored, "graph"), (short_calls_are_made_of_full_ones, "graph shift")]
MUTANTS += [(padding_rows_have_slots, "graph blend")]
MUTANTS += [(a_copy_is_forgotten, layout) for layout in ("apart", "one state")]
MUTANTS += [(a_state_is_copied_from_the_package_that_did_not_change_it, "apart")]
MUTANTS += [(rows_go_into_the_first_row, layout) for layout in ("one buffer", "one state")]
MUTANTS += [(parts_of_a_buffer_replace_it_whole, "one buffer")]
MUTANTS += [(a_verify_sees_its_later_rows, layout) for layout in ("blend", "state")]
MUTANTS += [(a_rejected_row_is_committed, layout) for layout in LAYOUTS]
MUTANTS += [(rows_are_not_committed, layout) for layout in ("state", "apart", "one state")]
MUTANTS += [(padding_rows_are_committed, layout) for layout in ("state", "apart", "one state")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutants")
    for name, options in LAYOUTS.items():
        write_bundle(root / name, tiny_manifest(**options))
    return {path.name: open_bundle(path) for path in root.iterdir()}


CALLS = ((3, "decode"), (9, None), (13, None), (19, None), (28, None))


def holds(bundle):
    """Whether every answer is right, over decode, prompts, wraps, a turn and rejected drafts."""
    try:
        return answers(Engine(bundle, Reader()), some_tokens(CONTEXT - 8))
    except AssertionError as failure:  # what a package does then, it alone knows
        return "a slice beyond the cache" not in str(failure)


def answers(engine, tokens):
    for end, only in CALLS:
        if not agrees(engine.feed(tokens[engine.position : end], only=only), tokens[:end]):
            return False
        drafts = [*tokens[end : end + 1], 5, 6]
        call = engine.verify(drafts)
        for row in range(3):
            if not agrees(call.result(row), [*tokens[:end], *drafts[: row + 1]]):
                return False
        engine.accept(call, 0)
        engine.accept(engine.verify(drafts), 1)
        if not agrees(engine.feed(tokens[end + 1 : end + 2]), tokens[: end + 2]):
            return False
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_engine_as_it_is_holds(bundles, layout):
    assert holds(bundles[layout])


@pytest.mark.parametrize(("mutant", "layout"), MUTANTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_broken_rule_shows(bundles, monkeypatch, mutant, layout):
    mutant(monkeypatch)
    assert not holds(bundles[layout])


def test_a_row_that_would_see_no_key_is_refused(bundles, monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(feeding, "visible", lambda k, q, w: rule(k, q, w) & (k < 0))
    with pytest.raises(TopocError, match=r"run\.masked-row"):
        Engine(bundles["append"], Reader()).feed([1])
