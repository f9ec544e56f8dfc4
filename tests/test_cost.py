"""What a call costs: features against programs and budgets, the fit against devices."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import HELD_OUT, PHONE, fitted, fourteen, held_out, measured
from shipped import FILES, TESTS
from small_models import models
from tiny_config import tiny
from topo_text import gemma4, resolved, table

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.load import Loader, load
from topoc.dsl.measure import fp16_bytes, kv_io
from topoc.dsl.resolve import Given
from topoc.lowering.cost import nnls
from topoc.lowering.cost.features import features
from topoc.lowering.cost.fit import fit
from topoc.lowering.cost.picked import picked
from topoc.lowering.cost.predict import (
    call,
    change,
    chunk_ms,
    chunk_time,
    estimate,
    quantile,
    vector,
)
from topoc.lowering.cost.profile import dumps, read, shipped
from topoc.lowering.cost.rows import rows, step_ms
from topoc.lowering.cost.stored import element_bytes, role_elements
from topoc.lowering.split.recut import recut

UNKNOWN = {"future_cascading", "future_duo", "future_layerskip", "future_quest", "ledger"}


def known():
    loader = Loader(Given({}, None, table))
    for path in FILES:
        if path.stem not in UNKNOWN:
            yield loader.one(str(path), None).topology


def decode(topology):
    return next(one for one in topology.functions if one.role == "decode")


# Features.


def test_kv_of_all_chunks_is_that_of_the_budget_in_every_layout():
    seen = 0
    for topology in known():
        found = features(topology, decode(topology))
        assert sum(one.kv for one in found) == kv_io(topology), topology.name
        loaded = [fp16_bytes(topology, chunk) for chunk in topology.chunks]
        assert [one.loaded for one in found] == loaded, topology.name
        seen += 1
    assert seen > 25


@pytest.mark.parametrize("write", ["append", "blend", "shift"])
def test_they_are_those_of_the_programs_that_are_built(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "tiny")
    kv = {"append": "", "blend": "kv { all: write blend }"}.get(
        write, "kv { sliding: write shift }"
    )
    Path("t.topo").write_text(
        'topology t {\n model "tiny/config.json"\n target ane ios18 a19\n context 64\n'
        " chunk one = L0-1\n chunk two = L2-3 + norm + head(argmax)\n"
        f" functions decode, prefill(tokens = 4)\n {kv}\n}}\n"
    )
    result = CliRunner().invoke(main, ["plan", "t.topo", "--format", "json"])
    plan = json.loads(result.stdout)
    topology, _ = load("t.topo")
    for function in topology.functions:
        for chunk, one in zip(plan["chunks"], features(topology, function), strict=True):
            (told,) = [f for f in chunk["functions"] if f["name"] == function.name]
            assert (one.kv_in, one.kv_out) == (told["kv_bytes_in"], told["kv_bytes_out"])
            assert one.stored == pytest.approx(told["loaded_bytes"], rel=0.02)  # but for gains


def test_weights_of_e2b_are_those_of_its_packages():
    """148.24, 127.76, 310.21 and 502.47 MiB were counted in the packages of four bits."""
    topology = measured("swa4_padded")[0]
    found = [one.weights / 2**20 for one in features(topology, decode(topology))]
    assert found == pytest.approx([148.24, 127.76, 310.21, 502.47], rel=0.003)


def test_shared_kv_leaves_its_owner_once_and_enters_each_reader():
    view = 2 * 2 * (256 * 512 + 512 * 2048)  # K and V in fp16, L13 and L14
    text = "kv { sliding: write shift\n full: write blend }\n functions decode"
    chunks = "chunk a = ple + L0-14\n chunk b = L15-24\n chunk c = L25-34 + norm + head(argmax)"
    topology, _ = resolved(gemma4(text, chunks=chunks))
    own, b, c = features(topology, decode(topology))
    assert own.kv_out - own.kv_in == b.kv_in == c.kv_in == view
    assert b.kv_out == c.kv_out == 0


@given(models(), st.sampled_from(["append", "blend"]), st.data())
def test_kv_is_that_of_the_budget_however_a_model_is_cut(layers, write, data):
    count = len(layers.layers)
    inner = data.draw(st.sets(st.integers(1, count - 1)))
    cuts = (0, *sorted(inner), count)
    topology, _ = resolved(
        'topology t {\n model "any.json"\n target ane ios18 a19\n context 64\n'
        f" kv {{ all: write {write} }}\n functions decode\n"
        f" chunk whole = L0-{count - 1} + norm + head(argmax)\n}}\n",
        layers=lambda _: layers,
    )
    made = recut(topology, cuts)
    assert sum(one.kv for one in features(made, decode(made))) == kv_io(made)


def test_a_state_crosses_no_wall_and_counts_as_state():
    topology = measured("stateful3_measured")[0]
    first, second, third = features(topology, decode(topology))
    assert first.kv == 0
    assert second.kv_in == 0
    assert second.kv_out == third.kv_in > 0
    assert (first.state > 0, second.state > 0, third.state) == (True, True, 0)


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("none", 2),
        ("palettize(bits = 4, group = 32)", 0.5),
        ("int8", 1),
        ("int4(block = 32)", 0.5625),
        ("prune(n = 2, m = 4) + palettize(bits = 4)", 0.375),
    ],
)
def test_bytes_of_an_element_follow_its_scheme(scheme, size):
    topology, _ = resolved(gemma4(f"quantize {{ weights: {scheme} }}"))
    assert element_bytes(topology.recipe("q", 3)) == size
    (first, _) = features(topology, decode(topology))
    elements = sum(one.parameters for one in topology.layers.layers[:15]) + 1536 * 35 * 256
    assert first.weights == pytest.approx(size * elements, rel=1e-6)


def test_the_roles_of_a_layer_are_all_of_it():
    layers = table(Path("gemma4.json"))
    for layer in layers.layers:
        found = role_elements(layers, layer)
        assert sum(found.values()) == layer.parameters
        assert found["q"] == 1536 * 8 * layer.head_dim


# Least squares.


numbers = st.floats(-5, 5, allow_subnormal=False).map(lambda x: round(x, 3))


@given(st.integers(1, 4).flatmap(lambda k: st.lists(
    st.tuples(st.lists(numbers, min_size=k, max_size=k), numbers), min_size=k, max_size=8
)))  # fmt: skip
def test_no_nearby_coefficients_fit_better(rows_):
    design, values = [row for row, _ in rows_], [y for _, y in rows_]
    found = nnls.solve(design, values)
    assert min(found) >= 0
    least = nnls.squares(design, values, found)
    for at in range(len(found)):
        for step in (0.01, -0.01, 1.0):
            other = list(found)
            other[at] = max(0.0, other[at] + step)
            assert nnls.squares(design, values, other) >= least - 1e-9


def test_a_coefficient_that_would_be_negative_is_none():
    assert nnls.solve([[1, 1], [1, 2], [1, 3]], [5, 4, 3]) == pytest.approx([4, 0])
    assert nnls.solve([[1.0, 2.0], [2.0, 1.0]], [5.0, 4.0]) == pytest.approx([1, 2])


def test_columns_that_say_the_same_share_no_cost():
    assert nnls.solve([[1, 1], [2, 2]], [3, 6]) == pytest.approx([3, 0])


# The fit.


# Gemma 4 E2B on an iPhone 17 Pro, by layout and date, as CoreML-LLM's documents have them.
SINGLE = {
    ("swa4_padded", "2026-04-24"): (5.8, 6.8, 8.2, 10.3),
    ("swa4_8k_padded", "2026-04-13"): (12.4, 20.7, 15.2, 17.3),
    ("threeway_padded", "2026-04-24"): (12.2, 10.9),
    ("topology_i_padded", "2026-04-24"): (12.0, 8.2),
    ("merged2_padded", "2026-04-17"): (13.1, 17.8),
}


def test_it_fits_the_fourteen_rows():
    found = fourteen()
    by_block = {}
    for one in found.rows:
        by_block.setdefault((one.topology, one.date), []).append(one.ms)
    assert {key: tuple(ms) for key, ms in by_block.items()} == SINGLE
    errors = fit(found).profile.errors
    assert (errors.rows, errors.chunks) == (14, 11)
    assert errors.rmse <= 1.0
    assert errors.left_out <= 1.5


@pytest.mark.parametrize(("date", "within"), [("2026-04-24", 0.10), ("2026-04-18", 0.12)])
def test_fourteen_rows_tell_e4b_too(date, within):
    profile = fit(fourteen()).profile
    found = [one for one in held_out() if one.date == date]
    assert len(found) == 4
    off = max(abs(chunk_ms(profile, one.features) / one.ms - 1) for one in found)
    assert off <= within
    page = (TESTS.parent / "docs" / "cost.md").read_text("utf-8")
    assert f"within {100 * off:.1f} % on {date[5:]}" in page


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("swa4_padded chunk1 04-24 5.9", "no row that was measured reads like this"),
        ("# of another day\n\nswa4_padded chunk1 05-24 5.8", "no row that was measured reads"),
        ("swa4_padded chunk1", "no row that was measured reads like this"),
        ("nothing chunk1 04-24 5.8", "no row was measured of `nothing`"),
        ("swa4_padded chunk1 04-24 5.8\n" * 2, "listed more often than it was measured"),
    ],
)
def test_a_line_that_names_no_row_is_refused_at_its_place(lines, words, tmp_path):
    path = tmp_path / "some.rows"
    path.write_text(lines)
    with pytest.raises(TopocError) as stopped:
        picked(rows(measured(), PHONE), path)
    (finding,) = stopped.value.findings
    assert finding.code == "cost.unknown-row"
    assert words in finding.message
    assert finding.at.at.line == len(lines.splitlines())
    first = {"nothing": "merged2_padded chunk12 04-17 13.1"}  # of all rows, or of the topology
    near = first.get(lines.split()[0], "swa4_padded chunk1 04-15 5.9")
    assert f"such as `{near}`" in finding.help


def test_rows_are_picked_as_they_are_printed(tmp_path):
    """Repeats, functions and columns behind what was measured included."""
    path = tmp_path / "some.rows"
    told = [*(["threeway_padded chunk3_3way 04-24 10.9 10.0 9.2"] * 2)]
    told += ["prefill_512_padded chunk2 prefill_512 04-23 49.1  # many tokens"]
    path.write_text("\r\n".join(told))
    found = rows(measured(), PHONE)
    kept = picked(found, path)
    assert [(one.chunk, one.function, one.ms) for one in kept.rows] == [
        *([("chunk3_3way", "decode", 10.9)] * 2),
        ("chunk2", "prefill_512", 49.1),
    ]
    assert kept.calls == found.calls


def test_it_fits_all_rows_of_e2b():
    errors = fitted().profile.errors
    assert (errors.rows, errors.chunks) == (30, 11)
    assert errors.rmse <= 1.0
    assert errors.left_out <= 1.5


def test_leaving_a_chunk_out_leaves_all_its_repeats_out():
    made = fitted()
    for row, told in zip(made.rows, made.left_out, strict=True):
        rest = [one for one in made.rows if one.features != row.features]
        names = ("dispatch", "weights", "kv", "attended")
        design = [[vector(one.features)[name] for name in names] for one in rest]
        solved = nnls.solve(design, [one.ms for one in rest])
        values = [vector(row.features)[name] for name in names]
        assert told == pytest.approx(sum(a * b for a, b in zip(values, solved, strict=True)))


@pytest.mark.parametrize(("date", "within"), [("2026-04-24", 0.10), ("2026-04-18", 0.12)])
def test_it_tells_e4b_which_it_has_not_seen(date, within):
    found = [one for one in held_out() if one.date == date]
    assert len(found) == 4
    for row in found:
        told = estimate(fitted().profile, row.features)
        assert abs(told.ms / row.ms - 1) <= within, row.chunk
        assert told.low <= row.ms <= told.high
        assert told.outside == ()


def steps(name):
    topology = measured(name)[0]
    return features(topology, decode(topology))


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("swa4_padded", "threeway_padded", 29.7 - 31.1),  # the same day
        ("swa4_padded", "threeway_padded", 28.8 - 31.1),
        ("swa4_padded", "merged2_padded", 30.9 - 31.2),
    ],
)
def test_fewer_chunks_gain_what_was_measured_within_the_interval(before, after, seen):
    found = change(fitted().profile, steps(before), steps(after))
    assert found.ms < 0
    assert seen < 0
    assert found.low <= seen <= found.high


def test_three_chunks_to_two_is_not_resolved():
    found = change(fitted().profile, steps("threeway_padded"), steps("merged2_padded"))
    assert found.low < 0 < found.high
    assert not found.resolved


def test_four_times_the_context_is_resolved():
    found = change(fitted().profile, steps("swa4_padded"), steps("swa4_8k_padded"))
    assert found.resolved
    assert found.low <= 65.6 - 31.1 <= found.high


def test_chunks_that_both_have_leave_no_doubt():
    four = steps("swa4_padded")
    same = change(fitted().profile, four, four)
    assert (same.ms, same.low, same.high) == (0, 0, 0)


def test_a_row_that_moves_moves_the_coefficients():
    found = rows(measured(), PHONE)
    before = fit(found).profile
    moved = tuple(
        evolve(one, ms=one.ms + 3) if one.chunk == "chunk34" else one for one in found.rows
    )
    after = fit(evolve(found, rows=moved)).profile
    assert after.coefficients["weights"] > 1.02 * before.coefficients["weights"]
    assert after.errors.rmse != before.errors.rmse
    assert after.ranges == before.ranges


def test_what_ships_is_what_the_rows_say():
    fresh, held = (json.loads(dumps(one)) for one in (fitted().profile, shipped("a19")))
    assert dict(numbers_of(held)) == pytest.approx(dict(numbers_of(fresh)), rel=1e-4)
    assert (held["chip"], held["device"]) == ("a19", PHONE)


def numbers_of(value, at=()):
    """Every number of a JSON value, with the way to it."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from numbers_of(inner, (*at, key))
    elif not isinstance(value, str):
        yield at, value


