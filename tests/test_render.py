"""Findings as people and programs see them."""

import json

from topoc.dsl.diagnostic import Diagnostic, Edit, Label, Place, Severity, error
from topoc.dsl.render import as_json, as_text, count
from topoc.dsl.source import Source, Span

TEXT = 'topology t {\n  chunk a = L0-7\n  chunk b = L9-17\n\n\n  doc "x"\n}\n'
SOURCE = Source("t.topo", TEXT)


def span(words, source=SOURCE):
    start = source.text.index(words)
    return Span(source, start, start + len(words))


def test_shows_the_line_the_caret_the_labels_and_the_help():
    finding = error(
        "chunk.gap",
        "L8 is in no chunk",
        span("L9-17"),
        "begins too late",
        help="add L8",
        related=(Label(span("L0-7"), "ends here"), Label(span('"x"'), "far away")),
    )
    assert as_text([finding]) == (
        "error[chunk.gap]: L8 is in no chunk\n"
        "  --> t.topo:3:13\n"
        "   |\n"
        " 1 | topology t {\n"
        " 2 |   chunk a = L0-7\n"
        "   |             ---- ends here\n"
        " 3 |   chunk b = L9-17\n"
        "   |             ^^^^^ begins too late\n"
        "...\n"
        ' 6 |   doc "x"\n'
        "   |       --- far away\n"
        "   = help: add L8\n"
    )


def test_a_place_in_another_text_gets_its_own_excerpt():
    other = Source("base.topo", "topology base {\n}\n")
    finding = error("x.y", "m", span("chunk b"), related=(Label(span("base", other), "base"),))
    assert as_text([finding]).splitlines()[6:] == [
        "  ::: base.topo:1:10",
        "   |",
        " 1 | topology base {",
        "   |          ---- base",
    ]


def test_an_empty_span_at_the_end_of_a_text_has_one_caret():
    source = Source("t.topo", "topology")
    text = as_text([error("x.y", "m", Span(source, 8, 8))])
    assert text.splitlines()[-1] == "   |         ^"


def test_a_span_over_several_lines_is_clipped_to_its_first():
    text = as_text([error("x.y", "m", Span(SOURCE, 0, len(TEXT)))])
    assert text.splitlines()[-1] == "   | ^^^^^^^^^^^^"


def test_carets_stand_under_wide_and_tabbed_text():
    source = Source("t.topo", '\tdoc "\u6f22\u5b57" x')
    lines = as_text([error("x.y", "m", span("x", source))]).splitlines()
    assert lines[-1] == "   | " + " " * (4 + 4 + 6 + 1) + "^"


def test_control_characters_never_reach_the_terminal():
    source = Source("\x1b[31m.topo", "doc \x1b[2J x")
    assert "\x1b" not in as_text([error("x.y", "say \x1b", span("x", source), help="\x1b")])


def test_a_place_outside_any_text_is_named():
    finding = error("x.y", "m", Place("config.json", "layers"), "these")
    assert as_text([finding]).splitlines()[1] == "  --> config.json: layers these"


def test_json_has_every_field():
    finding = Diagnostic(
        "x.y",
        Severity.WARNING,
        "m",
        Label(span("L0-7"), "words"),
        (Label(Place("f", "p"), "q"),),
        "help",
        fix=(Edit(span("L0-7"), "L0-8"),),
    )
    (found,) = json.loads(as_json([finding]))["findings"]
    place = {"file": "t.topo", "line": 2, "column": 13, "end_line": 2, "end_column": 17}
    assert found == {
        "code": "x.y",
        "severity": "warning",
        "message": "m",
        "at": {**place, "words": "words"},
        "related": [{"file": "f", "part": "p", "words": "q"}],
        "help": "help",
        "fix": [{**place, "text": "L0-8"}],
    }


def test_counts_in_words_the_worst_first():
    note = Diagnostic("x.y", Severity.NOTE, "m", Label(Place("f")))
    worse = error("x.y", "m", Place("f"))
    assert count([note, worse, worse]) == "2 errors, 1 note"
    assert count([]) == "no findings"
