"""compile, run, verify and trace as people call them: in other processes, from the bundle alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import topology_text
from renaming import renamed_copy
from tiny_gemma import tiny_gemma3

from topoc.lowering.parity.oracle import Oracle

EXAMPLE = Path(__file__).parent.parent / "examples" / "conformance"
PROMPT = [2, 0, 130, 5, 7, 31, 12, 99, 100, 3, 44]
COUNT = 12


def topoc(*arguments, cwd=None, status=0):
    """Run the tool; its output, or the test fails with what it said."""
    command = [
        sys.executable,
        "-c",
        "from topoc.dsl.cli import main; main()",
        *[a if isinstance(a, bytes) else str(a) for a in arguments],
    ]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A bundle alone in its folder, the checkpoint elsewhere, and what transformers says."""
    folder = tmp_path_factory.mktemp("commands")
    checkpoint = folder / "checkpoint"
    oracle = Oracle(tiny_gemma3(checkpoint, kv_heads=2))
    text = topology_text(
        "kv { sliding: write shift\n full: write blend }", functions="decode, prefill(tokens = 4)"
    )
    (checkpoint / "tiny.topo").write_text(text)
    bundle = folder / "alone" / "bundle"
    done = topoc("compile", "tiny.topo", "-o", bundle, "--precision", "fp32", cwd=checkpoint)
    assert "no tokenizer came with the weights" in done.stdout
    return bundle, checkpoint, oracle.greedy(PROMPT, COUNT)


def ran(bundle, **options):
    ids = ",".join(map(str, PROMPT))
    done = topoc("run", bundle, "--prompt-ids", ids, "--max-tokens", COUNT, **options)
    return [int(one) for one in done.stdout.split()]


def test_run_says_what_transformers_says_from_the_bundle_alone(built, tmp_path):
    bundle, _, said = built
    moved = tmp_path / "elsewhere"
    shutil.copytree(bundle, moved)

    assert ran(moved, cwd=tmp_path) == said


@pytest.mark.parametrize("seed", range(3))
def test_run_reads_no_meaning_from_names(built, tmp_path, seed):
    bundle, _, said = built
    renamed = renamed_copy(bundle, tmp_path / "renamed", seed)
    text = (renamed / "manifest.json").read_text()
    assert not any(
        one in text for one in ("k_sliding", "mask_w8", "hidden_out", "decode_", ".mlpackage")
    )

    assert ran(renamed) == said


def test_verify_holds_a_bundle_against_its_checkpoint(built):
    bundle, checkpoint, _ = built
    done = topoc("verify", bundle, "--weights", checkpoint)

    assert done.stdout.startswith("holds  (i) fp32 build")


def test_verify_holds_two_bundles_against_each_other(built, tmp_path):
    bundle, checkpoint, _ = built
    text = topology_text(chunks="chunk all = L0-3 + norm + head(argmax)", name="other")
    (checkpoint / "other.topo").write_text(text)
    topoc("compile", "other.topo", "-o", tmp_path / "other", "--precision", "fp32", cwd=checkpoint)
    done = topoc("verify", bundle, tmp_path / "other")

    assert done.stdout.startswith("holds")


def test_verify_fails_on_weights_that_moved(built, tmp_path):
    bundle, checkpoint, _ = built
    moved = tmp_path / "moved"
    shutil.copytree(bundle, moved)
    table = moved / "embed.fp32.bin"
    values = np.fromfile(table, "<f4")
    (values * 1.01).tofile(table)
    done = topoc("verify", moved, "--weights", checkpoint, status=2)

    assert "bundle.hash" in done.stderr


def test_verify_says_when_a_bundle_differs(built, tmp_path):
    """The same checkpoint, another norm epsilon."""
    bundle, checkpoint, _ = built
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    config = json.loads((other / "config.json").read_text())
    config["rms_norm_eps"] = 1e-2
    (other / "config.json").write_text(json.dumps(config))
    topoc("compile", "tiny.topo", "-o", tmp_path / "b", "--precision", "fp32", cwd=other)

    assert topoc("verify", bundle, tmp_path / "b", status=1).stdout.startswith("FAILS")


def test_verify_refuses_another_checkpoint(built):
    done = topoc("verify", built[0], "--weights", "random:0", status=2)

    assert "verify.other-weights" in done.stderr


def test_verify_looks_up_int8_rows_as_they_ship(built, tmp_path):
    checkpoint = built[1]
    text = topology_text(name="coded").replace("quantize { embed: none }", "")
    (checkpoint / "coded.topo").write_text(text)
    topoc("compile", "coded.topo", "-o", tmp_path / "b", cwd=checkpoint)
    done = topoc("verify", tmp_path / "b", "--weights", checkpoint)

    assert done.stdout.count("holds") == 3
    assert done.stdout.count("the int8 embedding as shipped") == 3


