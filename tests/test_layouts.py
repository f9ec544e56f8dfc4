"""The layouts that shaped the language, as files, and what each must resolve to.

Those that ship stand in `topologies`, the others beside these tests. The expected values are
written out by hand. They come from layouts that were built and run on phones and Macs, and from
figures of the checkpoints, never from the code under test.
"""

from collections import Counter
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_tables import E2B, E2B_HEADS, E4B, E4B_HEADS, gemma4, gemma4_e4b, rows
from topo_text import codes, resolved, table

from topoc.dsl import ast
from topoc.dsl.diagnostic import Severity
from topoc.dsl.format import flatten
from topoc.dsl.layout import lay_out
from topoc.dsl.lint.engine import is_allowable
from topoc.dsl.load import Loader, load
from topoc.dsl.measure import kv_bytes
from topoc.dsl.parser import parse
from topoc.dsl.resolve import Given
from topoc.dsl.source import Source

LAYOUTS = Path(__file__).parent / "layouts"
SHIPPED = Path(__file__).parents[1] / "topologies"
FILES = {one.stem: one for folder in (SHIPPED, LAYOUTS) for one in sorted(folder.glob("*.topo"))}

# The decode layouts of Gemma 4 that were tried, by the letters of the survey that found them.
SURVEY = {
    "A": "swa4",
    "B": "stateless4",
    "C": "threeway threeway_coreml_llm",
    "D": "merged2 merged1",
    "E": "topology_i",
    "F": "lite2",
    "G": "wfa",
    "H": "flash",
    "I": "stateful4",
    "J": "stateful3 stateful3_unified",
    "K": "stateful1",
    "L": "stateful_prefill stateful_prefill_288",
    "M": "prefill4 threeway_prefill4 prefill_skips_readers",
    "N": "verify4",
    "O": "future_eagle3",
    "Q": "future_cascading",
    "R": "head_split16",
    "S": "e4b_swa4 e4b_threeway",
}
UNSAID = {"P": "a draft model is a second checkpoint, and its layers read the first one's KV"}

# Files whose words the language does not know yet, and what it says of them.
UNKNOWN = {
    "future_cascading": ["attention.unknown"],
    "future_duo": ["attention.unknown", "attention.unknown"],
    "future_layerskip": ["function.unknown", "part.unknown"],
    "future_quest": ["attention.unknown"],
}


@frozen
class Expected:
    """A layout in short: one word or phrase for each chunk, function and kind of layer."""

    chunks: str  # NAME: PARTS, separated by `;`
    owners: str  # how many sliding and full layers keep KV in each chunk
    sliding: str  # KIND WINDOW / WRITE SLOTS STORE ROW of the owners
    full: str
    functions: str = "decode 1 host"
    model: str = E2B
    taps: tuple[int, ...] = ()
    fill: str = ""  # the chunks of a function's own list


FOUR = (
    "chunk1: ple L0-7; chunk2: L8-14; chunk3: L15-24; chunk4: L25-34 norm head(argmax)",
    "7S 1F; 5S 2F; -; -",
)
THREE = (
    "chunk_1: ple L0-7; chunk_2: L8-24; chunk_3: L25-34 norm head(argmax)",
    "7S 1F; 5S 2F; -",
)
THREEWAY = "chunk1: ple L0-7; chunk2_3way: L8-24; chunk3_3way: L25-34 norm head(argmax)"
E4B_THREE = (
    "chunk1: ple L0-11; chunk2: L12-32; chunk3: L33-41 norm head(argmax)",
    "10S 2F; 10S 2F; -",
)
SHIFT, BLEND = "sliding 512 / shift 512 io tight", "full all / blend 2048 io tight"
RING, SLICED = "sliding 512 / slice 512 kv_sliding padded", "full all / slice 2048 kv_full padded"
VERIFY = "decode 1 host; verify_3 3 host"
PREFILLS = "; ".join(f"prefill_{tokens} {tokens} host" for tokens in (64, 128, 256, 512))
GEMMA3 = Expected(
    "chunk1: L0-5; chunk2: L6-11; chunk3: L12-17 norm head(argmax)",
    "5S 1F; 5S 1F; 5S 1F",
    "sliding 512 / append 512 io tight",
    "full all / append 2048 io tight",
    "decode 1 host; prefill_64 64 host",
    model="",
)

