"""The shape of the source: packages as declared, small files, imports where they belong."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("dsl", "lowering", "topologies")
SOURCES = sorted(one for folder in FOLDERS for one in (ROOT / folder).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LINES, FUNCTION_LINES = 300, 30


def named(path):
    return str(path.relative_to(ROOT))


def test_the_declared_packages_are_the_folders_that_hold_python():
    found = {f"topoc.{named(one.parent).replace('/', '.')}" for one in SOURCES}
    declared = PROJECT["tool"]["setuptools"]["packages"]
    assert declared == sorted(declared)
    assert set(declared) == found


def test_every_package_is_a_package():
    for folder in {one.parent for one in SOURCES}:
        assert (folder / "__init__.py").exists(), named(folder)


def test_the_import_names_are_mapped_from_the_top_folders():
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    assert mapped == {f"topoc.{one}": one for one in FOLDERS}


def test_what_is_no_python_travels_too():
    declared = PROJECT["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for package, patterns in declared.items()
        for pattern in patterns
        for path in (ROOT / package.removeprefix("topoc.").replace(".", "/")).glob(pattern)
    }
    wanted = {
        one
        for folder in FOLDERS
        for one in (ROOT / folder).rglob("*")
        if one.is_file() and one.suffix not in {".py", ".pyc"}
    }
    assert listed == wanted


def test_type_checkers_find_the_sources_by_links():
    links = ROOT / ".typing" / "topoc"
    assert {one.name for one in links.iterdir()} == set(FOLDERS)
    for one in links.iterdir():
        assert one.is_symlink()
        assert str(one.readlink()) == f"../../{one.name}"


def long_functions():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield f"{named(path)}: {node.name} has {length} lines; what is its second noun?"


def test_no_module_is_long():
    counts = {named(one): len(one.read_text("utf-8").splitlines()) for one in SOURCES}
    assert {name: count for name, count in counts.items() if count > LINES} == {}


def test_no_function_is_long():
    assert list(long_functions()) == []


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


HEAVY = "torch coremltools numpy networkx transformers safetensors"


@pytest.mark.parametrize("name", ["topoc.dsl", "topoc.dsl.cli"])
def test_the_language_starts_without_heavy_imports(name):
    script = f"import sys, {name}; print(*set('{HEAVY}'.split()) & set(sys.modules))"
    done = python("-c", script)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)


def test_the_language_imports_no_compiler():
    for path in (one for one in SOURCES if named(one).startswith("dsl/")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(one.startswith("topoc.lowering") for one in names), named(path)


def test_the_folder_is_refused_under_another_name():
    done = python("-c", "import dsl")
    assert done.returncode == 1
    assert "ImportError: import topoc.dsl" in done.stderr


def test_coremltools_builder_is_imported_in_emission_alone():
    for path in SOURCES:
        text = path.read_text("utf-8")
        if "coremltools.converters" in text:
            assert named(path).startswith("lowering/emit/mil/"), named(path)
