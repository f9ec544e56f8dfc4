"""Whether the files of a bundle are those that its manifest lists."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.lowering.bundle.bundle import MANIFEST, REMEDY, Bundle
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.manifest import File, Manifest

ITEM_BYTES = {"fp16": 2, "fp32": 4, "int8": 1}


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
    if manifest.per_layer is not None:
        yield manifest.per_layer.projection, "$.per_layer.projection"
        yield manifest.per_layer.gain, "$.per_layer.gain"
    for i, one in enumerate(manifest.tokenizer):
        yield one, f"$.tokenizer[{i}]"


def paths(bundle: Bundle) -> Iterator[Diagnostic]:
    """Paths stay inside the bundle, as text and as links, and each named one is listed."""
    manifest, place = bundle.manifest, bundle.manifest_path
    listed = [(one.path, f"$.files[{i}].path") for i, one in enumerate(manifest.files)]
    root = bundle.path.resolve()
    for path, part in (*listed, *_named(manifest)):
        if not _is_plain(path) or not _is_inside(bundle.path / path, root):
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


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links in a circle, until Python 3.13
        return False


def presence(bundle: Bundle, one: File) -> Iterator[Diagnostic]:
    """A listed file is there, and nothing in it leads elsewhere or is no plain file."""
    whole = bundle.path / one.path
    if not whole.exists():
        message = f"`{one.path}` is missing"
        yield error("bundle.missing-file", message, Place(str(whole)), help=REMEDY)
        return
    root = bundle.path.resolve()
    for part in (whole, *sorted(whole.rglob("*"))):
        name, place = part.relative_to(bundle.path).as_posix(), Place(str(part))
        if not _is_inside(part, root):
            message = f"`{name}` leads out of the bundle"
            yield error("bundle.path", message, place, help=REMEDY)
        elif part.is_symlink() and part.is_dir():
            message = f"`{name}` is a link to a folder, whose files no hash covers"
            yield error("bundle.path", message, place, help=REMEDY)
        elif not part.is_dir() and not stat.S_ISREG(part.stat().st_mode):
            message = f"`{name}` is neither a file nor a folder"
            yield error("bundle.unreadable-file", message, place, help=REMEDY)


def strangers(bundle: Bundle) -> Iterator[Diagnostic]:
    """Nothing stands around that the manifest does not list."""
    listed = {PurePosixPath(one.path).parts[0] for one in bundle.manifest.files} | {MANIFEST}
    for found in sorted(bundle.path.iterdir()):
        if found.name not in listed and not found.name.startswith("."):
            message = f"`{found.name}` is not of this bundle"
            remedy = "move it out of the bundle's folder"
            yield error("bundle.extra-file", message, Place(str(found)), help=remedy)


def sizes(bundle: Bundle, sound: frozenset[str]) -> Iterator[Diagnostic]:
    """Host tables and weights have the bytes that the manifest asks for."""
    for path, size, what in _asked(bundle.manifest):
        found = (bundle.path / path).stat().st_size if path in sound else size
        if found != size:
            message = f"`{path}` has {found} bytes, and {what} asks for {size}"
            place = Place(str(bundle.path / path))
            yield error("bundle.shapes-disagree", message, place, help=REMEDY)


def _asked(manifest: Manifest) -> Iterator[tuple[str, int, str]]:
    """Raw files, the bytes of each, and who says so."""
    for name, table in manifest.tables.items():
        yield table.path, table.rows * table.width * ITEM_BYTES[table.dtype], f"table `{name}`"
        if table.scales is not None:
            yield table.scales, table.rows * 4, f"table `{name}`"
    made = manifest.per_layer
    if made is not None:
        item, channels = ITEM_BYTES[made.dtype], made.layers * made.width
        yield made.projection, channels * manifest.model.hidden * item, "`per_layer`"
        yield made.gain, made.width * item, "`per_layer`"


def ropes(bundle: Bundle, sound: frozenset[str]) -> Iterator[Diagnostic]:
    """Rope tables have the shape that the manifest says."""
    import numpy as np

    for name, rope in bundle.manifest.ropes.items():
        if rope.path not in sound:
            continue
        place = Place(str(bundle.path / rope.path))
        try:
            table = np.load(bundle.path / rope.path, mmap_mode="r", allow_pickle=False)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 — numpy evaluates the header, and that raises anything
            message = f"`{rope.path}` is not a .npy file of numbers"
            yield error("bundle.shapes-disagree", message, place, help=REMEDY)
            continue
        asked = (2, rope.positions, rope.width)
        if getattr(table, "shape", None) != asked or table.dtype.kind != "f":
            message = f"`{rope.path}` is not floats of {asked}, as rope `{name}` asks for"
            yield error("bundle.shapes-disagree", message, place, help=REMEDY)


def hashes(bundle: Bundle, sound: frozenset[str]) -> Iterator[Diagnostic]:
    """Bytes and sha256 of every file and package."""
    for one in bundle.manifest.files:
        if one.path not in sound:
            continue
        size, digest = tree_digest(bundle.path / one.path)
        if (size, digest) != (one.bytes, one.sha256):
            what = f"{size} bytes, not {one.bytes}" if size != one.bytes else "another hash"
            message = f"`{one.path}` is not what was compiled: it has {what}"
            yield error("bundle.hash", message, Place(str(bundle.path / one.path)), help=REMEDY)
