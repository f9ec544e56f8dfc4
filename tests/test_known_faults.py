"""Faults that were seen in code which did the same work, and that ours does not have.

Each test does what that code got wrong, shows that the answer is transformers' own, and then that
the fault, put back on purpose, would show.
"""

from math import prod
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve, frozen
from compiled import compile_text, engine_of, topology_text, with_manifest
from tiny_gemma4 import WINDOW, tiny_gemma4
from topo_text import codes, linted, table
from twins import TWINS

from topoc.dsl.diagnostic import TopocError
from topoc.dsl.load import load
from topoc.lowering import architecture
from topoc.lowering.build import caches as building
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine import caches, feeding, schedule
from topoc.lowering.engine.caches import Caches
from topoc.lowering.engine.positions import key_positions, query_positions, visible
from topoc.lowering.ops.feature import Keep
from topoc.lowering.parity.gates import LIMITS
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.plan import plan

W = WINDOW
TOKENS = (2, 0, 130, 5, 7, *((37 * i) % 131 for i in range(45)))
# Five sliding owners and a full one, cut apart; two KV heads; six layers that read them.
SMALL = {"layers": 12, "period": 6, "shared": 6, "kv_heads": 2, "double": False}
CHUNKS = "chunk a = ple + L0-2\n  chunk b = L3-8\n  chunk c = L9-11 + norm + head(argmax)"
HOST = "kv {\n  sliding: write shift\n  full: write blend\n  }"
STATES = "kv { all: store state }"
CANDIDATES = 3


@frozen
class Made:
    """A tiny checkpoint, what transformers says of the tokens, and bundles of it."""

    folder: Path
    reference: np.ndarray

    def bundle(self, body: str, functions: str) -> Bundle:
        """Compiled in fp32, in which nothing but a fault is beyond the gate."""
        name = f"{abs(hash((body, functions))):x}"
        text = topology_text(body, chunks=CHUNKS, functions=functions)
        return compile_text(text, self.folder, self.folder.parent / name, precision="fp32")

    def error(self, logits, position: int) -> float:
        """The greatest |Δlogit| after the token at a position, in deviations of the reference."""
        return float(np.abs(logits - self.reference[position]).max() / self.reference.std())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults") / "checkpoint"
    return Made(folder, Oracle(tiny_gemma4(folder, **SMALL)).logits(TOKENS))


@pytest.fixture(scope="module")
def bundles(made):
    """Each bundle is compiled once."""
    found = {}

    def bundle(body, functions):
        if (body, functions) not in found:
            found[body, functions] = made.bundle(body, functions)
        return found[body, functions]

    return bundle


def fed(bundle, start):
    """A session in which so many tokens have been decoded."""
    engine = engine_of(bundle)
    for token in TOKENS[:start]:
        engine.feed([token], only="decode")
    return engine


def after(made, engine, stop, only=None):
    """The error after the tokens up to a position, fed at once, and in a window of decode steps."""
    logits = engine.feed(TOKENS[engine.position : stop], only=only).logits
    worst = made.error(logits, stop - 1)
    for position in range(stop, min(stop + W, len(TOKENS))):
        logits = engine.feed([TOKENS[position]], only="decode").logits
        worst = max(worst, made.error(logits, position))
    return worst


WRONG = 1000 * LIMITS["i"]  # far beyond what rounding does


# --- verify: who sees which candidate -------------------------------------------------------

VERIFY = f"decode, verify(tokens = {CANDIDATES})"


def test_the_sliding_mask_of_a_verify_shows_no_later_candidate_and_hides_no_old_row():
    """Where all candidates stand in the shifted cache, candidate j is in slot W - K + j.

    The fault counted slots from the end as a decode step does: it showed the later candidates,
    and hid as many of the oldest rows.
    """
    for start in range(W - CANDIDATES + 1):
        where = {"position": start, "real": CANDIDATES, "tokens": CANDIDATES}
        keys, queries = key_positions("cache", "shift", W, **where), query_positions(**where)
        slot, row = np.arange(W)[None, :], np.arange(CANDIDATES)[:, None]
        filled = slot >= W - min(start + CANDIDATES, W)
        assert np.array_equal(visible(keys, queries, W), filled & (slot <= W - CANDIDATES + row))
        faulty = slot >= W - np.minimum(queries + 1, W)[:, None]
        assert not np.array_equal(faulty, visible(keys, queries, W))


