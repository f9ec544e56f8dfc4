"""Profiles of features: what inputs, outputs and functions are called, and their layout."""

from topoc.dsl.model import COREML_LLM, Chunk, Function, Topology
from topoc.lowering.features import coreml_llm
from topoc.lowering.ir import Program


def dressed(
    topology: Topology, function: Function, programs: tuple[tuple[Chunk, Program], ...]
) -> tuple[tuple[Chunk, Program], ...]:
    """The programs of one function as the topology's profile wants them."""
    if topology.features != COREML_LLM:
        return programs
    return coreml_llm.dressed(topology, function, programs)


__all__ = ["dressed"]
