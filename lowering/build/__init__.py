"""Topology and architecture to programs."""

from topoc.dsl.model import Chunk, Function, Topology
from topoc.lowering.architecture import Architecture
from topoc.lowering.build.chunk import ChunkBuilder
from topoc.lowering.ir import DType, Program


def build(
    topology: Topology,
    architecture: Architecture,
    function: Function,
    chunk: Chunk,
    *,
    dtype: DType = DType.FP16,
) -> Program:
    """The program of one chunk of one function, before any pass."""
    return ChunkBuilder(
        topology=topology,
        architecture=architecture,
        function=function,
        chunk=chunk,
        dtype=dtype,
    ).build()