def later_candidates(keys, queries, window):
    """A faulty mask: each candidate sees those after it."""
    return visible(keys, np.full_like(queries, queries[-1]), window and window + CANDIDATES)


def stale_rows(keys, queries, window):
    """A faulty mask: each candidate sees all that was in the cache."""
    seen = visible(keys, queries, window)
    return seen | ((keys >= 0) & (keys < queries[0]))[None]


FAULTS = ((later_candidates, 1), (stale_rows, W))


@pytest.mark.parametrize("body", [HOST, STATES], ids=["tensors", "states"])
def test_rows_of_a_verify_are_those_of_decode(made, bundles, monkeypatch, body):
    """Its rows stand behind the cache, which is seen as it was; row t must not see t + 1 of it."""
    bundle = bundles(body, VERIFY)
    for fault, start in FAULTS:
        engine = fed(bundle, start)

        def worst(engine=engine, start=start):
            call = engine.verify(TOKENS[start : start + CANDIDATES])
            errors = (made.error(call.result(row).logits, start + row) for row in range(CANDIDATES))
            return max(errors)

        assert worst() <= LIMITS["i"]
        with monkeypatch.context() as patch:
            patch.setattr(feeding, "visible", fault)
            assert worst() > WRONG


# --- verify: what is kept of it -------------------------------------------------------------


@pytest.mark.parametrize("body", [HOST, STATES], ids=["tensors", "states"])
def test_an_accepted_prefix_leaves_every_head_of_every_owner_as_decode_does(
    bundles, body, monkeypatch
):
    """The fault had the slots and the one KV head of E2B in its code, and failed on E4B.

    Which rows there are, of how many heads, is the manifest's to say.
    """
    bundle = bundles(body, VERIFY)

    def differ(start, kept):
        """The greatest difference of any cache from what decode steps leave."""
        engine, plain = fed(bundle, start), fed(bundle, start + kept)
        call = engine.verify((*TOKENS[start : start + kept], 9, 9, 9)[:CANDIDATES])
        engine.accept(call, kept)
        names = [one.id for one in bundle.manifest.buffers]
        found, wanted = ([one.caches.read(name) for name in names] for one in (engine, plain))
        assert all(np.abs(one).max() > 0 for one in wanted)
        return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))

    assert {one.shape[1] for one in bundle.manifest.buffers} == {2}
    for start, kept in [(1, 0), (1, 3), (W - 2, 3), (W, 1), (2 * W + 1, 2)]:
        assert differ(start, kept) < 1e-4
    store = caches.store
    monkeypatch.setattr(caches, "store", lambda a, b, *c, **d: store(a[:1], b[:1], *c, **d))
    assert differ(1, 2) > 0.1


# --- calls of several tokens that write states ----------------------------------------------

GRAPH = "decode, prefill(tokens = 4, write = graph)"


@pytest.mark.parametrize("body", [STATES, HOST], ids=["states", "tensors"])
def test_a_batch_that_writes_in_the_graph_is_exact_beyond_the_window(made, bundles, body):
    """Its queries attend over what the ring held and their own rows, and then it writes.

    The fault wrote first. A row that it replaced was still in the window of earlier queries, and
    its mask, with all slots valid once the ring was full, showed them the rows of later ones.
    """
    bundle = bundles(body, GRAPH)
    for start in (0, W - 1, 2 * W + 1):
        engine, calls = fed(bundle, start), []
        engine.watch = lambda moment, calls=calls: calls.append(moment.call.function.name)
        assert after(made, engine, start + 12, "prefill_4") <= LIMITS["i"]
        assert "prefill_4" in calls


