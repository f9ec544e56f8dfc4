"""Compiles that look at a text: better outputs at equal bytes, and the same bytes again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from compiled import compile_text, resolved, weights_of
from test_ladder import TEXT, ran, text_of
from tiny_gemma import tiny_gemma3
from tiny_gemma4 import tiny_gemma4
from tiny_tokenizer import with_tokenizer

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity, TopocError
from topoc.lowering.architecture import read
from topoc.lowering.calibration import calibration_text
from topoc.lowering.compress.cache import Cache
from topoc.lowering.interpret import calibrate as watching
from topoc.lowering.interpret.calibrate import powers
from topoc.lowering.lint.tensors import low_sqnr
from topoc.lowering.parity.damage import is_calibrated, output_errors, plain
from topoc.lowering.parity.shipped import shipped

torch.set_num_threads(1)

RULES = "weights: palettize(bits = 3, group = 8)\n    head: none"
MODELS = {
    "gemma3": (lambda folder: tiny_gemma3(folder, kv_heads=2), {}),
    "gemma4": (
        lambda folder: tiny_gemma4(folder, layers=10, period=5, shared=5, kv_heads=2),
        {"layers": 10, "ple": "ple + "},
    ),
}


class Case:
    """A checkpoint, some of whose channels carry much, and its bundles."""

    def __init__(self, name, folder):
        make, self.layout = MODELS[name]
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        make(self.checkpoint)
        _uneven(self.checkpoint / "model.safetensors")
        with_tokenizer(self.checkpoint)
        self.weights = weights_of(self.checkpoint)
        self.rules = RULES + ("\n    ple_table: none" if "ple" in self.layout else "")

    def compile(self, name, **options):
        text = text_of(self.rules, **self.layout)
        return compile_text(text, self.checkpoint, self.folder / name, **options)


def _uneven(file):
    """Gains of a few strong channels before projections, as trained models have them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    for name, one in tensors.items():
        if "input_layernorm" in name or "pre_feedforward_layernorm" in name:
            one[::7] += 6.0
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    made = Case("gemma3", tmp_path_factory.mktemp("alone"))
    made.bundle = made.compile("calibrated", calibrate=TEXT)
    return made


def kept_back(case):
    return calibration_text(case.weights.architecture, case.checkpoint, TEXT).held_out


@pytest.fixture(scope="module")
def fed(gemma3):
    return gemma3.compile("fed alone", calibrate=TEXT, error_feedback=True)


def errors(case, held):
    """Output errors on the text that was kept back."""
    return output_errors(case.weights, held, kept_back(case))


def mean(found):
    return float(np.exp(np.mean([np.log(one) for one in found.values()])))


def sizes(bundle):
    return [one.stat().st_size for one in sorted(bundle.path.rglob("weight.bin"))]


def test_a_text_lowers_the_error_on_what_was_kept_back_at_equal_bytes(case, tmp_path_factory):
    before, after = case.compile("plain"), case.compile("weighted", calibrate=TEXT)
    fed = case.compile("fed", calibrate=TEXT, error_feedback=True)
    found = [mean(errors(case, shipped(one))) for one in (before, after, fed)]

    assert found[1] < 0.8 * found[0]
    assert found[2] < 0.9 * found[1]
    assert sizes(before) == sizes(after) == sizes(fed)
    assert not is_calibrated(before)
    assert is_calibrated(after)
    for role, one in plain(after, case.weights).items():
        assert torch.equal(one, shipped(before)[role]), role


def told(bundle):
    return {one.weight: one.output_error for one in bundle.manifest.quantization.tensors}


def test_the_manifest_tells_the_error_by_the_power_of_inputs(gemma3):
    seen = powers(gemma3.weights.architecture, gemma3.weights, kept_back(gemma3))
    held, found = shipped(gemma3.bundle), told(gemma3.bundle)

    assert found.keys() == held.keys()
    for role, one in held.items():
        true = gemma3.weights.rows(role, 0, len(one)).half().double()
        part = ((true - one) ** 2).numpy() @ seen[role] / ((true**2).numpy() @ seen[role]).sum()
        assert found[role] == pytest.approx(part.sum(), rel=1e-6), role


