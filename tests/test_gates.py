"""The gates of docs/parity.md on tiny Gemma 3 checkpoints, for every write and every call."""

import numpy as np
import pytest
from compiled import compile_text, engine_of, logits_after, predictor_of, topology_text, weights_of
from tiny_gemma import WINDOW, tiny_gemma3

from topoc.lowering.parity.gates import LIMITS, difference, teacher_forced, telling_positions
from topoc.lowering.parity.oracle import Oracle

W = WINDOW
TOKENS = [2, 0, 130, 5, 7] + [(37 * i) % 131 for i in range(45)]
POSITIONS = telling_positions([W], len(TOKENS) - 1)
WRITES = ("shift", "blend", "append")
FUNCTIONS = "decode, prefill(tokens = 4), prefill(tokens = 7)"
MODELS = {
    "one-kv-head": {"kv_heads": 1, "spelling": "4"},
    "two-kv-heads-nested": {"kv_heads": 2, "spelling": "5", "nested": True, "seed": 1},
}


class Case:
    """A checkpoint, its reference, and the bundles that were compiled from it."""

    def __init__(self, folder, options):
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        model = tiny_gemma3(self.checkpoint, **options)
        self.oracle = Oracle(model)
        self.reference = self.oracle.logits(TOKENS)
        with self.oracle.rounded():
            self.rounded = self.oracle.logits(TOKENS)
        self.bundles = {}

    def bundle(self, write, precision, **options):
        key = (write, precision, *options.items())
        if key not in self.bundles:
            text = topology_text(f"kv {{ all: write {write} }}", functions=FUNCTIONS, **options)
            target = self.folder / f"bundle{len(self.bundles)}"
            self.bundles[key] = compile_text(text, self.checkpoint, target, precision=precision)
        return self.bundles[key]

    def limit(self, gate="i"):
        return LIMITS[gate] * self.reference.std()


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp("gates"), MODELS[request.param])


def test_reference_is_what_transformers_reads_from_the_folder(case):
    read = Oracle.of(case.checkpoint / "config.json", weights_of(case.checkpoint))

    assert np.array_equal(case.reference, read.logits(TOKENS))


def test_reference_says_varied_things(case):
    assert len(set(case.reference.argmax(1).tolist())) > len(TOKENS) / 3


@pytest.mark.parametrize("only", ["decode", "prefill_4", "prefill_7", None])
@pytest.mark.parametrize("write", WRITES)
def test_fp32_build_equals_the_reference(case, write, only):
    bundle = case.bundle(write, "fp32")
    found = teacher_forced(bundle, predictor_of(bundle), TOKENS, POSITIONS, only=only)

    assert difference(found, case.reference[list(POSITIONS)], POSITIONS).keeps("i")


@pytest.mark.parametrize("only", ["decode", None])
@pytest.mark.parametrize("write", WRITES)
def test_fp16_package_equals_the_rounded_reference(case, write, only):
    bundle = case.bundle(write, "fp16")
    found = teacher_forced(bundle, predictor_of(bundle), TOKENS, POSITIONS, only=only)

    assert difference(found, case.rounded[list(POSITIONS)], POSITIONS).keeps("ii")
    assert difference(found, case.reference[list(POSITIONS)], POSITIONS).keeps("ii-unrounded")


@pytest.mark.parametrize("only", ["decode", None])
@pytest.mark.parametrize("write", WRITES)
def test_rounding_after_each_op_flips_no_clear_token(case, write, only):
    bundle = case.bundle(write, "fp16")
    predictor = predictor_of(bundle, rounding=True)
    found = teacher_forced(bundle, predictor, TOKENS, POSITIONS, only=only)

    assert difference(found, case.reference[list(POSITIONS)], POSITIONS).keeps("iii")


@pytest.mark.parametrize("length", [1, W - 1, W, W + 1, 2 * W + 3])
@pytest.mark.parametrize("write", WRITES)
def test_decode_after_a_short_prefill_equals_the_reference(case, write, length):
    """Rows that a short call left behind would show within the next W steps."""
    for prefill in ("prefill_4", "prefill_7"):
        engine = engine_of(case.bundle(write, "fp32"))
        engine.feed(TOKENS[:length], only=prefill)
        for position in range(length, length + W):
            found = logits_after(engine, TOKENS[position : position + 1])

            assert np.abs(found - case.reference[position]).max() <= case.limit()


@pytest.mark.parametrize("start", [1, W - 1, W, 2 * W + 1])
@pytest.mark.parametrize("write", WRITES)
def test_call_of_several_tokens_is_exact_wherever_it_begins(case, write, start):
    """After decode steps, and with all counts of real rows that the two prefills take."""
    decoded = engine_of(case.bundle(write, "fp32"))
    for token in TOKENS[:start]:
        decoded.feed([token], only="decode")
    buffers = {name: cache.copy() for name, cache in decoded.caches.arrays.items()}
    for only, counts in (("prefill_4", range(1, 5)), ("prefill_7", range(1, 8))):
        for count in counts:
            decoded.position = start
            decoded.caches.arrays = {name: cache.copy() for name, cache in buffers.items()}
            found = logits_after(decoded, TOKENS[start : start + count], only=only)

            assert np.abs(found - case.reference[start + count - 1]).max() <= case.limit()