def test_a_head_without_logits_generates_and_is_not_compared(built, tmp_path):
    checkpoint = built[1]
    text = topology_text(name="best", chunks="chunk all = L0-3 + norm + head(topk = 3)")
    (checkpoint / "best.topo").write_text(text)
    topoc("compile", "best.topo", "-o", tmp_path / "b", "--precision", "fp32", cwd=checkpoint)
    done = topoc("verify", tmp_path / "b", "--weights", checkpoint, status=2)
    assert "verify.no-logits" in done.stderr
    done = topoc("run", tmp_path / "b", "--prompt-ids", "2,5", "--max-tokens", "500")

    assert len(done.stdout.split()) == 64 - 2 + 1
    assert "the context of 64 tokens is full" in done.stderr


def test_more_best_tokens_than_there_are_is_refused(built):
    checkpoint = built[1]
    text = topology_text(name="wide", chunks="chunk all = L0-3 + norm + head(topk = 132)")
    (checkpoint / "wide.topo").write_text(text)
    done = topoc("compile", "wide.topo", cwd=checkpoint, status=2)

    assert "the best 132 of a vocabulary of 131" in done.stderr


def test_jobs_give_the_same_bytes(built, tmp_path):
    bundle, checkpoint, _ = built
    again = tmp_path / "again"
    topoc("compile", "tiny.topo", "-o", again, "--precision", "fp32", "--jobs", "2", cwd=checkpoint)

    assert tree(again) == tree(bundle)


def test_chunk_rebuilds_one_package(built, tmp_path):
    bundle, checkpoint, _ = built
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    once = ("compile", "tiny.topo", "-o", copy, "--chunk", "two")
    topoc(*once, "--precision", "fp32", cwd=checkpoint)
    assert tree(copy) == tree(bundle)
    done = topoc(*once, "--precision", "fp16", cwd=checkpoint, status=2)

    assert "bundle.mixed-builds" in done.stderr
    assert tree(copy) == tree(bundle)


def test_function_narrows_the_bundle(built, tmp_path):
    checkpoint = built[1]
    topoc("compile", "tiny.topo", "-o", tmp_path / "b", "--function", "decode", cwd=checkpoint)
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())

    assert [one["name"] for one in manifest["functions"]] == ["decode"]


def test_example_is_what_the_tool_makes_today(tmp_path):
    """Else run examples/conformance/make.sh, and say in the changelog what changed."""
    for name in ("config.json", "tiny.topo", "make.sh"):
        shutil.copy(EXAMPLE / name, tmp_path)
    topoc("compile", "tiny.topo", "--weights", "random:1", "-o", "bundle", cwd=tmp_path)
    ids = "2,0,60,5,7,31,12"
    trace = ("trace", "bundle", "--prompt-ids", ids, "--max-tokens", "5", "-o", "trace")
    topoc(*trace, cwd=tmp_path)

    assert tree(tmp_path / "bundle") == tree(EXAMPLE / "bundle")
    assert close(tmp_path / "trace", EXAMPLE / "trace")


def tree(folder):
    """Every file with its bytes."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def close(one, other):
    """Two traces: the same files, the same index, values within the noise of other processors."""
    names = {path.relative_to(one) for path in one.rglob("*.npy")}
    assert names == {path.relative_to(other) for path in other.rglob("*.npy")}
    assert (one / "trace.json").read_text() == (other / "trace.json").read_text()
    return all(np.allclose(np.load(one / n), np.load(other / n), 1e-3, 1e-4) for n in names)


WRONG = {
    "no such file": (["compile", "nowhere.topo"], 2),
    "no weights": (["compile", "gemma3_270m.topo"], 2),
    "weights that are not there": (["compile", "gemma3_270m.topo", "--weights", "nowhere"], 2),
    "an unknown function": (
        ["compile", "gemma3_270m.topo", "--weights", "random:0", "--function", "decoed"],
        2,
    ),
    "an unknown chunk": (
        ["compile", "gemma3_270m.topo", "--weights", "random:0", "--chunk", "chunk9"],
        2,
    ),
    "an allowance without a reason": (
        ["compile", "gemma3_270m.topo", "--weights", "random:0", "--allow", "state.update"],
        2,
    ),
    "an allowance of nothing": (
        ["compile", "gemma3_270m.topo", "--weights", "random:0", "--allow", "foo.bar=why"],
        2,
    ),
    "a prompt that is no UTF-8": (["run", "nowhere", "--prompt", b"\xff"], 2),
    "a temperature that is no number": (
        ["run", "nowhere", "--prompt", "x", "--temperature", "nan"],
        2,
    ),
    "a budget that is broken": (["compile", "broken.topo", "--weights", "random:0"], 1),
    "no bundle": (["run", "nowhere", "--prompt", "x"], 2),
    "a position that is no number": (["verify", "nowhere", "--positions", "x"], 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_told_and_leaves_nothing(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    (tmp_path / "broken.topo").write_text(
        "topology broken extends gemma3_270m {\n  expect { layers per chunk <= 3 }\n}\n"
    )
    arguments, status = WRONG[name]
    before = sorted(tmp_path.iterdir())
    done = topoc(*arguments, cwd=tmp_path, status=status)

    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert sorted(tmp_path.iterdir()) == before
