"""coremltools' builder and exporter, imported quietly and without the frameworks it looks for.

With torch, scikit-learn and transformers hidden its import takes 1 s instead of 6 (measured on
2026-11-30 with coremltools 9.0); nothing here needs its converters.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from attrs import frozen

SPECIFICATION = 9
"""Of a model for iOS 18 and macOS 15."""

HIDDEN = ("torch", "sklearn", "transformers")


@frozen
class Toolkit:
    """The parts of coremltools that emission uses; Any, because coremltools is untyped."""

    mb: Any  # the builder
    types: Any  # MIL's element types
    function: Any  # the class of functions
    program: Any  # the class of programs
    load: Any  # the module of the proto exporters
    proto: Any  # the generated protobuf modules
    opset: Any  # the deployment target
    specification: int


@cache
def toolkit() -> Toolkit:
    """Import coremltools once a process."""
    with _hidden(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("coremltools").setLevel(logging.ERROR)
        import coremltools
        from coremltools.converters.mil.backend.mil import load
        from coremltools.converters.mil.mil import Builder, Function, Program, types
    return Toolkit(
        mb=Builder,
        types=types,
        function=Function,
        program=Program,
        load=load,
        proto=coremltools.proto,
        opset=coremltools.target.iOS18,
        specification=SPECIFICATION,
    )


@contextmanager
def _hidden() -> Iterator[None]:
    """Make the frameworks look absent, whether or not they are imported already."""
    absent = object()
    before = {name: sys.modules.get(name, absent) for name in HIDDEN}
    sys.modules.update(dict.fromkeys(HIDDEN))  # type: ignore[arg-type]  # None means: not to be had
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not absent:
                sys.modules[name] = module  # type: ignore[assignment]  # it was a module
