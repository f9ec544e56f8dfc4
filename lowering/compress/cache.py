"""Compressed weights in the user's cache folder, by their numbers, their recipe and the method."""

from hashlib import sha256

import numpy as np
from attrs import astuple, define

from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.method import METHOD
from topoc.lowering.compress.parts import Compressed, Damage, Part, size_of
from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.kept import ALIGNMENT, WEIGHT, Kept, Read


def key(content: str, how: Recipe, importance: Importance | None = None, more: str = "") -> str:
    """The name of an entry.

    `content` tells the weight's numbers, as `source.content` does; `more` tells whatever else went
    into the result, as the products of error feedback.
    """
    digest = sha256(repr((content, how, METHOD, more)).encode())
    for one in () if importance is None else (importance.columns, importance.rows):
        digest.update(b"-" if one is None else np.ascontiguousarray(one, "<f8").tobytes())
    return digest.hexdigest()


@define
class Cache(Kept):
    """A folder of compressed weights, and of what else compiles need again."""

    def get(self, name: str, how: Recipe) -> Compressed | None:
        """The weight of a key, if it is there and whole."""
        found = self.read(name + WEIGHT)
        return None if found is None else _weight(found, how)

    def has(self, name: str) -> bool:
        """Whether there is an entry, whole or not."""
        return (self.root / (name + WEIGHT)).exists()

    def put(self, name: str, made: Compressed, label: str) -> None:
        """Keep a weight."""
        parts = made.parts.values()
        told = {
            "label": label,
            "recipe": repr(made.recipe),
            "rows": made.rows,
            "parts": {name: [one.dtype, one.shape] for name, one in made.parts.items()},
            "damage": made.damage and astuple(made.damage),
        }
        pieces = (
            piece for one in parts for piece in (one.data.data, bytes(-len(one.data) % ALIGNMENT))
        )
        self.write(name + WEIGHT, told, pieces)


def _weight(found: Read, how: Recipe) -> Compressed:
    told, at, parts = found.told, found.at, {}
    for name, (dtype, shape) in told["parts"].items():
        many = size_of(dtype, tuple(shape))
        parts[name] = Part(dtype, tuple(shape), np.frombuffer(found.mapped, np.uint8, many, at))
        at += many + -many % ALIGNMENT
    damage = told["damage"] and Damage(*told["damage"])
    return Compressed(how, told["rows"], parts, damage)
