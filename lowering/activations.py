"""At which scales projections read int8: from the greatest |x| that a text caused."""

from collections.abc import Iterator, Mapping
from math import frexp, ldexp
from struct import pack, unpack

from attrs import evolve

from topoc.lowering.ir import Program, Value
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.quantize import QuantizeDequantize
from topoc.lowering.plan import PackagePlan, Plan

STEPS = 127  # from zero to the greatest |x|
LEAST = 2.0**-14  # the least normal number of fp16: a scale must not come out as zero


def scale_of(peak: float) -> float:
    """The scale of a tensor whose greatest |x| is `peak`, in as many bits as fp16 has.

    Its power of two may be beyond fp16, as the residual stream's may that a program rescales.
    """
    part, exponent = frexp(peak / STEPS)
    (rounded,) = unpack("<e", pack("<e", part))
    return max(ldexp(rounded, exponent), LEAST)


def calibrated(plan: Plan, scales: Mapping[str, float]) -> Plan:
    """The plan with these scales, by the role of the weight that multiplies; it has none before."""
    packages = tuple(_package(one, scales) for one in plan.packages)
    programs = (program for one in packages for program in one.programs)
    roles = dict.fromkeys(role for program in programs for role, *_ in pairs(program))
    return evolve(plan, packages=packages, activations={role: scales[role] for role in roles})


def _package(package: PackagePlan, scales: Mapping[str, float]) -> PackagePlan:
    return evolve(package, programs=tuple(_program(one, scales) for one in package.programs))


def _program(program: Program, scales: Mapping[str, float]) -> Program:
    """The passes left the power of two of what is read, and one where it is as it is."""
    told = {value: scales[role] for role, value, _ in pairs(program)}
    bindings = (
        evolve(one, op=evolve(one.op, scale=max(one.op.scale * told[one.result], LEAST)))
        if isinstance(one.op, QuantizeDequantize)
        else one
        for one in program.bindings
    )
    return evolve(program, bindings=tuple(bindings))


def pairs(program: Program) -> Iterator[tuple[str, Value, float]]:
    """Each projection's role with the quantised value that it reads, and that one's scale."""
    scales = {
        one.result: one.op.scale
        for one in program.bindings
        if isinstance(one.op, QuantizeDequantize)
    }
    for binding in program.bindings:
        if isinstance(binding.op, Linear) and binding.op.x in scales:
            yield binding.op.weight.role, binding.op.x, scales[binding.op.x]
