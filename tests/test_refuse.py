"""What has no lowering is refused by name where it was asked for, and nothing else is."""

from pathlib import Path

import pytest
from layer_tables import gemma4
from tiny_topology import BOTH, HALVES, WHOLE, load_tiny
from topo_text import gemma4 as gemma4_text
from topo_text import resolved

from topoc.dsl.diagnostic import Severity
from topoc.dsl.model import Topology
from topoc.lowering import architecture
from topoc.lowering.plan import plan
from topoc.lowering.refuse import refusals

E2B = Path(__file__).parents[1] / "topologies" / "models" / "gemma4-e2b.json"
SEPARATE = "functions decode, prefill(tokens = 5, package = separate)"
OWN = "chunk mine(function = prefill_5) = L0-3 + norm + head(argmax)\n  " + WHOLE
GRAPH = "functions decode, prefill(tokens = 3, write = graph)"

# What is written, the code, the headline, and the words that it points at.
REFUSED = {
    "padded row too small": (
        {"body": "kv { L1: row padded(heads = 1) }"},
        (
            "kv.not-lowered",
            "a padded row of 1 KV heads can't hold a layer of 2",
            "L1: row padded(heads = 1)",
        ),
    ),
    "write = graph without a place to write to": (
        {"body": GRAPH},
        (
            "function.not-lowered",
            "`prefill_3` writes in the graph, and `write append` leaves that to the host",
            "prefill(tokens = 3, write = graph)",
        ),
    ),
    "an empty chunk": (
        {"chunks": "chunk whole = L0-3 + norm\n  chunk rest = head(hidden)"},
        ("chunk.not-lowered", "chunk `rest` computes nothing, which is not lowered yet", "rest"),
    ),
    "more slices than rows": (
        {"chunks": "chunk whole = L0-3 + norm + head(argmax, split = 98)"},
        ("value.range", "98 slices of a vocabulary of 97", "head(argmax, split = 98)"),
    ),
    "better than all": (
        {"chunks": "chunk whole = L0-3 + norm + head(topk = 98)"},
        ("value.range", "the best 98 of a vocabulary of 97", "head(topk = 98)"),
    ),
    "better than all, in a function's own chunks": (
        {"chunks": OWN.replace("argmax", "topk = 98", 1)},
        ("value.range", "the best 98 of a vocabulary of 97", "head(topk = 98)"),
    ),
    "pruning of what is then scaled": (
        {"body": "quantize { L1 mlp: prune(n = 2, m = 4) + int8 }"},
        (
            "scheme.not-lowered",
            "scheme `prune + int8` is not lowered yet",
            "L1 mlp: prune(n = 2, m = 4) + int8",
        ),
    ),
    "activations": (
        {"body": "quantize { activations: int8(per = channel) }"},
        (
            "scheme.not-lowered",
            "a scale of activations that is not the whole tensor's is not lowered yet",
            "activations: int8(per = channel)",
        ),
    ),
    "a host table at four bits": (
        {"body": "quantize { embed: palettize(bits = 4) }"},
        (
            "scheme.not-lowered",
            "scheme `palettize` of a host table is not lowered yet",
            "embed: palettize(bits = 4)",
        ),
    ),
}


def refused(folder, body="", chunks=WHOLE) -> tuple[Topology, list]:
    topology, _ = load_tiny(
        folder, body if "functions" in body else f"{BOTH}\n  {body}", chunks=chunks
    )
    return topology, list(refusals(topology))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_lowered_is_refused_where_it_was_asked_for(case, tmp_path):
    written, (code, message, text) = REFUSED[case]
    _, found = refused(tmp_path, **written)
    assert [(one.code, one.message, one.at.at.text) for one in found] == [(code, message, text)]
    assert found[0].severity is Severity.ERROR
    assert found[0].help


def test_layers_of_one_rule_are_refused_together_and_those_of_two_apart(tmp_path):
    body = "kv { sliding: row padded(heads = 1)\n L1: row padded(heads = 1) }"
    _, found = refused(tmp_path, body)
    told = ["sliding: row padded(heads = 1)", "L1: row padded(heads = 1)"]
    assert [one.at.at.text for one in found] == told


def test_everything_is_refused_at_once(tmp_path):
    body = f"{GRAPH}\n  kv {{ L1: row padded(heads = 1) }}\n  quantize {{ embed: int4 }}"
    _, found = refused(tmp_path, body, "chunk whole = L0-3 + norm + head(topk = 98)")
    assert len(found) == 4


