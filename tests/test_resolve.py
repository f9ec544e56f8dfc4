"""Trees to topologies: what statements mean, and what is wrong with those that mean nothing."""

from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topo_text import codes, gemma3, gemma4, linted, resolved, table

from topoc.dsl import load
from topoc.dsl.diagnostic import Severity, TopocError
from topoc.dsl.format import flatten
from topoc.dsl.measure import kv_io, measure
from topoc.dsl.model import Scheme, Store, Write

HERE = Path(__file__).parent
EVERYTHING = HERE / "samples" / "everything.topo"


def sound(text, **options):
    topology, findings = resolved(text, **options)
    assert topology is not None, [(one.code, one.message) for one in findings]
    return topology


def faults(text, **options):
    return codes(resolved(text, **options)[1])


# What the checkpoint and the defaults decide.


def test_the_checkpoint_decides_what_no_rule_sets():
    topology = sound(gemma3())
    assert [block.attention.kind for block in topology.blocks[4:7]] == [
        "sliding",
        "full",
        "sliding",
    ]
    assert topology.blocks[0].attention.window == 512
    assert topology.blocks[5].attention.window is None
    assert [block.kv.slots for block in topology.blocks[4:6]] == [512, 2048]
    assert {block.kv.write for block in topology.blocks} == {Write.APPEND}
    assert [function.name for function in topology.functions] == ["decode"]


def test_the_checkpoint_decides_who_owns_kv():
    topology = sound(gemma4())
    assert [topology.blocks[at].kv.donor for at in (13, 14, 15, 19, 34)] == [None, None, 13, 14, 14]


def test_host_tables_are_int8_by_row_and_weights_are_not_compressed():
    topology = sound(gemma4())
    rows = (Scheme(name="int8", arguments=(("per", "row"),)),)
    assert topology.recipe("embed") == topology.recipe("ple_table") == rows
    assert (
        topology.recipe("head") == topology.recipe("q", 3) == topology.recipe("activations") == ()
    )


def test_a_window_that_the_context_never_fills_is_the_context():
    text = gemma3().replace("context 2048", "context 256")
    assert sound(text).blocks[0].attention.window == sound(text).blocks[0].kv.slots == 256


def test_a_state_is_written_by_slices_and_named_for_its_kind():
    topology = sound(gemma3("kv { all: store state }"))
    kept = [(block.kv.write, block.kv.state) for block in topology.blocks[4:6]]
    assert kept == [(Write.SLICE, "kv_sliding"), (Write.SLICE, "kv_full")]


def test_a_state_without_a_name_takes_the_kind_of_its_layer_not_a_base_rules_name():
    text = gemma3("kv {\n all: store state(mine)\n full: store state\n}")
    assert [block.kv.state for block in sound(text).blocks[4:6]] == ["mine", "kv_full"]


# Rules.


def test_the_last_rule_that_sets_a_property_wins():
    topology = sound(gemma3("kv {\n all: write shift, slots context\n full: write blend\n}"))
    assert [block.kv.write for block in topology.blocks[4:6]] == [Write.SHIFT, Write.BLEND]
    assert {block.kv.slots for block in topology.blocks} == {2048}


def test_groups_intersect_and_commas_unite():
    text = "quantize { L0, L5-7 mlp: int8 }\n  attention { L0-9 full: windowed_full(window = 64) }"
    topology = sound(gemma3(text))
    compressed = {(r.role, r.layer) for r in topology.recipes if r.schemes[0].name == "int8"}
    wanted = {(role, at) for role in ("gate", "up", "down") for at in (0, 5, 6, 7)}
    assert compressed == wanted | {("embed", None)}
    assert [b.index for b in topology.blocks if b.attention.kind == "windowed_full"] == [5]


def test_the_last_quantize_rule_wins_not_the_most_specific():
    topology = sound(gemma3("quantize {\n head: int4\n weights: int8\n}"))
    assert topology.recipe("head")[0].name == "int8"


def test_scheme_defaults_are_explicit():
    topology = sound(gemma3("quantize { weights: palettize(bits = 4)\n head: int4\n embed: int8 }"))
    assert topology.recipe("q", 0)[0].arguments == (
        ("bits", 4),
        ("group", "per_tensor"),
        ("lut", "fp16"),
    )
    assert topology.recipe("head")[0].arguments == (("block", 32),)
    assert topology.recipe("embed")[0].arguments == (("per", "row"),)


