"""Tokens drawn from what a head gives, by seed; what it can't give is refused."""

import numpy as np
import pytest
from tiny_bundle import VOCABULARY, tiny_manifest, write_bundle
from tiny_reader import Reader

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.call import CallResult
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.sampling import Sampler, sampler


@pytest.mark.parametrize("head", ["logits", "topk"])
def test_samples_by_seed_from_what_the_head_gives(tmp_path, head):
    manifest = tiny_manifest(head=head)
    write_bundle(tmp_path / "b", manifest)
    bundle = open_bundle(tmp_path / "b")

    def drawn(seed, temperature=2.0, top_k=None):
        choose = sampler(manifest, temperature=temperature, top_k=top_k, seed=seed)
        return list(Engine(bundle, Reader()).generate([2, 3], 12, choose, set()))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1, top_k=1) == drawn(2, top_k=1) == drawn(0, temperature=0.0)


def test_sampling_is_refused_where_the_head_cannot_serve_it():
    with pytest.raises(TopocError, match=r"run\.no-logits") as found:
        sampler(tiny_manifest(), temperature=0.7)
    assert "head(logits)" in found.value.findings[0].help
    with pytest.raises(TopocError, match=r"run\.no-logits.*5 best logits and 9"):
        sampler(tiny_manifest(head="topk"), temperature=0.7, top_k=9)


def test_draws_follow_the_softmax():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    draw = Sampler(1.0, None, 7)
    counts = np.bincount([draw(CallResult(position=0, logits=logits)) for _ in range(4000)])
    assert np.allclose(counts / 4000, [0.5, 0.3, 0.2], atol=0.03)


def test_logits_inside_the_package_are_asked_for_when_wanted(tmp_path):
    write_bundle(tmp_path / "b", tiny_manifest())
    bundle = open_bundle(tmp_path / "b")
    plain = Engine(bundle, Reader()).feed([3, 4, 5])
    probed = Engine(bundle, Reader(), want_logits=True).feed([3, 4, 5])
    assert plain.logits is None
    assert int(np.argmax(probed.logits)) == plain.token
    assert probed.logits.shape == (VOCABULARY,)
