"""The .mlpackage on disk: model, weights and manifest, with nothing in them left to chance."""

import hashlib
import json
import uuid
from pathlib import Path
from struct import pack

from attrs import define

from topoc.lowering.hashed import Sink

ALIGNMENT = 64
SENTINEL = 0xDEADBEEF
RECORD_TYPES = {
    "float16": 1,
    "float32": 2,
    "uint8": 3,
    "int8": 4,
    "int4": 8,
    "uint1": 9,
    "uint2": 10,
    "uint4": 11,
    "uint3": 12,
    "uint6": 13,
    "int32": 14,
}
SUB_BYTE = {"int4": 4, "uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "uint6": 6}
MODEL = "com.apple.CoreML/model.mlmodel"
WEIGHTS = "com.apple.CoreML/weights"


def begins() -> int:
    """Where the first record of a weight file stands."""
    return ALIGNMENT


def after(offset: int, nbytes: int) -> int:
    """Where the next record stands after one of so many bytes."""
    end = offset + ALIGNMENT + nbytes
    return end + -end % ALIGNMENT


@define(eq=False, repr=False)
class BlobWriter:
    """Writes weight.bin: a header of 64 bytes, then records of a header and data, all aligned."""

    file: Sink  # with nothing in it
    count: int  # of all records

    def __attrs_post_init__(self) -> None:
        self.file.write(pack("<II", self.count, 2).ljust(ALIGNMENT, b"\0"))

    def begin(self, dtype: str, nbytes: int, count: int = 0) -> int:
        """Start a record of so many bytes; its offset is what the model refers to.

        Of sub-byte values it also tells how many bits of the last byte hold none of the `count`.
        """
        padding = 8 * nbytes - count * SUB_BYTE[dtype] if dtype in SUB_BYTE else 0
        at = self.file.tell()
        filled = bytes(-at % ALIGNMENT)
        offset = at + len(filled)
        header = pack("<IIQQQ", SENTINEL, RECORD_TYPES[dtype], nbytes, offset + ALIGNMENT, padding)
        self.file.write(filled + header.ljust(ALIGNMENT, b"\0"))
        return offset


def write_description(package: Path, model: bytes) -> None:
    """Write the model and the package's own manifest, whose ids follow from the model's bytes."""
    (package / "Data" / MODEL).write_bytes(model)
    digest = hashlib.sha256(model).hexdigest()
    ids = {
        name: str(uuid.uuid5(uuid.NAMESPACE_OID, name + digest)).upper()
        for name in (MODEL, WEIGHTS)
    }
    items = {
        ids[WEIGHTS]: _item("weights", "CoreML Model Weights", WEIGHTS),
        ids[MODEL]: _item("model.mlmodel", "CoreML Model Specification", MODEL),
    }
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": dict(sorted(items.items())),
        "rootModelIdentifier": ids[MODEL],
    }
    (package / "Manifest.json").write_text(json.dumps(manifest, indent=4) + "\n")


def prepare(package: Path) -> Path:
    """Make the package's folders; gives the path of its weight file."""
    weights = package / "Data" / WEIGHTS
    weights.mkdir(parents=True)
    return weights / "weight.bin"


def _item(name: str, description: str, path: str) -> dict[str, str]:
    return {"author": "com.apple.CoreML", "description": description, "name": name, "path": path}
