"""Each pass: what it makes of a small program, and that nothing computes otherwise after it."""

import pkgutil
from pathlib import Path

import pytest
import torch
from attrs import evolve
from test_ops import modules
from tiny_topology import (
    BOTH,
    HALVES,
    WHOLE,
    Drawn,
    load_tiny,
    run_chain,
    without_post_norms,
    without_query_norms,
)

from topoc.lowering import passes
from topoc.lowering.activations import _program, pairs
from topoc.lowering.build import build
from topoc.lowering.ir import DType
from topoc.lowering.passes import DEFAULT, Pass, pipeline, run
from topoc.lowering.passes.fold_query_scale import FoldQueryScale
from topoc.lowering.passes.lift_branches import LiftBranches
from topoc.lowering.passes.quantize_activations import QuantizeActivations
from topoc.lowering.passes.remove_dead_ops import RemoveDeadOps
from topoc.lowering.passes.rescale_residual import RescaleResidual
from topoc.lowering.rescale import Scales
from topoc.lowering.text import parse, show
from topoc.lowering.verify import verify

GOLDEN = Path(__file__).parent / "golden" / "passes"
CASES = {
    "fold_query_scale": FoldQueryScale(),
    "fold_query_scale_spares": FoldQueryScale(),
    "quantize_activations": QuantizeActivations(asked=True),
    "rescale_residual": RescaleResidual((0.25, 0.125, 0.5)),
    "rescale_residual_no_norms": RescaleResidual((0.5, 0.5)),
    "rescale_residual_embeds": RescaleResidual((0.25, 0.25)),
    "rescale_residual_head": RescaleResidual((1.0, 0.5, 0.25)),
    "rescale_residual_int8": RescaleResidual((0.25, 0.125)),
    "lift_branches": LiftBranches(((2.0, 8.0),)),
    "remove_dead_ops": RemoveDeadOps(),
}
LIFTED = ((2.0, 8.0), (1.0, 4.0), (16.0, 1.0), (1.0, 1.0))


@pytest.mark.parametrize("case", CASES)
def test_before_and_after(case, golden):
    before = (GOLDEN / f"{case}.before").read_text("utf-8")
    program = parse(before)
    assert show(program) == before, "write it as it prints"
    after = CASES[case].run(program)
    verify(after)
    golden(GOLDEN / f"{case}.after", show(after))


def test_every_pass_has_a_case_a_place_and_a_picture():
    found = {
        one
        for module in modules(passes)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Pass) and one is not Pass
    }
    assert found == {type(one) for one in DEFAULT} == {type(one) for one in CASES.values()}
    names = {one.name for one in found}
    assert len(names) == len(found)
    for one in found:
        assert one.__module__.rpartition(".")[2] == one.name.replace("-", "_")
        assert "-->" in one.__doc__
    files = {one.name for one in pkgutil.iter_modules(passes.__path__)} - {"rewrite"}
    assert files == {one.replace("-", "_") for one in names}


def built(folder, *, changed=lambda one: one, dtype=DType.FP32, **options):
    """The programs of each function, before any pass."""
    topology, architecture = load_tiny(folder, **options)
    architecture = changed(architecture)
    return [
        [
            build(topology, architecture, function, chunk, dtype=dtype)
            for chunk in topology.chunks_of(function)
        ]
        for function in topology.functions
    ]


def both(chain, *through):
    """Every output of a call before and after the passes."""
    after = [run(through, program) for program in chain]
    assert after != chain
    drawn = Drawn.of(*chain)
    return run_chain(chain, drawn), run_chain(after, drawn)


def alike(before, after, tolerance):
    assert before.keys() == after.keys()
    for key, wanted in before.items():
        found = after[key]
        if wanted.dtype == torch.int32:
            assert torch.equal(found, wanted), key
        else:
            assert ((found - wanted).abs().max() / wanted.abs().max()).item() <= tolerance, key