EXPECTED = {
    "swa4": Expected(*FOUR, SHIFT, BLEND, VERIFY),
    "swa4_8k": Expected(*FOUR, SHIFT, "full all / blend 8192 io tight", VERIFY),
    "stateless4": Expected(
        "chunk1: L0-7; chunk2: L8-14; chunk3: L15-24; chunk4: L25-34 norm head(argmax)",
        "7S 1F; 5S 2F; -; -",
        "sliding 512 / blend 2048 io tight",
        BLEND,
    ),
    "threeway": Expected(THREEWAY, "7S 1F; 5S 2F; -", SHIFT, BLEND, VERIFY),
    "threeway_coreml_llm": Expected(
        THREEWAY,
        "7S 1F; 5S 2F; -",
        "sliding 512 / shift 512 io padded",
        "full all / blend 2048 io padded",
    ),
    "threeway_prefill4": Expected(
        THREEWAY, "7S 1F; 5S 2F; -", SHIFT, BLEND, f"{VERIFY}; {PREFILLS}"
    ),
    "merged2": Expected(
        "chunk12: ple L0-14; chunk34: L15-34 norm head(argmax)", "12S 3F; -", SHIFT, BLEND, VERIFY
    ),
    "merged1": Expected("merged_full: ple L0-34 norm head(argmax)", "12S 3F", SHIFT, BLEND, VERIFY),
    "topology_i": Expected(
        "chunk1: ple L0-14; chunk2: L15-24; chunk3: L25-34 norm head(argmax)",
        "12S 3F; -; -",
        SHIFT,
        BLEND,
        VERIFY,
    ),
    "lite2": Expected(
        "chunk1: embed L0-14; chunk2: L15-34 norm head(argmax)",
        "12S 3F; -",
        "sliding 512 / blend 2048 kv_cache_0 padded",
        "full all / blend 2048 kv_cache_0 padded",
    ),
    "wfa": Expected(*FOUR, SHIFT, "windowed_full 2048 / shift 2048 io tight", VERIFY),
    "flash": Expected(*FOUR, SHIFT, "flash_tiled:1024 all / blend 8192 io tight"),
    "stateful4": Expected(*FOUR, RING, SLICED),
    "stateful3": Expected(*THREE, RING, SLICED),
    "stateful3_unified": Expected(
        *THREE,
        "sliding 512 / slice 512 kv_cache_unified padded",
        "full all / slice 2048 kv_cache_unified padded",
    ),
    "stateful1": Expected(
        "model: ple L0-34 norm head(argmax)",
        "12S 3F",
        "sliding 512 / slice 512 kv_cache_unified padded",
        "full all / slice 2048 kv_cache_unified padded",
    ),
    "stateful_prefill": Expected(*THREE, RING, SLICED, "decode 1 host; prefill_8 8 graph"),
    "stateful_prefill_288": Expected(
        *THREE, RING, SLICED, "decode 1 host; prefill_288 288 host separate"
    ),
    "prefill4": Expected(*FOUR, SHIFT, BLEND, f"decode 1 host; {PREFILLS}"),
    "prefill_skips_readers": Expected(
        *FOUR,
        SHIFT,
        BLEND,
        "decode 1 host; prefill_512 512 host",
        fill="fill1: ple L0-7; fill2: L8-14",
    ),
    "verify4": Expected(*FOUR, SHIFT, BLEND, "decode 1 host; verify_8 8 host"),
    "future_eagle3": Expected(THREEWAY, "7S 1F; 5S 2F; -", SHIFT, BLEND, VERIFY, taps=(8, 17, 34)),
    "head_split16": Expected(
        "chunk1: ple L0-7; chunk2: L8-14; chunk3: L15-24; chunk4: L25-34 norm head(argmax/16)",
        "7S 1F; 5S 2F; -; -",
        SHIFT,
        BLEND,
        VERIFY,
    ),
    "e4b_swa4": Expected(
        "chunk1: ple L0-11; chunk2: L12-23; chunk3: L24-32; chunk4: L33-41 norm head(argmax)",
        "10S 2F; 10S 2F; -; -",
        SHIFT,
        BLEND,
        VERIFY,
        E4B,
    ),
    "e4b_threeway": Expected(*E4B_THREE, SHIFT, BLEND, VERIFY, E4B),
    "padded32": Expected(
        *FOUR,
        "sliding 512 / shift 512 kv_sliding padded32",
        "full all / blend 512 kv_full padded32",
    ),
    "future_cpu_chunk": Expected(
        "chunk1: ple L0-11; chunk2 on gpu: L12-32; chunk3: L33-41 norm head(argmax)",
        E4B_THREE[1],
        SHIFT,
        BLEND,
        VERIFY,
        E4B,
    ),
    "future_gpu_prefill": Expected(
        *FOUR, SHIFT, BLEND, f"{VERIFY}; prefill_512 512 host separate on gpu"
    ),
    "future_mixed_quant": Expected(*FOUR, SHIFT, BLEND, VERIFY),
    "future_w4a8": Expected(*FOUR, SHIFT, BLEND, VERIFY),
    "gemma3_270m": GEMMA3,
    "gemma3_270m_6bit": GEMMA3,
    "gemma3_270m_1chunk": Expected(
        "model: L0-17 norm head(argmax)",
        "15S 3F",
        "sliding 512 / append 512 io tight",
        "full all / append 2048 io tight",
        "decode 1 host; prefill_64 64 host",
        model="",
    ),
    "qwen3_0_6b": Expected(
        "body1: L0-13; body2: L14-27 norm head(argmax)",
        "0S 14F; 0S 14F",
        "",
        "full all / append 2048 io tight",
        "decode 1 host; prefill_64 64 host",
        model="",
    ),
}


