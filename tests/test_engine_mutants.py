"""Each rule of the runtime contract, broken on purpose, changes what the model sees."""

import attrs
import numpy as np
import pytest
from test_engine import agrees, some_tokens
from tiny_bundle import CONTEXT, WINDOW, tiny_manifest, write_bundle
from tiny_reader import Reader

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine import driver as engine_module
from topoc.lowering.engine import feeding, positions
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
        return positions.store(
            cache, rows, rule, position=position, real=rows.shape[-2] if real else 0
        )

    monkeypatch.setattr(engine_module, "store", greedy)


def one_row_too_few_is_committed(monkeypatch):
    def short(cache, rows, rule, *, position, real):
        return positions.store(cache, rows, rule, position=position, real=real - 1)

    monkeypatch.setattr(engine_module, "store", short)


def rows_are_not_committed(monkeypatch):
    monkeypatch.setattr(engine_module, "store", lambda cache, *_, **__: cache)


def rows_are_stored_a_slot_late(monkeypatch):
    def late(cache, rows, rule, *, position, real):
        return np.roll(
            positions.store(cache.copy(), rows, rule, position=position, real=real), 1, axis=2
        )

    monkeypatch.setattr(engine_module, "store", late)


def the_first_rows_of_a_long_prefill_are_kept(monkeypatch):
    def early(cache, rows, rule, *, position, real):
        return positions.store(cache, rows, rule, position=position, real=min(real, cache.shape[2]))

    monkeypatch.setattr(engine_module, "store", early)


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
MUTANTS = [(mutant, write) for mutant in EVERYWHERE for write in ("shift", "blend", "append")]
MUTANTS += [(cache_mask_of_the_call_before, write) for write in ("shift", "blend")]
MUTANTS += [(the_slot_is_one_late, "blend")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutants")
    for write in ("shift", "blend", "append"):
        write_bundle(root / write, tiny_manifest(write, slots=W))
    return {path.name: open_bundle(path) for path in root.iterdir()}


def holds(bundle):
    """Whether every answer is right, over decode, prompts of two lengths, wraps and a turn."""
    engine, tokens = Engine(bundle, Reader()), some_tokens(CONTEXT - 8)
    for end, only in (
        (3, "decode"),
        (5, None),
        (6, None),
        (13, None),
        (18, None),
        (24, "decode"),
        (31, None),
    ):
        if not agrees(engine.feed(tokens[engine.position : end], only=only), tokens[:end]):
            return False
    return True


@pytest.mark.parametrize("write", ["shift", "blend", "append"])
def test_the_engine_as_it_is_holds(bundles, write):
    assert holds(bundles[write])


@pytest.mark.parametrize(("mutant", "write"), MUTANTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_broken_rule_shows(bundles, monkeypatch, mutant, write):
    mutant(monkeypatch)
    assert not holds(bundles[write])


def test_a_row_that_would_see_no_key_is_refused(bundles, monkeypatch):
    rule = feeding.visible
    monkeypatch.setattr(feeding, "visible", lambda k, q, w: rule(k, q, w) & (k < 0))
    with pytest.raises(TopocError, match=r"run\.masked-row"):
        Engine(bundles["append"], Reader()).feed([1])
