"""Bundles compiled from a text and a checkpoint, once each."""

from functools import cache
from pathlib import Path

import numpy as np
from attrs import evolve

from topoc.dsl.load import load
from topoc.lowering.architecture import layers, read
from topoc.lowering.bundle.reader import Bundle, open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.ir import DType
from topoc.lowering.request import Request

CONTEXT = 64


def topology_text(body="", *, name="tiny", chunks=None, functions="decode"):
    """A topology of the tiny checkpoint beside it: four layers, sliding and full in turn."""
    parts = chunks or "chunk one = L0-1\n  chunk two = L2-3 + norm + head(argmax)"
    return f"""topology {name} {{
  model "config.json"
  context {CONTEXT}
  {body}
  {parts}
  functions {functions}
  quantize {{ embed: none }}
}}
"""


def resolved(text, folder):
    """The topology of a text, which must have no error."""
    path = Path(folder) / "tiny.topo"
    path.write_text(text)
    topology, findings = load(path, layers=layers)
    assert topology is not None, findings
    return topology


def compile_text(text, checkpoint, target, *, precision="fp16", **options) -> Bundle:
    """Compile the text against a checkpoint's folder, and open what was written."""
    request = Request(
        topology=resolved(text, checkpoint),
        architecture=read(checkpoint),
        reader=open_checkpoint(checkpoint),
        precision=DType(precision),
        **options,
    )
    compile_bundle(request, target)
    return open_bundle(target)


def weights_of(checkpoint):
    """The checkpoint's tensors by role."""
    return bind(open_checkpoint(checkpoint), read(checkpoint))


@cache
def _predictor(path, build, rounding):
    del build  # only what makes it another one
    return InterpreterPredictor(open_bundle(path), rounding)


def predictor_of(bundle, *, rounding=False):
    """The bundle's predictor, prepared once: it keeps nothing of a session."""
    return _predictor(bundle.path, bundle.manifest.build, rounding)


def engine_of(bundle, *, rounding=False):
    """A session that gives logits."""
    return Engine(bundle, predictor_of(bundle, rounding=rounding), want_logits=True)


def with_manifest(bundle, **changes):
    """The bundle as if its manifest said something else."""
    return Bundle(bundle.path, evolve(bundle.manifest, **changes))


def logits_after(engine, tokens, **options):
    """The logits after the last of these tokens."""
    return np.asarray(engine.feed(tokens, **options).logits, np.float32)
