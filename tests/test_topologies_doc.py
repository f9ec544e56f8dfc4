"""`docs/topologies.md` says of each shipped topology what its file says."""

from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from topoc.dsl.load import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "topologies.md"
SHIPPED = sorted((ROOT / "topologies").glob("*.topo"))
TABLE = (
    "| topology | is | verdict | chunks | KV | functions |\n| --- | --- | --- | --- | --- | --- |\n"
)
VERDICTS = "## What was shelved or rejected, and why\n\n"


@cache
def topology(path):
    found, findings = load(path)
    assert found is not None, findings
    return found


def cut(one):
    """The chunks, by their layers and by what else they hold at the start."""
    return ", ".join(" + ".join(map(spelled, chunk.parts)) for chunk in one.chunks)


def spelled(part):
    if part.kind == "layers":
        return f"L{part.first}-{part.last}"
    split = f" in {part.head.split}" if part.head is not None and part.head.split > 1 else ""
    return f"{part.kind}{split}"


def kept(one):
    """Where owners keep their KV: each kind's slots and write, in the order of the layers."""
    owners = [block for block in one.blocks if block.kv.donor is None]
    found = {}
    for block in owners:
        kv, kind = block.kv, one.layers.layers[block.index].kind.value
        row = f", {kv.padded_heads} heads" if kv.padded_heads else ", padded" if kv.padded else ""
        found.setdefault(f"{kind} {kv.write.value} {kv.slots}{row}", kv.state)
    where = dict.fromkeys(found.values())
    if list(where) == [None]:
        return f"tensors: {'; '.join(found)}"
    names = ", ".join(f"`{name}`" for name in where)
    return f"state{'s' * (len(where) > 1)} {names}: {'; '.join(found)}"


def seen(one):
    """Attention that is not simply the checkpoint's, in a few words."""
    found = {
        f"{attention.kind} {attention.tile or attention.window}"
        for attention in (block.attention for block in one.blocks)
        if attention.kind not in {"sliding", "full"}
    }
    return "".join(f" ({words})" for words in sorted(found))


def row(path):
    one = topology(path)
    verdict = one.verdict
    dated = f"{verdict.state}, {verdict.date}" if verdict.date else verdict.state
    functions = ", ".join(function.name for function in one.functions)
    link = f"[`{one.name}`](../topologies/{path.name})"
    return f"| {link} | {one.doc}{seen(one)} | {dated} | {cut(one)} | {kept(one)} | {functions} |\n"


def models():
    """The files of each model, under its name."""
    by_model = sorted(SHIPPED, key=lambda path: (topology(path).layers.config.stem, path.stem))
    return groupby(by_model, key=lambda path: topology(path).layers.config.stem)


def reached(path):
    verdict = topology(path).verdict
    lines = {key: verdict.line(key) for key in ("because", "figure", "under", "revisit")}
    return (
        f"- **`{path.stem}`**, {verdict.state}: {lines['because']}."
        f" {lines['figure'][0].upper()}{lines['figure'][1:]} ({lines['under']})."
        f" To look again at: {lines['revisit']}.\n"
    )


def written():
    """Everything after the first paragraph."""
    parts = [f"## {name}\n\n{TABLE}{''.join(map(row, paths))}\n" for name, paths in models()]
    final = [one for one in SHIPPED if topology(one).status in {"shelved", "rejected", "abandoned"}]
    return "".join([*parts, VERDICTS, *map(reached, final)])


def test_the_page_is_what_the_files_say(golden):
    intro = DOCS.read_text("utf-8").partition("## ")[0]
    assert len(intro.splitlines()) > 5
    golden(DOCS, intro + written())


@pytest.mark.parametrize(("path", "following"), list(pairwise(SHIPPED)))
def test_every_file_says_what_it_is_in_a_sentence(path, following):
    assert topology(path).doc.endswith(".")
    assert topology(path).doc != topology(following).doc