def test_a_bundle_that_would_write_first_is_not_even_opened(made, monkeypatch):
    """Its slots can't hold all that the batch sees, and that shows in its manifest."""
    rule = building.handling

    def first(features, function, member):
        way = rule(features, function, member)
        return evolve(way, sees="cache") if way.writes else way

    monkeypatch.setattr(building, "handling", first)
    with pytest.raises(TopocError, match=r"bundle\.mask: 8 slots can't hold the 11 positions"):
        made.bundle(f"{STATES}  # written first", GRAPH)


def test_a_full_ring_whose_slots_are_all_valid_would_show_what_is_to_come(
    made, bundles, monkeypatch
):
    def all_valid(keys, queries, window):
        seen = visible(keys, queries, window)
        full = window is not None and queries[0] >= W and len(queries) > 1
        return seen | (keys >= 0)[None] if full else seen

    monkeypatch.setattr(feeding, "visible", all_valid)
    assert after(made, fed(bundles(STATES, GRAPH), W), W + 4, "prefill_4") > WRONG


def test_no_batch_runs_over_the_end_of_a_ring(made, bundles, monkeypatch):
    """A batch begins where it fits, and decode steps lead there.

    The fault guarded nothing: its second batch of 288 in a ring of 512 wrote rows up to 575.
    """
    bundle = bundles(STATES, GRAPH)
    prefill = next(one for one in bundle.manifest.functions if one.role == "prefill")
    assert prefill.unwrapped == (W, 64)
    for start in range(W):
        assert after(made, fed(bundle, start), start + W + 3) <= LIMITS["i"]
    monkeypatch.setattr(schedule, "room", lambda one, _, left: min(one.tokens, left))
    with pytest.raises(TopocError, match=r"run\.slice-outside"):
        after(made, fed(bundle, W - 1), W + 3, "prefill_4")


def test_a_batch_that_does_not_divide_the_ring_is_an_error():
    text = (Path(__file__).parent / "layouts" / "stateful_prefill_288.topo").read_text("utf-8")
    graph = text.replace("tokens = 288,", "tokens = 288, write = graph,")
    found = linted(graph, layers=table)
    assert "kv.split-ring" in codes(found)
    assert "kv.split-ring" not in codes(linted(text, layers=table))


APART = {
    "host": "decode, prefill(tokens = 12, package = separate)",  # longer than the ring
    "graph": "decode, prefill(tokens = 4, write = graph, package = separate)",
}


@pytest.mark.parametrize("write", APART)
def test_a_later_turn_sees_what_an_earlier_one_left_in_the_other_package(
    made, bundles, write, monkeypatch
):
    """The fault began every prefill with new states, and then copied them over those of decode.

    Of a text that went on, nothing before that prefill was left.
    """
    bundle = bundles(STATES, APART[write])
    only = next(one.name for one in bundle.manifest.functions if one.role == "prefill")

    def turns():
        engine = engine_of(bundle)
        return max(after(made, engine, stop, only) for stop in (W, 3 * W, 5 * W))

    assert turns() <= LIMITS["i"]
    enter = Caches.enter

    def fresh(self, function, step):
        if function.role == "prefill" and step is function.steps[0]:
            self.instance = engine_of(bundle).caches.instance
            self.newest = {}
        enter(self, function, step)

    monkeypatch.setattr(Caches, "enter", fresh)
    assert turns() > WRONG


# --- prefill --------------------------------------------------------------------------------

LONG = "decode, prefill(tokens = 20)"


def test_a_prefill_longer_than_the_window_keeps_the_window(made, bundles):
    """The fault gave all layers of a prefill one causal mask.

    Beyond 512 tokens its sliding layers saw everything, and decode steps after it did not.
    """
    bundle = bundles(HOST, LONG)
    for start in (0, 5, W):
        assert after(made, fed(bundle, start), start + 20, "prefill_20") <= LIMITS["i"]

    def causal(one):
        source = evolve(one.source, window=None) if one.source.kind == "mask" else one.source
        return evolve(one, source=source)

    functions = tuple(
        evolve(
            function,
            steps=tuple(
                evolve(step, inputs=tuple(map(causal, step.inputs))) for step in function.steps
            ),
        )
        if function.role == "prefill"
        else function
        for function in bundle.manifest.functions
    )
    other = with_manifest(bundle, functions=functions)
    assert after(made, fed(other, 0), W, "prefill_20") <= LIMITS["i"]
    assert after(made, fed(other, 0), 20, "prefill_20") > WRONG


