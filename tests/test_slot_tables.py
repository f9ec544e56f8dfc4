"""Where `topoc plan` puts each layer's KV, in which shape, and what crosses the chunks' walls.

The tables are written out by hand, from the layouts that ran on phones: their chunks, the slots of
their caches and the shapes that their packages declare.
"""

import json

import pytest
from click.testing import CliRunner
from layer_tables import E2B, E4B, rows

from topoc.dsl.cli import main

# Of each chunk its layers, and in a decode step: the sliding and the full caches, keys as values;
# the KV of the last owner of each kind, out of its chunk and into those that read it.
# `W` is the width of a sliding row: 512 where it is padded, 256 where it is not.
TABLES = {
    "E2B A": """
        0-7   | 7,1,512,W  | 1,1,2048,512 | -               | -
        8-14  | 5,1,512,W  | 2,1,2048,512 | out 1,1,512,256 | out 1,1,2048,512
        15-24 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
        25-34 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
    """,
    "E2B C": """
        0-7   | 7,1,512,W  | 1,1,2048,512 | -               | -
        8-24  | 5,1,512,W  | 2,1,2048,512 | out 1,1,512,256 | out 1,1,2048,512
        25-34 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
    """,
    "E2B E": """
        0-14  | 12,1,512,W | 3,1,2048,512 | out 1,1,512,256 | out 1,1,2048,512
        15-24 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
        25-34 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
    """,
    "E2B D2": """
        0-14  | 12,1,512,W | 3,1,2048,512 | out 1,1,512,256 | out 1,1,2048,512
        15-34 | -          | -            | in 1,1,512,256  | in 1,1,2048,512
    """,
    "E2B D1": "0-34 | 12,1,512,W | 3,1,2048,512 | - | -",
    "E4B A": """
        0-11  | 10,2,512,W | 2,2,2048,512 | -               | -
        12-23 | 10,2,512,W | 2,2,2048,512 | out 1,2,512,256 | out 1,2,2048,512
        24-32 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
        33-41 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
    """,
    "E4B C": """
        0-11  | 10,2,512,W | 2,2,2048,512 | -               | -
        12-32 | 10,2,512,W | 2,2,2048,512 | out 1,2,512,256 | out 1,2,2048,512
        33-41 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
    """,
    "E4B E": """
        0-23  | 20,2,512,W | 4,2,2048,512 | out 1,2,512,256 | out 1,2,2048,512
        24-32 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
        33-41 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
    """,
    "E4B D2": """
        0-23  | 20,2,512,W | 4,2,2048,512 | out 1,2,512,256 | out 1,2,2048,512
        24-41 | -          | -            | in 1,2,512,256  | in 1,2,2048,512
    """,
    "E4B D1": "0-41 | 20,2,512,W | 4,2,2048,512 | - | -",
}
# The layers of each cache, in the order of their slots; the four chunks' are in `layer_tables`.
SLOTS = {
    "E2B whole": "S 0 1 2 3 5 6 7 8 10 11 12 13; F 4 9 14",
    "E4B whole": "S 0 1 2 3 4 6 7 8 9 10 12 13 14 15 16 18 19 20 21 22; F 5 11 17 23",
}
# The states of each chunk that has any, one of each kind or one for both.
STATES = {
    "E2B I": "14,1,512,512 + 2,1,2048,512; 10,1,512,512 + 4,1,2048,512",
    "E2B I unified": "16,1,2048,512; 14,1,2048,512",
    "E2B J": "14,1,512,512 + 2,1,2048,512; 10,1,512,512 + 4,1,2048,512",
    "E2B J unified": "16,1,2048,512; 14,1,2048,512",
    "E2B K by kind": "24,1,512,512 + 6,1,2048,512",
    "E2B K": "30,1,2048,512",
    "E4B I": "20,2,512,512 + 4,2,2048,512; 20,2,512,512 + 4,2,2048,512",
    "E4B I unified": "24,2,2048,512; 24,2,2048,512",
    "E4B J": "20,2,512,512 + 4,2,2048,512; 20,2,512,512 + 4,2,2048,512",
    "E4B J unified": "24,2,2048,512; 24,2,2048,512",
    "E4B K by kind": "40,2,512,512 + 8,2,2048,512",
    "E4B K": "48,2,2048,512",
}
# The new rows that a verify of three tokens hands out, of each chunk that has any.
VERIFIED = {
    "E2B A": "7,1,3,256 1,1,3,512; 5,1,3,256 2,1,3,512",
    "E4B A": "10,2,3,256 2,2,3,512; 10,2,3,256 2,2,3,512",
}
BYTES = {  # of all sliding caches at both widths, and of all full ones
    "E2B": ({512: 12_582_912, 256: 6_291_456}, 12_582_912),
    "E4B": ({512: 41_943_040, 256: 20_971_520}, 33_554_432),
}

