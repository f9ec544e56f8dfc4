"""Every shipped topology of Gemma 4 computes what transformers computes, on tiny checkpoints."""

import numpy as np
import pytest
from twins import (
    CONTEXT,
    SAME_ARITHMETIC,
    STARTS,
    TOKENS,
    TWINS,
    Checkpoint,
    W,
    compiled,
    session,
)

from topoc.lowering.parity.gates import LIMITS, difference, telling_positions
from topoc.lowering.parity.proof import prove

EVERYWHERE = tuple(range(len(TOKENS)))
TELLING = telling_positions([W], len(TOKENS) - 1)


class Case:
    """A twin, the reference it is held against, and its bundles."""

    def __init__(self, twin, checkpoint, folder):
        self.twin, self.checkpoint, self.folder = twin, checkpoint, folder
        self.oracle = checkpoint.reference(twin)
        self.reference = self.oracle.logits(TOKENS)
        self.made = {}
        self.logits = {}

    def bundle(self, precision):
        if precision not in self.made:
            target = self.folder / precision
            self.made[precision] = compiled(self.twin, self.checkpoint.folder, target, precision)
        return self.made[precision]

    def decoded(self, precision, *, rounding=False):
        """The logits after each token, one by one."""
        key = precision, rounding
        if key not in self.logits:
            engine = session(self.bundle(precision), rounding=rounding)
            steps = [engine.feed([token], only="decode").logits for token in TOKENS]
            self.logits[key] = np.stack(steps)
        return self.logits[key]

    def functions(self, role):
        found = self.bundle("fp32").manifest.functions
        return tuple(one for one in found if one.role == role)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    made = {}

    def checkpoint(twin):
        if twin.dimensions not in made:
            folder = tmp_path_factory.mktemp("gemma4")
            made[twin.dimensions] = Checkpoint.make(folder, **dict(twin.dimensions))
        return made[twin.dimensions]

    return checkpoint


GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in TWINS]


@pytest.fixture(scope="module", params=GROUPED)
def case(request, checkpoints, tmp_path_factory):
    """A twin, compiled once: its tests run in one process."""
    twin = TWINS[request.param]
    return Case(twin, checkpoints(twin), tmp_path_factory.mktemp(twin.name))


@pytest.fixture(scope="session")
def base(checkpoints, tmp_path_factory):
    """What the others that cut the same layers elsewhere are held against."""
    twin = TWINS["swa4"]
    return Case(twin, checkpoints(twin), tmp_path_factory.mktemp("base"))


def test_decode_of_the_fp32_build_equals_the_reference(case):
    assert difference(case.decoded("fp32"), case.reference, EVERYWHERE).keeps("i")


def test_shipped_fp16_package_keeps_every_gate(case):
    verdicts = list(prove(case.bundle("fp16"), case.oracle, TELLING))

    assert {one.gate for one in verdicts} == {"ii", "ii-unrounded", "iii"}
    assert [one for one in verdicts if not one.kept] == []


def test_verify_rows_equal_decode_wherever_the_call_begins(case):
    """Rows of candidates, of which none is committed; then a prefix of them is."""
    limit = LIMITS["i"] * case.reference.std()
    for function in case.functions("verify"):
        for start in STARTS:
            engine = session(case.bundle("fp32"))
            for token in TOKENS[:start]:
                engine.feed([token], only="decode")
            for kept in (1, function.tokens - 1):
                here = engine.position
                call = engine.verify(TOKENS[here : here + function.tokens])
                rows = np.stack([call.result(row).logits for row in range(function.tokens)])

                assert np.abs(rows - case.reference[here:][: function.tokens]).max() <= limit
                engine.accept(call, kept)
            after = engine.position
            logits = engine.feed([TOKENS[after]], only="decode").logits

            assert np.abs(logits - case.reference[after]).max() <= limit


def test_prefill_equals_decode_wherever_the_call_begins(case):
    limit = LIMITS["i"] * case.reference.std()
    for function in case.functions("prefill"):
        for start in STARTS:
            engine = session(case.bundle("fp32"))
            for token in TOKENS[:start]:
                engine.feed([token], only="decode")
            stop = min(start + function.tokens, len(TOKENS) - W)
            logits = engine.feed(TOKENS[start:stop], only=function.name).logits

            assert np.abs(logits - case.reference[stop - 1]).max() <= limit
            for position in range(stop, stop + W):
                logits = engine.feed([TOKENS[position]], only="decode").logits

                assert np.abs(logits - case.reference[position]).max() <= limit


def test_chunks_cut_elsewhere_give_the_same_bits(case, base):
    """In fp32, and where every op rounds to fp16: the ops are the same ones."""
    if case.twin.name not in SAME_ARITHMETIC:
        pytest.skip("its ops are others")
    assert np.array_equal(case.decoded("fp32"), base.decoded("fp32"))
    assert np.array_equal(case.decoded("fp16", rounding=True), base.decoded("fp16", rounding=True))


def test_twins_cross_their_windows():
    assert CONTEXT > len(TOKENS) > 2 * W + 1 + max(STARTS)