def test_with_feedback_the_manifest_tells_the_error_that_is_left(gemma3, fed):
    wanted, found = errors(gemma3, shipped(fed)), told(fed)

    assert found.keys() == wanted.keys()
    for role, one in wanted.items():
        assert found[role] == pytest.approx(one, rel=0.01), role


def same(one, other):
    """Whether two bundles are the same, to the byte."""
    files = [
        {file.relative_to(b.path): file.read_bytes() for file in sorted(b.path.rglob("*.bin"))}
        for b in (one, other)
    ]
    return files[0] == files[1] and one.manifest == other.manifest


def test_a_calibrated_compile_gives_the_same_bytes_again(gemma3, tmp_path):
    cold, warm = (
        gemma3.compile(str(tmp_path / name), calibrate=TEXT, cache=Cache(tmp_path / "c"))
        for name in ("cold", "warm")
    )

    assert same(cold, gemma3.bundle)
    assert same(warm, gemma3.bundle)


def test_a_text_is_watched_once(gemma3, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "c")
    gemma3.compile(str(tmp_path / "one"), cache=cache, calibrate=TEXT)

    def watched(*_):
        pytest.fail("it was watched before")

    monkeypatch.setattr(watching, "calibrate", watched)
    again = gemma3.compile(str(tmp_path / "two"), cache=cache, calibrate=TEXT)
    assert same(again, gemma3.bundle)
    with pytest.raises(pytest.fail.Exception):
        gemma3.compile(str(tmp_path / "three"), cache=cache, calibrate=TEXT[::-1])


def test_error_feedback_gives_the_same_bytes_for_any_number_of_processes(gemma3, fed, tmp_path):
    two = gemma3.compile(str(tmp_path / "2"), calibrate=TEXT, error_feedback=True, jobs=2)

    assert same(two, fed)
    assert not same(two, gemma3.bundle)


def test_a_cache_and_builds_keep_texts_and_feedback_apart(gemma3, fed, tmp_path):
    cache = Cache(tmp_path / "c")
    asked = [{}, {"calibrate": TEXT[::-1]}, {"calibrate": TEXT}]
    asked += [{"calibrate": TEXT, "error_feedback": True}]
    shared = [
        gemma3.compile(str(tmp_path / str(nth)), cache=cache, **options)
        for nth, options in enumerate(asked)
    ]

    assert same(shared[2], gemma3.bundle)
    assert same(shared[3], fed)
    assert len(list(cache.root.glob("*.weight"))) == 4 * 28
    assert len({one.manifest.build for one in shared}) == 4


def test_no_products_are_left_in_the_bundle(fed):
    assert not list(fed.path.glob(".*"))
    listed = {one.path.partition("/")[0] for one in fed.manifest.files}
    assert {one.name for one in fed.path.iterdir()} <= listed | {"manifest.json"}


