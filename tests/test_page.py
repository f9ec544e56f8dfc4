"""The pages of `plan` and `diff`: all that is told is in them, in place, and nothing else acts."""

import json
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from page_tree import numbers, told, tree, value
from shipped import TOPOLOGIES, layout
from tiny_config import ninety_six, tiny
from topo_text import known

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.load import Loader, load
from topoc.dsl.resolve import Given
from topoc.lowering.cli.page.draw import draw
from topoc.lowering.cli.page.gather import Gatherer
from topoc.lowering.cli.page.places import Places
from topoc.lowering.cli.page.render import TEMPLATES

MEASURED = TOPOLOGIES / "measured"
SHIPPED = layout("gemma3_270m")
FOREIGN = "<script>alert(1)</script> \"' & <b>bold</b> {{ 7 * 7 }} </style>"
TINY = """topology t {{
  doc "{doc}"
  model "tiny/config.json"
  target ane ios18 a19
  context 64
  chunk one = L0-1
  chunk two = L2-3 + norm + head(argmax)
  functions decode, prefill(tokens = 4)
  {more}
}}
"""


@pytest.fixture
def topoc_(monkeypatch):
    """Run `topoc` with the layer tables of the tests."""
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: known)
    return invoke


def invoke(*arguments, status=0):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert result.exit_code == status, (result.stdout[-2000:], result.stderr)
    return result


@pytest.fixture
def tiny_(monkeypatch, tmp_path):
    """A folder with a model of four layers; gives a page and the report that it is of."""
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "tiny")

    def run(more="", doc="", status=0):
        Path("t.topo").write_text(TINY.format(doc=doc.replace('"', '\\"'), more=more))
        page = invoke("plan", "t.topo", "--html", "-", status=status).stdout
        report = invoke("plan", "t.topo", "--format", "json", status=status).stdout
        return tree(page), json.loads(report or "null")

    return run


@pytest.fixture
def plain(tmp_path):
    """A layout whose weights are as the checkpoint has them."""

    def write(name):
        path = tmp_path / f"plain_{name}.topo"
        allowed = 'allow state.update because "a test"' if "stateful" in name else ""
        path.write_text(
            f'topology plain_{name} extends "{layout(name)}" {{\n'
            f"  quantize {{ weights: none }}\n  {allowed}\n}}\n"
        )
        return path

    return write


# Every form of chunk list, cache and attention that the layouts have.
DRAWN = [
    layout(name)
    for name in (
        *("e4b_swa4", "flash", "future_gpu_prefill", "gemma3_270m", "head_split16", "merged2"),
        *("prefill_skips_readers", "qwen3_0_6b", "stateful3_unified", "swa4", "threeway", "wfa"),
    )
]


@cache
def loaded(path):
    return Loader(Given({}, None, known)).one(str(path), None).topology


# What is in a page.


def assert_has_every_number(page, report):
    found = numbers(page)
    wanted = dict(told(report))
    assert len(wanted) > 100
    for path, number in wanted.items():
        for one in found[path]:
            given = [float(word) for word in value(one).split()]
            assert given == (number if isinstance(number, list) else [number]), path
            assert one.text, path
    assert set(found) <= set(wanted)


def test_every_number_of_the_plan_is_in_the_page():
    page = tree(invoke("plan", SHIPPED, "--costs", "a19", "--html", "-").stdout)
    report = json.loads(invoke("plan", SHIPPED, "--costs", "a19", "--format", "json").stdout)
    assert_has_every_number(page, report)


