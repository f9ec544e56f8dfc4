"""Texts to topologies in memory, with the layer tables of layer_tables.py."""

from pathlib import Path

import layer_tables

from topoc.dsl.library import Library, Parsed
from topoc.dsl.lint.engine import lint
from topoc.dsl.parser import parse
from topoc.dsl.resolve import Given, resolve
from topoc.dsl.resolve.chain import chain
from topoc.dsl.source import Source


def table(path):
    """The layer table that a model file's name stands for."""
    if "e4b" in path.name:
        return layer_tables.gemma4_e4b(path)
    if "narrow" in path.name:
        return layer_tables.narrow(path)
    if "qwen3" in path.name:
        return layer_tables.qwen3(path)
    return layer_tables.gemma4(path) if "gemma4" in path.name else layer_tables.gemma3(path)


def resolved(text, *, name=None, define=None, folder=Path(), layers=table):
    """The topology called `name`, or the last of a text, and all findings but lint's."""
    file, findings = parse(Source("test.topo", text))
    found = list(findings)
    parsed = Parsed(file, folder, "test", findings)
    wanted = [one for one in file.topologies if name in {None, one.name.text}][-1]
    links = chain(parsed, wanted, Library(), found)
    if links is None:
        return None, found
    return resolve(links, Given(define or {}, None, layers), found), found


def linted(text, **options):
    """The findings of lint alone; the text must resolve."""
    topology, findings = resolved(text, **options)
    assert topology is not None, [(one.code, one.message) for one in findings]
    return lint(topology)


def codes(findings):
    """The codes of findings, in order."""
    return [one.code for one in findings]


def gemma3(body="", *, name="t", chunks="chunk body = L0-17 + norm + head(argmax)"):
    """A topology of Gemma 3 270M with more statements."""
    head = 'model "gemma3.json"\n  target ane ios18 a17\n  context 2048'
    return f"topology {name} {{\n  {head}\n  {body}\n  {chunks}\n}}\n"


def gemma4(body="", *, name="t", chunks=None):
    """A topology of Gemma 4 E2B with more statements."""
    own = "chunk one = ple + L0-14\n  chunk two = L15-34 + norm + head(argmax)"
    head = 'model "gemma4.json"\n  target ane ios18 a19\n  context 2048'
    return f"topology {name} {{\n  {head}\n  {body}\n  {chunks or own}\n}}\n"