def test_states_cost_what_no_tensor_costs():
    profile = fitted().profile
    assert profile.coefficients["state"] > 0
    named = {one.topology: one for one in rows(measured(), PHONE).calls}
    for name in ("stateful3_measured", "stateful3_unified_measured", "stateful4_512"):
        told = call(profile, named[name].features)
        assert told.low <= named[name].ms <= told.high
    without = evolve(profile, coefficients={**profile.coefficients, "state": 0.0})
    three = named["stateful3_measured"]
    assert abs(call(profile, three.features).ms - three.ms) < abs(
        call(without, three.features).ms - three.ms
    )


def test_many_tokens_cost_more_and_few_hardly():
    profile = fitted().profile
    topology = measured("prefill_512_padded")[0]
    one, many = (sum(chunk_ms(profile, one) for one in features(topology, f))
                 for f in topology.functions)  # fmt: skip
    assert many == pytest.approx(52.1 + 49.1 + 88.0 + 87.8, rel=0.15)
    three, _ = resolved(gemma4("functions decode, verify(tokens = 3)"))
    alone, verify = (call(profile, features(three, f)).ms for f in three.functions)
    assert alone < verify < 1.1 * alone
    assert one < many


def test_rows_that_are_too_few_or_alike_are_refused():
    found = rows(measured("threeway_padded"), PHONE)
    with pytest.raises(TopocError) as stopped:
        fit(found)
    (finding,) = stopped.value.findings
    assert finding.code == "cost.too-few-rows"
    assert "3 chunks" in finding.message