# What ships, and for E4B the same cuts over its base.
BASES = {
    "E2B A": ("swa4", ()),
    "E2B C": ("threeway", ()),
    "E2B E": ("topology_i", ()),
    "E2B D2": ("merged2", ()),
    "E2B D1": ("merged1", ()),
    "E4B A": ("e4b_swa4", ()),
    "E4B C": ("e4b_threeway", ()),
    "E4B E": ("e4b_swa4", ("L0-23", "L24-32", "L33-41")),
    "E4B D2": ("e4b_swa4", ("L0-23", "L24-41")),
    "E4B D1": ("e4b_swa4", ("L0-41",)),
    "E2B I": ("stateful4", ()),
    "E2B J": ("stateful3", ()),
    "E2B K": ("stateful1", ()),
    "E4B I": ("e4b_swa4", ()),
    "E4B J": ("e4b_threeway", ()),
    "E4B K": ("e4b_swa4", ("L0-41",)),
}
# Nothing here is about where it would run: a phone's verdicts and budgets are set aside.
ASIDE = """target gpu
  expect {
    layers per chunk <= 42
    fp16 per chunk   <= 20 GB
    kv io per step   <= 400 MB
  }"""


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """The plan, as JSON, of a layout with more statements."""
    monkeypatch.chdir(tmp_path)

    def run(layout, more=""):
        base, cut = BASES[layout]
        parts = [*cut]
        if cut:
            parts[0] = f"ple + {cut[0]}"
            parts[-1] += " + norm + head(argmax)"
        chunks = "\n  ".join(f"chunk c{nth} = {part}" for nth, part in enumerate(parts, 1))
        body = f"{ASIDE}\n  {chunks}\n  {more}"
        (tmp_path / "t.topo").write_text(f"topology t extends {base} {{\n  {body}\n}}\n")
        result = CliRunner().invoke(main, ["plan", "t.topo", "--format", "json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


def lines(text):
    return [[cell.strip() for cell in one.split("|")] for one in text.strip().splitlines()]


def spelled(shape):
    return ",".join(map(str, shape))


def function(chunk, start):
    (found,) = [one for one in chunk["functions"] if one["name"].startswith(start)]
    return found


def cached(step, kind):
    """The shape of a chunk's cache of a kind; in is as out, and keys are as values."""
    found = {
        way: {
            one["of"].rpartition(".")[2]: spelled(one["shape"])
            for one in step[way]
            if one["kind"] == "buffer" and one["of"].endswith(f"_{kind}")
        }
        for way in ("inputs", "outputs")
    }
    assert found["inputs"] == found["outputs"]
    if not found["inputs"]:
        return "-"
    assert {*found["inputs"]} == {f"k_{kind}", f"v_{kind}"}
    (shape,) = {*found["inputs"].values()}
    return shape


def carried(step, layer):
    """The KV of a layer on its way between chunks: keys are as values."""
    found = set()
    for way in ("in", "out"):
        values = [one for one in step[f"{way}puts"] if one["kind"] == "value"]
        shapes = [one["shape"] for one in values if one["of"] in {f"l{layer}.k", f"l{layer}.v"}]
        assert len(shapes) in {0, 2}
        found |= {f"{way} {spelled(shape)}" for shape in shapes}
    assert len(found) < 2
    return found.pop() if found else "-"


def told(plan, donors):
    """The lines of a table, as a plan says them."""
    found = []
    for chunk in plan["chunks"]:
        step, layers = function(chunk, "decode"), chunk["layers"]
        assert layers == list(range(layers[0], layers[-1] + 1))
        caches = [cached(step, kind) for kind in ("sliding", "full")]
        found.append(
            [f"{layers[0]}-{layers[-1]}", *caches, *(carried(step, layer) for layer in donors)]
        )
    return found


DONORS = {"E2B": (13, 14), "E4B": (22, 23)}
PADDED = "features coreml_llm"


@pytest.mark.parametrize("layout", TABLES)
@pytest.mark.parametrize(("more", "width"), [("", 256), (PADDED, 512)], ids=["tight", "coreml_llm"])
def test_shapes_and_boundaries_are_those_written_out(planned, layout, more, width):
    model = layout[:3]
    plan = planned(layout, more)
    assert told(plan, DONORS[model]) == lines(TABLES[layout].replace("W", str(width)))
    sliding, full = BYTES[model]
    sizes = {"sliding": 0, "full": 0}
    for cache in plan["caches"]:
        sizes[cache["id"].rpartition("_")[2]] += cache["bytes"]
    assert sizes == {"sliding": sliding[width], "full": full}


@pytest.mark.parametrize("layout", TABLES)
def test_the_runtimes_names_are_on_those_features(planned, layout):
    sliding, full = DONORS[layout[:3]]
    names = {f"l{sliding}.{holds}": f"kv13_{holds}" for holds in "kv"}
    names |= {f"l{full}.{holds}": f"kv14_{holds}" for holds in "kv"}
    seen = set()
    for chunk in planned(layout, PADDED)["chunks"]:
        step = function(chunk, "decode_q1")
        for way in ("in", "out"):
            for one in step[f"{way}puts"]:
                if one["kind"] == "buffer":
                    holds, kind = one["of"].rpartition(".")[2].split("_")
                    assert one["name"] == f"{holds.upper()}_{kind}_{way}"
                elif one["of"] in names:
                    assert one["name"] == names[one["of"]]
                    seen.add(one["name"])
    alone = layout.endswith("D1")
    assert seen == (set() if alone else {*names.values()})


def placed(plan):
    """Each owner's chunk, kind and slot, by the rows of the caches of keys; values lie alike."""
    numbers = {chunk["name"]: nth for nth, chunk in enumerate(plan["chunks"], 1)}
    places = {"k": {}, "v": {}}
    for cache in plan["caches"]:
        chunk, _, name = cache["id"].partition(".")
        kind = name.rpartition("_")[2][0].upper()
        for slot, row in enumerate(cache["rows"]):
            places[row["holds"]][row["layer"]] = f"c{numbers[chunk]}.{kind}{slot}"
    assert places["k"] == places["v"]
    return places["k"]


@pytest.mark.parametrize(
    ("layout", "table"), [("E2B A", E2B), ("E2B C", E2B), ("E4B A", E4B), ("E4B C", E4B)]
)
@pytest.mark.parametrize("more", ["", PADDED], ids=["tight", "coreml_llm"])
def test_slots_are_those_of_the_layer_tables(planned, layout, table, more):
    wanted = {layer: place for layer, _, _, place in rows(table) if place}
    assert placed(planned(layout, more)) == wanted


@pytest.mark.parametrize("layout", [one for one in TABLES if one[4:] in {"E", "D2", "D1"}])
def test_a_chunk_with_all_owners_numbers_them_in_layer_order(planned, layout):
    wanted = {}
    for part in SLOTS[f"{layout[:3]} whole"].split("; "):
        kind, *layers = part.split()
        wanted |= {int(layer): f"c1.{kind}{slot}" for slot, layer in enumerate(layers)}
    assert placed(planned(layout)) == wanted


@pytest.mark.parametrize("layout", STATES)
def test_states_have_the_shapes_that_were_built(planned, layout):
    """Of the layer in place i, keys stand in row 2i and values in row 2i + 1."""
    clause = "(kv_cache_unified)" if layout.endswith(("unified", "K")) else ""
    more = "functions decode"
    if clause or layout.startswith("E4B"):
        more += f"\n  kv {{ all: store state{clause}, write slice, row padded }}"
    if layout == "E2B K by kind":
        more += "\n  kv { all: store state(kv_sliding)\n full: store state(kv_full) }"
    plan = planned(layout[:5], more)
    kept = {}
    for cache in plan["caches"]:
        kept.setdefault(cache["id"].partition(".")[0], []).append(cache)
    found = "; ".join(
        " + ".join(spelled(cache["shape"]) for cache in caches) for caches in kept.values()
    )
    assert found == STATES[layout]
    for cache in plan["caches"]:
        assert cache["store"] == "state"
        layers = sorted({row["layer"] for row in cache["rows"]})
        order = [(row["layer"], row["holds"]) for row in cache["rows"]]
        assert order == [(layer, holds) for layer in layers for holds in "kv"]
    for chunk in plan["chunks"]:
        step = function(chunk, "decode")
        assert {one["kind"] for one in step["outputs"]} <= {"value", "token"}
        states = [spelled(one["shape"]) for one in step["inputs"] if one["kind"] == "state"]
        assert states == [spelled(one["shape"]) for one in kept.get(chunk["name"], [])]


@pytest.mark.parametrize("layout", ["E2B I", "E2B J", "E4B I", "E4B J"])
def test_states_hand_tight_rows_to_readers_in_other_chunks(planned, layout):
    model = layout[:3]
    state = "functions decode\n  kv { all: store state, write slice, row padded }"
    plan = planned(layout, state if model == "E4B" else "")
    wanted = {"I": f"{model} A", "J": f"{model} C"}[layout[4:]]
    crossing = [[one[0], *one[3:]] for one in lines(TABLES[wanted])]
    assert [[one[0], *one[3:]] for one in told(plan, DONORS[model])] == crossing


@pytest.mark.parametrize("layout", VERIFIED)
@pytest.mark.parametrize("more", ["", PADDED], ids=["tight", "coreml_llm"])
def test_a_verify_hands_out_its_new_rows_tight(planned, layout, more):
    found = []
    for chunk in planned(layout, more)["chunks"]:
        step = function(chunk, "verify")
        by_cache = {one["of"]: one for one in step["outputs"] if one["kind"] == "rows"}
        for of, one in by_cache.items():
            holds, kind = of.rpartition(".")[2].split("_")
            named = f"new_{holds.upper()}_{kind}" if more else f"{holds}_{kind}_rows"
            assert one["name"] == named
            assert by_cache[of.replace(".v_", ".k_")]["shape"] == one["shape"]
        if by_cache:
            shapes = [spelled(one["shape"]) for of, one in by_cache.items() if ".k_" in of]
            found.append(" ".join(shapes))
    assert "; ".join(found) == VERIFIED[layout]
