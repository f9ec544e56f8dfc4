"""What is installed is what is here: the wheel, in an environment far from the source."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from tiny_config import SHIPPED, kinds, write

ROOT = Path(__file__).parent.parent
FOLDERS = ("dsl", "lowering", "topologies")
DECODE = ("--weights", "random:0", "--function", "decode")


def run(*command, cwd, status=0):
    """A command in an environment that says nothing of Python; its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy, since building leaves its own files behind, and offline."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skip = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for name in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, *offline, "--wheel-dir", folder / "made", source, cwd=folder)
    (made,) = (folder / "made").iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel in it; dependencies are found where they are already.

    A path in a .pth file is only that: the editable install there has no say, as it would have
    where the folder is a site of its own.
    """
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    here = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    paths = {sysconfig.get_path("purelib"): None, sysconfig.get_path("platlib"): None}
    (Path(here.strip()) / "dependencies.pth").write_text("\n".join(paths) + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    alone = ("--quiet", "--no-deps", "--no-index", "--ignore-installed")
    run(*pip, "install", *alone, wheel, cwd=home)
    return home


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {one for one in archive.namelist() if ".dist-info/" not in one}


def test_the_wheel_holds_every_source_and_datum_and_nothing_else(wheel):
    here = {
        f"topoc/{one.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for one in (ROOT / folder).rglob("*")
        if one.is_file() and one.suffix != ".pyc"
    }
    assert names_in(wheel) == here


def test_the_wheel_holds_what_is_no_python(wheel):
    kinds_ = {PurePosixPath(one).suffix or PurePosixPath(one).name for one in names_in(wheel)}
    assert kinds_ == {
        *(".py", ".lark", ".json", ".topo", ".rows", ".typed", ".jinja", ".css", ".js")
    }
    wanted = {
        *("topoc/dsl/py.typed", "topoc/lowering/py.typed", "topoc/dsl/grammar.lark"),
        *("topoc/dsl/schema/findings.json", "topoc/topologies/models/gemma3-270m.json"),
        *("topoc/topologies/gemma3_270m.topo", "topoc/topologies/gemma3_270m_1chunk.topo"),
        *("topoc/topologies/measured/swa4_padded.topo", "topoc/topologies/measured/fourteen.rows"),
        "topoc/lowering/cli/page/templates/plan.html.jinja",
    }
    assert wanted <= names_in(wheel)


def test_the_wheel_tells_its_licence_and_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        told = {
            PurePosixPath(one).name: archive.read(one).decode()
            for one in archive.namelist()
            if ".dist-info/" in one
        }
    assert told["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "topoc = topoc.dsl.cli:main" in told["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in told["METADATA"]


def test_it_is_the_installed_package_that_runs(installed, tmp_path):
    code = "import topoc.dsl, topoc.lowering; print(topoc.dsl.__file__, topoc.lowering.__file__)"
    for file in run(installed / "bin" / "python", "-c", code, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed)


def test_lints_a_shipped_topology_from_an_empty_folder(installed, tmp_path):
    topoc = installed / "bin" / "topoc"
    said = run(topoc, "lint", "gemma3_270m.topo", cwd=tmp_path)
    assert "\n1 file: 2 notes\n" in said
    assert "gemma3_270m_1chunk" in run(topoc, "show", "gemma3_270m_1chunk", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_compiles_a_shipped_topology_from_an_empty_folder(installed, tmp_path):
    """As many layers as the model of the topology has, and each of them small."""
    write(
        tmp_path / "small",
        hidden_size=16,
        intermediate_size=16,
        head_dim=8,
        vocab_size=67,
        num_attention_heads=2,
        layer_types=kinds(18, period=6),
    )
    config = ("--model", tmp_path / "small" / "config.json")
    topoc, empty = installed / "bin" / "topoc", tmp_path / "empty"
    empty.mkdir()
    said = run(topoc, "compile", "gemma3_270m.topo", *config, *DECODE, "-o", "b", cwd=empty)
    assert "functions: decode; context 2048" in said
    assert run(topoc, "lint", "b", cwd=empty).startswith("1 file: no findings\n")
    assert [one.name for one in empty.iterdir()] == ["b"]


@pytest.mark.real
def test_compiles_the_shipped_topology_whole_and_runs_it(installed, tmp_path):
    """0.9 GB of random weights."""
    topoc = installed / "bin" / "topoc"
    run(topoc, "compile", "gemma3_270m.topo", *DECODE, cwd=tmp_path)
    assert run(topoc, "lint", "gemma3_270m", cwd=tmp_path).startswith("1 file: no findings\n")
    assert SHIPPED.read_bytes() == (tmp_path / "gemma3_270m" / "config.json").read_bytes()
    ids = ("--prompt-ids", "2,5", "--max-tokens", "3")
    assert len(run(topoc, "run", "gemma3_270m", *ids, cwd=tmp_path).split()) == 3
    shutil.rmtree(tmp_path / "gemma3_270m")
