"""What lint says of layouts that were built and measured: the verdicts that people came to."""

import pytest
from shipped import FILES, layout
from topo_text import table

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import Options
from topoc.dsl.lint.engine import lint as run
from topoc.dsl.load import load
from topoc.dsl.model import Target

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def lint(stem, tmp_path, *, allow=True, edit=None, target=None):
    """The findings by code, each at its gravest; a copy of the layouts may be changed first."""
    for path in FILES:
        text = path.read_text("utf-8")
        if path.stem == stem and not allow:
            text = "".join(one for one in text.splitlines(True) if "  allow " not in one)
        if path.stem == stem and edit:
            assert edit[0] in text
            text = text.replace(*edit)
        (tmp_path / path.name).write_text(text, "utf-8")
    topology, findings = load(tmp_path / f"{stem}.topo", layers=table)
    if target is not None:
        findings = run(topology, Options(target=target))
    found = {}
    for one in findings:
        found[one.code] = max(one.severity, found.get(one.code, NOTE))
    return found


def at_least(found, severity):
    return {code for code, one in found.items() if one >= severity}


def test_one_chunk_of_35_layers_errs_on_the_count(tmp_path):
    found = lint("merged1", tmp_path, allow=False)
    assert at_least(found, ERROR) == {"chunk.too-many-layers"}


def test_states_err_until_they_are_allowed(tmp_path):
    assert at_least(lint("stateful4", tmp_path, allow=False), ERROR) == {"state.update"}
    assert at_least(lint("stateful4", tmp_path), ERROR) == set()
    warned = at_least(lint("stateful4", tmp_path), WARNING)
    assert warned == {"state.unlike-pair", "state.exported-view"}


def test_padding_is_told_that_it_does_not_help(tmp_path):
    _, findings = load(layout("padded32"), layers=table)
    (note,) = (one for one in findings if one.code == "state.padded-heads")
    assert note.severity is NOTE
    assert "do not avert error -14" in note.message
    assert at_least(lint("padded32", tmp_path), ERROR) == set()
    refused = {"state.update", "state.concat-write"}
    assert at_least(lint("padded32", tmp_path, allow=False), ERROR) == refused


def test_windows_on_full_layers_are_lossy(tmp_path):
    found = lint("wfa", tmp_path, allow=False)
    assert at_least(found, WARNING) == {"lossy.narrowed-attention"}
    assert found["lossy.narrowed-attention"] is WARNING


@pytest.mark.parametrize("stem", ["swa4", "threeway", "e4b_threeway", "swa4_8k", "flash"])
def test_what_ships_gets_notes_only(stem, tmp_path):
    assert at_least(lint(stem, tmp_path), WARNING) == set()


FOUR_BITS = "palettize(bits = 4, group = 32)"


@pytest.mark.parametrize(
    ("schemes", "code"),
    [
        ("weights: palettize(bits = 2, group = 32)", "quant.below-4-bit"),
        ("weights: palettize(bits = 3, group = 32)", "quant.below-4-bit"),
        ("weights: palettize(bits = 4, group = 32, lut = int8)", "quant.int8-lut"),
        (f"weights: prune(n = 2, m = 4) + {FOUR_BITS}", "quant.structured-sparsity"),
        (f"weights: {FOUR_BITS}\n activations: int8", "quant.activations"),
    ],
)
def test_compression_that_was_tried_and_given_up_errs(schemes, code, tmp_path):
    found = lint("swa4", tmp_path, edit=(f"weights: {FOUR_BITS}", schemes))
    # The layout with eight-bit activations stands in the same folder, with its verdict.
    revived = {"ledger.revived-verdict"} if "activations" in schemes else set()
    assert at_least(found, WARNING) == {code, *revived}
    assert found[code] is ERROR


def test_a_head_in_sixteen_parts_is_noted(tmp_path):
    assert lint("head_split16", tmp_path)["op.split-head"] is NOTE
    assert "op.split-head" not in lint("swa4", tmp_path)


def test_four_sizes_of_prefill_are_warned_about(tmp_path):
    assert at_least(lint("prefill4", tmp_path), WARNING) == {"package.too-many-functions"}


def test_calls_of_eight_tokens_on_states_err_on_phones_only(tmp_path):
    found = lint("stateful_prefill", tmp_path, allow=False)
    assert found["state.batch-in-shared-package"] is ERROR
    assert "state.batch-in-shared-package" not in lint("stateful_prefill_288", tmp_path)
    mac = Target(unit="ane", deployment="macos26", chip="m4")
    assert "state.batch-in-shared-package" not in lint(
        "stateful_prefill", tmp_path, allow=False, target=mac
    )


@pytest.mark.parametrize("stem", ["merged1", "stateful4", "padded32", "prefill4", "topology_i"])
def test_placement_is_no_matter_on_a_gpu(stem, tmp_path):
    found = lint(stem, tmp_path, allow=False, target=Target(unit="gpu", chip="m4"))
    families = {code.partition(".")[0] for code in found}
    assert families <= {"ledger", "lossy", "quant", "allow"}


def test_layers_that_a_mac_ran_are_no_error_there(tmp_path):
    mac = Target(unit="ane", deployment="macos26", chip="m4")
    assert at_least(lint("merged1", tmp_path, allow=False, target=mac), ERROR) == set()


def test_a_target_without_a_chip_meets_the_strictest(tmp_path):
    anything = Target(unit="all")
    assert lint("merged1", tmp_path, allow=False, target=anything)["chunk.too-many-layers"] is ERROR
