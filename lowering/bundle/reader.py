"""A bundle on disk: opened only when everything in it is what its manifest says."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.bundle import files
from topoc.lowering.bundle.bundle import MANIFEST, REMEDY, Bundle
from topoc.lowering.bundle.consistency import disagreements
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.bundle.manifest_json import loads
from topoc.lowering.bundle.packages import packages
from topoc.lowering.bundle.writer import BundleWriter

__all__ = ["MANIFEST", "Bundle", "BundleWriter", "examine", "open_bundle", "tree_digest"]


def open_bundle(path: Path | str, *, check: bool = True) -> Bundle:
    """The bundle at `path`, after every check of its manifest and, with `check`, of its hashes.

    Without `check` only the bytes of tables and weights go unread; paths, names, shapes, builds
    and features are looked at always. Raises TopocError with all that is wrong.
    """
    bundle, findings = examine(Path(path), check=check)
    if bundle is None or findings:
        raise TopocError(*findings)
    return bundle


def examine(path: Path, *, check: bool = True) -> tuple[Bundle | None, tuple[Diagnostic, ...]]:
    """The bundle, if it has a manifest of our schema, and everything that is wrong with it.

    Files are touched only when all paths stay inside, and each only when it is there.
    """
    try:
        bundle = Bundle(path, loads(_read(path), str(path / MANIFEST)))
    except TopocError as failure:
        return None, failure.findings
    found = [*files.paths(bundle), *disagreements(bundle.manifest, bundle.manifest_path)]
    if not any(one.code == "bundle.path" for one in found):
        found += _looks(bundle, check=check)
    return bundle, tuple(found)


def _looks(bundle: Bundle, *, check: bool) -> Iterator[Diagnostic]:
    """What is wrong with the files; what is wrong already is not looked at again."""
    sound = set()
    for one in bundle.manifest.files:
        missing = tuple(_readable(files.presence(bundle, one), bundle))
        yield from missing
        if not missing:
            sound.add(one.path)
    yield from _readable(files.strangers(bundle), bundle)
    looks = (files.sizes, files.ropes, packages, *((files.hashes,) if check else ()))
    for look in looks:
        yield from _readable(look(bundle, frozenset(sound)), bundle)


def _readable(found: Iterable[Diagnostic], bundle: Bundle) -> Iterator[Diagnostic]:
    """Findings, of which one is that the file system refused to go on."""
    try:
        yield from found
    except OSError as failure:
        why = (failure.strerror or str(failure)).lower()
        place = Place(str(failure.filename or bundle.path))
        message = f"`{Path(place.file).name}` can't be read: {why}"
        yield error("bundle.unreadable-file", message, place, help=REMEDY)


def _read(path: Path) -> str:
    try:
        return (path / MANIFEST).read_text(encoding="utf-8")
    except OSError as failure:
        why = (failure.strerror or str(failure)).lower()
        message = f"`{path.name}` can't be opened as a bundle: {why}"
        remedy = f"give the folder that holds `{MANIFEST}`"
        found = error("bundle.missing", message, Place(str(path / MANIFEST)), help=remedy)
        raise TopocError(found) from failure
    except UnicodeDecodeError as failure:
        message = "the manifest is not UTF-8 text"
        found = error("bundle.manifest", message, Place(str(path / MANIFEST)), help=REMEDY)
        raise TopocError(found) from failure
