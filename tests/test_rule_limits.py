"""Rules of placement at their thresholds, and what they must spare."""

import pytest
from attrs import evolve
from layer_tables import gemma3, gemma4, qwen3
from topo_text import codes, resolved

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import lint
from topoc.dsl.targets.names import CHIPS
from topoc.dsl.targets.profiles import ANY, PROFILES

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


def text(chunks, body="", target="ane ios18 a19", model="gemma4.json"):
    head = f'model "{model}"\n target {target}\n context 2048\n {body}'
    return f"topology t {{\n {head}\n {chunks}\n}}\n"


def found(source, code, **options):
    topology, findings = resolved(source, **options)
    assert topology is not None, [(one.code, one.message) for one in findings]
    return [one.severity for one in lint(topology) if one.code == code]


def cut(first, *, ple=False):
    """Two chunks, the first with so many layers of 35."""
    head = "ple + " if ple else ""
    return f"chunk a = {head}L0-{first - 1}\n chunk b = L{first}-34 + norm + head(logits)"


@pytest.mark.parametrize(
    ("layers", "expected"), [(14, []), (15, [NOTE]), (21, [NOTE]), (22, [WARNING]), (34, [WARNING])]
)
def test_layers_of_a_chunk(layers, expected):
    whole = f"chunk a = L0-{layers - 1}\n"
    rest = f"chunk b = L{layers}-34 + norm + head(logits)"
    topology, _ = resolved(text(whole + rest))
    got = [
        one.severity
        for one in lint(topology)
        if one.code == "chunk.too-many-layers" and "`a`" in one.message
    ]
    assert got == expected


def test_thirty_five_layers_err_on_phones_alone():
    one = "chunk a = L0-34 + norm + head(logits)"
    for target, expected in {
        "ane ios18 a17": [ERROR],
        "ane ios18": [ERROR],
        "all": [ERROR],
        "ane macos15 m4": [],
        "gpu macos15 m4": [],
        "cpu": [],
    }.items():
        assert found(text(one, target=target), "chunk.too-many-layers") == expected, target


def test_a_chunk_on_another_unit_is_left_alone():
    chunks = "chunk a(unit = gpu) = L0-33\n chunk b = L34 + norm + head(logits)"
    assert found(text(chunks), "chunk.too-many-layers") == []


@pytest.mark.parametrize(
    ("layers", "expected"), [(8, []), (9, [NOTE]), (14, [NOTE]), (15, [WARNING])]
)
def test_side_work(layers, expected):
    assert found(text(cut(layers, ple=True)), "chunk.side-work-in-big-chunk") == expected
    assert found(text(cut(layers)), "chunk.side-work-in-big-chunk") == []


def sized(parameters):
    def table(_):
        layers = gemma4()
        layer = evolve(layers.layers[0], parameters=parameters)
        return evolve(layers, layers=(layer,) * 2, head_parameters=0, embed_parameters=0)

    return table


