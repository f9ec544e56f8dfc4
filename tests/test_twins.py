"""Every shipped topology of Gemma 4 computes what transformers computes, on tiny checkpoints."""

import numpy as np
import pytest
from twins import CONTEXT, STARTS, TOKENS, TWINS, Checkpoint, W, compiled, session

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

    def bundle(self, precision):
        if precision not in self.made:
            target = self.folder / precision
            self.made[precision] = compiled(self.twin, self.checkpoint.folder, target, precision)
        return self.made[precision]

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


@pytest.fixture(scope="module", params=TWINS)
def case(request, checkpoints, tmp_path_factory):
    twin = TWINS[request.param]
    return Case(twin, checkpoints(twin), tmp_path_factory.mktemp(twin.name))


def test_decode_of_the_fp32_build_equals_the_reference(case):
    bundle = case.bundle("fp32")
    engine = session(bundle)
    found = np.stack([engine.feed([token], only="decode").logits for token in TOKENS])

    assert difference(found, case.reference, EVERYWHERE).keeps("i")


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


def test_twins_cross_their_windows():
    assert CONTEXT > len(TOKENS) > 2 * W + 1 + max(STARTS)
