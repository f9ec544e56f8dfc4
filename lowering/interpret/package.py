"""A saved `.mlpackage`: its functions as plain data, its weights as mapped files."""

import json
from pathlib import Path
from typing import Any

from topoc.dsl.diagnostic import Place
from topoc.lowering.coreml_proto import decode_error, messages
from topoc.lowering.interpret.blob import BlobFile, unreadable
from topoc.lowering.interpret.description import check_description
from topoc.lowering.interpret.function import Function, read_function

MODEL_PATH = "@model_path/"
MANIFEST = "Manifest.json"


class Package:
    """An open package.

    `decoded` keeps every weight that a machine of this package has asked for, so that functions
    which share weights decode them once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model_path = model_path(path)
        self._model = parse(self.model_path)
        if not self._model.mlProgram.functions:
            raise unreadable(Place(str(self.model_path)), "the model is not an ML program")
        self._blobs: dict[str, BlobFile] = {}
        self.decoded: dict[Any, Any] = {}  # keys and tensors are `constants`' business
        self.metadata = dict(self._model.description.metadata.userDefined)
        self.functions: dict[str, Function] = {
            name: read_function(name, function, Place(str(self.model_path), name))
            for name, function in sorted(self._model.mlProgram.functions.items())
        }
        for function in self.functions.values():
            check_description(self._model.description, function, Place(str(self.model_path)))
        self.states = {one.name for made in self.functions.values() for one in made.states}
        self.default_function = self._default_function()

    def function(self, name: str | None = None) -> Function:
        """The function of this name, or the default one."""
        name = name or self.default_function
        if name not in self.functions:
            known = ", ".join(f"`{one}`" for one in self.functions)
            message = f"the package has no function `{name}`; its functions are {known}"
            raise unreadable(Place(str(self.model_path)), message)
        return self.functions[name]

    def blob(self, name: str, place: Place) -> BlobFile:
        """The weight file that values name as `@model_path/weights/weight.bin`."""
        if name not in self._blobs:
            if not name.startswith(MODEL_PATH):
                raise unreadable(place, f"weight file `{name}` is not named from {MODEL_PATH}")
            found = self.model_path.parent / name.removeprefix(MODEL_PATH)
            self._blobs[name] = BlobFile(_inside(found, self.path, place))
        return self._blobs[name]

    def _default_function(self) -> str:
        name: str = self._model.description.defaultFunctionName
        if not name and len(self.functions) == 1:
            return next(iter(self.functions))
        return name or "main"


def _inside(path: Path, package: Path, place: Place) -> Path:
    if not path.resolve().is_relative_to(package.resolve()):
        raise unreadable(place, f"`{path.name}` lies outside the package")
    return path


def model_path(package: Path) -> Path:
    """Where the manifest says the model is, after every item it lists was found inside."""
    if not package.is_dir():
        found = "is no folder, as a package is" if package.exists() else "is not there"
        message = f"`{package.name}` {found}"
        raise unreadable(Place(str(package)), message, "name the folder of a package")
    manifest = package / MANIFEST
    place = Place(str(manifest))
    try:
        read = json.loads(_bytes(manifest))
    except (ValueError, RecursionError) as fault:
        raise unreadable(place, f"the package's `{MANIFEST}` is no JSON") from fault
    try:
        entries = {key: str(entry["path"]) for key, entry in read["itemInfoEntries"].items()}
        root = entries[read["rootModelIdentifier"]]
    except (LookupError, TypeError, AttributeError) as fault:
        message = f"the package's `{MANIFEST}` does not tell where the model is"
        way = "it lists files in `itemInfoEntries`, and names one as `rootModelIdentifier`"
        raise unreadable(place, message, way) from fault
    for entry in entries.values():
        _inside(package / "Data" / entry, package, place)
    return package / "Data" / root


def _bytes(path: Path) -> bytes:
    """A file's bytes; a pipe would never end, and is refused like what is not there."""
    place = Place(str(path))
    if not path.is_file():
        found = "is no file" if path.exists() else "is not there"
        raise unreadable(place, f"`{path.name}` {found}")
    try:
        return path.read_bytes()
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        way = "see that it may be read"
        raise unreadable(place, f"`{path.name}` can't be read: {reason}", way) from fault


def parse(path: Path) -> Any:
    """The model's protobuf, of whatever kind of model; generated classes are untyped."""
    place = Place(str(path))
    model = messages().Model()
    try:
        model.ParseFromString(_bytes(path))
    except decode_error() as fault:
        raise unreadable(place, "the model is not a Core ML protobuf") from fault
    return model