@pytest.mark.parametrize(
    ("size", "expected"), [(1.39e9, []), (1.4e9, [NOTE]), (3.9e9, [NOTE]), (4.0e9, [WARNING])]
)
def test_weights_of_a_chunk(size, expected):
    chunks = "chunk a = L0\n chunk b(unit = cpu) = L1 + norm + head(logits)"
    layers = sized(int(size) // 2)
    assert found(text(chunks), "chunk.too-heavy", layers=layers) == expected
    mac = [NOTE] if expected else []
    assert found(text(chunks, target="ane m4"), "chunk.too-heavy", layers=layers) == mac


@pytest.mark.parametrize(
    ("size", "expected"), [(0.5e9, []), (0.6e9, [WARNING]), (1.7e9, [WARNING]), (1.8e9, [ERROR])]
)
def test_weights_beside_a_table(size, expected):
    chunks = "chunk a = embed + L0\n chunk b = L1 + norm + head(logits)"
    layers = sized(int(size) // 2)
    assert found(text(chunks), "chunk.embedding-with-body", layers=layers) == expected
    alone = "chunk a = embed\n chunk b = L0-1 + norm + head(logits)"
    assert found(text(alone), "chunk.embedding-with-body", layers=layers) == []


@pytest.mark.parametrize(("prefills", "expected"), [(2, []), (3, [WARNING])])
def test_resident_programs(prefills, expected):
    chunks = "\n ".join(f"chunk c{n} = L{9 * n}-{min(9 * n + 8, 34)}" for n in range(4))
    sizes = ", ".join(f"prefill(tokens = {2**n})" for n in range(5, 5 + prefills))
    body = f"functions decode, {sizes}"
    source = text(f"{chunks} + norm + head(logits)", body)
    assert found(source, "package.too-many-functions") == expected


# States.

ALLOW = 'allow state.update because "x"'
TWO = "chunk a = L0-8\n chunk b = L9-17 + norm + head(logits)"


def wide(width):
    def table(_):
        layers = gemma3()
        return evolve(layers, layers=tuple(evolve(one, head_dim=width) for one in layers.layers))

    return table


@pytest.mark.parametrize("width", [3, 72, 80, 270])
def test_rows_of_a_state_of_odd_width_are_noted(width):
    body = f"kv {{ all: store state(kv) }}\n {ALLOW}"
    source = text(TWO, body, model="gemma3.json")
    assert found(source, "state.odd-width", layers=wide(width)) == [NOTE] * 2


@pytest.mark.parametrize("width", [32, 64, 96, 128, 256, 512])
def test_rows_of_a_multiple_of_32_are_not(width):
    body = f"kv {{ all: store state(kv) }}\n {ALLOW}"
    source = text(TWO, body, model="gemma3.json")
    assert found(source, "state.odd-width", layers=wide(width)) == []
    assert found(text(TWO, model="gemma3.json"), "state.odd-width", layers=wide(80)) == []


def stated(rules):
    return text(TWO, f"kv {{ {rules} }}\n {ALLOW}", model="gemma3.json")


@pytest.mark.parametrize(
    ("rules", "unlike", "many"),
    [
        ("all: store state(kv)", 0, 0),
        ("all: store state", 2, 0),
        ("all: store state, slots context", 0, 0),
        ("L0-2: store state(a)\n L3-17: store state(b)", 1, 0),
        ("L0: store state(a)\n L1: store state(b)\n L2: store state(c)", 0, 1),
    ],
)
def test_how_many_states_and_how_unlike(rules, unlike, many):
    assert found(stated(rules), "state.unlike-pair") == [WARNING] * unlike
    assert found(stated(rules), "state.more-than-two") == [ERROR] * many


@pytest.mark.parametrize(
    ("write", "expected"), [("shift", [ERROR] * 2), ("slice", []), ("blend", [])]
)
def test_how_a_state_is_written(write, expected):
    rules = f"all: store state(kv), write {write}"
    assert found(stated(rules), "state.concat-write") == expected
    plain = text(TWO, f"kv {{ all: write {write.replace('slice', 'blend')} }}", model="gemma3.json")
    assert found(plain, "state.concat-write") == []


def test_a_view_of_a_state_that_stays_inside_is_no_export():
    body = f"kv {{ all: store state(kv) }}\n {ALLOW}"
    one = "chunk a = ple + L0-34 + norm + head(logits)"
    two = "chunk a = ple + L0-14\n chunk b = L15-34 + norm + head(logits)"
    assert found(text(one, body), "state.exported-view") == []
    assert found(text(two, body), "state.exported-view") == [WARNING]
    assert found(text(two, body, model="gemma4.json"), "state.exported-view") == [WARNING]


# Attention.


@pytest.mark.parametrize(
    ("rule", "code", "position"),
    [
        ("sliding: sliding(window = 511)", "narrowed", 511),
        ("sliding: sliding(window = 512)", None, 0),
        ("sliding: sliding(window = 513)", "widened", 512),
        ("sliding: full", "widened", 512),
        ("full: windowed_full(window = 2047)", "narrowed", 2047),
        ("full: windowed_full(window = 2048)", None, 0),
        ("full: windowed_full(window = 4096)", None, 0),  # the context ends before
    ],
)
def test_windows_that_are_not_the_checkpoint_s(rule, code, position):
    topology, _ = resolved(text(TWO, f"attention {{ {rule} }}", model="gemma3.json"))
    lossy = [one for one in lint(topology) if one.code.startswith("lossy.")]
    assert [one.code for one in lossy] == ([f"lossy.{code}-attention"] if code else [])
    assert all(f"from position {position} on" in one.at.words for one in lossy)


# Heads and schemes.


def classes(count):
    return lambda _: evolve(gemma3(), vocabulary=count)


@pytest.mark.parametrize(("count", "expected"), [(151_936, []), (199_999, []), (248_320, [NOTE])])
def test_ties_of_wide_vocabularies(count, expected):
    source = text(TWO.replace("logits", "argmax"), model="gemma3.json")
    assert found(source, "numeric.wide-vocabulary-tie", layers=classes(count)) == expected


@pytest.mark.parametrize(("count", "expected"), [(97, [NOTE]), (9_497, [NOTE]), (151_936, [])])
def test_odd_outputs(count, expected):
    source = text(TWO, model="gemma3.json")
    assert found(source, "op.odd-output-width", layers=classes(count)) == expected
    chosen = text(TWO.replace("logits", "argmax"), model="gemma3.json")
    assert found(chosen, "op.odd-output-width", layers=classes(count)) == []


def test_a_split_head_of_few_classes_is_left_alone():
    source = text(TWO.replace("logits", "logits, split = 8"), model="gemma3.json")
    assert found(source, "op.split-head", layers=classes(128_000)) == []
    assert found(source, "op.split-head", layers=classes(131_072)) == [NOTE]


def schemes(rules, **options):
    source = text(TWO, f"quantize {{ {rules} }}", model="gemma3.json")
    topology, findings = resolved(source, **options)
    assert topology is not None, findings
    return [code for code in codes(lint(topology)) if code.startswith("quant.")]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("weights: palettize(bits = 4, group = 32)", []),
        ("weights: palettize(bits = 4)", []),
        ("weights: int8", []),
        ("activations: none", []),
        ("q, k, v: palettize(bits = 4, group = 48)", ["quant.indivisible-group"] * 1),
        ("o: int4(block = 48)", ["quant.indivisible-group"]),
        ("q: int4(block = 640)", ["quant.per-channel-int4"]),
        ("q: int4(block = 320)", []),
        ("o: int4(block = 1024)", ["quant.per-channel-int4"]),
        ("head: palettize(bits = 3)", ["quant.below-4-bit"]),
        ("embed: palettize(bits = 3)", ["quant.below-4-bit"]),
        ("L3 mlp: prune(n = 2, m = 4)", ["quant.structured-sparsity"]),
    ],
)
def test_schemes(rules, expected):
    assert schemes(rules) == expected