# What `features coreml_llm` has no names for, on the four chunks of Gemma 4 that it was made for:
# what is added, the headline, and the words that it points at; `x` is the topology itself.
FOUR = """chunk one = ple + L0-7
  chunk two = L8-14
  chunk three = L15-24
  chunk four = L25-34 + norm + head(argmax)
"""
WRITTEN = """  sliding: write shift
    full: write blend
    all: row padded
"""
RUNTIME = "the runtime of `coreml_llm`"
INEXPRESSIBLE = {
    "prefill": (
        {"body": "functions decode, prefill(tokens = 64)"},
        "`prefill_64` has no lowering for the features of `coreml_llm`",
        "prefill(tokens = 64)",
    ),
    "a package of its own": (
        {"body": "functions decode(package = separate)"},
        "`decode` has no lowering for the features of `coreml_llm`",
        "decode(package = separate)",
    ),
    "tap": ({"body": "tap L1"}, f"{RUNTIME} takes no taps", "x"),
    "a state": (
        {"kv": "L3: store state"},
        f"{RUNTIME} keeps no KV in states",
        "L3: store state",
    ),
    "append": (
        {"kv": "full: write append"},
        f"{RUNTIME} appends no rows itself",
        "full: write append",
    ),
    "unlike caches of a kind": (
        {"kv": "L13: slots context"},
        f"{RUNTIME} has one cache for all sliding layers of a chunk",
        "sliding: write shift",
    ),
    "two write masks": (
        {"kv": "sliding: write blend"},
        f"{RUNTIME} feeds one write mask to all blends",
        "full: write blend",
    ),
    "one mask for both kinds": (
        {"body": "attention { full: windowed_full(window = 512) }"},
        f"{RUNTIME} has a mask for each kind of layer, and here they are one",
        "full: windowed_full(window = 512)",
    ),
    "two donors of a kind": (
        {"kv": "L20: share L12"},
        f"{RUNTIME} carries the KV of one sliding layer between chunks, not of L13 and L12",
        "L20: share L12",
    ),
    "a donor before the last ones": (
        {"kv": "L10: share L8"},
        f"{RUNTIME} takes the last 21 layers for those that share, and L10 shares too",
        "L10: share L8",
    ),
    "a third chunk with caches": (
        {"chunks": FOUR.replace("L8-14", "L8-10\n  chunk more = L11-14")},
        f"{RUNTIME} keeps caches of two chunks, and `more` is a third",
        "more",
    ),
    "tables of fp16": (
        {"body": "quantize { ple_table: none }"},
        f"{RUNTIME} reads `ple_table` as `int8(per = row)` only",
        "ple_table: none",
    ),
    "vectors that the host combines": (
        {"chunks": FOUR.replace("ple + ", "")},
        f"{RUNTIME} leaves `ple` to the first chunk",
        "one",
    ),
    "embed": (
        {"chunks": FOUR.replace("ple", "embed + ple")},
        f"{RUNTIME} looks tokens up itself",
        "embed",
    ),
    "logits": (
        {"chunks": FOUR.replace("argmax", "logits")},
        f"{RUNTIME} reads tokens and no `logits`",
        "head(logits)",
    ),
    "a head alone": (
        {"chunks": FOUR.replace(" + norm", "\n  chunk five = norm")},
        f"{RUNTIME} knows no chunk without layers, such as `five`",
        "five",
    ),
    "a chunk that ends in the norm": (
        {"chunks": FOUR.replace(" + head", "\n  chunk five = head")},
        f"{RUNTIME} reads the stream between chunks before the norm",
        "four",
    ),
}


def for_the_runtime(body="", kv="", chunks=FOUR):
    """The topology of a text with the runtime's features, which must resolve."""
    text = gemma4_text(
        f"features coreml_llm\n  kv {{\n  {WRITTEN}  {kv}\n  }}\n  {body}", name="x", chunks=chunks
    )
    topology, findings = resolved(text, layers=gemma4)
    assert topology is not None, findings
    assert [one for one in findings if one.severity is Severity.ERROR] == []
    return topology


@pytest.mark.parametrize("case", INEXPRESSIBLE)
def test_what_the_runtime_has_no_names_for_is_refused_where_it_was_asked_for(case):
    written, message, text = INEXPRESSIBLE[case]
    found = list(refusals(for_the_runtime(**written)))
    assert found[0].code == "features.cannot-express"
    assert (message, text) in {(one.message, one.at.at.text) for one in found}
    assert len(found) == (2 if case.startswith("a chunk that") else 1)