def test_layers_without_key_weights_have_no_recipes_for_them():
    roles = {recipe.role for recipe in sound(gemma4()).recipes if recipe.layer == 20}
    assert roles == {"q", "o", "gate", "up", "down", "ple"}


# Extending and parameters.

BASE = gemma3(
    'doc "base"\n  status shipping\n  param C = 4096\n  expect { chunks <= 1\n chunks >= 1 }\n'
    "  kv { full: write blend }\n  tap L3",
    name="base",
).replace("context 2048", "context C")


def derived(body, name="t"):
    return f"{BASE}topology {name} extends base {{\n{body}\n}}\n"


def test_scalars_override_rules_append_and_ledger_lines_stay_behind():
    topology = sound(derived("target gpu\n kv { L5: write shift }\n tap L4, L6-7"))
    assert (topology.doc, topology.status) == ("", "prototype")
    assert topology.target.unit == "gpu"
    assert [topology.blocks[at].kv.write for at in (5, 11)] == [Write.SHIFT, Write.BLEND]
    assert topology.taps == (4, 6, 7)


def test_a_parameters_last_value_counts_in_inherited_lines_and_a_definition_is_last():
    assert sound(derived("")).context == 4096
    assert sound(derived("param C = 1024")).context == 1024
    assert sound(derived("param C = 1024"), define={"C": 512}).context == 512


def test_chunk_lines_replace_the_bases_as_a_set():
    text = derived("chunk a = L0-8\n chunk b = L9-17 + norm + head(logits)")
    assert [chunk.name for chunk in sound(text).chunks] == ["a", "b"]
    _, findings = resolved(derived("chunk body = L0-8"))
    (gap,) = findings
    assert gap.code == "chunk.gap"
    assert "as a set" in gap.help


def test_a_budget_replaces_the_bases_of_its_measure_and_direction():
    budgets = sound(derived("expect { chunks <= 3 }")).budgets
    assert [(one.relation, one.value) for one in budgets] == [("<=", 3), (">=", 1)]