EMBEDS = WHOLE.replace("L0", "embed + L0")
LAYOUTS = {
    "whole": {"chunks": WHOLE},
    "halves": {"chunks": HALVES},
    "embeds": {"chunks": EMBEDS},
    "embeds apart": {"chunks": "chunk e = embed\n  " + WHOLE},
    "head apart": {"chunks": "chunk l = L0-3\n  chunk n = norm\n  chunk h = head(logits)"},
    "hidden": {"chunks": "chunk a = L0\n  chunk b = L1-3\n  chunk h = norm + head(hidden)"},
    "written": {"body": f"{BOTH}\n  kv {{ all: write shift, row padded(heads = 3) }}"},
}
SCALES = {
    "one": (0.25,) * 5,
    "at the wall of halves": (0.5, 0.5, 0.125, 0.125, 0.125),
    "inside": (0.5, 0.25, 0.25, 0.125, 0.125),
    "before the norm": (0.5, 0.5, 0.5, 0.5, 0.0625),
    "everywhere": (0.5, 0.25, 0.0625, 4.0, 0.125),
    "late": (1.0, 1.0, 1.0, 0.5, 0.5),
    "early": (0.5, 1.0, 1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scales", SCALES)
def test_a_rescaled_stream_computes_the_same(layout, scales, tmp_path):
    # 1e-6 apart at most: powers of two are exact, but torch's rsqrt isn't rounded to the last bit
    for changed in (lambda one: one, without_post_norms):
        for chain in built(tmp_path, changed=changed, **LAYOUTS[layout]):
            alike(*both(chain, RescaleResidual(SCALES[scales])), 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rescaled_stream_goes_through_the_same_steps(layout, tmp_path):
    for chain in built(tmp_path, changed=without_post_norms, **LAYOUTS[layout]):
        through = [QuantizeActivations(asked=True).run(program) for program in chain]
        if through == chain:  # it has no projection
            continue
        finer = [_with_scale(program, 2.0**-6) for program in through]
        alike(*both(finer, RescaleResidual(SCALES["everywhere"])), 1e-6)


def _with_scale(program, scale):
    """The program with the scales that a text might tell."""
    roles = {role for role, *_ in pairs(program)}
    return _program(program, dict.fromkeys(roles, scale))


def test_nobody_asked_for_int8(tmp_path):
    for chain in built(tmp_path):
        for program in chain:
            assert QuantizeActivations().run(program) is program


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lifted_branches_compute_the_same(layout, tmp_path):
    for chain in built(tmp_path, **LAYOUTS[layout]):
        drawn = Drawn.of(*chain)
        after = [run((LiftBranches(LIFTED),), program) for program in chain]
        alike(run_chain(chain, drawn), run_chain(after, drawn), 1e-6)
        assert (after != chain) == any(b.layer is not None for p in chain for b in p.bindings)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_passes_together_compute_the_same(layout, tmp_path):
    scales = Scales(residual=SCALES["everywhere"], branches=LIFTED)
    for chain in built(tmp_path, **LAYOUTS[layout]):
        alike(*both(chain, *pipeline(scales)), 1e-5)


def test_a_folded_query_scale_computes_the_same(tmp_path):
    for chain in built(tmp_path):
        before, after = both(chain, FoldQueryScale())
        alike(before, after, 1e-5)


def test_a_query_without_a_norm_keeps_its_scale(tmp_path):
    for chain in built(tmp_path, changed=without_query_norms):
        for program in chain:
            assert FoldQueryScale().run(program) == program


def scales_of(program, kind):
    ports = [one.source for one in program.inputs] + [one.sink for one in program.outputs]
    return {port.scale for port in ports if port.kind == kind}


def test_the_host_is_told_the_scale_of_what_crosses(tmp_path):
    (first, second), _ = built(tmp_path, chunks=HALVES)
    one = RescaleResidual(SCALES["inside"])
    assert scales_of(one.run(first), "embedding") == {0.5}
    assert scales_of(one.run(first), "value") == {0.25}
    assert scales_of(one.run(second), "value") == {0.25}
    assert scales_of(one.run(second), "buffer") == {1.0}


def factors(program):
    return [b.op.factor for b in program.bindings if b.op.mnemonic == "scale"]


@pytest.mark.parametrize(
    ("chunks", "scales", "switches"),
    [
        (WHOLE, "one", [[]]),
        (WHOLE, "inside", [[0.5, 0.5]]),
        (WHOLE, "before the norm", [[0.125]]),
        (HALVES, "at the wall of halves", [[], [0.25]]),
        (HALVES, "inside", [[0.5], [0.5]]),
        (EMBEDS, "inside", [[8 * 0.5, 0.5, 0.5]]),
    ],
)
def test_a_stream_is_switched_once_where_its_scale_changes(chunks, scales, switches, tmp_path):
    for chain in built(tmp_path, chunks=chunks, hidden_size=64):
        after = [RescaleResidual(SCALES[scales]).run(program) for program in chain]
        assert [factors(program) for program in after] == switches


def test_a_stream_at_one_scale_is_left_alone(tmp_path):
    for chain in built(tmp_path):
        for program in chain:
            assert RescaleResidual((1.0,) * 5).run(program) is program
            assert RescaleResidual().run(program) is program
            assert LiftBranches(((1.0, 1.0),) * 4).run(program) == program
            assert LiftBranches().run(program) == program


def test_only_epsilons_gains_and_the_ends_of_branches_change(tmp_path):
    ((program,), _) = built(tmp_path, changed=without_post_norms)
    after = RescaleResidual(SCALES["one"]).run(program)
    ends = {w.role.rpartition(".")[2] for w in after.weights if w.factor != 1.0}
    assert ends == {"o", "down"}
    assert {w.factor for w in after.weights} == {1.0, 0.25}
    query = {b.op.eps for b in after.bindings if b.op.mnemonic == "rms_norm" and b.op.axis == 2}
    stream = {b.op.eps for b in after.bindings if b.op.mnemonic == "rms_norm" and b.op.axis == 1}
    assert (query, stream) == ({1e-6}, {1e-6 / 16})


@pytest.mark.parametrize("one", [FoldQueryScale(), RemoveDeadOps()], ids=lambda one: one.name)
def test_a_pass_without_options_is_idempotent(one, tmp_path):
    for chain in built(tmp_path, chunks=HALVES):
        for program in chain:
            assert one.run(one.run(program)) == one.run(program)


def test_a_pass_that_multiplies_multiplies_again(tmp_path):
    """Scales and factors are relative to what a program holds, so these two run once."""
    ((program,), _) = built(tmp_path)
    once = LiftBranches(LIFTED).run(program)
    assert LiftBranches(LIFTED).run(once) != once
    once = RescaleResidual(SCALES["one"]).run(program)
    twice = RescaleResidual(SCALES["one"]).run(once)
    assert {w.factor for w in twice.weights} == {1.0, 0.0625}


POST = "rms_norm(x=%o, gain=@(layers.0.post_attention_norm + 1: fp16[4]), eps=1e-06, axis=1)"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("add(x=%hidden, y=%branch)", "mul(x=%hidden, y=%branch)", "mul reads the residual"),
        (POST, "activation(x=%o, kind=silu)", "activation ends a residual branch"),
    ],
)
def test_a_stream_of_another_make_is_refused(old, new, words):
    text = (GOLDEN / "rescale_residual.before").read_text("utf-8")
    assert old in text
    with pytest.raises(NotImplementedError, match=words):
        RescaleResidual((0.5,) * 3).run(parse(text.replace(old, new)))


def test_a_pass_that_breaks_a_program_is_caught(tmp_path):
    from topoc.lowering.verify import MalformedProgramError

    class Breaks(Pass):
        name = "breaks"

        def run(self, program):
            return evolve(program, outputs=program.outputs * 2)

    ((program,), _) = built(tmp_path)
    with pytest.raises(MalformedProgramError):
        run((Breaks(),), program)


def test_the_pipeline_holds_the_passes_in_order_with_the_scales_put_in():
    scales = Scales(residual=SCALES["one"], branches=LIFTED)
    found = pipeline(scales)
    assert [type(one) for one in found] == [type(one) for one in DEFAULT]
    assert RescaleResidual(SCALES["one"]) in found
    assert LiftBranches(LIFTED) in found
    assert pipeline() is DEFAULT