def test_the_runtime_is_for_models_with_per_layer_rows(tmp_path):
    body = "features coreml_llm\n  kv { all: write blend, slots context, row padded }"
    _, found = refused(tmp_path, f"functions decode\n  {body}")
    assert [(one.code, one.message) for one in found] == [
        ("features.cannot-express", f"{RUNTIME} feeds per-layer rows, and the model has none")
    ]


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"body": "functions decode, verify(tokens = 3), verify(tokens = 1)"},
        {"body": "attention { full: windowed_full(window = 1024) }", "kv": "full: write shift"},
        {"body": "attention { full: flash_tiled(tile = 256) }"},
        {"kv": "sliding: write blend, slots context"},
        {"chunks": "chunk all = ple + L0-34 + norm + head(argmax, split = 4)"},
    ],
)
def test_what_the_runtime_can_say_is_planned(written):
    topology = for_the_runtime(**written)
    assert list(refusals(topology)) == []
    assert plan(topology, architecture.read(E2B)).packages


@pytest.mark.parametrize(
    ("body", "chunks"),
    [
        ("", WHOLE),
        ("", HALVES),
        ("kv { all: write shift }", WHOLE),
        ("kv { sliding: write blend, slots context\n full: row padded }", WHOLE),
        ("kv { all: row padded(heads = 2) }", HALVES),
        ("kv { all: store io, write append, own }", HALVES),
        ("attention { sliding: sliding(window = 3) }", WHOLE),
        ("attention { sliding: full }", WHOLE),
        ("quantize { embed: int8(per = row) }", WHOLE),
        ("quantize { embed: none\n weights: none }", WHOLE),
        ("functions decode", WHOLE),
        ("functions decode(unit = gpu), prefill(tokens = 5, write = host)", WHOLE),
        ("functions decode, prefill(tokens = 2), prefill(tokens = 9)", WHOLE),
        ("", "chunk whole = embed + L0-3 + norm + head(topk = 3)"),
        ("", "chunk e = embed\n  chunk l = L0-3\n  chunk n = norm\n  chunk h = head(logits)"),
        ("", "chunk whole = L0 + L1-3 + norm + head(hidden)"),
        ("", "chunk whole = L0-3 + norm + head(argmax, split = 97)"),
        ("", OWN),
        ("", "chunk mine(function = prefill_5) = L0-1\n  " + HALVES),
        (SEPARATE, HALVES),
        ("tap L1, L3", HALVES),
        ("functions decode, verify(tokens = 3)", HALVES),
        (f"{GRAPH}\n  kv {{ sliding: write shift\n full: write blend }}", WHOLE),
        (f"{GRAPH}\n  kv {{ all: store state }}", HALVES),
        ("kv { L2: share L0\n L3: share L1 }", WHOLE),
        ("kv { L2: share L0\n L3: share L1 }", HALVES),
        ("kv { all: store state, write shift }", HALVES),
        ("kv { all: store state(one), write slice }", WHOLE),
        ("kv { all: store state(one), write blend, slots context, row padded(heads = 4) }", WHOLE),
        ("attention { full: windowed_full(window = 4) }", WHOLE),
        ("attention { all: flash_tiled(tile = 4) }", WHOLE),
    ],
)
def test_what_is_lowered_is_not_refused(body, chunks, tmp_path):
    topology, found = refused(tmp_path, body, chunks)
    assert found == []
    assert plan(topology, load_tiny(tmp_path)[1]).packages


def test_a_chunk_that_only_combines_vectors_hands_the_stream_on():
    """An input is no output: the stream that comes in goes out as a copy."""
    chunks = "chunk z = ple\n  chunk a = L0-34 + norm + head(argmax)"
    topology, _ = resolved(gemma4_text(chunks=chunks), layers=gemma4)
    first, second = plan(topology, architecture.read(E2B)).functions[0].steps
    assert [(one.sink.name, one.shape) for one in first.outputs] == [
        ("ple", (1, 8960, 1, 1)),
        ("z.hidden", (1, 1536, 1, 1)),
    ]
    taken = {one.source.name for one in second.inputs if one.source.kind == "value"}
    assert taken == {"ple", "z.hidden"}