def test_a_base_is_found_beside_the_file_and_at_a_path(tmp_path):
    (tmp_path / "base.topo").write_text(BASE)
    (tmp_path / "near.topo").write_text("topology near extends base { }\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "far.topo").write_text('topology far extends "../near.topo" { }\n')
    topology, findings = load(tmp_path / "sub" / "far.topo", layers=table)
    assert not [one for one in findings if one.severity > Severity.NOTE]
    assert topology.context == 4096


def test_the_model_path_starts_from_the_file_that_states_it(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.topo").write_text(BASE)
    (tmp_path / "sub" / "far.topo").write_text('topology far extends "../base.topo" { }\n')
    asked = []
    load(tmp_path / "sub" / "far.topo", layers=lambda path: asked.append(path) or table(path))
    assert [path.resolve() for path in asked] == [tmp_path / "gemma3.json"]
    load(
        tmp_path / "base.topo",
        model=Path("other.json"),
        layers=lambda p: asked.append(p) or table(p),
    )
    assert asked[-1] == Path("other.json")


def test_a_bare_name_is_looked_up_among_the_shipped_topologies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gemma3_270m", "gemma3_270m.topo"):
        topology, _ = load(name, layers=table)
        assert topology.name == "gemma3_270m"
    with pytest.raises(TopocError, match="no shipped topology is called `gemma3_27m`") as caught:
        load("gemma3_27m", layers=table)
    assert "`gemma3_270m`" in caught.value.findings[0].help


def test_of_several_topologies_the_one_named_like_the_file_or_asked_for_is_meant(tmp_path):
    path = tmp_path / "b.topo"
    path.write_text(gemma3(name="a") + gemma3("tap L1", name="b"))
    assert load(path, layers=table)[0].taps == (1,)
    assert load(path, name="a", layers=table)[0].taps == ()
    other = path.rename(tmp_path / "c.topo")
    assert codes(load(other, layers=table)[1]) == ["name.ambiguous"]


# Functions and chunks.


def test_functions_carry_their_size_and_options():
    line = "functions decode, prefill(tokens = 64, write = graph, package = separate, unit = gpu)"
    decode, prefill = sound(gemma3(line)).functions
    assert (decode.name, decode.tokens) == ("decode", 1)
    assert (prefill.name, prefill.tokens, prefill.write) == ("prefill_64", 64, "graph")
    assert prefill.separate
    assert prefill.unit == "gpu"


def test_a_functions_own_list_may_end_early():
    text = gemma3(
        "functions decode, prefill(tokens = 64)\n  chunk fill(function = prefill_64) = L0-11"
    )
    topology = sound(text)
    assert [chunk.name for chunk in topology.chunks_of(topology.functions[1])] == ["fill"]
    assert [chunk.name for chunk in topology.chunks_of(topology.functions[0])] == ["body"]


def test_heads_say_what_they_give():
    text = gemma3(chunks="chunk all_of_it = L0-17 + norm + head(topk = 8, split = 2)")
    head = sound(text).chunks[0].parts[-1].head
    assert (head.mode, head.k, head.split) == ("topk", 8, 2)


# One kind of error each. `{}` is the body of a topology of Gemma 3.

ERRORS = {
    "name.duplicate": "context 1024",
    "value.type": "param X = 3 ms\n  tap L1",
    "value.range": "functions decode, prefill(tokens = 0)",
    "param.unknown": "attention { sliding: sliding(window = W) }",
    "param.unused": "param W = 3",
    "target.unknown": "target ane ios18 a170",
    "features.unknown": "features core_ml",
    "features.cannot-express": "features coreml_llm\n  kv { all: row tight }",
    "layer.out-of-range": "kv { L18: own }",
    "layer.backwards": "kv { L5-2: own }",
    "selector.unknown": "kv { slidng: own }",
    "selector.mixed-list": "quantize { L0, mlp: int8 }",
    "selector.empty": "kv { L0-3 full: own }",
    "rule.dead": "kv {\n full: write blend\n all: write shift\n}",
    "attention.unknown": "attention { full: fulll }",
    "attention.argument": "attention { full: windowed_full(2048) }",
    "attention.misfit": "attention { full: sliding }",
    "attention.window-over-context": "attention { full: windowed_full(window = 4096) }",
    "kv.unknown": "kv { all: wrote shift }",
    "kv.clause": "kv { all: shift }",
    "part.unknown": "chunk x = L0-17 + nrm + head(argmax)",
    "part.argument": "chunk x = L0-17 + norm + head",
    "part.not-in-model": "chunk x = ple + L0",
    "chunk.gap": "chunk x = L0-3\n  chunk y = L5-17 + norm + head(argmax)",
    "chunk.overlap": "chunk x = L0-5\n  chunk y = L5-17 + norm + head(argmax)",
    "chunk.order": "chunk x = L9-17\n  chunk y = L0-8 + norm + head(argmax)",
    "chunk.no-head": "chunk x = L0-17",
    "chunk.argument": "chunk x(units = gpu) = L0-17 + norm + head(argmax)",
    "tap.unknown": "tap L40",
    "function.unknown": "functions decode, prefil(tokens = 64)",
    "function.argument": "functions decode, prefill",
    "scheme.unknown": "quantize { weights: int5 }",
    "scheme.argument": "quantize { weights: palettize(bits = 4, grp = 32) }",
    "expect.unknown": "expect { layers per chunks <= 3 }",
    "status.unknown": "status done",
    "ledger.incomplete-verdict": "status rejected",
    "ledger.no-number": (
        'status rejected {\n because "x"\n figure "much"\n under "y"\n revisit "z"\n}'
    ),
}


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_has_its_kind(code):
    body = ERRORS[code]
    text = gemma3(body, chunks="" if "chunk " in body else "chunk b = L0-17 + norm + head(argmax)")
    assert code in faults(text)


def test_missing_statements_are_errors_at_the_name():
    model = gemma3().replace('model "gemma3.json"', "")
    assert faults(model) == ["model.missing"]
    assert faults(gemma3().replace("context 2048", "")) == ["context.missing"]
    assert faults(gemma3(chunks="")) == ["chunk.missing"]


def test_a_config_that_can_not_be_read_is_one_error_at_the_model_line():
    def missing(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    _, findings = resolved(gemma3("kv { L90: own }"), layers=missing)
    assert codes(findings) == ["model.unreadable"]
    assert findings[0].at.at.text == '"gemma3.json"'


def test_a_base_that_is_nowhere_or_extends_itself():
    assert faults("topology t extends nowhere { }") == ["name.unknown"]
    text = "topology a extends t { }\ntopology t extends a { }"
    assert faults(text) == ["name.cycle"]
    assert faults("topology t extends t { }") == ["name.cycle"]


def test_all_errors_of_a_text_are_reported_at_once():
    text = gemma3("kv { L90: own\n al: own }\n  attention { full: nope }\n  tap L77").replace(
        "ane", "apu"
    )
    wanted = {"layer.out-of-range", "selector.unknown", "attention.unknown", "tap.unknown"}
    assert wanted | {"target.unknown"} == set(faults(text))


def test_a_syntax_error_does_not_hide_what_else_is_wrong(tmp_path):
    path = tmp_path / "t.topo"
    path.write_text(gemma3("dok 3\n  kv { L90: own }"))
    topology, findings = load(path, layers=table)
    assert topology is None
    assert codes(findings) == ["syntax.statement", "layer.out-of-range"]


# First tries that deserve their own words.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("attention { full: windowed_full(2048) }", "window = 2048"),
        ("attention { full: sliding }", "full layers take"),
        ("kv { all: shift }", "write shift"),
        ("kv { full: share }", "share L13"),
        ("tap L1\n  kv { slding: own }", "did you mean `sliding`"),
    ],
)
def test_help_says_what_to_write(body, words):
    assert any(words in one.help for one in resolved(gemma3(body))[1])


def test_a_definition_of_a_statement_says_how_to_make_it_a_parameter():
    _, (finding,) = resolved(gemma3(), define={"context": 4096})
    assert finding.code == "param.unknown"
    assert "param C" in finding.help


def test_a_state_over_an_inherited_shift_is_told_to_slice():
    base = gemma3("kv { all: write shift }", name="base")
    found = linted(base + "topology t extends base { kv { all: store state } }")
    (update,) = (one for one in found if one.code == "state.update")
    assert "all: write slice" in update.help


def test_a_whole_model_rule_says_which_inherited_exceptions_it_wipes():
    base = gemma3("quantize { weights: int8\n L0, L17 mlp: none }", name="base")
    _, findings = resolved(base + "topology t extends base { quantize { weights: int4 } }")
    (note,) = findings
    assert (note.code, note.severity) == ("rule.dead", Severity.NOTE)
    assert "L0, L17 mlp" in note.message


def test_an_inherited_budget_says_so(tmp_path):
    (tmp_path / "base.topo").write_text(gemma3("expect { chunks <= 1 }", name="base"))
    path = tmp_path / "t.topo"
    path.write_text(
        "topology t extends base {\n chunk a = L0-8\n chunk b = L9-17 + norm + head(argmax)\n}\n"
    )
    breach = load(path, layers=table)[1][0]
    assert breach.code == "expect.breach"
    assert "inherited" in breach.help


# Lint, allowances, measures.


def test_an_allowance_takes_a_finding_out_for_its_chunk_only():
    chunks = "chunk a = L0-8\n  chunk b = L9-17 + norm + head(argmax)"
    body = 'kv { all: store state }\n  allow state.update in a because "x"'
    found = linted(gemma3(body, chunks=chunks))
    assert [one.related[0].at.text for one in found if one.code == "state.update"] == ["b"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('allow state.update because "x"', "allow.unused"),
        ('allow state.updates because "x"', "allow.unknown-code"),
        ('allow chunk.gap because "x"', "allow.not-allowable"),
        ('allow state.update in nowhere because "x"', "allow.unknown-chunk"),
    ],
)
def test_allowances_are_checked(line, code):
    assert code in codes(linted(gemma3(line)))