@pytest.mark.parametrize("name", ["swa4", "stateful3", "e4b_threeway"])
def test_every_number_of_gemma_4_is_in_the_page(name, plain):
    """KV that layers share, host tables of per-layer rows, caches that packages keep as states."""
    page = tree(invoke("plan", plain(name), "--html", "-").stdout)
    report = json.loads(invoke("plan", plain(name), "--format", "json").stdout)
    assert_has_every_number(page, report)
    for path, kept in {
        f"caches/{at}": "the package, as a state" if one["store"] == "state" else "the host"
        for at, one in enumerate(report["caches"])
    }.items():
        assert kept in page.one("tr", data_path=path).text
    tables = [
        row.text for row in page.all("tr") if row.attributes.get("data-path", "")[:6] == "tables"
    ]
    assert [one.split()[0] for one in tables] == [
        one["name"].split()[0] for one in report["tables"]
    ]
    assert "ple_table" in page.text
    in_state = {
        r["layer"] for one in report["caches"] if one["store"] == "state" for r in one["rows"]
    }
    drawn = {
        int(g["data-layer"])
        for g in page.one("svg").all("g", data_layer=...)
        if any(" in a state " in one.text for one in g.all("text"))
    }
    assert drawn == in_state
    assert bool(in_state) == (name == "stateful3")


def test_budgets_and_their_spare_are_in_the_page(tiny_):
    more = (
        "expect { fp16 per chunk <= 9 MB\n disk per chunk <= 1 kB\n ms per step <= 90 ms\n kl < 1 }"
    )
    page, report = tiny_(more, status=1)
    assert_has_every_number(page, report)
    rows = [row.text for row in page.all("tr") if row.attributes.get("data-path", "")[:4] == "budg"]
    assert len(rows) == 4
    assert [over.text[0] for over in page.all("td", _class="n over")] == ["−"]
    assert "known only after lowering" in rows[3]


def rows_of(page):
    """The rows of tables that have an id."""
    return {row["id"]: row for row in page.all("tr", id=...)}


def assert_shows(page, topology, functions, prefix):
    """The picture of a chunk list has every layer, chunk and arrow, and a row for each."""
    chunks = next(topology.chunks_of(f) for f in topology.functions if f.name == functions[0])
    (svg,) = [one for one in page.all("svg") if one["id"] == prefix]
    layers = [at for chunk in chunks for at in chunk.layers]
    assert [int(one["data-layer"]) for one in svg.all("g", data_layer=...)] == layers
    assert [one["data-chunk"] for one in svg.all("g", data_chunk=...)] == [c.name for c in chunks]
    arrows = {(int(g["data-donor"]), int(g["data-reader"])) for g in svg.all("g", data_donor=...)}
    shared = {(topology.blocks[at].kv.donor, at) for at in layers}
    assert arrows == {(donor, at) for donor, at in shared if donor in layers}
    rows = rows_of(page)
    for one in svg.all("g", data_row=...):
        assert one["role"] == "img"
        assert one["aria-label"]
        assert rows[one["data-row"]].parent.parent.tag == "table"
    for one in svg.all("g", data_layer=...):
        kind = topology.blocks[int(one["data-layer"])].attention.kind
        assert kind in one.classes
        assert kind in one["aria-label"]


@pytest.mark.parametrize("path", DRAWN, ids=lambda one: one.stem)
def test_every_layout_has_its_layers_walls_and_arrows(path, topoc_):
    result = CliRunner().invoke(main, ["plan", str(path), "--costs", "a19", "--html", "-"])
    page, topology = tree(result.stdout), loaded(path)
    captions = [one.text.partition(" (")[0].split(", ") for one in page.all("figcaption")]
    assert {name for one in captions for name in one} == {one.name for one in topology.functions}
    for at, functions in enumerate(captions):
        assert_shows(page, topology, functions, f"p{at}")
    ids = [one["id"] for one in page.all(id=...)]
    assert len(ids) == len(set(ids))
    for link in page.all("a", href=...):
        assert link["href"].removeprefix("#") in ids


def test_a_row_tells_the_lines_of_the_file(plain):
    page = tree(invoke("plan", plain("swa4"), "--html", "-").stdout)
    row = rows_of(page)["p0-L20"].text
    for line in (
        "swa4.topo:25 chunk chunk3 = L15-24",
        "swa4.topo:11 sliding: sliding",
        "swa4.topo:17 L15-34 sliding: share L13",
    ):
        assert line in row
    assert "swa4.topo:17 L15-34 sliding: share L13" in rows_of(page)["p0-L13-L20"].text


