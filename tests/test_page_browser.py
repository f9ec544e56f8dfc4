"""Pages in a real browser: nothing runs over, and keys and pointer tell what the tables say.

One headless Chromium shows every page in frames of two widths, and a script in the page around
them uses each as a person would. Without a browser these tests are left out.
"""

import html
import json
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from page_tree import tree
from shipped import layout
from test_page import MEASURED, SHIPPED, assert_has_every_number, assert_shows
from tiny_config import ninety_six

from topoc.dsl.cli import main
from topoc.dsl.load import load

pytestmark = pytest.mark.xdist_group("browser")  # one start for all of them
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=10000",
)
PLANS = {
    "gemma3_270m": (SHIPPED, "--costs", "a19"),
    "swa4": (layout("swa4"),),
    "merged2": (MEASURED / "merged2_padded.topo",),
    "future_gpu_prefill": (layout("future_gpu_prefill"),),
}
DIFF = (MEASURED / "threeway_padded.topo", MEASURED / "swa4_padded.topo")
WIDTHS = (360, 1280)

# What a person would do in one frame, and what is then to be seen.
USE = """
function use(frame) {
  const page = frame.contentDocument, root = page.documentElement, told = {};
  const svgs = [...page.querySelectorAll("svg.picture")], panel = page.querySelector(".panel");
  const key = (name) => page.activeElement.dispatchEvent(new frame.contentWindow.KeyboardEvent(
    "keydown", {key: name, bubbles: true, cancelable: true}));
  const at = () => page.activeElement.dataset.row;
  const said = () => panel.textContent.trim().replace(/\\s+/g, " ");
  told.overflow = root.scrollWidth - root.clientWidth;
  told.layers = page.querySelectorAll("[data-layer]").length;
  told.arrows = page.querySelectorAll("[data-donor]").length;
  told.stops = svgs.map((svg) => svg.querySelectorAll('[tabindex="0"]').length);
  told.clashes = [];
  for (const svg of svgs) {
    for (const group of svg.querySelectorAll("g.layer, g.chunk")) {
      const boxes = [...group.querySelectorAll(":scope > text")].map((one) => one.getBBox());
      boxes.forEach((one, i) => boxes.slice(i + 1).forEach((two) => {
        const apart = one.x + one.width <= two.x || two.x + two.width <= one.x
          || one.y + one.height <= two.y + 3 || two.y + two.height <= one.y + 3;
        if (!apart && one.width && two.width) told.clashes.push(group.getAttribute("aria-label"));
      }));
      const frame_ = group.querySelector(".frame").getBBox();
      for (const one of boxes)
        if (one.x < frame_.x || one.x + one.width > frame_.x + frame_.width)
          told.clashes.push("over the edge: " + group.getAttribute("aria-label"));
    }
  }
  told.letters = Math.min(...svgs.map((svg) => 12 * svg.getScreenCTM().a));
  const svg = svgs[0], first = svg.querySelector("[data-row]");
  first.focus();
  told.first = [at(), said()];
  key("ArrowDown");
  told.down = [at(), said()];
  key("PageDown");
  told.page = at();
  key("PageUp");
  told.back = at();
  key("End");
  told.end = at();
  const reader = svg.querySelector("[data-reader]");
  if (reader) {
    svg.querySelector(`[data-layer="${reader.dataset.reader}"]`).focus();
    key("ArrowRight");
    told.arrow = [at(), said()];
    key("ArrowRight");
    told.donor = at();
    told.lit = [...svg.querySelectorAll(".arrow.on")].length;
    reader.focus();
    key("ArrowLeft");
    told.reader = at();
  }
  told.after = svg.querySelectorAll('[tabindex="0"]').length;
  key("Escape");
  told.cleared = said();
  const layer = svg.querySelectorAll("[data-layer]")[1];
  layer.querySelector("text").dispatchEvent(
    new frame.contentWindow.MouseEvent("mouseover", {bubbles: true}));
  told.hover = [layer.dataset.row, said()];
  told.dom = root.outerHTML;
  return told;
}
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) found[frame.id] = use(frame);
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""


def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here; Debian's package is chromium-headless-shell")
    return found


def page(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments), "--html", "-"]).stdout


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """What the pages of plans are of: the arguments, by name."""
    return {**PLANS, "deep": (ninety_six(tmp_path_factory.mktemp("deep")),)}


@pytest.fixture(scope="module")
def pages(plans):
    """Every page, by its name."""
    return {name: page("plan", *of) for name, of in plans.items()} | {"diff": page("diff", *DIFF)}


@pytest.fixture(scope="module")
def seen(pages, tmp_path_factory):
    """What the script saw in each frame: name and width → findings."""
    path = browser()
    folder = tmp_path_factory.mktemp("browser")
    frames = "".join(
        f'<iframe id="{name}-{width}" width="{width}" height="800" srcdoc="{html.escape(text)}">'
        "</iframe>"
        for name, text in pages.items()
        for width in WIDTHS
    )
    around = f'<!doctype html>{frames}<pre id="found"></pre><script>{USE}</script>'
    (folder / "around.html").write_text(around, "utf-8")
    done = subprocess.run(
        [path, *QUIET, f"--user-data-dir={folder / 'data'}", "--dump-dom", "around.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told is not None, done.stderr[-2000:]
    assert told[1], done.stderr[-2000:]
    return json.loads(html.unescape(told[1]))


FRAMES = [f"{name}-{width}" for name in (*PLANS, "deep", "diff") for width in WIDTHS]


@pytest.mark.parametrize("frame", FRAMES)
def test_nothing_runs_over(seen, frame):
    assert seen[frame]["overflow"] <= 0
    assert seen[frame]["clashes"] == []
    assert seen[frame]["letters"] >= 9.5  # CSS pixels, of the picture's type


@pytest.mark.parametrize("frame", FRAMES)
def test_keys_lead_through_the_picture(seen, frame):
    told = seen[frame]
    assert set(told["stops"]) == {1}  # Tab enters each picture once
    assert told["after"] == 1
    assert told["first"][1].startswith(told["first"][0].partition("-")[2])
    assert told["down"][1].startswith("L0chunk")
    assert told["back"] == told["first"][0] != told["page"]
    assert told["end"] not in {told["first"][0], told["page"]}
    assert told["cleared"].startswith("Point at a layer")


def test_right_leads_to_the_donor_and_left_back(seen):
    told = seen["swa4-1280"]
    assert told["arrow"][0] == "p0-L13-L15"
    assert "chunk2" in told["arrow"][1]
    assert (told["donor"], told["reader"], told["lit"]) == ("p0-L13", "p0-L15", 16)


@pytest.mark.parametrize("frame", FRAMES)
def test_pointing_tells_the_numbers_and_the_line(seen, frame):
    row, said = seen[frame]["hover"]
    assert row.endswith("-L1")
    assert "524.3 kB" in said or "1.0 MB" in said
    assert re.search(r"\.topo:\d+ chunk chunk", said)


@pytest.mark.parametrize("name", ["gemma3_270m", "swa4", "merged2", "deep"])
def test_every_layer_arrow_and_number_of_the_plan_is_in_the_dom(seen, plans, name):
    arguments = list(map(str, plans[name]))
    report = json.loads(CliRunner().invoke(main, ["plan", *arguments, "--format", "json"]).stdout)
    dom = tree(seen[f"{name}-1280"]["dom"])
    assert_has_every_number(dom, report)
    topology, _ = load(arguments[0])
    assert_shows(dom, topology, [report["calls"][0]["name"]], "p0")


def test_every_layer_and_arrow_is_shown(seen):
    assert (seen["deep-360"]["layers"], seen["deep-360"]["arrows"]) == (96, 64)
    assert (seen["gemma3_270m-360"]["layers"], seen["gemma3_270m-360"]["arrows"]) == (18, 0)
    assert (seen["swa4-360"]["layers"], seen["swa4-360"]["arrows"]) == (35, 20)
    assert (seen["diff-1280"]["layers"], seen["diff-1280"]["arrows"]) == (70, 40)
