"""A first topology for a checkpoint: it lints clean, compiles, and overwrites nothing."""

import json
from pathlib import Path

import layer_tables
import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import SHIPPED, tiny

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.draft import LAYERS_PER_CHUNK, draft, name_for, split
from topoc.dsl.layout import lay_out
from topoc.dsl.load import load
from topoc.dsl.source import Source

GOLDEN = Path(__file__).parent / "golden" / "new"


@pytest.fixture
def topoc_(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run


@pytest.fixture
def config(tmp_path):
    """The 270M's config in a folder of its own, as checkpoints come."""
    path = tmp_path / "Gemma-3 270M" / "config.json"
    path.parent.mkdir()
    path.write_bytes(SHIPPED.read_bytes())
    return path


def test_writes_what_is_expected(topoc_, config, golden):
    result = topoc_("new", "--from", config)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "wrote gemma_3_270m.topo\nnext: topoc plan gemma_3_270m.topo\n"
    golden(GOLDEN / "gemma3_270m.expect", Path("gemma_3_270m.topo").read_text("utf-8"))


def test_lints_without_a_warning(topoc_, config):
    topoc_("new", "--from", config)
    result = topoc_("lint", "--fail-on", "warning", "gemma_3_270m.topo")
    assert result.exit_code == 0
    assert "warning" not in result.stdout


def test_is_in_canonical_layout(topoc_, config):
    topoc_("new", "--from", config)
    assert topoc_("fmt", "--check", "gemma_3_270m.topo").exit_code == 0


def test_a_folder_will_do_and_the_text_can_be_printed(topoc_, config):
    printed = topoc_("new", "--from", config.parent, "-o", "-").stdout
    topoc_("new", "--from", config)
    assert printed == Path("gemma_3_270m.topo").read_text("utf-8")
    assert sorted(one.name for one in Path().iterdir()) == ["Gemma-3 270M", "gemma_3_270m.topo"]


def test_the_model_path_starts_from_the_file(topoc_, config):
    Path("deep/er").mkdir(parents=True)
    assert topoc_("new", "--from", config, "-o", "deep/er/x.topo").exit_code == 0
    text = Path("deep/er/x.topo").read_text("utf-8")
    assert '"../../Gemma-3 270M/config.json"' in text
    assert topoc_("lint", "deep/er/x.topo").exit_code == 0


def test_refuses_to_overwrite(topoc_, config):
    Path("gemma_3_270m.topo").write_text("mine")
    result = topoc_("new", "--from", config)
    assert result.exit_code == 2
    assert "`gemma_3_270m.topo` is there already" in result.stderr
    assert Path("gemma_3_270m.topo").read_text() == "mine"


def test_cuts_into_as_many_chunks_as_are_asked_for(topoc_, config):
    text = topoc_("new", "--from", config, "--chunks", 4, "-o", "-").stdout
    found = [line.partition("=")[2].strip() for line in text.splitlines() if "chunk chunk" in line]
    assert found == ["L0-4", "L5-9", "L10-13", "L14-17 + norm + head(argmax)"]
    result = topoc_("new", "--from", config, "--chunks", 19)
    assert result.exit_code == 2
    assert "19 chunks are more than the 18 layers of the model" in result.stderr


def test_says_what_lint_finds_in_a_split_that_was_asked_for(topoc_, config):
    result = topoc_("new", "--from", config, "--chunks", 1)
    assert result.exit_code == 0
    assert "note[chunk.too-many-layers]" in result.stderr


def test_a_config_that_is_not_there_or_not_known_is_told(topoc_, tmp_path):
    missing = topoc_("new", "--from", "nowhere/config.json")
    assert missing.exit_code == 2
    assert "nowhere/config.json" in missing.stderr
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    unknown = topoc_("new", "--from", "config.json")
    assert unknown.exit_code == 2
    assert "model type `mamba` has no lowering" in unknown.stderr


def test_what_it_writes_compiles(topoc_, tmp_path):
    assert topoc_("new", "--from", tiny(tmp_path / "tiny")).exit_code == 0
    result = topoc_("compile", "tiny.topo", "--weights", "random:0", "-o", "bundle")
    assert result.exit_code == 0, result.stderr
    assert Path("bundle/manifest.json").is_file()


@pytest.mark.parametrize("table", [layer_tables.gemma3, layer_tables.gemma4])
def test_lints_clean_for_models_that_share_caches_too(table, tmp_path):
    text = draft(table(), name="first", model="config.json")
    assert lay_out(Source("first.topo", text)) == text
    path = tmp_path / "first.topo"
    path.write_text(text, "utf-8")
    topology, findings = load(path, layers=table)
    assert topology is not None
    assert {one.severity for one in findings} <= {Severity.NOTE}


@pytest.mark.parametrize(
    ("window", "positions", "context", "functions"),
    [
        (512, 32_768, 2048, "decode, prefill(tokens = 64)"),
        (4096, 32_768, 4096, "decode, prefill(tokens = 64)"),
        (512, 1000, 1000, "decode, prefill(tokens = 64)"),
        (16, 64, 64, "decode"),
        (512, 100, 100, "decode, prefill(tokens = 64)"),
    ],
)
def test_the_context_holds_the_windows_and_the_model_the_context(
    window, positions, context, functions, tmp_path
):
    whole = layer_tables.gemma3()
    layers = tuple(evolve(layer, window=layer.window and window) for layer in whole.layers)
    table = evolve(whole, layers=layers, positions=positions)
    text = draft(table, name="first", model="config.json")
    assert f"  context {context}\n" in text
    assert f"  functions {functions}\n" in text
    path = tmp_path / "first.topo"
    path.write_text(text, "utf-8")
    assert {one.severity for one in load(path, layers=lambda _: table)[1]} <= {Severity.NOTE}


@given(st.integers(1, 500), st.data())
def test_splits_evenly(layers, data):
    sizes = split(layers)
    assert sum(sizes) == layers
    assert max(sizes) <= LAYERS_PER_CHUNK
    assert (len(sizes) - 1) * LAYERS_PER_CHUNK < layers
    asked = data.draw(st.integers(1, layers))
    sizes = split(layers, asked)
    assert (len(sizes), sum(sizes)) == (asked, layers)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/gemma3-270m.json", "gemma3_270m"),
        ("/x/Gemma-3-270M-it/config.json", "gemma_3_270m_it"),
        (f"/c/models--google--gemma-3-1b/snapshots/{'0a' * 20}/config.json", "gemma_3_1b"),
        ("/x/270m/config.json", "model_270m"),
        ("/x/on/config.json", "model_on"),
        ("/x/日本/config.json", "gemma3_text"),
    ],
)
def test_is_called_after_the_checkpoint(path, name):
    assert name_for(Path(path), "gemma3_text") == name


def test_the_layers_come_from_the_reader_that_the_language_is_given(monkeypatch, topoc_):
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: layer_tables.gemma4)
    text = topoc_("new", "--from", "config.json", "-o", "-").stdout
    assert "= ple + L0-6" in text
