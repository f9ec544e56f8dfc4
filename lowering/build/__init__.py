"""Topology and architecture to programs."""

from topoc.dsl.model import Chunk, Function, Topology
from topoc.lowering.architecture import Architecture
from topoc.lowering.build.chunk import ChunkBuilder
from topoc.lowering.build.layout import Layout, layout_of
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import DType, Program


def build(
    topology: Topology,
    architecture: Architecture,
    function: Function,
    chunk: Chunk,
    *,
    layout: Layout | None = None,
    dtype: DType = DType.FP16,
) -> Program:
    """The program of one chunk of one function, before any pass."""
    return ChunkBuilder(
        topology=topology,
        architecture=architecture,
        layout=layout or layout_of(topology, architecture),
        function=function,
        chunk=chunk,
        scope=Scope(dtype),
    ).build()