def test_a_crossing_has_the_bytes_of_the_cost_model(plain):
    page = tree(invoke("plan", plain("swa4"), "--html", "-").stdout)
    texts = [one.text for one in page.one("svg").all("text")]
    assert texts.count("KV of L13 524.3 kB · KV of L14 4.2 MB") == 2  # two walls


def test_ms_are_those_of_the_plan_and_bars_are_to_scale():
    page = tree(invoke("plan", SHIPPED, "--costs", "a19", "--html", "-").stdout)
    report = json.loads(invoke("plan", SHIPPED, "--costs", "a19", "--format", "json").stdout)
    told_ms = [one["functions"][0]["ms"]["ms"] for one in report["chunks"]]
    widths = [float(one["width"]) for one in page.all("rect", _class="ms")]
    assert [round(w / max(widths), 2) for w in widths] == [
        round(ms / max(told_ms), 2) for ms in told_ms
    ]


# Findings.


def test_findings_stand_where_they_are_about(tmp_path):
    """Those of states with the layers that have one, that of a function with the function."""
    path = tmp_path / "kept.topo"
    path.write_text(
        f'topology kept extends "{layout("swa4")}" {{\n'
        "  kv { L0-14 sliding: store state, write slice }\n"
        "  functions decode, prefill(tokens = 8)\n}\n"
    )
    page = tree(invoke("plan", path, "--html", "-", status=1).stdout)
    items = {one["id"]: one.text for one in page.all("li", id=...)}
    assert items["finding-1"].startswith("error 1 state.update `chunk1` updates states")
    assert "About chunk chunk1, L0-3, L5-8, L10-13." in items["finding-1"]
    assert "About function prefill_8." in items["finding-3"]
    marked = {int(g["data-layer"]) for g in page.all("g", data_layer=...) if list(g.all("circle"))}
    assert marked == {at for at in range(15) if at % 5 != 4}
    assert "error 1 : `chunk1` updates states" in rows_of(page)["p0-L5"].text


def test_a_broken_budget_marks_its_chunks(tiny_):
    page, _ = tiny_("expect { layers per chunk < 2 }", status=1)
    marked = [g["data-chunk"] for g in page.all("g", data_chunk=...) if list(g.all("circle"))]
    assert marked == ["one", "two"]
    assert "Where there are errors there is no plan" in page.text


def test_a_budget_that_only_a_plan_breaks_is_a_finding_too(tiny_):
    page, _ = tiny_("expect { disk per chunk <= 1 kB }", status=1)
    (said,) = [one.text for one in page.all("li", id=...) if "expect.breach" in one.text]
    assert "About the budget disk per chunk <=" in said
    assert numbers(page)["download_bytes"]


def test_text_that_can_not_be_resolved_has_no_page(tiny_, tmp_path):
    tiny_()
    Path("broken.topo").write_text("topology broken {")
    result = CliRunner().invoke(main, ["plan", "broken.topo", "--html", "page.html"])
    assert (result.exit_code, Path("page.html").exists()) == (1, False)


# Text of people.


def assert_foreign_text_is_text(text, doc):
    page = tree(text)
    assert doc in page.text
    assert len(list(page.all("script"))) == 1
    assert len(list(page.all("style"))) == 1
    assert not list(page.all("b"))
    assert not [name for one in page.all() for name in one.attributes if name.startswith("on")]


def test_words_of_topologies_are_escaped(tiny_):
    more = (
        f"status shipping\n measured on 2026-01-01 {{ device {json.dumps(FOREIGN)}\n decode 1 ms }}"
    )
    tiny_(more, doc=FOREIGN)
    Path("u.topo").write_text(Path("t.topo").read_text("utf-8").replace("topology t", "topology u"))
    plan = invoke("plan", "t.topo", "--html", "-").stdout
    assert_foreign_text_is_text(plan, FOREIGN)
    differs = invoke("diff", "t.topo", "u.topo", "--html", "-").stdout
    assert_foreign_text_is_text(differs, FOREIGN)