def test_a_chunk_that_falls_off_the_engine_is_left_aside():
    block = (
        'measured on 2026-04-14 {\n device "iPhone 17 Pro"\n one 80 ms\n two 9 ms\n'
        " placement one 80 %\n }"
    )
    topology, _ = resolved(gemma4(f"functions decode\n {block}"))
    read_ = rows([topology], PHONE)
    assert [one.chunk for one in read_.rows] == ["two"]
    assert "80 % of it runs on the Neural Engine" in read_.aside[0]


def test_tokens_a_second_are_those_of_all_tokens_of_a_call():
    block = 'measured on 2026-04-14 {\n device "X"\n prefill_64 640 tok/s\n decode 40 tok/s\n }'
    topology, _ = resolved(gemma4(f"functions decode, prefill(tokens = 64)\n {block}"))
    told = {one.function: one.ms for one in rows([topology], "X").calls}
    assert told == {"prefill_64": 100, "decode": 25}
    assert step_ms(topology, topology.measurements[0]) == 25


# Predictions.


def test_what_was_not_measured_is_said():
    topology, _ = resolved(gemma4("quantize { weights: int8 }\n functions decode"))
    (told, _) = (estimate(fitted().profile, f) for f in features(topology, decode(topology)))
    assert any("bits a weight: 8; measured 4" in note for note in told.outside)
    tight, _ = resolved(
        gemma4("quantize { weights: palettize(bits = 4) }\n functions decode",
               chunks="chunk a = ple + L0-1\n chunk b = L2-34 + norm + head(argmax)")
    )  # fmt: skip
    small, big = (estimate(fitted().profile, f) for f in features(tight, decode(tight)))
    assert any(note.startswith("weights of 43") for note in small.outside)
    assert any(note.startswith("weights of 1.1") for note in big.outside)


