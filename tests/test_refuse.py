"""What has no lowering is refused by name where it was asked for, and nothing else is."""

import pytest
from layer_tables import gemma4
from tiny_topology import BOTH, HALVES, WHOLE, load_tiny
from topo_text import gemma4 as gemma4_text
from topo_text import resolved

from topoc.dsl.diagnostic import Severity
from topoc.dsl.model import Topology
from topoc.lowering.plan import plan
from topoc.lowering.refuse import refusals

OWN = "chunk mine(function = prefill_5) = L0-3 + norm + head(argmax)\n  " + WHOLE
SEPARATE = "functions decode, prefill(tokens = 5, package = separate)"

# What is written, the code, the headline, and the words that it points at.
REFUSED = {
    "share": (
        {"body": "kv { L2: share L0 }"},
        ("kv.not-lowered", "`share` is not lowered yet", "L2: share L0"),
    ),
    "store state": (
        {"body": "kv { all: store state, write shift }"},
        ("kv.not-lowered", "`store state` is not lowered yet", "all: store state, write shift"),
    ),
    "write slice": (
        {"body": "kv {\n    all: store state\n    L0: write slice\n  }"},
        ("kv.not-lowered", "`store state` is not lowered yet", "all: store state"),
    ),
    "padded row too small": (
        {"body": "kv { L1: row padded(heads = 1) }"},
        (
            "kv.not-lowered",
            "a padded row of 1 KV heads can't hold a layer of 2",
            "L1: row padded(heads = 1)",
        ),
    ),
    "windowed_full": (
        {"body": "attention { full: windowed_full(window = 4) }"},
        (
            "attention.not-lowered",
            "attention `windowed_full` is not lowered yet",
            "full: windowed_full(window = 4)",
        ),
    ),
    "flash_tiled": (
        {"body": "attention { full: flash_tiled(tile = 4) }"},
        (
            "attention.not-lowered",
            "attention `flash_tiled` is not lowered yet",
            "full: flash_tiled(tile = 4)",
        ),
    ),
    "verify": (
        {"body": "functions decode, verify(tokens = 3)"},
        ("function.not-lowered", "`verify` is not lowered yet", "verify(tokens = 3)"),
    ),
    "write = graph": (
        {"body": "functions decode, prefill(tokens = 5, write = graph)"},
        (
            "function.not-lowered",
            "`write = graph` is not lowered yet",
            "prefill(tokens = 5, write = graph)",
        ),
    ),
    "package = separate": (
        {"body": SEPARATE},
        (
            "function.not-lowered",
            "`package = separate` is not lowered yet",
            "prefill(tokens = 5, package = separate)",
        ),
    ),
    "a chunk list": (
        {"chunks": OWN},
        (
            "chunk.not-lowered",
            "a chunk list for `prefill_5` alone is not lowered yet",
            "prefill(tokens = 5)",
        ),
    ),
    "an empty chunk": (
        {"chunks": "chunk whole = L0-3 + norm\n  chunk rest = head(hidden)"},
        ("chunk.not-lowered", "chunk `rest` computes nothing, which is not lowered yet", "rest"),
    ),
    "split": (
        {"chunks": "chunk whole = L0-3 + norm + head(argmax, split = 2)"},
        ("part.not-lowered", "a head in slices is not lowered yet", "head(argmax, split = 2)"),
    ),
    "palettize": (
        {"body": "quantize { weights: palettize(bits = 4) }"},
        (
            "scheme.not-lowered",
            "scheme `palettize` is not lowered yet",
            "weights: palettize(bits = 4)",
        ),
    ),
    "int8": (
        {"body": "quantize { L1 mlp: int8 }"},
        ("scheme.not-lowered", "scheme `int8` is not lowered yet", "L1 mlp: int8"),
    ),
    "int8 per row in a graph": (
        {"body": "quantize { head: int8(per = row) }"},
        ("scheme.not-lowered", "scheme `int8` is not lowered yet", "head: int8(per = row)"),
    ),
    "int4": (
        {"body": "quantize { weights: int4(block = 16) }"},
        ("scheme.not-lowered", "scheme `int4` is not lowered yet", "weights: int4(block = 16)"),
    ),
    "activations": (
        {"body": "quantize { activations: int8(per = tensor) }"},
        (
            "scheme.not-lowered",
            "scheme `int8` is not lowered yet",
            "activations: int8(per = tensor)",
        ),
    ),
    "a host table at four bits": (
        {"body": "quantize { embed: palettize(bits = 4) }"},
        (
            "scheme.not-lowered",
            "scheme `palettize` is not lowered yet",
            "embed: palettize(bits = 4)",
        ),
    ),
    # the language keeps no place for these two
    "tap": (
        {"body": "tap L1"},
        ("tap.not-lowered", "`tap` exports no hidden state yet", "tiny"),
    ),
    "features": (
        {"body": "features coreml_llm"},
        ("features.not-lowered", "features profile `coreml_llm` is not emitted yet", "tiny"),
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


def test_write_slice_outside_a_state_is_refused(tmp_path):
    from attrs import evolve

    from topoc.dsl.model import Store

    topology, _ = refused(tmp_path, "kv { L1: store state, write slice }")
    blocks = tuple(evolve(b, kv=evolve(b.kv, store=Store.IO)) for b in topology.blocks)
    (found,) = refusals(evolve(topology, blocks=blocks))
    assert found.message == "`write slice` is not lowered yet"
    assert found.at.at.text == "L1: store state, write slice"


def test_layers_of_one_rule_are_refused_together_and_those_of_two_apart(tmp_path):
    _, found = refused(tmp_path, "kv { all: store state\n L1: store state(other) }")
    assert [one.at.at.text for one in found] == ["all: store state", "L1: store state(other)"]


def test_everything_is_refused_at_once(tmp_path):
    body = f"{SEPARATE}, verify(tokens = 2)\n  tap L1\n  quantize {{ weights: int4 }}"
    _, found = refused(tmp_path, body)
    assert len(found) == 4


def test_per_layer_embeddings_and_a_checkpoints_sharing_are_refused():
    topology, _ = resolved(gemma4_text("quantize { embed: none }"), layers=gemma4)
    found = {(one.code, one.message): one.at.at.text for one in refusals(topology)}
    assert found == {
        ("part.not-lowered", "part `ple` is not lowered yet"): "ple",
        ("kv.not-lowered", "`share` is not lowered yet"): "t",  # no line of the text asks for it
    }


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
    ],
)
def test_what_is_lowered_is_not_refused(body, chunks, tmp_path):
    topology, found = refused(tmp_path, body, chunks)
    assert found == []
    architecture = load_tiny(tmp_path)[1]
    assert plan(topology, architecture).packages