def test_a_reason_in_a_line_is_escaped(tiny_):
    more = f"kv {{ all: write shift }}  # {FOREIGN.replace('{', '').replace('}', '')}"
    page, _ = tiny_(more)
    assert len(list(page.all("script"))) == 1
    assert "<script>alert(1)</script>" in rows_of(page)["p0-L0"].text


# The page as a file.


def test_a_page_needs_and_may_reach_nothing_else(topoc_, plain):
    for text in (
        topoc_("plan", plain("swa4"), "--html", "-").stdout,
        topoc_("diff", layout("swa4"), layout("merged2"), "--html", "-").stdout,
    ):
        page = tree(text)
        assert "default-src 'none'" in page.one("meta", http_equiv=...)["content"]
        assert not list(page.all(src=...))
        assert all(one["href"].startswith("#") for one in page.all(href=...))
        assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)


def test_ninety_six_layers_and_their_programs_fit_into_300_kilobytes(tmp_path):
    path = ninety_six(tmp_path)
    text = invoke("plan", path, "--html", "-").stdout
    page, report = tree(text), json.loads(invoke("plan", path, "--format", "json").stdout)
    assert_shows(page, load(path)[0], ["decode"], "p0")
    assert len(list(page.all("g", data_layer=...))) == 96
    assert len(list(page.all("g", data_donor=...))) == 64
    assert sum(len(one["functions"]) for one in report["chunks"]) == 36
    assert_has_every_number(page, report)
    assert len(text.encode()) < 300_000


@pytest.mark.parametrize("name", ["gemma3_270m", "merged2", "swa4"])
def test_pages_of_shipped_layouts_are_small(name):
    page = CliRunner().invoke(main, ["plan", str(layout(name)), "--html", "-"])
    assert 50_000 < len(page.stdout.encode()) < 150_000


