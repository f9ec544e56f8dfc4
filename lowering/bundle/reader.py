"""A bundle on disk: opened only when everything in it is what its manifest says."""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from attrs import field, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.bundle.consistency import disagreements
from topoc.lowering.bundle.digest import files_below, tree_digest
from topoc.lowering.bundle.manifest_json import loads
from topoc.lowering.bundle.writer import MANIFEST, BundleWriter
from topoc.lowering.manifest import Manifest

__all__ = ["MANIFEST", "Bundle", "BundleWriter", "open_bundle", "tree_digest"]

REMEDY = "compile the bundle again, or copy it whole"
ITEM_BYTES = {"fp16": 2, "fp32": 4, "int8": 1}


@frozen
class Bundle:
    """A folder and its manifest."""

    path: Path
    manifest: Manifest = field(repr=False)


def open_bundle(path: Path | str, *, check: bool = True) -> Bundle:
    """The bundle at `path`, after every check of its manifest and, with `check`, of its files.

    Without `check` only sizes and hashes go unread; paths, names and shapes are looked at always.
    """
    path = Path(path)
    manifest = loads(_read(path), str(path / MANIFEST))
    bundle = Bundle(path, manifest)
    for look in (_paths, _agreement, _presence, _sizes, _ropes):
        _stop(look(bundle))
    if check:
        _stop(_hashes(bundle))
    return bundle


def _stop(found: Iterator[Diagnostic]) -> None:
    findings = tuple(found)
    if findings:
        raise TopocError(*findings)


def _agreement(bundle: Bundle) -> Iterator[Diagnostic]:
    """Where the manifest disagrees with itself."""
    return disagreements(bundle.manifest, str(bundle.path / MANIFEST))


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


def _named(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every path that the manifest names outside `files`, and where."""
    for i, function in enumerate(manifest.functions):
        for j, step in enumerate(function.steps):
            yield step.package, f"$.functions[{i}].steps[{j}].package"
    for name, table in manifest.tables.items():
        yield table.path, f"$.tables[{name!r}].path"
        if table.scales is not None:
            yield table.scales, f"$.tables[{name!r}].scales"
    for name, rope in manifest.ropes.items():
        yield rope.path, f"$.ropes[{name!r}].path"
    for i, one in enumerate(manifest.tokenizer):
        yield one, f"$.tokenizer[{i}]"


def _paths(bundle: Bundle) -> Iterator[Diagnostic]:
    """Paths stay inside the bundle, as text and as links, and each named one is listed."""
    manifest, place = bundle.manifest, str(bundle.path / MANIFEST)
    listed = [(one.path, f"$.files[{i}].path") for i, one in enumerate(manifest.files)]
    root = bundle.path.resolve()
    for path, part in (*listed, *_named(manifest)):
        if not _is_plain(path) or not (bundle.path / path).resolve().is_relative_to(root):
            message = f"path {json.dumps(path)[:80]} leads out of the bundle"
            yield error("bundle.path", message, Place(place, part), help=REMEDY)
    known = {path for path, _ in listed}
    if len(known) < len(listed):
        yield error("bundle.path", "a file is listed twice", Place(place, "$.files"), help=REMEDY)
    for path, part in _named(manifest):
        if path not in known:
            message = f"`{path}` is used and not listed among the files"
            yield error("bundle.not-listed", message, Place(place, part), help=REMEDY)


def _is_plain(path: str) -> bool:
    """A relative path in its shortest spelling, of parts that any system reads alike."""
    pure = PurePosixPath(path)
    odd = any(ord(c) < 32 or c in "\\:" or 0xD800 <= ord(c) < 0xE000 for c in path)
    return bool(pure.parts) and not (
        odd or pure.is_absolute() or ".." in pure.parts or pure.as_posix() != path
    )


def _presence(bundle: Bundle) -> Iterator[Diagnostic]:
    """Every listed file is there, nothing in a package leads out, nothing else stands around."""
    root = bundle.path.resolve()
    for one in bundle.manifest.files:
        whole = bundle.path / one.path
        if not whole.exists():
            message = f"`{one.path}` is missing"
            yield error("bundle.missing-file", message, Place(str(whole)), help=REMEDY)
        elif whole.is_dir():
            for part in files_below(whole):
                if not part.resolve().is_relative_to(root):
                    message = f"`{part.relative_to(bundle.path)}` leads out of the bundle"
                    yield error("bundle.path", message, Place(str(part)), help=REMEDY)
    listed = {PurePosixPath(one.path).parts[0] for one in bundle.manifest.files} | {MANIFEST}
    for found in sorted(bundle.path.iterdir()):
        if found.name not in listed and not found.name.startswith("."):
            message = f"`{found.name}` is not of this bundle"
            remedy = "move it out of the bundle's folder"
            yield error("bundle.extra-file", message, Place(str(found)), help=remedy)


def _sizes(bundle: Bundle) -> Iterator[Diagnostic]:
    """Host tables have the bytes that their rows and widths ask for."""
    for name, table in bundle.manifest.tables.items():
        asked = [(table.path, table.rows * table.width * ITEM_BYTES[table.dtype])]
        asked += [(table.scales, table.rows * 4)] if table.scales is not None else []
        for path, size in asked:
            found = (bundle.path / path).stat().st_size
            if found != size:
                message = f"`{path}` has {found} bytes, and table `{name}` asks for {size}"
                place = Place(str(bundle.path / path))
                yield error("bundle.shapes-disagree", message, place, help=REMEDY)


def _ropes(bundle: Bundle) -> Iterator[Diagnostic]:
    """Rope tables have the shape that the manifest says."""
    import numpy as np

    for name, rope in bundle.manifest.ropes.items():
        place = Place(str(bundle.path / rope.path))
        try:
            table = np.load(bundle.path / rope.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError):
            message = f"`{rope.path}` is not a .npy file of numbers"
            yield error("bundle.shapes-disagree", message, place, help=REMEDY)
            continue
        asked = (2, rope.positions, rope.width)
        if getattr(table, "shape", None) != asked or table.dtype.kind != "f":
            message = f"`{rope.path}` is not floats of {asked}, as rope `{name}` asks for"
            yield error("bundle.shapes-disagree", message, place, help=REMEDY)


def _hashes(bundle: Bundle) -> Iterator[Diagnostic]:
    """Bytes and sha256 of every file and package."""
    for one in bundle.manifest.files:
        size, digest = tree_digest(bundle.path / one.path)
        if (size, digest) != (one.bytes, one.sha256):
            what = f"{size} bytes, not {one.bytes}" if size != one.bytes else "another hash"
            message = f"`{one.path}` is not what was compiled: it has {what}"
            yield error("bundle.hash", message, Place(str(bundle.path / one.path)), help=REMEDY)
