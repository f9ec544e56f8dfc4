"""Profiles of features: what inputs, outputs and functions are called, and their layout."""

from topoc.dsl.model import Chunk, Function, Topology
from topoc.lowering.features import coreml_llm
from topoc.lowering.ir import Program

PROFILES = ("topoc", "coreml_llm")


def dressed(
    topology: Topology, function: Function, programs: tuple[tuple[Chunk, Program], ...]
) -> tuple[tuple[Chunk, Program], ...]:
    """The programs of one function as the topology's profile wants them."""
    if topology.features != "coreml_llm":
        return programs
    return coreml_llm.dressed(topology, function, programs)


__all__ = ["PROFILES", "dressed"]
