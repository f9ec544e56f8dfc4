"""What compiles of one checkpoint share: measured values, and files that bundles hold alike."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from topoc.lowering.hashed import Buffer
from topoc.lowering.kept import Kept, name_of
from topoc.lowering.version import VERSION


@frozen
class Reuse:
    """A cache as one checkpoint sees it; without a cache everything is made anew."""

    checkpoint: str  # hash of the weight files
    cache: Kept | None = None
    digests: dict[Path, str] = field(factory=dict)  # SHA-256 of the files that are known

    def value(self, label: str, decides: object, make: Callable[[], Any]) -> Any:  # as JSON has it
        """A value that the checkpoint and `decides` alone decide on."""
        if self.cache is None:
            return make()
        name = self._name(label, decides)
        found = self.cache.fact(name)
        if found is None:
            found = make()
            self.cache.note(name, found, label)
        return found

    def values(self, label: str, kind: str, decides: object, make: Callable[[], bytes]) -> Buffer:
        """Bytes of some kind that the checkpoint and `decides` alone decide on."""
        if self.cache is None:
            return make()
        name = self._name(label, (kind, decides))
        found = self.cache.values(name)
        if found is None:
            made = make()
            self.cache.keep_values(name, made, label, kind)
            return made
        return found

    def files(self, paths: Sequence[Path], decides: object, make: Callable[[], None]) -> None:
        """Files that the checkpoint and `decides` alone decide on; `make` writes all of them."""
        if self.cache is None:
            make()
            return
        names = dict(zip(paths, self.names(paths, decides), strict=True))
        linked = {path: self.cache.link(name, path) for path, name in names.items()}
        if None in linked.values():
            for path in paths:
                path.unlink(missing_ok=True)
            make()
            linked = {path: self.cache.keep(name, path, path.name) for path, name in names.items()}
        self.digests.update((path, digest) for path, digest in linked.items() if digest)

    def names(self, paths: Sequence[Path], decides: object) -> list[str]:
        """What the cache calls files."""
        return [self._name(path.name, decides) for path in paths]

    def elsewhere(self) -> "Reuse":
        """The same for another process."""
        cache = self.cache and Kept(self.cache.root, self.cache.limit)
        return Reuse(self.checkpoint, cache)

    def _name(self, label: str, decides: object) -> str:
        return name_of(VERSION, self.checkpoint, label, decides)
