"""Splits: the best ones, exactly, whatever the budgets and rules refuse."""

from itertools import combinations, islice, pairwise

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_rows import fitted
from shipped import layout
from small_models import models
from topo_text import gemma3, gemma4, known, resolved

from topoc.dsl.diagnostic import TopocError, error
from topoc.dsl.lint.engine import lint
from topoc.dsl.load import load
from topoc.dsl.model import Allowance
from topoc.dsl.words import amount
from topoc.lowering.cost.features import features
from topoc.lowering.cost.predict import attoseconds, chunk_time
from topoc.lowering.split import judge
from topoc.lowering.split.recut import recut
from topoc.lowering.split.search import BYTES, OBJECTIVES, TIME, Limits, Term, key, paths
from topoc.lowering.split.space import cuts_of, space, spelled
from topoc.lowering.split.split import best, pareto, prepare

WHOLE = "chunk a = ple + L0-34 + norm + head(argmax)"


BUDGETS = st.lists(
    st.sampled_from(
        [
            *("layers per chunk <= 3", "layers per chunk < 3", "layers per chunk >= 2"),
            *("fp16 per chunk <= 12 MB", "fp16 per chunk < 9 MB", "fp16 per chunk >= 6 MB"),
            *("chunks <= 3", "chunks >= 2", "chunks == 2", "chunks < 4", "chunks > 1"),
            *("kv io per step <= 120 kB", "kv io per step < 100 kB", "kv io per step >= 90 kB"),
            *("ms per step <= 1.2 ms", "ms per step < 1.8 ms", "states per chunk <= 1"),
        ]
    ),
    max_size=3,
)
WRITES = ("all: write append", "all: write blend", "L0: write blend", "all: store state")
ALLOW = 'allow state.update because "a test"'


@st.composite
def cases(draw):
    """A topology of such a model, with budgets, and its cost profile."""
    layers, write = draw(models()), draw(st.sampled_from(WRITES))
    stated = {_direction(line): line for line in draw(BUDGETS)}
    expect = "expect {\n" + "\n".join(stated.values()) + "\n}" if stated else ""
    text = (
        'topology t {\n model "any.json"\n target ane ios18 a19\n context 64\n'
        f" chunk whole = L0-{len(layers.layers) - 1} + norm + head(argmax)\n functions decode\n"
        f" kv {{ {write} }}\n {expect}\n {ALLOW if 'state' in write else ''}\n}}\n"
    )
    topology, found = resolved(text, layers=lambda _: layers)
    assert topology is not None, [(one.code, one.message) for one in found]
    given_ = {
        "kv": draw(st.sampled_from([0.001, 0.1, 10.0])),
        "dispatch": draw(st.sampled_from([0, 0.3])),
    }
    costs = {**fitted().profile.coefficients, **given_}
    return topology, evolve(fitted().profile, coefficients=costs)


def _direction(line):
    sign = next(one for one in ("<=", ">=", "==", "<", ">") if f" {one} " in line)
    return line.partition(f" {sign} ")[0], {"<": "most", ">": "least", "=": "equal"}[sign[0]]


# Brute force, by the same rules and no graph.


def every(topology, profile, least, most):
    """All splits that fit, by lint and by what the chunks cost, and what each comes to."""
    count = len(topology.blocks)
    found = {}
    for chunks in range(least, min(most, count) + 1):
        for inner in combinations(range(1, count), chunks - 1):
            cuts = (0, *inner, count)
            told = values(topology, profile, cuts)
            if in_time(topology, profile, told[TIME]) and not judge.errors(topology, cuts):
                found[cuts] = told
    return found


def in_time(topology, profile, time):
    whole = time + attoseconds(profile.coefficients["host"])
    limits = [one for one in topology.budgets if one.measure == "ms per step"]
    return all(whole < attoseconds(one.value) + (one.relation == "<=") for one in limits)


def values(topology, profile, cuts):
    """What a split comes to by each term, from the features of the topology that it makes."""
    made = recut(topology, cuts)
    chunks = features(made, made.functions[0])
    told = {
        "time": [chunk_time(profile, one) for one in chunks],
        "bytes": [one.kv for one in chunks],
        "memory": [one.loaded for one in chunks],
        "squares": [one.loaded**2 for one in chunks],
    }
    terms = {term for order in OBJECTIVES.values() for term in order}
    return {term: (max if term.greatest else sum)(told[term.measure]) for term in terms}