def test_placement_rules_are_silent_off_the_neural_engine():
    assert codes(linted(gemma3("kv { all: store state }").replace("ane", "gpu"))) == []


@pytest.mark.parametrize(("count", "rank"), [(15, "note"), (22, "warning"), (35, "error")])
def test_layers_per_chunk_grow_from_a_note_to_an_error(count, rank):
    tail = "" if count == 35 else f"\n  chunk rest = L{count}-34 + norm + head(argmax)"
    end = " + norm + head(argmax)" if count == 35 else ""
    text = gemma4(chunks=f"chunk big = L0-{count - 1}{end}{tail}")
    found = [one for one in linted(text) if one.at.at.text == "big"]
    assert [one.severity.value for one in found if one.code == "chunk.too-many-layers"] == [rank]


def test_kv_traffic_counts_walls_and_both_ends_of_exports():
    cut = (
        "chunk a = ple + L0-7\n  chunk b = L8-14\n  chunk c = L15-24\n"
        "  chunk d = L25-34 + norm + head(argmax)"
    )
    whole = gemma4("kv {\n sliding: write shift\n full: write blend\n}", chunks=cut)
    assert kv_io(sound(whole)) == 51_904_512
    padded = whole.replace("full: write blend", "full: write blend\n all: row padded")
    assert kv_io(sound(padded)) == 64_487_424
    states = gemma4("kv { all: store state }", chunks=cut)
    assert kv_io(sound(states)) == 3 * (524_288 + 4_194_304)