def test_files_are_written_where_they_are_asked_for(tiny_):
    page, _ = tiny_()
    result = invoke("plan", "t.topo", "--html", "a.html", "--svg", "a.svg")
    assert result.stdout == "a.html\na.svg\n"
    assert tree(Path("a.html").read_text("utf-8")).text == page.text
    refused = CliRunner().invoke(main, ["plan", "t.topo", "--html", "nowhere/a.html"])
    assert refused.exit_code == 2
    assert "system.refused" in refused.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("plan", SHIPPED, "--html", "a.html"),
        ("plan", SHIPPED, "--svg", "a.svg"),
        ("diff", SHIPPED, SHIPPED, "--html", "a.html"),
    ],
)
def test_a_page_has_no_format(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*map(str, command), "--format", "json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--format is of what is printed, and a page comes in its place" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_picture_alone_is_svg_that_names_its_parts(plain):
    text = invoke("plan", plain("merged2"), "--svg", "-").stdout
    ns = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(text)  # noqa: S314  # our own
    assert root.tag == f"{ns}svg"
    named = [g for g in root.iter(f"{ns}g") if "data-row" in g.attrib]
    assert len(named) == 2 + 35 + 20
    assert all(g.find(f"{ns}title").text for g in named)
    assert "prefers-color-scheme: dark" in root.find(f"{ns}style").text


def test_plan_without_a_page_loads_none_of_it():
    code = (
        "import sys\nfrom topoc.dsl.cli import main\n"
        f"try: main(['plan', {str(SHIPPED)!r}])\nexcept SystemExit: pass\n"
        "print(*[m for m in sys.modules if 'jinja' in m or 'cli.page' in m], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split("\n")[-2] == ""


def test_pages_start_without_torch_and_coremltools():
    code = (
        "import sys\nfrom topoc.dsl.cli import main\n"
        f"try: main(['plan', {str(SHIPPED)!r}, '--html', '-'])\nexcept SystemExit: pass\n"
        "print(*{'torch', 'coremltools', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split("\n")[-2] == ""


# How things lie.


@pytest.mark.parametrize("path", DRAWN, ids=lambda one: one.stem)
def test_nothing_lies_over_another_thing(path):
    for picture in Gatherer(topology=loaded(path), places=Places(())).pictures():
        drawing = draw(picture, 0.0, "p")
        ends = 0
        for box in drawing.boxes:
            assert box.y > ends
            tops = [row.y for row in box.rows]
            assert all(b - a > 20 for a, b in pairwise(tops))
            assert all(box.y < top < box.y + box.height - 20 for top in tops)
            ends = box.y + box.height
        assert ends < drawing.height
        lanes = {}
        for one in drawing.paths:
            x = int(re.search(r"H(\d+)", one.line)[1])
            assert (x > drawing.box_width + 6) == one.arrow.crosses
            assert x < drawing.width
            key = one.arrow.crosses, x
            first, last = lanes.setdefault(key, {}).get(one.arrow.donor, (one.arrow.donor, 0))
            lanes[key][one.arrow.donor] = first, max(last, one.arrow.reader)
        for used in lanes.values():
            spans = sorted(used.values())
            assert all(a[1] < b[0] for a, b in pairwise(spans))


# Differences.


def marked(svg):
    return {
        int(one["data-layer"]) for one in svg.all("g", data_layer=...) if "changed" in one.classes
    }


def test_both_sides_are_drawn_and_what_moved_is_marked(topoc_):
    one, other = MEASURED / "swa4_padded.topo", MEASURED / "threeway_padded.topo"
    page = tree(topoc_("diff", one, other, "--html", "-").stdout)
    assert_shows(page, loaded(one), ["decode"], "b0")
    assert_shows(page, loaded(other), ["decode"], "a0")
    assert [marked(svg) for svg in page.all("svg")] == [set(range(8, 25))] * 2
    told_ = json.loads(topoc_("diff", one, other, "--format", "json").stdout)
    for subject, changes in told_["changes"].items():
        for at, change in enumerate(changes):
            row = page.one("tr", data_path=f"changes/{subject}/{at}").text
            assert all((word or "—") in row for word in change.values())
    assert "the data do not resolve it" in page.text


def test_a_changed_write_marks_its_layers_alone(topoc_, tmp_path):
    text = (layout("swa4")).read_text("utf-8")
    for name, words in (("a", text), ("b", text.replace("full:           write blend", ""))):
        (tmp_path / f"{name}.topo").write_text(words)
    page = tree(topoc_("diff", tmp_path / "a.topo", tmp_path / "b.topo", "--html", "-").stdout)
    assert [marked(svg) for svg in page.all("svg")] == [{4, 9, 14}] * 2


def test_what_is_the_same_says_so(topoc_):
    path = layout("swa4")
    page = tree(topoc_("diff", path, path, "--html", "-", "--exit-code").stdout)
    assert "No difference." in page.text
    assert [marked(svg) for svg in page.all("svg")] == [set(), set()]


# Colours.


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_contrast_in_both_themes():
    """At least 4.5 for text and 3 for marks, as WCAG 2.2 asks in 1.4.3 and 1.4.11."""
    css = (TEMPLATES / "picture.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    for theme in (light, dark):
        of = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        kinds = [name for name in of if f"{name}-edge" in of]
        assert len(kinds) == 5
        for ground in ("paper", "box", *kinds):
            assert contrast(of["ink"], of[ground]) >= 4.5
        for text in ("muted", "error", "warning", "note", "focus"):
            assert contrast(of[text], of["paper"]) >= 4.5
            assert contrast(of[text], of["box"]) >= 4.5
        for kind in kinds:
            assert contrast(of[f"{kind}-edge"], of[kind]) >= 3
        for mark in ("kv", "kv-inside", "ms", "focus", "change"):
            assert contrast(of[mark], of["paper"]) >= 3
