"""Core ML's protobuf messages, without the rest of coremltools.

Importing coremltools takes seconds, its message modules a few hundredths: they need their package
only as a place to be found in.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PACKAGE = "coremltools"


@cache
def messages() -> Any:
    """The module of `Model` and all that a model is described by; generated, hence untyped."""
    return _load("Model_pb2")


@cache
def mil() -> Any:
    """The module of MIL's `Program`, `Operation` and `Value`; generated, hence untyped."""
    return _load("MIL_pb2")


@cache
def decode_error() -> type[Exception]:
    """What protobuf raises on bytes that are no message."""
    found: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    return found


def _load(name: str) -> ModuleType:
    with _findable():
        return importlib.import_module(f"{PACKAGE}.proto.{name}")


@contextmanager
def _findable() -> Iterator[None]:
    """Let a bare package stand in for coremltools, unless the real one is there.

    The message modules stay imported under their own names. A later `import coremltools` runs in
    full and finds them, so that no descriptor is registered twice.
    """
    if PACKAGE in sys.modules:
        yield
        return
    spec = find_spec(PACKAGE)
    if spec is None:
        raise ModuleNotFoundError(name=PACKAGE)
    stand_in = ModuleType(PACKAGE)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[PACKAGE] = stand_in
    try:
        yield
    finally:
        del sys.modules[PACKAGE]