def ranked(found, order):
    return sorted(found, key=lambda cuts: ([found[cuts][term] for term in order], cuts))


@given(
    cases(),
    st.sampled_from(sorted(OBJECTIVES)),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 7),
)
@settings(max_examples=200)
def test_the_best_are_those_of_brute_force(case, objective, top, least, most):
    topology, profile = case
    least = min(least, len(topology.blocks))
    most = max(least, most)
    found = [
        one.cuts for one in best(prepare(topology, profile, least, most), objective, top).choices
    ]
    wanted = ranked(every(topology, profile, least, most), OBJECTIVES[objective])
    assert found == wanted[:top]


@given(cases(), st.permutations(sorted(OBJECTIVES)))
@settings(max_examples=100)
def test_what_none_beats_is_that_of_brute_force(case, objectives):
    topology, profile = case
    one, other = (OBJECTIVES[name][0] for name in objectives[:2])
    found = [c.cuts for c in pareto(prepare(topology, profile, 1, 8), *objectives[:2]).choices]
    brute = every(topology, profile, 1, 8)
    told = {(values_[one], values_[other]) for values_ in brute.values()}
    front = [a for a in told if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in told)]
    assert [(brute[cuts][one], brute[cuts][other]) for cuts in found] == sorted(front)


@given(cases(), st.sampled_from(sorted(OBJECTIVES)), st.data())
@settings(max_examples=100)
def test_rules_that_nobody_knew_of_are_kept_to(case, objective, data):
    """Rules refuse some chunks wherever they stand, and some splits as a whole."""
    topology, profile = case
    count = len(topology.blocks)
    runs = st.tuples(st.integers(0, count - 1), st.integers(1, count)).filter(lambda r: r[0] < r[1])
    bad = data.draw(st.sets(runs, max_size=6))
    whole = data.draw(st.sets(st.integers(2, count + 1), max_size=1))
    at_chunk = data.draw(st.booleans())  # where the finding stands says nothing of its cause

    def strict(made):
        found = [
            error("chunk.test", "this chunk may not be", chunk.span)
            for chunk in made.chunks
            if (chunk.layers[0], chunk.layers[-1] + 1) in bad
        ]
        found += lint(made)
        if len(made.chunks) + 1 in whole:
            place = made.chunks[0].span if at_chunk else made.span
            found.append(error("kv.test", "so many may not be", place))
        return tuple(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "lint", strict)
        found = best(prepare(topology, profile, 1, 8), objective, 40)
        wanted = ranked(every(topology, profile, 1, 8), OBJECTIVES[objective])
        assert [one.cuts for one in found.choices] == wanted[:40]
        faulty = {run for run, said in found.judge.faulty.items() if said[0].code == "chunk.test"}
        assert faulty <= bad


@given(cases())
@settings(max_examples=60)
def test_a_budget_of_whole_splits_is_told_with_the_least_of_any(case):
    """As brute force has it, with the chunks that other budgets leave and no other bound."""
    topology, profile = case
    search = prepare(topology, profile, 1, 8)
    told = {one.partition(" <")[0]: least for one, least in search.bounds}
    count = len(topology.blocks)
    every_ = [
        (0, *inner, count)
        for chunks in range(count)
        for inner in combinations(range(1, count), chunks)
    ]
    sound = [c for c in every_ if all(search.space.graph.has_edge(*run) for run in pairwise(c))]
    for measure, term in (("kv io per step", BYTES), ("ms per step", TIME)):
        stated = [one for one in topology.budgets if one.measure == measure]
        bounding = any(one.relation in {"<", "<="} for one in stated)
        assert (measure in told) == bounding
        if bounding and sound:
            least = min(values(topology, profile, cuts)[term] for cuts in sound)
            if term is TIME:
                least = least / attoseconds(1) + profile.coefficients["host"]
            assert told[measure] == amount(measure, float(f"{least:.4g}"))


def test_more_chunks_than_layers_are_refused():
    topology, _ = resolved(gemma3("functions decode"))
    with pytest.raises(TopocError) as stopped:
        prepare(topology, fitted().profile, 19, 20)
    (finding,) = stopped.value.findings
    assert (finding.code, "make 18 chunks at most" in finding.message) == ("value.range", True)