def test_a_group_over_the_mlp_is_judged_where_its_width_is_known():
    def known(_):
        layers = gemma3()
        return evolve(layers, layers=tuple(evolve(one, mlp_width=2050) for one in layers.layers))

    rules = "gate, up: palettize(bits = 4, group = 32)"
    assert schemes(rules) == []
    assert schemes(rules, layers=known) == ["quant.indivisible-group"]


def test_the_placement_of_schemes_is_that_of_their_chunks():
    body = "quantize { activations: int8 }"
    assert found(text(TWO, body, target="gpu", model="gemma3.json"), "quant.activations") == []
    on_both = TWO.replace("chunk a", "chunk a(unit = gpu)")
    assert found(text(on_both, body, model="gemma3.json"), "quant.activations") == [ERROR]


# Profiles.


def test_every_chip_has_a_profile_that_owns_up():
    assert set(PROFILES) == set(CHIPS)
    for one in (*PROFILES.values(), ANY):
        assert one.unknown
        assert all(limit.source and limit.date for limit in one.limits.values())
        assert one.limits.keys() == ANY.limits.keys()
    measured = {name for name, one in PROFILES.items() if not one.borrowed}
    assert measured == {"a19", "m3", "m4"}
    assert {one.device for name, one in PROFILES.items() if name.startswith("m")} == {"mac"}


def test_thresholds_rise():
    for one in PROFILES.values():
        for limit in one.limits.values():
            steps = [value for value in (limit.note, limit.warning, limit.error) if value]
            assert steps
            assert steps == sorted(steps)


def test_qwen_in_two_chunks_gets_notes_only():
    source = text(
        "chunk a = L0-13\n chunk b = L14-27 + norm + head(argmax)", model="qwen3-0.6b.json"
    )
    topology, _ = resolved(source, layers=lambda _: qwen3())
    assert {one.severity for one in lint(topology)} <= {NOTE}
