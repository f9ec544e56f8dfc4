"""Rules on checkpoints, by their own examples and at their limits."""

import pytest
from checkpoint_text import read

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.lint.rules import CHECKPOINT, TOPOLOGY, rule

each = pytest.mark.parametrize("code", CHECKPOINT)


def found(text, **options):
    report = examine(Subjects(checkpoint=read(text)), Options(**options))
    return [(one.code, one.severity) for one in report.findings]


@each
def test_flags_its_bad_example(code):
    assert (code, rule(code).severity) in found(rule(code).bad_checkpoint)


@each
def test_spares_its_good_example(code):
    assert found(rule(code).good_checkpoint) == []


@each
def test_names_the_place_and_what_to_do(code):
    report = examine(Subjects(checkpoint=read(rule(code).bad_checkpoint)))
    for one in report.findings:
        assert str(one.at.at).startswith("weights.safetensors: ")
        assert one.help
        assert len(one.message) <= 100


@pytest.mark.parametrize(
    ("peak", "scale", "expected"),
    [
        (65_504, 1, Severity.WARNING),
        (65_505, 1, Severity.ERROR),
        (32_752, 1, None),
        (32_753, 1, Severity.WARNING),
        (1_048_064, 1 / 16, Severity.WARNING),
        (161, 1, None),
    ],
)
def test_a_stream_is_judged_by_what_the_device_holds(peak, scale, expected):
    codes = found(f"stream 3 peak {peak} scale {scale}")
    assert codes == ([("numeric.residual-overflow", expected)] if expected else [])


def test_a_prompt_without_bos_is_warned_about():
    assert found("stream 3 peak 100\nno-bos") == [("numeric.residual-overflow", Severity.WARNING)]
    assert found("no-bos") == []


def test_every_indivisible_tensor_is_named():
    text = "\n".join(f"tensor t{n} shape {n}x64 group 32" for n in (32, 33, 64, 65))
    assert len(found(text)) == 2


def test_a_group_stands_over_its_own_axis():
    assert found("tensor t shape 33x64 group 32 axis 1") == []
    assert len(found("tensor t shape 64x33 group 32 axis 1")) == 1


def test_a_run_without_a_topology_says_which_rules_it_missed():
    report = examine(Subjects(checkpoint=read("stream 3 peak 1")))
    assert report.ran == frozenset(CHECKPOINT)
    assert {"chunk.gap"} & {code for code, _ in report.missed} == set()
    assert dict(report.missed)["state.update"] == "topology"
    assert set(TOPOLOGY) - report.ran <= {code for code, _ in report.missed}
