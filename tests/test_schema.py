"""The JSON Schemas that topoc prints: current, strict, and true of what it writes."""

import json
import os
from importlib.resources import files
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from tiny_bundle import tiny_manifest
from tiny_config import tiny

from topoc.dsl.cli import main
from topoc.lowering import manifest
from topoc.lowering.bundle.manifest_json import dumps
from topoc.lowering.cli.schema import NAMES, as_text
from topoc.lowering.schema import schema_of

DOCS = Path(__file__).parents[1] / "docs" / "schema"


def topoc_(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result


@pytest.fixture(scope="module")
def schema():
    return json.loads(as_text("manifest"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The manifest of a compiled bundle, as it lies on the disk."""
    folder = tmp_path_factory.mktemp("schema")
    tiny(folder / "tiny")
    topology = folder / "tiny.topo"
    assert topoc_("new", "--from", folder / "tiny", "-o", topology).exit_code == 0
    made = topoc_("compile", topology, "--weights", "random:0", "-o", folder / "bundle")
    assert made.exit_code == 0, made.stderr
    return json.loads((folder / "bundle" / "manifest.json").read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_hold_the_current_schema(name, request):
    path = DOCS / f"{name}.json"
    if request.config.getoption("--update-golden"):
        path.write_text(as_text(name), "utf-8")
    assert path.read_text("utf-8") == as_text(name), "run pytest --update-golden and read the diff"


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_a_schema(name):
    result = topoc_("schema", name)
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed == json.loads(as_text(name))
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"].endswith("2020-12/schema")


def test_an_unknown_name_is_told_the_known_ones():
    result = topoc_("schema", "manifests")
    assert result.exit_code == 2
    for name in NAMES:
        assert name in result.stderr


def test_findings_are_package_data():
    assert files("topoc.dsl").joinpath("schema", "findings.json").is_file()


def test_a_compiled_manifest_fits(schema, bundle):
    Draft202012Validator(schema).validate(bundle)


def test_hand_made_manifests_fit(schema):
    for write in ("blend", "shift", "append"):
        Draft202012Validator(schema).validate(json.loads(dumps(tiny_manifest(write))))


def objects(value, at=()):
    """Every object of a JSON value, with the way to it."""
    if isinstance(value, dict):
        yield at, value
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, (dict, list)) else ():
        if isinstance(inner, (dict, list)):
            yield from objects(inner, (*at, key))


MAPPINGS = {"toolchain", "target", "tables", "ropes"}  # their keys are names


def test_every_key_must_be_there_and_no_other_may(schema, bundle):
    validator = Draft202012Validator(schema)
    text = json.dumps(bundle)
    tried = set()
    for way, one in objects(bundle):
        kind = tuple(key for key in way if isinstance(key, str))
        if kind in tried or (way and way[-1] in MAPPINGS):
            continue
        tried.add(kind)
        for change in [*one, "more"]:
            wrong = json.loads(text)
            place = wrong
            for key in way:
                place = place[key]
            if change in one:
                del place[change]
            else:
                place[change] = 1
            assert list(validator.iter_errors(wrong)), (way, change)
    assert len(tried) > 8


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("schema",), "topoc.bundle/2"),
        (("precision",), "bf16"),
        (("model", "layers"), 4.5),
        (("model", "bos"), [None]),
        (("functions", 0, "role"), "guess"),
        (("buffers", 0, "shape"), [1, 2, 3]),
        (("buffers", 0, "shape"), [1, 2, 3, 4, 5]),
        (("functions", 0, "steps", 0, "inputs", 0, "source", "kind"), "guess"),
        (("tables", "embed", "multiplier"), "1"),
    ],
)
def test_other_values_are_refused(schema, bundle, way, value):
    wrong = json.loads(json.dumps(bundle))
    place = wrong
    for key in way[:-1]:
        place = place[key]
    assert way[-1] in place or isinstance(way[-1], int)
    place[way[-1]] = value
    assert list(Draft202012Validator(schema).iter_errors(wrong))


def test_every_class_of_the_manifest_is_in_the_schema(schema):
    classes = {name: kind for name, kind in vars(manifest).items() if attrs.has(kind)}
    assert set(schema["$defs"]) == set(classes) - {"Manifest"}
    for name, kind in classes.items():
        found = schema if name == "Manifest" else schema["$defs"][name]
        assert found["required"] == [one.name for one in attrs.fields(kind)]
        assert list(found["properties"]) == found["required"]
        assert found["additionalProperties"] is False


def test_a_type_without_a_schema_is_a_defect():
    @attrs.frozen
    class Odd:
        """A class of a test."""

        path: os.PathLike

    with pytest.raises(TypeError, match="has no JSON Schema"):
        schema_of(Odd, "odd")