# Who stands where, and on what: the others are for a phone of the base.
TARGETS = {
    "stateful1": "ane macos15 m4",
    "lite2": "gpu macos15 m4",
    "gemma3": "ane ios18 a17",
    "qwen3": "ane ios18 a18",
}
VERDICTS = {
    "shipping": "e4b_threeway stateful3 stateless4 swa4 swa4_8k threeway",
    "rejected": "future_layerskip future_w4a8 head_split16 merged1 padded32 topology_i",
    "shelved": "future_eagle3 wfa",
    "planned": "future_cascading future_cpu_chunk future_duo future_gpu_prefill"
    " future_mixed_quant future_quest",
}


# Verdicts that the linter comes to by itself: errors that these files do not allow.
REFUSED = {"merged1": {"chunk.too-many-layers"}}


def sound(stem):
    """The topology of a layout's file, in which nothing is wrong but where it would run."""
    topology, findings = load(FILES[stem], layers=table)
    wrong = [one for one in findings if one.severity is Severity.ERROR]
    assert [(one.code, one.message) for one in wrong if not is_allowable(one.code)] == []
    assert {one.code for one in wrong} == REFUSED.get(stem, set())
    assert topology is not None
    return topology


each = pytest.mark.parametrize("stem", EXPECTED)


def test_every_layout_of_the_survey_is_held_or_the_reason_is_told():
    assert sorted({**SURVEY, **UNSAID}) == list("ABCDEFGHIJKLMNOPQRS")
    named = {stem for stems in SURVEY.values() for stem in stems.split()}
    assert named <= {*FILES}


def test_every_file_is_expected_to_be_something():
    assert {*FILES} == {*EXPECTED, *UNKNOWN, "ledger"}


def test_no_layout_of_the_tests_is_one_that_ships():
    stems = [one.stem for folder in (SHIPPED, LAYOUTS) for one in folder.glob("*.topo")]
    assert len(stems) == len({*stems})


@each
def test_its_verdict_and_its_target_are_those_expected(stem):
    topology = sound(stem)
    (verdict,) = [one for one in VERDICTS if stem in VERDICTS[one].split()] or ["prototype"]
    assert topology.status == verdict
    target = topology.target
    (wanted,) = [TARGETS[one] for one in TARGETS if stem.startswith(one)] or ["ane ios18 a19"]
    assert f"{target.unit} {target.deployment} {target.chip}" == wanted


# What a layout resolves to.


def spelled(part):
    if part.kind == "layers":
        return f"L{part.first}-{part.last}"
    if part.head is None:
        return part.kind
    return f"head({part.head.mode}{f'/{part.head.split}' if part.head.split > 1 else ''})"


def cut(chunks):
    return "; ".join(
        f"{one.name}{f' on {one.unit}' if one.unit else ''}: {' '.join(map(spelled, one.parts))}"
        for one in chunks
    )


@each
def test_its_chunks_are_cut_as_expected(stem):
    topology, expected = sound(stem), EXPECTED[stem]
    assert cut(topology.chunks) == expected.chunks
    own = [cut(one.chunks) for one in topology.functions if one.chunks is not None]
    assert own == ([expected.fill] if expected.fill else [])
    assert topology.taps == expected.taps


@each
def test_its_functions_are_those_expected(stem):
    said = [
        f"{one.name} {one.tokens} {one.write}"
        f"{' separate' if one.separate else ''}{f' on {one.unit}' if one.unit else ''}"
        for one in sound(stem).functions
    ]
    assert "; ".join(said) == EXPECTED[stem].functions


def run_by(block):
    attention = block.attention
    tile = f":{attention.tile}" if attention.tile else ""
    return f"{attention.kind}{tile} {attention.window or 'all'}"


