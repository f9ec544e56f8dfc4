"""Programs to MIL: one emitter an op, each knowing nothing of topologies."""

from topoc.lowering.emit.mil import (  # noqa: F401  # importing registers the emitters
    attention,
    cache,
    elementwise,
    feature,
    head,
    heads,
    linear,
    norm,
    quantize,
)
from topoc.lowering.emit.mil.environment import emitters
from topoc.lowering.emit.mil.module import emit

__all__ = ["emit", "emitters"]
