"""Whatever is written: no traceback, an answer in bounded time, and a formatter that loses nothing.

The texts here are drawn. Most are well formed and mean nothing, so that every stage behind the
parser meets words, numbers and layers where it expects others.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from topo_text import codes, gemma3, resolved, table

import topoc.dsl.resolve
from topoc.dsl import ast
from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.format import flatten
from topoc.dsl.layout import lay_out
from topoc.dsl.lint.engine import lint
from topoc.dsl.parser import parse
from topoc.dsl.render import as_github, as_json, as_text
from topoc.dsl.resolve.attention import SHAPES
from topoc.dsl.resolve.budgets import MEASURES
from topoc.dsl.resolve.chunks import PARTS
from topoc.dsl.resolve.functions import ROLES
from topoc.dsl.resolve.kv import CLAUSES
from topoc.dsl.resolve.quantize import ROLES as TENSORS
from topoc.dsl.resolve.quantize import SCHEMES
from topoc.dsl.resolve.verdict import LINES, STATES
from topoc.dsl.source import Source

ROOT = Path(__file__).parents[1]
SHOWN = sorted(
    [*(ROOT / "tests" / "golden" / "lint").glob("*.topo"), *(ROOT / "topologies").glob("*.topo")]
)

# Texts that are well formed, whatever they mean.

NAMES = ["one", "two", "body", "fill", "base", "prefill_64", "nothing_known"]
words = st.sampled_from(
    [
        *(*NAMES, *SHAPES, *CLAUSES, *SCHEMES, *TENSORS, *ROLES, *STATES, *PARTS, "all", "sliding"),
        *("argmax", "tokens", "window", "bits", "group", "graph", "host", "unit", "gpu", "ane"),
        *("ios18", "a17", "function", "topk", "split", "tile", "state", "shift", "name"),
    ]
)
shouts = st.sampled_from(["C", "W", "N_1"])
numbers = st.sampled_from(
    [
        *("0", "1", "2", "64", "512", "2048", "4096", "-3", "2.5", "3 GB", "7 ms", "50 %"),
        *("1 tok/s", "999999999999999", "2147483648", "0.000001"),
    ]
)
layers = st.builds(
    lambda a, b: f"L{a}-{b}",
    st.sampled_from([0, 5, 17, 18, 34, 10**9]),
    st.sampled_from([0, 5, 17, 34]),
) | st.sampled_from(["L0", "L5", "L17", "L35"])
texts = st.text("ab1é\u2028 .", max_size=6).map(json.dumps)
values = st.recursive(
    words | shouts | numbers | layers | texts,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda of: f"[{', '.join(of)}]"),
    max_leaves=3,
)
arguments = st.builds(
    lambda name, value: f"{name} = {value}" if name else value, st.none() | words, values
)
calls = st.builds(
    lambda word, given: f"{word}({', '.join(given)})" if given else word,
    words,
    st.lists(arguments, max_size=3),
)


def joined(sign, parts, most=3):
    return st.lists(parts, min_size=1, max_size=most).map(sign.join)


groups = joined(", ", layers | words)
stacks = joined(" + ", calls, 2)
clauses = st.builds(lambda word, what: f"{word} {what}", words, layers | calls)
rules = st.builds(
    lambda where, what: f"{where}: {what}", joined(" ", groups, 2), joined(", ", stacks | clauses)
)
budgets = st.builds(
    lambda measure, sign, value: f"{measure} {sign} {value}",
    st.sampled_from([*MEASURES]) | joined(" ", words),
    st.sampled_from(["<=", "<", ">=", ">", "=="]),
    numbers | shouts | words,
)
entries = st.builds(
    lambda head, value: f"{head} {value}",
    st.sampled_from([*LINES, "figure none", "device", "placement one"]) | joined(" ", words, 2),
    texts | numbers,
)
dates = st.sampled_from(["2026-04", "2026-04-13", "2026-99-99"])
findings_codes = st.sampled_from(
    ["state.update", "kv.donor-forgets", "no.such-code", "chunk.gap", "chunk.too-many-layers"]
)


def block(head, lines):
    return st.lists(lines, max_size=4).map(lambda of: "\n".join([f"{head} {{", *of, "}"]))


statements = st.one_of(
    texts.map("doc {}".format),
    st.sampled_from(['model "gemma3.json"', 'model "gemma4.json"', 'model "e4b.json"']),
    joined(" ", words).map("target {}".format),
    values.map("context {}".format),
    st.builds("param {} = {}".format, shouts, numbers),
    words.map("features {}".format) | st.just("features coreml_llm"),
    st.builds("chunk {} = {}".format, calls, joined(" + ", layers | calls, 4)),
    joined(", ", layers).map("tap {}".format),
    joined(", ", calls).map("functions {}".format),
    st.builds("allow {} in {} because {}".format, findings_codes, words, texts),
    block("attention", rules) | block("kv", rules) | block("quantize", rules),
    block("expect", budgets),
    st.builds(lambda state, date: f"status {state} on {date}", words, dates),
    st.builds(lambda state, rest: f"status {state} {rest}", words, block("", entries)),
    st.builds(lambda date, rest: f"measured on {date} {rest}", dates, block("", entries)),
)
FRAME = 'model "gemma3.json"\ncontext 2048\nchunk body = L0-17 + norm + head(argmax)'


def framed(lines, *, frame, base):
    """A topology of these statements; with a frame it resolves where they leave it whole."""
    head = f"topology t{' extends base' if base else ''} {{\n"
    below = f"topology base {{\n{FRAME}\n}}\n" if base else ""
    return "\n".join([below + head, FRAME if frame else "", *lines, "}\n"])


topologies = st.builds(
    framed, st.lists(statements, max_size=6), frame=st.booleans(), base=st.booleans()
)


@settings(max_examples=int(os.environ.get("EXAMPLES", "100")))
@given(topologies)
def test_a_well_formed_text_is_resolved_or_refused_without_a_traceback(text):
    _, errors = parse(Source("test.topo", text))
    assert {one.code for one in errors} <= {"value.range", "syntax.name", "syntax.unexpected"}
    topology, findings = resolved(text, name="t")
    found = [*errors, *findings, *(lint(topology) if topology else ())]
    for render in (as_text, as_json, as_github):
        assert isinstance(render(found), str)
    for one in found:
        assert one.help or one.at.words or one.related or len(text) > 2_000, one.message
        assert "invalid" not in one.message
        assert not one.message.endswith(".")
    if topology is None:
        assert any(one.severity is Severity.ERROR for one in findings)
    else:
        again, _ = resolved(flatten(topology), layers=lambda _: topology.layers)
        assert again == topology


@settings(max_examples=80)
@given(topologies, st.lists(st.sampled_from(["# a", "  # b \u2028", "#", " # {", "# }"])))
@example('topology t {\n  doc "a # b"\n}\n', ["# c", "# d"])
def test_the_formatter_is_idempotent_and_keeps_every_comment(text, comments):
    lines = text.splitlines()
    step = max(1, len(lines) // (len(comments) + 1))
    for at, comment in enumerate(comments):
        place = min(len(lines) - 1, at * step)
        lines[place] += f" {comment}" if at % 2 else f"\n{comment}"
    written = "\n".join(lines) + "\n"
    before, errors = parse(Source("test.topo", written))
    if errors:
        return
    laid = lay_out(Source("test.topo", written))
    assert lay_out(Source("test.topo", laid)) == laid
    assert parse(Source("test.topo", laid)) == (before, ())
    assert noted(laid) == noted(written)


def noted(text):
    """The comments of a text, in order."""
    outside = re.sub(r'"([^"\\\n]|\\[^\n])*"', "", text)
    return [one.rstrip() for one in re.findall(r"#[^\n]*", outside)]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.stem)
def test_files_are_formatted_once_for_all(path):
    source = Source(path.name, path.read_text("utf-8"))
    if any(one.severity is Severity.ERROR for one in parse(source)[1]):
        return
    laid = lay_out(source)
    assert lay_out(Source(path.name, laid)) == laid
    assert noted(laid) == noted(source.text)
    assert parse(Source(path.name, laid))[0] == parse(source)[0]


# Absurd sizes.


@pytest.fixture
def lint_of(monkeypatch, tmp_path):
    """The output and status of `topoc lint` on one text, and the seconds that it took."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: table)

    def run(text):
        (tmp_path / "t.topo").write_text(text)
        start = time.process_time()
        result = CliRunner().invoke(main, ["lint", "t.topo"])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.stdout, result.exit_code, time.process_time() - start

    return run


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#" * 1_000_001, "`t.topo` is larger than 1 MB"),
        ("topology t { context " + "[" * 100_000, "brackets are nested more than 20 deep"),
        ("topology t { functions f" + "(a" * 50_000, "brackets are nested more than 20 deep"),
        ("topology t " + "{" * 100_000, "brackets are nested more than 20 deep"),
        ("topology t {\n" + "  dok 3\n" * 5_000 + "}\n", "4800 more errors follow"),
        (gemma3("kv { L0-999999999: own }"), "`L0-999999999` goes beyond"),
        (gemma3("kv { L1000000000: own }"), "`L1000000000` goes beyond"),
        (gemma3("tap L" + "9" * 100_000), "layers L0 to L17, and `L99999999999"),
        (gemma3("context 1" + "0" * 100_000), "numbers end at 1000000000000000"),
        (
            gemma3(name="t0")
            + "".join(f"topology t{n + 1} extends t{n} {{ }}\n" for n in range(400)),
            "has more than 64 bases",
        ),
        ("".join(f"topology a{n} extends b{n} {{ }}\n" for n in range(1_500)), "`b1499`"),
    ],
    ids=[
        *("long", "lists", "calls", "braces", "lost", "billion", "one", "digits", "zeros"),
        *("bases", "nowhere"),
    ],
)
def test_what_no_topology_needs_is_refused_by_name_in_a_moment(lint_of, text, words):
    said, status, seconds = lint_of(text)
    assert status in {1, 2}
    assert words in said
    assert len(said) < 1_500_000
    assert seconds < 15