def test_paths_come_in_order_and_all_of_them():
    topology, _ = resolved(gemma3("functions decode"))
    made = space(topology, topology.functions[0], fitted().profile)
    for order in OBJECTIVES.values():
        found = list(paths(made.graph, order, Limits(least=2, most=3)))
        assert len(found) == len(set(found)) == 17 + 17 * 16 // 2
        keys = [(key(made.graph, order, cuts), cuts) for cuts in found]
        assert keys == sorted(keys)


def test_a_bound_is_kept_to_the_byte():
    topology, _ = resolved(
        gemma4("functions decode", chunks="chunk a = ple + L0-34 + norm + head(argmax)")
    )
    made = space(topology, topology.functions[0], fitted().profile)
    most = sorted(
        {
            key(made.graph, (BYTES,), c)[0]
            for c in paths(made.graph, (TIME,), Limits(least=3, most=3))
        }
    )[1]
    bounded = Limits(
        least=3, most=3, bounds=((BYTES, most), (Term("memory", greatest=True), 10**10))
    )
    found = {key(made.graph, (BYTES,), c)[0] for c in paths(made.graph, (TIME,), bounded)}
    assert max(found) == most
    assert len(found) == 2


# Gemma 4 E2B.


def e2b(name="swa4"):
    topology, _ = load(layout(name), layers=known)
    return topology


def test_e2b_ranks_as_the_phone_did():
    topology = e2b()
    search = prepare(topology, fitted().profile, 1, 8)
    cuts = {name: cuts_of(e2b(name).chunks) for name in ("threeway", "topology_i", "swa4")}
    order = list(
        islice(paths(search.space.graph, OBJECTIVES["time"], Limits(least=3, most=4)), 3000)
    )
    places = {name: order.index(one) for name, one in cuts.items()}
    assert places["threeway"] < places["topology_i"] < places["swa4"]
    times = {name: key(search.space.graph, (TIME,), one) for name, one in cuts.items()}
    assert times["threeway"] < times["topology_i"] < times["swa4"]


def test_one_chunk_of_e2b_is_refused_by_the_rule_that_knows_why():
    (finding,) = [
        one for one in judge.errors(e2b(), (0, 35)) if one.code == "chunk.too-many-layers"
    ]
    assert "35 layers" in finding.message
    assert finding.at.at.source.name == "swa4_35.topo"
    assert finding.at.at.text == "chunk1"


def test_the_chunk_alone_is_at_fault_and_leaves_the_graph():
    topology = evolve(e2b(), budgets=())
    search = prepare(topology, fitted().profile, 1, 1)
    found = best(search, "time", 3)
    assert found.choices == ()
    assert list(search.judge.faulty) == [(0, 35)]
    assert not search.space.graph.has_edge(0, 35)


def test_allowances_of_the_topology_hold_for_its_splits():
    base = e2b("merged1")
    accepted = Allowance(code="chunk.too-many-layers", chunk=None, reason="a test", span=base.span)
    topology = evolve(base, budgets=(), allowances=(accepted,))
    assert judge.errors(topology, (0, 35)) == ()


@pytest.mark.parametrize(
    ("body", "chunks", "code"),
    [
        ("functions prefill(tokens = 8)", None, "split.no-decode"),
        (
            "functions decode, prefill(tokens = 8)",
            "chunk a(unit = gpu) = ple + L0-14\n chunk b = L15-34 + norm + head(argmax)",
            "split.units",
        ),
        (
            "functions decode, prefill(tokens = 8)",
            WHOLE + "\n " + WHOLE.replace("a =", "b(function = decode) ="),
            "split.own-list",
        ),
    ],
)
def test_what_can_not_be_cut_is_refused_by_name(body, chunks, code):
    topology, found = resolved(gemma4(body, chunks=chunks))
    assert topology is not None, found
    with pytest.raises(TopocError) as stopped:
        prepare(topology, fitted().profile, 1, 8)
    assert [one.code for one in stopped.value.findings] == [code]


def test_a_split_is_spelled_by_its_layers():
    assert spelled((0, 8, 25, 35)) == "8/17/10"
