"""From a topology to its pictures; what has no lowering yet has a picture too."""

from collections.abc import Collection, Iterator, Sequence

from attrs import evolve, frozen

from topoc.dsl import model
from topoc.dsl.measure import cache_bytes, decode_chunks
from topoc.dsl.plain import Plain
from topoc.dsl.words import attention, held, kept
from topoc.lowering.cli.page import scene
from topoc.lowering.cli.page.places import Places
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.plan.times import Times
from topoc.lowering.cost.features import Features, features, tally
from topoc.lowering.cost.stored import layer_bytes

Counted = list[tuple[model.Function, tuple[Features, ...]]]


@frozen(kw_only=True, eq=False, repr=False)
class Gatherer(Plain):
    """Makes the pictures of one topology.

    The numbers of a chunk are those of its plan, `told`, where there is one, else what its layers
    come to. `changed` layers are marked.
    """

    topology: model.Topology
    places: Places
    times: Times | None = None
    told: report.Report | None = None
    changed: Collection[int] = ()

    def pictures(self) -> tuple[scene.Picture, ...]:
        """One for each list of chunks, that of decode first."""
        by_list: dict[tuple[model.Chunk, ...], list[model.Function]] = {}
        for function in sorted(self.topology.functions, key=lambda one: one.role != "decode"):
            by_list.setdefault(self.topology.chunks_of(function), []).append(function)
        stored = layer_bytes(self.topology)
        layers = [self._layer(one, stored[one.index]) for one in self.topology.blocks]
        return tuple(self._picture(one, of, layers) for one, of in by_list.items())

    def _picture(
        self,
        chunks: tuple[model.Chunk, ...],
        functions: list[model.Function],
        layers: Sequence[scene.Layer],
    ) -> scene.Picture:
        counted = [(one, features(self.topology, one)) for one in functions]
        return scene.Picture(
            functions=tuple(one.name for one in functions),
            context=self.topology.context,
            chunks=tuple(
                self._chunk(chunk, tuple(layers[index] for index in chunk.layers), counted, at)
                for at, chunk in enumerate(chunks)
            ),
            arrows=tuple(self._arrows(chunks)),
            crossings=tuple(_crossings(self.topology, functions[0], chunks)),
        )

    def _chunk(
        self, chunk: model.Chunk, layers: tuple[scene.Layer, ...], counted: Counted, at: int
    ) -> scene.Chunk:
        moved, package = counted[0][1][at], self._package(chunk)
        spans = (chunk.span, *(part.span for part in chunk.parts))
        lines = self.places.lines(spans[:1])
        return scene.Chunk(
            name=chunk.name,
            holds=held(chunk),
            layers=tuple(evolve(one, lines=(*lines, *one.lines)) for one in layers),
            stored_bytes=package["stored_bytes"] if package else moved.stored,
            loaded_bytes=package["loaded_bytes"] if package else moved.loaded,
            runs=tuple(self._run(chunk, one, found[at]) for one, found in counted),
            lines=lines,
            findings=self.places.findings(spans, f"chunk {chunk.name}"),
        )

    def _run(self, chunk: model.Chunk, function: model.Function, moved: Features) -> scene.Run:
        package = self._package(chunk)
        into, out = moved.kv_in, moved.kv_out
        for one in package["functions"] if package else []:
            if one["name"] == function.name:
                into, out = one["kv_bytes_in"], one["kv_bytes_out"]
        return scene.Run(
            function=function.name,
            unit=chunk.unit or function.unit or self.topology.target.unit,
            tokens=function.tokens,
            ms=self.times.chunk(function.name, chunk.name) if self.times else None,
            kv_bytes_in=into,
            kv_bytes_out=out,
        )

    def _package(self, chunk: model.Chunk) -> report.Chunk | None:
        """The plan of a chunk."""
        packages = self.told["chunks"] if self.told else []
        return next((one for one in packages if one["name"] == chunk.name), None)

    def _arrows(self, chunks: tuple[model.Chunk, ...]) -> Iterator[scene.Arrow]:
        """One from each donor to each reader, with the bytes of the cache."""
        home = {at: chunk.name for chunk in chunks for at in chunk.layers}
        for reader, chunk in home.items():
            kv = self.topology.blocks[reader].kv
            if kv.donor is not None and kv.donor in home:
                yield scene.Arrow(
                    donor=kv.donor,
                    reader=reader,
                    source=home[kv.donor],
                    chunk=chunk,
                    bytes=cache_bytes(self.topology, self.topology.blocks[kv.donor]),
                    lines=self.places.lines((kv.at("source"),)),
                )

    def _layer(self, block: model.Block, stored: int) -> scene.Layer:
        window, donor, context = block.attention.window, block.kv.donor, self.topology.context
        spans = (block.attention.span, block.kv.span, *(span for _, span in block.kv.marks))
        return scene.Layer(
            index=block.index,
            attention=block.attention.kind,
            detail=attention(block.attention),
            seen=context if window is None else min(window, context),
            donor=donor,
            kept=_kept(kept(block)),
            stored_bytes=stored,
            cache_bytes=0 if donor is not None else cache_bytes(self.topology, block),
            lines=self.places.lines(spans),
            findings=self.places.findings(spans, block.index),
            changed=block.index in self.changed,
        )


def _kept(words: dict[str, str]) -> tuple[str, ...]:
    """How a cache is kept, the usual left out."""
    if "write" not in words:
        return (words["source"],)
    found = (words["write"], f"{words['slots']} slots", words["row"], words["store"])
    return tuple(word for word in found if word not in {"tight", "io"})


def _crossings(
    topology: model.Topology, function: model.Function, chunks: tuple[model.Chunk, ...]
) -> Iterator[scene.Crossing]:
    for donor in sorted(tally(topology, function).donors, key=lambda one: one.at):
        for chunk in chunks:
            inside = set(chunk.layers)
            if donor.at not in inside and inside & set(donor.readers):
                yield scene.Crossing(donor=donor.at, chunk=chunk.name, bytes=donor.enters)


def changed_layers(before: model.Topology, after: model.Topology) -> frozenset[int]:
    """The layers that run in another chunk, or whose attention, KV or schemes differ.

    A chunk that holds the same layers under another name is the same chunk.
    """
    one, other = _as_run(before), _as_run(after)
    return frozenset(at for at in one | other if one.get(at) != other.get(at))


def _as_run(topology: model.Topology) -> dict[int, tuple[object, ...]]:
    schemes: dict[int | None, list[object]] = {}
    for recipe in topology.recipes:
        schemes.setdefault(recipe.layer, []).append((recipe.role, recipe.schemes))
    blocks = topology.blocks
    return {
        at: (chunk.layers, blocks[at].attention, blocks[at].kv, schemes.get(at))
        for chunk in decode_chunks(topology)
        for at in chunk.layers
    }