def kept_by(block):
    kv = block.kv
    row = f"padded{kv.padded_heads or ''}" if kv.padded else "tight"
    return f"{kv.write.value} {kv.slots} {kv.state or 'io'} {row}"


@each
def test_its_layers_run_and_keep_what_is_expected(stem):
    topology, expected = sound(stem), EXPECTED[stem]
    for block, layer in zip(topology.blocks, topology.layers.layers, strict=True):
        runs, _, keeps = getattr(expected, layer.kind.value).partition(" / ")
        assert run_by(block) == runs, f"L{block.index}"
        if block.kv.donor is None:
            assert kept_by(block) == keeps, f"L{block.index}"


@each
def test_its_owners_lie_in_the_chunks_expected(stem):
    topology = sound(stem)
    for chunk, said in zip(topology.chunks, EXPECTED[stem].owners.split("; "), strict=True):
        owned = [at for at in chunk.layers if topology.blocks[at].kv.donor is None]
        kinds = Counter(topology.layers.layers[at].kind.value for at in owned)
        assert said == (f"{kinds['sliding']}S {kinds['full']}F" if owned else "-"), chunk.name


@each
def test_its_readers_share_what_the_written_table_says(stem):
    expected = EXPECTED[stem]
    donors = {layer: donor for layer, _, donor, _ in rows(expected.model)} if expected.model else {}
    for block in sound(stem).blocks:
        assert block.kv.donor == donors.get(block.index)


@pytest.mark.parametrize(
    ("layers", "written", "heads"),
    [(gemma4(), E2B, E2B_HEADS), (gemma4_e4b(), E4B, E4B_HEADS)],
    ids=["E2B", "E4B"],
)
def test_the_layer_tables_are_those_written_out(layers, written, heads):
    widths, kv_heads = heads
    assert [layer for layer, *_ in rows(written)] == list(range(len(layers.layers)))
    for layer, (_, kind, donor, _) in zip(layers.layers, rows(written), strict=True):
        assert layer.kind.value[0].upper() == kind
        assert (layer.donor, layer.kv_weights) == (donor, donor is None)
        assert (layer.head_dim, layer.kv_heads, layer.heads) == (widths[kind], kv_heads, 8)
        assert layer.window == (512 if kind == "S" else None)


@pytest.mark.parametrize(("stem", "written"), [("swa4", E2B), ("e4b_swa4", E4B)])
def test_owners_have_the_slots_of_the_written_table(stem, written):
    topology, places = sound(stem), {}
    for number, chunk in enumerate(topology.chunks, 1):
        counts = Counter()
        for at in chunk.layers:
            kind = topology.layers.layers[at].kind.value[0].upper()
            if topology.blocks[at].kv.donor is None:
                places[at] = f"c{number}.{kind}{counts[kind]}"
                counts[kind] += 1
    assert places == {layer: place for layer, _, _, place in rows(written) if place}


@pytest.mark.parametrize(
    ("stem", "size"),
    [
        ("swa4", 6_291_456 + 12_582_912),
        ("stateful3", 12_582_912 + 12_582_912),
        ("stateless4", 25_165_824 + 12_582_912),
        ("lite2", 15 * 2 * 2048 * 512 * 2),
        ("e4b_swa4", 20_971_520 + 33_554_432),
    ],
)
def test_its_caches_have_the_bytes_that_were_counted(stem, size):
    assert kv_bytes(sound(stem)) == size


def test_bits_go_to_the_tensors_that_the_rules_name():
    mixed = sound("future_mixed_quant")
    named = {at: mixed.recipe("gate", at)[0].arguments[0] for at in (0, 1, 33, 34)}
    assert named == {0: ("bits", 8), 1: ("bits", 4), 33: ("bits", 4), 34: ("bits", 8)}
    assert [mixed.recipe("k", at)[0].name for at in (3, 4, 9, 14)] == ["palettize", *["int8"] * 3]
    assert [bool(mixed.recipe("down", at)) for at in (7, 8, 14, 15)] == [True, False, False, True]
    assert mixed.recipe("head")[0].name == mixed.recipe("embed")[0].name == "int8"
    assert sound("future_w4a8").recipe("activations")[0].name == "int8"
    assert sound("qwen3_0_6b").recipe("up", 27)[0].arguments[0] == ("bits", 8)
    assert sound("qwen3_0_6b").recipe("up", 26)[0].arguments[0] == ("bits", 4)


@pytest.mark.parametrize("stem", UNKNOWN)
def test_words_of_later_work_are_unknown_by_name(stem):
    topology, findings = load(FILES[stem], layers=table)
    assert topology is None
    assert sorted(codes(findings)) == UNKNOWN[stem]


