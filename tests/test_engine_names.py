"""The engine reads no name: a bundle whose every name is random gives the same answers."""

import random

import attrs
import pytest
from test_engine import APART, STATE, agrees, some_tokens
from tiny_bundle import tiny_manifest, write_bundle
from tiny_reader import Reader

from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.driver import Engine

LAYOUTS = [{"write": "blend"}, {"write": "slice", "together": True, **STATE, "calls": APART}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["io", "state"])
@pytest.mark.parametrize("seed", range(3))
def test_names_mean_nothing(tmp_path, seed, layout):
    manifest = tiny_manifest(**layout, taps=True)
    renamed, names = shuffled(manifest, random.Random(seed))
    write_bundle(tmp_path / "b", renamed)
    tokens = some_tokens(23)
    engine = Engine(open_bundle(tmp_path / "b"), Renamed(names))
    for end in (4, 11, 12, 23):
        assert agrees(engine.feed(tokens[engine.position : end]), tokens[:end])


class Renamed(Reader):
    """A reader whose packages' features have other names."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def predict(self, step, inputs, probes):
        back = {new: old for old, new in self.names.items()}

        def named(features):
            return tuple(attrs.evolve(o, feature=back[o.feature]) for o in features)

        plain = attrs.evolve(step, inputs=named(step.inputs), outputs=named(step.outputs))
        found = super().predict(plain, {back[k]: v for k, v in inputs.items()}, probes)
        return {self.names[k]: v for k, v in found.items()}

    def read_state(self, package, state):
        return super().read_state(package, self._old(state))

    def write_state(self, package, state, value):
        super().write_state(package, self._old(state), value)

    def _old(self, name):
        return next(old for old, new in self.names.items() if new == name)


def shuffled(manifest, rng):
    """The manifest with every feature, buffer, value, table, function and file named at random."""
    names = {}

    def of(old):
        if old is not None and old not in names:
            names[old] = f"n{rng.randrange(10**9)}"
        return names.get(old)

    def feature(one, key):
        end = getattr(one, key)
        return attrs.evolve(
            one, feature=of(one.feature), **{key: attrs.evolve(end, name=of(end.name))}
        )

    def step(one):
        return attrs.evolve(
            one,
            package=of(one.package),
            function=of(one.function),
            inputs=tuple(feature(i, "source") for i in one.inputs),
            outputs=tuple(feature(o, "sink") for o in one.outputs),
        )

    def copied(one):
        others = tuple(map(of, one.others))
        return attrs.evolve(one, buffer=of(one.buffer), package=of(one.package), others=others)

    whole = attrs.evolve(
        manifest,
        buffers=tuple(attrs.evolve(b, id=of(b.id)) for b in manifest.buffers),
        tables={
            of(k): attrs.evolve(t, path=of(t.path), scales=of(t.scales))
            for k, t in manifest.tables.items()
        },
        ropes={of(k): attrs.evolve(r, path=of(r.path)) for k, r in manifest.ropes.items()},
        functions=tuple(
            attrs.evolve(
                f,
                name=of(f.name),
                steps=tuple(step(s) for s in f.steps),
                copies=tuple(map(copied, f.copies)),
            )
            for f in manifest.functions
        ),
    )
    return whole, names