@pytest.mark.parametrize("turn", [1, W - 1, W, W + 1])
@pytest.mark.parametrize("write", WRITES)
def test_second_turn_equals_the_reference(case, write, turn):
    engine = engine_of(case.bundle(write, "fp32"))
    engine.feed(TOKENS[: W + 2])
    engine.feed(TOKENS[W + 2 : W + 4], only="decode")
    start = W + 4
    found = logits_after(engine, TOKENS[start : start + turn], only="prefill_7")

    assert np.abs(found - case.reference[start + turn - 1]).max() <= case.limit()
    for position in range(start + turn, start + turn + W):
        found = logits_after(engine, TOKENS[position : position + 1], only="decode")
        assert np.abs(found - case.reference[position]).max() <= case.limit()


@pytest.mark.parametrize("write", WRITES)
def test_padded_rows_change_nothing(case, write):
    text = topology_text(f"kv {{ all: write {write}, row padded(heads = 3) }}", functions=FUNCTIONS)
    bundle = compile_text(text, case.checkpoint, case.folder / f"padded-{write}", precision="fp32")
    assert {buffer.shape[1] for buffer in bundle.manifest.buffers} == {3}
    found = teacher_forced(bundle, predictor_of(bundle), TOKENS, POSITIONS)

    assert difference(found, case.reference[list(POSITIONS)], POSITIONS).keeps("i")


CHUNKS = {
    "embed in the graph": "chunk all = embed + L0-3 + norm + head(logits)",
    "embed alone, head alone": "chunk a = embed\n  chunk b = L0-3\n  chunk c = norm + head(logits)",
    "norm before a boundary": "chunk a = L0 + L1-3 + norm\n  chunk b = head(logits)",
    "one layer a chunk": "chunk a = L0\n  chunk b = L1\n  chunk c = L2\n"
    "  chunk d = L3 + norm + head(logits)",
    "best three": "chunk a = L0-2\n  chunk b = L3 + norm + head(topk = 3)",
}


@pytest.mark.parametrize("name", CHUNKS)
def test_parts_may_stand_in_any_chunk(case, name):
    text = topology_text("kv { sliding: write shift }", chunks=CHUNKS[name], functions=FUNCTIONS)
    target = case.folder / name.replace(" ", "-").replace(",", "")
    bundle = compile_text(text, case.checkpoint, target, precision="fp32")
    engine = engine_of(bundle)
    for start, stop in ((0, 1), (1, 5), (5, 16), (16, 17)):
        result = engine.feed(TOKENS[start:stop])
        wanted = case.reference[stop - 1]
        if result.logits is None:
            assert result.topk_ids.tolist() == np.argsort(-wanted, kind="stable")[:3].tolist()
            assert np.abs(result.topk_logits - np.sort(wanted)[::-1][:3]).max() <= case.limit()
        else:
            assert np.abs(result.logits - wanted).max() <= case.limit()


def test_host_table_is_int8_a_row_by_default(case):
    """Off by half a step of its row at most; fp32 builds keep it whole."""
    text = topology_text().replace("quantize { embed: none }", "")
    bundle = compile_text(text, case.checkpoint, case.folder / "int8")
    table = bundle.manifest.tables["embed"]
    assert (table.dtype, table.scales) == ("int8", "embed.scale.bin")
    codes = np.fromfile(bundle.path / table.path, np.int8).reshape(table.rows, table.width)
    scales = np.fromfile(bundle.path / table.scales, "<f4")[:, None]
    stored = weights_of(case.checkpoint).rows("embed", 0, table.rows).numpy()

    assert (np.abs(codes * scales - stored) <= scales * 0.5001).all()
    assert np.abs(codes).max(1).tolist() == [127] * table.rows
    found = teacher_forced(bundle, predictor_of(bundle), TOKENS, POSITIONS)
    error = difference(found, case.reference[list(POSITIONS)], POSITIONS).error
    assert 2e-3 < error < 0.1
    whole = compile_text(text, case.checkpoint, case.folder / "whole", precision="fp32")
    assert whole.manifest.tables["embed"].dtype == "fp32"


def test_hidden_head_gives_the_state_after_the_final_norm(case):
    import torch

    text = topology_text(chunks="chunk all = L0-3 + norm + head(hidden)", functions=FUNCTIONS)
    bundle = compile_text(text, case.checkpoint, case.folder / "hidden", precision="fp32")
    engine = engine_of(bundle)
    found = engine.feed(TOKENS[:11]).hidden
    hidden = case.oracle.model(torch.tensor([TOKENS[:11]]), output_hidden_states=True)
    wanted = hidden.hidden_states[-1][0, -1].numpy()

    assert np.abs(found - wanted).max() <= LIMITS["i"] * wanted.std()


def test_two_topologies_of_one_checkpoint_say_the_same(case):
    split, whole = case.bundle("append", "fp16"), case.bundle("append", "fp16", chunks=WHOLE)
    both = [
        teacher_forced(one, predictor_of(one, rounding=True), TOKENS, POSITIONS)
        for one in (split, whole)
    ]

    assert np.array_equal(*both)


WHOLE = "chunk all = L0-3 + norm + head(argmax)"
