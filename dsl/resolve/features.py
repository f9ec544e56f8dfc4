"""What a features profile demands of a topology."""

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.model import COREML_LLM, Kind, Topology
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.resolve.selector import listed
from topoc.dsl.resolve.settings import last


def check_features(scope: Scope, links: tuple[Link, ...], topology: Topology) -> None:
    """Report what `features coreml_llm` has no names for."""
    stated = last(links, ast.Features)
    if stated is None or topology.features != COREML_LLM:
        return
    tight = [b.index for b in topology.blocks if b.kv.donor is None and not b.kv.padded]
    if tight:
        message = f"`coreml_llm` keeps padded rows, and {listed(tight)} keep tight ones"
        help_ = "write `all: row padded` in `kv`"
        span = stated.profile.span
        scope.report(error("features.cannot-express", message, span, help=help_))
    for kind in Kind:
        windows = {
            block.attention.window
            for block in topology.blocks
            if topology.layers.layers[block.index].kind is kind
        }
        if len(windows) > 1:
            message = f"`coreml_llm` has one window for all {kind.value} layers, not several"
            help_ = "write one kind and window for them all, or `features topoc`"
            span = stated.profile.span
            scope.report(error("features.cannot-express", message, span, help=help_))
