"""A run on disk: every step's inputs and outputs, for whoever writes another engine."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.engine.call import Moment
from topoc.lowering.engine.positions import Array

SCHEMA = "topoc.trace/1"


@define
class TraceWriter:
    """Watches an engine; `close` writes the index, without which a trace is not finished.

    Files are numbered, and only the index tells the feature in each.
    """

    directory: Path
    build: str
    _steps: list[dict[str, Any]] = field(factory=list, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.directory.exists() and any(self.directory.iterdir()):
            message = f"`{self.directory}` is not empty"
            place = Place(str(self.directory))
            remedy = "give a new folder with `-o`"
            raise TopocError(error("trace.not-empty", message, place, help=remedy))
        self.directory.mkdir(parents=True, exist_ok=True)

    def __call__(self, moment: Moment) -> None:
        """Write one step."""
        call, step = moment.call, moment.step
        folder = f"{call.number:05d}/{moment.index:02d}"
        (self.directory / folder).mkdir(parents=True)
        outputs = {one.feature: moment.outputs[one.feature] for one in step.outputs}
        self._steps.append(
            {
                "call": call.number,
                "function": call.function.name,
                "position": call.position,
                "tokens": list(call.tokens),
                "step": moment.index,
                "package": step.package,
                "inputs": self._saved(folder, "in", moment.inputs),
                "outputs": self._saved(folder, "out", outputs),
            }
        )

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Remove what was written where the run fails: a trace without an index is none."""
        try:
            yield
        except BaseException:
            for one in self.directory.iterdir():
                shutil.rmtree(one)
            raise

    def close(self, prompt: tuple[int, ...], generated: tuple[int, ...]) -> None:
        """Write the index."""
        index = {
            "schema": SCHEMA,
            "build": self.build,
            "prompt": list(prompt),
            "generated": list(generated),
            "steps": self._steps,
        }
        text = json.dumps(index, indent=1) + "\n"
        (self.directory / "trace.json").write_text(text, encoding="utf-8", newline="\n")

    def _saved(self, folder: str, stem: str, features: Mapping[str, Array]) -> dict[str, str]:
        """The file of each feature."""
        files = {}
        for i, (feature, value) in enumerate(features.items()):
            files[feature] = f"{folder}/{stem}{i:02d}.npy"
            np.save(self.directory / files[feature], value)
        return files