def test_the_ledger_holds_work_that_is_no_graph():
    file, findings = parse(Source("ledger.topo", FILES["ledger"].read_text("utf-8")))
    assert [type(one) for one in file.items] == [ast.Experiment] * 2
    assert not findings
    loaded = Loader(Given({}, None, table)).all(str(FILES["ledger"]))
    assert [one.findings for one in loaded] == [()]


@pytest.mark.parametrize("stem", FILES)
def test_its_file_is_in_canonical_layout(stem):
    text = FILES[stem].read_text("utf-8")
    assert lay_out(Source(stem, text)) == text


# The same said in another order, and said in full.


@each
def test_flattening_it_changes_nothing(stem):
    topology = sound(stem)
    flat = flatten(topology)
    again, findings = resolved(flat, layers=lambda _: topology.layers)
    assert not [one for one in findings if one.severity is Severity.ERROR]
    assert again == topology
    assert flatten(again) == flat


def chained(stem):
    """The trees of a layout and its bases, the first base first."""
    found = []
    while stem is not None:
        file, _ = parse(Source(stem, FILES[stem].read_text("utf-8")))
        (topology,) = file.topologies
        found.insert(0, topology)
        stem = None if topology.base is None else topology.base.text
    return found


# Blocks in which a later rule overrides an earlier one; in all others the rules are disjoint.
IN_ORDER = {
    ("qwen3_0_6b", "quantize"),
    ("future_mixed_quant", "quantize"),
    *(("everything", block) for block in ("attention", "kv", "quantize")),
}
EVERYTHING = Path(__file__).parent / "samples" / "everything.topo"


def written(topology, shuffled):
    """A topology's text, its statements shuffled; chunk lines keep the order they have."""
    lines = shuffled(topology.statements)
    chunks = iter([one for one in topology.statements if isinstance(one, ast.Chunk)])
    lines = [next(chunks) if isinstance(one, ast.Chunk) else one for one in lines]
    base = f" extends {topology.base}" if topology.base else ""
    body = "\n".join(inner(topology, one, shuffled) for one in lines)
    return f"topology {topology.name}{base} {{\n{body}\n}}\n"


def inner(topology, statement, shuffled):
    """A statement's text, the lines of its block shuffled where none overrides another."""
    if isinstance(statement, ast.Rules) and (topology.name.text, statement.block) not in IN_ORDER:
        rules = "\n".join(one.span.text for one in shuffled(statement.rules))
        return f"{statement.block} {{\n{rules}\n}}"
    if isinstance(statement, ast.Status) and statement.record:
        head, _, _ = statement.span.text.partition("{")
        lines = "\n".join(one.span.text for one in shuffled(statement.record.entries))
        return f"{head} {{\n{lines}\n}}"
    if isinstance(statement, ast.Expect):
        budgets = "\n".join(one.span.text for one in shuffled(statement.budgets))
        return f"expect {{\n{budgets}\n}}"
    return statement.span.text


@settings(max_examples=60)
@given(st.sampled_from(sorted(EXPECTED)), st.randoms(use_true_random=False))
def test_the_order_of_statements_means_nothing(stem, random):
    def shuffled(items):
        return random.sample(items, len(items))

    topology = sound(stem)
    text = "\n".join(shuffled([written(one, shuffled) for one in chained(stem)]))
    again, findings = resolved(text, name=stem)
    assert not [one for one in findings if one.severity is Severity.ERROR], text
    assert again == topology
    assert flatten(again) == flatten(topology)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_every_statement_there_is_means_nothing(random):
    def shuffled(items):
        return random.sample(items, len(items))

    text = EVERYTHING.read_text("utf-8")
    file, _ = parse(Source("everything", text))
    mixed = "\n".join(shuffled([written(one, shuffled) for one in file.topologies]))
    for name in ("everything", "smaller"):
        topology, again = (resolved(one, name=name)[0] for one in (text, mixed))
        assert topology is not None
        assert again == topology
        assert flatten(again) == flatten(topology)


def test_the_order_of_chunk_lines_and_of_overriding_rules_does_mean_something():
    text = FILES["qwen3_0_6b"].read_text("utf-8")
    whole, part = (line for line in text.splitlines(True) if "palettize" in line)
    turned, _ = resolved(text.replace(whole + part, part + whole))
    assert turned != sound("qwen3_0_6b")
    first, second = (line for line in text.splitlines(True) if "chunk body" in line)
    assert codes(resolved(text.replace(first + second, second + first))[1]) == ["chunk.order"]