def test_measures_that_take_a_device_are_left_alone():
    topology = sound(gemma3("expect { ms per step <= 1 ms\n ops per chunk <= 1 }"))
    assert measure(topology, "ms per step") is None
    assert "expect.breach" not in codes(linted(gemma3("expect { ms per step <= 1 ms }")))


# Flattened texts.


def again(topology):
    return sound(
        flatten(topology, f"{topology.layers.family}.json"), layers=lambda _: topology.layers
    )


@pytest.mark.parametrize("name", ["everything", "smaller"])
def test_a_flattened_text_means_the_same(name):
    topology = sound(EVERYTHING.read_text("utf-8"), name=name)
    assert again(topology) == topology
    assert flatten(again(topology)) == flatten(topology)


@st.composite
def bodies(draw):
    """Statements for a topology of Gemma 4 that mean something."""
    layers = st.builds(
        lambda a, b: f"L{min(a, b)}-{max(a, b)}", st.integers(0, 34), st.integers(0, 34)
    )
    where = st.one_of(layers, st.just("all"), st.just("L0, L14"))
    clauses = [
        st.sampled_from(["write shift", "write blend", "write append", "write slice"]),
        st.sampled_from(["slots window", "slots context"]),
        st.sampled_from(["store io", "store state", "store state(s)"]),
        st.sampled_from(["row tight", "row padded", "row padded(heads = 4)"]),
    ]
    settings = st.lists(st.integers(0, 3), min_size=1, unique=True).flatmap(
        lambda picks: st.tuples(*(clauses[at] for at in picks)).map(", ".join)
    )
    kinds = st.sampled_from(["full", "flash_tiled(tile = 64)", "flash_tiled(tile = 8, window = 9)"])
    roles = st.sampled_from(["", " mlp", " q, down", " attn", " ple"])
    schemes = st.sampled_from(
        ["none", "int8", "int4", "palettize(bits = 3)", "prune(n = 2, m = 4) + int8"]
    )

    words = st.text("ab é\u2028", max_size=5)

    def block(name, head, setting):
        rules = draw(st.lists(st.tuples(head, setting), max_size=4))
        lines = "".join(f"    {a}: {b}\n" for a, b in rules)
        return f"  {name} {{\n{lines}  }}\n" if rules else ""

    quantized = st.one_of(
        st.builds(lambda a, b: a + b, layers, roles),
        st.sampled_from(["weights", "head", "embed, ple_table", "ple", "sliding k", "mlp"]),
    )
    cuts = sorted(draw(st.sets(st.integers(1, 34), max_size=3)))
    edges = [0, *cuts, 35]
    parts = [f"L{a}-{b - 1}" for a, b in pairwise(edges)]
    parts[0] = draw(st.sampled_from(["", "ple + ", "embed + ple + "])) + parts[0]
    parts[-1] += " + norm + head(argmax)"
    chunks = "".join(f"  chunk c{at} = {part}\n" for at, part in enumerate(parts))
    functions = draw(
        st.sampled_from(["decode", "decode, verify(tokens = 3), prefill(tokens = 64)"])
    )
    return gemma4(
        block("attention", where, kinds)
        + block("kv", where, settings)
        + block("quantize", quantized, schemes)
        + f"  functions {functions}\n"
        + f'  doc "{draw(words)}"\n',
        chunks=chunks,
    )


@settings(max_examples=150, deadline=None)
@given(bodies())
def test_any_topology_survives_being_flattened(text):
    topology, findings = resolved(text)
    if topology is None:
        assert {one.code for one in findings if one.severity is Severity.ERROR} == {
            "selector.empty"
        }
        return
    assert again(topology) == topology


def test_a_topology_is_values_all_the_way_down():
    topology = sound(EVERYTHING.read_text("utf-8"), name="everything")
    assert hash(topology) == hash(sound(EVERYTHING.read_text("utf-8"), name="everything"))
    for field in attrs.fields(type(topology)):
        assert not isinstance(getattr(topology, field.name), list | dict | set)
    assert {block.kv.store for block in topology.blocks} == set(Store)