def test_verify_tells_what_it_was_before(gemma3, tmp_path):
    (tmp_path / "text").write_text(TEXT[::-1])
    found = ran(
        gemma3.bundle.path, "--weights", gemma3.checkpoint, "--ladder", "--text", tmp_path / "text"
    )
    lines = found.stdout.splitlines()
    kl = {one[:12].strip(): float(one.split()[-6]) for one in lines[2:6]}

    assert found.exit_code == 0, found.output
    assert list(kl) == ["fp32", "fp16", "plain", "as shipped"]
    assert kl["fp16"] < kl["as shipped"] < kl["plain"]
    heads = next(nth for nth, one in enumerate(lines) if one.startswith("output error"))
    assert lines[heads].split() == ["output", "error", "as", "shipped", "plain"]
    rows = [one.split() for one in lines[heads + 1 :]]
    assert len(rows) == 4
    assert all(float(one[1]) < float(one[2]) for one in rows)


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "options", "words"),
    [
        ("weights: int8(per = channel)", {"calibrate": TEXT}, "nothing is palettized, and a text"),
        (
            "weights: palettize(bits = 6, group = 8)\n    head: none",
            {"calibrate": TEXT, "error_feedback": True},
            "at 4 bits or less",
        ),
        (RULES, {"calibrate": TEXT[:50]}, "has 50 tokens"),
    ],
)
def test_what_would_change_nothing_is_refused(gemma3, tmp_path, rules, options, words):
    with pytest.raises(TopocError, match=words):
        compile_text(text_of(rules), gemma3.checkpoint, tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def called(gemma3, folder, *options, rules=RULES):
    file = Path(gemma3.checkpoint) / f"{folder.name}.topo"
    file.write_text(text_of(rules))
    asked = ["compile", file, "--weights", gemma3.checkpoint, "-o", folder / "b", "--no-cache"]
    asked += ["--allow", "quant.below-4-bit=a tiny model shows more of it"]
    return CliRunner().invoke(main, [str(one) for one in (*asked, *options)])


def test_the_command_takes_a_text(gemma3, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    found = called(gemma3, tmp_path, "--calibrate", tmp_path / "text")

    assert found.exit_code == 0, found.output
    assert gemma3.bundle.manifest.build[:12] in found.stdout
    assert sizes(gemma3.bundle) == sizes(evolve(gemma3.bundle, path=tmp_path / "b"))


def test_feedback_without_a_text_is_refused(gemma3, tmp_path):
    found = called(gemma3, tmp_path, "--error-feedback")

    assert found.exit_code == 2
    assert "calibrate.unused" in found.stderr
    assert "--calibrate" in found.stderr


def test_a_text_that_is_not_there_is_told(gemma3, tmp_path):
    found = called(gemma3, tmp_path, "--calibrate", tmp_path / "nowhere")

    assert found.exit_code == 2
    assert "system.refused" in found.stderr


# --- quant.low-sqnr -------------------------------------------------------------------------

ROUGH = """weights: palettize(bits = 4, group = 8)
    up: palettize(bits = 2, group = 8)
    head: none"""


def test_weights_that_kept_too_little_are_told_at_their_line(gemma3, tmp_path):
    found = called(gemma3, tmp_path, rules=ROUGH)

    assert found.exit_code == 0
    assert found.stderr.count("warning[quant.low-sqnr]") == 4
    assert "`layers.2.up` keeps" in found.stderr
    assert "up: palettize(bits = 2, group = 8)" in found.stderr
    assert "`layers.2.down` keeps" not in found.stderr


def test_the_manifest_says_that_the_rule_ran_and_what_it_left(gemma3, tmp_path):
    rough = compile_text(text_of(ROUGH), gemma3.checkpoint, tmp_path / "b").manifest
    fine = gemma3.compile(str(tmp_path / "fine"), precision="fp32").manifest

    assert "quant.low-sqnr" in rough.lint.warned
    assert "quant.low-sqnr" in fine.lint.ran
    assert "quant.low-sqnr" not in fine.lint.warned


def test_what_was_allowed_is_not_told_again(gemma3, tmp_path):
    found = called(gemma3, tmp_path, "--allow", "quant.low-sqnr=known", rules=ROUGH)

    assert found.exit_code == 0
    assert "quant.low-sqnr" not in found.stderr


def test_lint_finds_it_in_the_bundle(gemma3, tmp_path):
    bundle = compile_text(text_of(ROUGH), gemma3.checkpoint, tmp_path / "b")
    found = CliRunner().invoke(main, ["lint", str(bundle.path)])

    assert found.stdout.count("quant.low-sqnr") >= 4


def test_a_tensor_is_at_the_rule_that_chose_it(gemma3, tmp_path):
    topology = resolved(text_of(ROUGH), gemma3.checkpoint)
    made = compile_text(text_of(ROUGH), gemma3.checkpoint, tmp_path / "b").manifest.quantization
    found = low_sqnr("c", read(gemma3.checkpoint), made, topology)

    assert {one.severity for one in found} == {Severity.WARNING}
    lines = text_of(ROUGH).splitlines()
    assert all("up:" in lines[one.at.at.line - 1] for one in found)