def test_an_unlike_chunk_has_a_wider_interval():
    profile = fitted().profile
    one = steps("swa4_padded")[0]
    far = evolve(one, weights=10 * one.weights)
    near, wide = (estimate(profile, f) for f in (one, far))
    assert wide.high - wide.low > 2 * (near.high - near.low)


def test_whole_numbers_of_time_say_the_same():
    profile = fitted().profile
    for one in (*steps("swa4_padded"), *steps("merged2_padded")):
        assert chunk_time(profile, one) / 1e15 == pytest.approx(chunk_ms(profile, one), rel=1e-6)


@pytest.mark.parametrize(("freedom", "value"), [(1, 6.314), (7, 1.895), (30, 1.697), (200, 1.645)])
def test_quantiles_are_those_of_the_tables(freedom, value):
    assert quantile(freedom) == value


# Files of costs.


def test_a_profile_reads_back(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(dumps(fitted().profile))
    assert dumps(read(path)) == path.read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "topoc.costs/9"),
        ("sigma", -1),
        ("sigma", "NaN"),
        ("covariance", [[1]]),
        ("coefficients", {"weights": 1}),
        ("coefficients", {"dispatch": 1, "weights": 1, "kv": 1, "attended": -1}),
        ("ranges", {"kv": [1]}),
        ("errors", {"rows": 1}),
        ("variance", None),
    ],
)
def test_another_file_is_refused_by_name(key, value, tmp_path):
    told = json.loads(dumps(fitted().profile))
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**told, key: value}))
    with pytest.raises(TopocError) as stopped:
        read(path)
    assert [one.code for one in stopped.value.findings] == ["cost.unreadable"]


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(),
       lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(
           lambda x: json.dumps(x).encode()))  # fmt: skip
def test_no_bytes_end_in_a_traceback(data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        path.write_bytes(data)
        with pytest.raises(TopocError):
            read(path)


def test_the_held_out_file_is_not_fitted():
    assert HELD_OUT not in {one.topology for one in fitted().rows}
