"""Drafts change how many calls are made, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import KEPT, LAYOUTS, assert_holds, bundles, functions_of  # noqa: F401
from tiny_bundle import CONTEXT, tiny_manifest, write_bundle
from tiny_reader import Reader

from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.sampling import Sampler, greedy
from topoc.lowering.engine.speculation import Speculation, looked_up


class Chatty(Reader):
    """Says few tokens over and over, so that drafts are right now and then."""

    def __init__(self, letters=3):
        super().__init__()
        self.letters = letters


@pytest.mark.parametrize(
    ("text", "most", "drafts"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 9, 7, 2, 3], 3, [9, 7, 2]),  # two tokens, where three stand nowhere else
        ([3, 8, 3, 9, 5, 3], 1, [9]),  # the last place counts
        ([4, 4], 3, [4, 4, 4]),  # on from what was copied
        ([1, 2, 1], 4, [2, 1, 2, 1]),
        ([5, 6, 7], 2, []),
        ([5], 2, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_drafts_follow_where_the_end_stood_before(text, most, drafts):
    assert looked_up(text, most) == drafts


def runs(bundle, letters, sampler, prompt, count, *, eos=()):
    """Text, position and caches of a plain run, and of one with drafts."""
    plain, drafted = (Engine(bundle, Chatty(letters)) for _ in "ab")
    speculation = Speculation(drafted)
    wanted = list(plain.generate(prompt, count, sampler(), eos))
    found = list(speculation.generate(prompt, count, sampler(), eos))
    return plain, wanted, drafted, found, speculation


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_speculative_run_is_the_plain_run(bundles, data):  # noqa: F811
    bundle = bundles[data.draw(st.sampled_from([*LAYOUTS, *KEPT]))]
    if not functions_of(bundle, "verify"):
        return
    letters = data.draw(st.sampled_from([1, 2, 3]))
    prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=CONTEXT))
    eos = set(data.draw(st.lists(st.integers(1, 2), max_size=1)))
    count = data.draw(st.integers(1, CONTEXT + 5))
    plain, wanted, drafted, found, speculation = runs(
        bundle, letters, lambda: greedy, prompt, count, eos=eos
    )
    assert found == wanted
    assert drafted.position == plain.position
    assert 0 <= speculation.accepted <= speculation.drafted
    assert_holds(drafted, [*prompt, *found][: drafted.position])


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """A bundle whose head gives logits."""
    path = tmp_path_factory.mktemp("speaking") / "b"
    write_bundle(path, tiny_manifest("slice", store="state", head="logits"))
    return open_bundle(path)


def test_drafts_are_accepted_and_rejected_and_save_calls(speaking):
    _, wanted, drafted, found, speculation = runs(speaking, 3, lambda: greedy, [2, 1], 36)
    assert found == wanted
    assert 0 < speculation.accepted < speculation.drafted
    assert next(drafted._calls) < len(found)


@pytest.mark.parametrize("seed", range(4))
def test_sampling_draws_the_same_tokens_in_the_same_order(speaking, seed):
    """One draw a token, from the row that a plain run would have drawn it from."""
    _, wanted, _, found, speculation = runs(
        speaking, 3, lambda: Sampler(0.7, None, seed), [0, 1, 0, 1], 30
    )
    assert found == wanted
    assert speculation.drafted


@pytest.mark.parametrize("more", [1, -1])
def test_another_number_of_kept_rows_shows(speaking, monkeypatch, more):
    accept = Engine.accept

    def wrong(self, call, real):
        count = real + more if call.function.role == "verify" else real
        accept(self, call, min(max(count, 0), call.real))

    monkeypatch.setattr(Engine, "accept", wrong)
    _, wanted, _, found, _ = runs(speaking, 3, lambda: greedy, [2, 1], 30)
    assert found != wanted
