"""Texts to trees, and the errors of texts that are none."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from topo_text import codes

from topoc.dsl import ast
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.layout import lay_out
from topoc.dsl.library import Library
from topoc.dsl.parser import parse
from topoc.dsl.source import Source
from topoc.dsl.tokens import STATEMENTS, TOP

SHIPPED = sorted((Path(__file__).parents[1] / "topologies").glob("*.topo"))
EVERYTHING = Path(__file__).parent / "samples" / "everything.topo"


def read(text):
    return parse(Source("test.topo", text))


def only(text):
    file, findings = read(f"topology t {{\n{text}\n}}\n")
    assert not findings, codes(findings)
    return file.items[0].statements


def errors(text):
    _, findings = read(text)
    return [(one.code, one.at.at.line) for one in findings]


@pytest.mark.parametrize("path", [*SHIPPED, EVERYTHING], ids=lambda path: path.name)
def test_reads_whole_files(path):
    file, findings = read(path.read_text("utf-8"))
    assert not findings
    assert file.items


def test_a_keyword_is_a_name_where_no_line_begins():
    (chunk, expect) = only("chunk head = L0 + head(argmax)\nexpect { kv io per step <= 70 MB }")
    assert chunk.call.name == "head"
    assert expect.budgets[0].measure == "kv io per step"


def test_a_line_goes_on_after_commas_plus_and_equals_and_before_plus():
    (functions, chunk, other) = only(
        "functions decode,\n  prefill(tokens =\n 64)\n"
        "chunk a =\n L0-3 +\n norm\nchunk b = L4\n + head(argmax)"
    )
    assert [call.name for call in functions.calls] == ["decode", "prefill"]
    assert len(chunk.parts) == len(other.parts) == 2


def test_layers_may_repeat_the_letter():
    (chunk,) = only("chunk a = L0-L7")
    assert chunk.parts == (ast.Range(0, 7, span=chunk.span),)


def test_selector_commas_bind_tighter_than_juxtaposition():
    (rules,) = only("quantize { L0, L34 mlp: palettize(bits = 8) }")
    groups = rules.rules[0].groups
    assert [len(group.items) for group in groups] == [2, 1]


def test_records_keep_because_and_none():
    (status,) = only('status shelved on 2026-04 {\n because "slow"\n figure none "lost"\n}')
    assert [entry.key for entry in status.record.entries] == [("because",), ("figure", "none")]
    assert status.date == "2026-04"


def test_units_and_signs_belong_to_numbers():
    (expect,) = only("expect {\n fp16 per chunk <= 2.2 GB\n cosine >= 99 %\n}")
    values = [(budget.value.value, budget.value.unit) for budget in expect.budgets]
    assert values == [(2.2, "GB"), (99.0, "%")]


def test_texts_are_json():
    (doc,) = only(r'doc "a \"quoted\" caf\u00e9"')
    assert doc.text.text == 'a "quoted" café'


def test_equality_ignores_place():
    assert only("context 8") == only("\n\n   context   8  # here")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('dok "x"', "syntax.statement"),
        ("context = 8192", "syntax.unexpected"),
        ("context 8K", "syntax.number"),
        ("context 8_192", "syntax.number"),
        ("chunk a = L0–7", "syntax.layers"),
        ("chunk a = L0 - 7", "syntax.layers"),
        ("chunk a =", "syntax.incomplete"),
        ("chunk on = L0", "syntax.name"),
        ("chunk L4 = L0", "syntax.name"),
        ("chunk two-part = L0", "syntax.name"),
        ("chunk Two = L0", "syntax.name"),
        ("doc 'x'", "syntax.text"),
        ('doc "x', "syntax.text"),
        (r'doc "\q"', "syntax.text"),
        ("context 8;", "syntax.character"),
        ('doc "x" context 8', "syntax.line"),
        ("kv { sliding: own full: own }", "syntax.line"),
        ("param small = 3", "param.case"),
        ("functions prefill(tokens = 64", "syntax.incomplete"),
    ],
)
def test_an_error_is_reported_once_and_the_next_line_is_read(line, code):
    text = f"topology t {{\n  {line}\n  doc 3\n}}\n"
    assert errors(text) == [(code, 2), ("syntax.unexpected", 3)]


def test_a_lost_brace_is_reported_where_it_was_opened():
    text = (
        "topology a {\n  kv {\n    all: own\n  context 8\n  kontext 9\n}\ntopology b {\n  dok\n}\n"
    )
    assert errors(text) == [("syntax.brace", 2), ("syntax.statement", 5), ("syntax.statement", 8)]


def test_a_block_whose_head_is_wrong_is_skipped_whole():
    text = "topology t {\n kv all {\n  all: own\n  nonsense\n }\n dok\n}\n"
    assert errors(text) == [("syntax.unexpected", 2), ("syntax.statement", 6)]


def test_a_brace_too_many_does_not_hide_the_next_topology():
    assert errors("topology a {\n}\n}\ntopology b {\n dok\n}\n") == [
        ("syntax.brace", 3),
        ("syntax.statement", 5),
    ]


def test_a_broken_header_still_has_its_body_read():
    assert errors("topology a extend b {\n  dok\n}\n") == [
        ("syntax.unexpected", 1),
        ("syntax.statement", 2),
    ]


def test_the_sound_statements_of_a_broken_file_are_kept():
    file, _ = read('topology t {\n  context 8\n  dok\n  doc "x"\n}\n')
    assert [type(one) for one in file.items[0].statements] == [ast.Context, ast.Doc]


SCRAPS = """topology experiment t { } ( ) [ ] , = + : <= "x" 8 8K L0-7 L9 status on because kv all
    own share chunk doc extends allow state.update 2026-04-13 head # " ' – \x00"""
