"""Lessons on text: what the parser can't read."""

from topoc.dsl.lint.lessons.lesson import Lesson

LESSONS: dict[str, Lesson] = {
    "syntax.statement": Lesson(
        "A line begins with a word that starts no statement, or stands where none may.",
        "contxt 2048",
        "context 2048",
    ),
    "syntax.incomplete": Lesson(
        "A line ends before its statement does; only `+`, `,`, `=` and open brackets carry it on.",
        "functions decode, prefill(tokens =\n}",
        "functions decode, prefill(tokens = 64)",
    ),
    "syntax.line": Lesson(
        "Two statements or two rules stand on one line, and each needs a line of its own.",
        "kv { all: own  sliding: write shift }",
        "kv {\n  all: own\n  sliding: write shift\n}",
    ),
    "syntax.unexpected": Lesson(
        "A word or sign stands where the statement has no place for it.",
        "context = 2048",
        "context 2048",
    ),
    "syntax.brace": Lesson(
        "A brace closes nothing, or one that was opened is never closed.",
        "kv { all: own }\n}\n}",
        "kv { all: own }",
    ),
    "syntax.text": Lesson(
        "A text is a JSON string on one line, between straight double quotes.",
        "doc 'three chunks'",
        'doc "three chunks"',
    ),
    "syntax.number": Lesson(
        "Numbers are plain decimals, without separators, exponents or suffixes but the units.",
        "context 8_192",
        "context 8192",
    ),
    "syntax.layers": Lesson(
        "A range of layers is written with a hyphen between its two ends, both of which count.",
        "kv { L0–7: write shift }",
        "kv { L0-7: write shift }",
    ),
    "syntax.name": Lesson(
        "A name is small letters, digits and `_`, is not reserved and does not look like a layer.",
        "topology Swa4 {\n  context 2048\n}",
        "topology swa4 {\n  context 2048\n}",
    ),
    "syntax.character": Lesson(
        "A character has no meaning outside a text or a comment.",
        "context 2048;",
        "context 2048",
    ),
    "name.unknown": Lesson(
        "A base, file, topology, chunk or function that is named here is not there.",
        "topology merged extends base_that_is_not_here {\n  context 2048\n}",
        "topology merged {\n  context 2048\n}",
    ),
    "name.duplicate": Lesson(
        "Two things of one sort bear one name, or a statement that stands once stands twice.",
        "context 2048\ncontext 4096",
        "context 4096",
    ),
    "name.cycle": Lesson(
        "A topology extends itself, directly or through its bases.",
        "topology one extends two {\n}\ntopology two extends one {\n}",
        "topology one {\n}\ntopology two extends one {\n}",
    ),
    "name.ambiguous": Lesson(
        "A file holds several topologies and none is called like the file; --topology chooses.",
        "topology one {\n}\ntopology two {\n}",
        "topology one {\n}\nexperiment two {\n}",
    ),
    "value.type": Lesson(
        "A value is of another sort than its place takes, or carries a unit that does not fit.",
        "context 2048 MB",
        "context 2048",
    ),
    "value.range": Lesson(
        "A number is too small, too large or too long for what it counts, or a day is none.",
        "functions decode, prefill(tokens = 4096)",
        "functions decode, prefill(tokens = 64)",
    ),
    "param.unknown": Lesson(
        "A parameter that is used or set by -D has no `param` line here or in a base.",
        "context C",
        "param C = 2048\ncontext C",
    ),
    "param.case": Lesson(
        "Parameters are written in capitals, so that they can't be taken for other words.",
        "param window = 2048",
        "param W = 2048\ncontext W",
    ),
    "param.unused": Lesson(
        "A parameter is set and nothing uses it.",
        "param C = 2048",
        "param C = 2048\ncontext C",
    ),
}
