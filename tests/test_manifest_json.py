"""The manifest's JSON: a round trip, and everything else refused at its field."""

import json
from functools import reduce

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bundle import tiny_manifest

from topoc.dsl.diagnostic import TopocError
from topoc.lowering import manifest as m
from topoc.lowering.bundle.manifest_json import dumps, loads

NUMBERS = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(-1e300, 1e300) | st.integers(-9, 9),
    str: st.text(max_size=12),
}


def any_of(kind):
    """A strategy for a class of the manifest, every field drawn."""
    attrs.resolve_types(kind)
    return st.builds(kind, **{f.name: _value(f.type) for f in attrs.fields(kind)})


def _value(kind):
    if kind in NUMBERS:
        return NUMBERS[kind]
    if attrs.has(kind):
        return st.deferred(lambda: any_of(kind))
    origin, args = getattr(kind, "__origin__", None), getattr(kind, "__args__", ())
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(_value(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_value, args))
    if origin is dict:
        return st.dictionaries(_value(args[0]), _value(args[1]), max_size=2)
    return st.from_type(kind) if not args or type(None) not in args else _optional(args)


def _optional(args):
    return st.none() | st.one_of(*(_value(one) for one in args if one is not type(None)))


@settings(max_examples=200, deadline=None)
@given(any_of(m.Manifest))
def test_what_is_written_reads_back(manifest):
    whole = attrs.evolve(manifest, schema=m.SCHEMA)
    text = dumps(whole)
    assert loads(text, "m") == whole
    assert dumps(loads(text, "m")) == text
    assert text.endswith("}\n")


def test_equal_manifests_have_equal_text():
    one = tiny_manifest()
    other = attrs.evolve(one, ropes=dict(reversed(one.ropes.items())), toolchain={"topoc": "0"})
    assert dumps(one) == dumps(other)


def paths(value, at=()):
    """Every place in a JSON value."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from paths(inner, (*at, key))


RAW = json.loads(dumps(tiny_manifest()))
PLACES = [at for at in paths(RAW) if at]


def spoiled(at, how):
    raw = json.loads(json.dumps(RAW))
    holder = reduce(lambda value, key: value[key], at[:-1], raw)
    how(holder, at[-1])
    return json.dumps(raw)


def refusal(text):
    with pytest.raises(TopocError) as found:
        loads(text, "b/manifest.json")
    for one in found.value.findings:
        assert one.at.at.file == "b/manifest.json"
        assert one.message[0].islower()
        assert not one.message.endswith(".")
        assert one.help
    return found.value.findings


NAMED = [at for at in PLACES if isinstance(at[-1], str) and at[0] not in {"toolchain", "target"}]
NAMED = [at for at in NAMED if at[:-1] not in {("tables",), ("ropes",)}]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMED))
def test_a_missing_key_is_named_wherever_it_is(at):
    def drop(holder, key):
        del holder[key]

    (found,) = refusal(spoiled(at, drop))
    if at == ("schema",):
        assert found.code == "bundle.schema"
    else:
        assert (found.code, found.message) == ("bundle.manifest", f"key `{at[-1]}` is missing")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from([True, "x", 1.5, [], {}, [[]], {"a": 1}]))
def test_another_type_is_refused_at_its_field(at, value):
    old = reduce(lambda holder, key: holder[key], at, RAW)

    def put(holder, key):
        holder[key] = value

    if type(old) is type(value) or (isinstance(value, str | float) and _takes(at, value)):
        return
    found = refusal(spoiled(at, put))
    dotted = "$" + "".join(f"[{k!r}]" if isinstance(k, int) else f".{k}" for k in at)
    if at[0] not in {"tables", "ropes", "toolchain", "target"} and at != ("schema",):
        assert all(one.at.at.part.startswith(dotted) for one in found)


def _takes(at, value):
    """Fields that may hold a number or a text though the tiny bundle has another there."""
    texts = {"name", "probe", "scales", "sines", "revisit"}
    return at[-1] in (
        texts if isinstance(value, str) else {"scale", "initial", "fill", "multiplier"}
    )


def test_an_unknown_key_is_refused_wherever_it_is():
    for at in [()] + [a for a in PLACES if a[-1] in {"model", "source"} or a == ("buffers", 0)]:
        raw = json.loads(json.dumps(RAW))
        reduce(lambda value, key: value[key], at, raw)["colour"] = 1
        (found,) = refusal(json.dumps(raw))
        assert (found.code, found.message) == ("bundle.manifest", "the schema has no `colour`")


@pytest.mark.parametrize("schema", ["topoc.bundle/0", "topoc.bundle/2", "", None, 1])
def test_another_schema_is_refused_before_all_else(schema):
    (found,) = refusal(json.dumps({"schema": schema}))
    assert found.code == "bundle.schema"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_manifest_is_refused(text):
    (found,) = refusal(text)
    assert found.code in {"bundle.manifest", "bundle.schema"}


def test_numbers_beyond_floats_are_refused():
    for number in ("1e999", "-1e999", "9" * 400):
        text = dumps(tiny_manifest()).replace('"multiplier": 4.0', f'"multiplier": {number}')
        (found,) = refusal(text)
        assert found.at.at.part == "$.tables['embed'].multiplier"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
def test_any_text_gives_a_diagnostic(text):
    refusal(text)