words = st.sampled_from([*SCRAPS.split(), "\n", "\n  "])
lines = st.sampled_from(
    [
        *("topology a {", "topology b extends a {", "experiment e {", "}", "} }", "{", "", "# c"),
        *('doc "x"', "context 8", "kv { all: own }", "kv {", "all: own, write shift", "L0-3: own"),
        *("quantize {", "L0, L3 mlp: int8", "expect {", "chunks <= 3", "status shelved {"),
        *('because "x"', "figure 3 ms", "chunk a = L0 +", "+ norm", "functions decode, prefill("),
        *(
            "tokens = 3)",
            "measured on 2026-04 {",
            "allow state.update because",
            "kv { all own",
            "x",
        ),
    ]
)


@given(st.text() | st.lists(words).map(" ".join) | st.lists(lines).map("\n".join))
@example("topology")
@example("}{][")
@example("topology a { kv { a: b")
@example("\ufefftopology t { }")
@example("topology a {\nkv { all: own }\n+ norm")
def test_arbitrary_text_gives_findings_and_no_traceback(text):
    file, findings = read(text)
    assert isinstance(file, ast.File)
    for one in findings:
        assert 0 <= one.at.at.start <= one.at.at.end <= len(text)


@given(st.lists(words).map(" ".join) | st.lists(lines).map("\n".join))
def test_layout_is_idempotent_and_changes_no_meaning(text):
    file, findings = read(text)
    if not findings:
        laid = lay_out(Source("test.topo", text))
        assert read(laid) == (file, ())
        assert lay_out(Source("test.topo", laid)) == laid


@pytest.mark.parametrize("path", [*SHIPPED, EVERYTHING], ids=lambda path: path.name)
def test_files_keep_their_meaning_and_comments_in_canonical_layout(path):
    text = path.read_text("utf-8")
    laid = lay_out(Source("test.topo", text))
    assert read(laid)[0] == read(text)[0]
    assert laid.count("#") == text.count("#")
    assert lay_out(Source("test.topo", laid)) == laid


def test_reading_takes_time_in_proportion_to_the_text():
    text = "topology t {\n" + "  kv { all: own\n" * 30_000
    start = time.process_time()
    read(text)
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 300_000,
        "topology t { context " + "[" * 100_000,
        "topology t { context " + "[" * 5_000 + "1" + "]" * 5_000 + "\n}",
        "{" * 20_000,
        "topology t { tap L" + "9" * 5_000 + "\n context " + "9" * 5_000 + "\n}",
        "topology t { context " + "9" * 5_000 + "K\n}",
        'topology t { doc "' + "\\" * 100_001,
    ],
    ids=["lines", "open", "nested", "braces", "digits", "kilo", "escapes"],
)
def test_absurd_texts_are_read_in_a_moment(text):
    start = time.process_time()
    read(text)
    assert time.process_time() - start < 20


DOCS = Path(__file__).parents[1] / "docs" / "language.md"


def test_the_documented_topologies_parse_and_every_keyword_is_documented():
    blocks = DOCS.read_text("utf-8").split("```")[1::2]
    samples = [block for block in blocks if block.startswith("\ntopology")]
    assert samples
    for sample in samples:
        assert not read(sample)[1]
    for word in (*STATEMENTS, *TOP):
        assert f"| `{word} " in DOCS.read_text("utf-8")


def test_files_over_a_megabyte_are_refused_by_name(tmp_path):
    path = tmp_path / "big.topo"
    path.write_text("#" * 1_000_001)
    with pytest.raises(TopocError, match=r"big\.topo` is larger than 1 MB"):
        Library().open(path)


def test_bytes_that_are_no_utf8_are_refused_with_their_line(tmp_path):
    path = tmp_path / "latin.topo"
    path.write_bytes(b'topology t {\n doc "caf\xe9"\n}\n')
    with pytest.raises(TopocError, match="line 2 of"):
        Library().open(path)