def test_a_prefill_through_other_chunks_fills_the_caches_that_decode_reads(made, bundles):
    """The fault stored rows by the slots of another layout.

    Its one big chunk never read what a prefill in four had left of L8 to L14.
    """
    for body, last in ((STATES, 5), (HOST, 8)):
        fill = f"chunk fill(function = prefill_20) = ple + L0-{last}"
        engine = engine_of(bundles(f"{body}\n  {fill}", LONG))
        assert after(made, engine, 24, "prefill_20") <= LIMITS["i"]


# --- features that nobody reads, and rows half of which is nothing --------------------------


def planned(name, **changes):
    topology, findings = load(name)
    assert topology is not None, findings
    topology = evolve(topology, **changes)
    return plan(topology, architecture.read(topology.layers.config))


@pytest.mark.parametrize("name", TWINS)
def test_no_shipped_program_takes_what_it_does_not_read(name):
    """The fault: every chunk took the write mask of full caches, also those that hold none."""
    made = planned(name)
    programs = [program for package in made.packages for program in package.programs]
    for program in programs:
        read = {value for one in program.bindings for value in one.op.operands}
        assert {one.value for one in program.inputs} <= read
    kept = any(isinstance(one.op, Keep) for program in programs for one in program.bindings)
    assert kept == (made.topology.features == "coreml_llm")


def test_chunks_that_own_no_cache_take_no_write_mask():
    steps = planned("swa4").functions[0].steps
    marks = [[one.source.kind for one in step.inputs].count("slot") for step in steps]
    assert marks == [1, 1, 0, 0]


@pytest.mark.parametrize("base", ["swa4", "threeway", "merged2", "wfa", "e4b_swa4", "one_kind"])
def test_where_the_runtime_asks_for_more_the_linter_tells_what(tmp_path, base):
    """Each input that a program takes in and reads nowhere, chunk by chunk, and no other."""
    more = "chunk a = ple + L0-3\n  chunk b = L4\n  chunk c = L5-34 + norm + head(argmax)"
    body = f"target gpu\n  features coreml_llm\n  {more if base == 'one_kind' else ''}"
    budgets = (
        "expect {\n fp16 per chunk <= 9 GB\n layers per chunk <= 40\n kv io per step <= 1 GB }"
    )
    extends = "swa4" if base == "one_kind" else base
    text = f"topology t extends {extends} {{\n  {body}\n  {budgets}\n}}\n"
    (tmp_path / "t.topo").write_text(text)
    topology, findings = load(tmp_path / "t.topo")
    told = {
        one.at.at.text: {*one.at.words.split(", ")}
        for one in findings
        if one.code == "features.dead-input"
    }
    kept = {}
    for package in plan(topology, architecture.read(topology.layers.config)).packages:
        for program in package.programs:
            held = {one.op.x.name for one in program.bindings if isinstance(one.op, Keep)}
            if held:
                kept.setdefault(package.name, set()).update(held)
    assert told == kept
    assert bool(kept) == (base != "wfa")


@pytest.mark.parametrize(("name", "narrower"), [("swa4", 25_165_824), ("e4b_swa4", 75_497_472)])
def test_sliding_rows_are_as_wide_as_their_heads(name, narrower):
    """The fault stored rows of 256 in rows of 512, half of which were zeros in every step."""
    buffers = planned(name).buffers
    for buffer in buffers:
        assert {(row.heads, row.slots, row.width) for row in buffer.rows} == {buffer.shape[1:]}
    sliding = [one for one in buffers if one.rows[0].window]
    half = sum(prod(one.shape) * 2 for one in sliding)
    whole = sum(prod(one.shape) * 2 for one in buffers) + half
    assert whole == narrower