def test_a_config_of_a_billion_layers_is_refused_by_name_in_a_moment(tmp_path):
    config = json.loads((ROOT / "examples" / "conformance" / "config.json").read_text("utf-8"))
    del config["layer_types"]
    config["num_hidden_layers"] = 10**9
    (tmp_path / "gemma3.json").write_text(json.dumps(config))
    (tmp_path / "t.topo").write_text(gemma3())
    command = [sys.executable, "-c", "from topoc.dsl.cli import main; main()", "lint", "t.topo"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "`num_hidden_layers` is 1000000000" in done.stdout


def test_a_long_line_is_shown_around_what_is_wrong_in_it():
    text = gemma3(f'doc "{"x" * 3_000}" tap L90')
    _, (finding,) = parse(Source("t.topo", text))
    shown = as_text([finding]).splitlines()
    line = next(at for at, one in enumerate(shown) if "…" in one)
    assert len(shown[line]) < 220
    assert shown[line][shown[line + 1].index("^") :].startswith("tap L90")


def test_bounds_that_contradict_each_other_are_found():
    found = resolved(gemma3("expect { chunks <= 3\n chunks < 2\n chunks >= 1 }"))[1]
    assert codes(found) == ["name.duplicate"]


def test_a_number_that_ends_nowhere_is_one_finding():
    file, errors = parse(Source("t.topo", gemma3("param W = 99999999999999999999\n  tap L1")))
    assert codes(errors) == ["value.range"]
    assert isinstance(file.topologies[0].statements[3], ast.Param)
