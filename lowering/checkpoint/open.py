"""What a user names as weights, opened."""

from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint import gguf, safetensors
from topoc.lowering.checkpoint.random import PREFIX, Random
from topoc.lowering.checkpoint.reader import Reader

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WAYS = "name a folder of safetensors, a .safetensors or .gguf file, or random:SEED"


def open_checkpoint(spec: str | Path) -> Reader:
    """A folder of safetensors, one such file, a GGUF file, or `random:SEED`."""
    if str(spec).startswith(PREFIX):
        return _seeded(str(spec))
    path = Path(spec)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise _refused(path, "checkpoint.missing-file", "there is no checkpoint here")
    match path.suffix.lower():
        case ".safetensors":
            return safetensors.open_file(path)
        case ".gguf":
            return gguf.open_file(path)
        case suffix if suffix in PICKLES:
            found = f"`{path.name}` is a pickle, which is never opened"
            raise _refused(path, "checkpoint.pickle", found, "save it as safetensors")
    if path.name == INDEX:
        return safetensors.open_shards(path)
    raise _refused(path, "checkpoint.unknown-format", f"`{path.name}` is no format that is read")


def _seeded(spec: str) -> Random:
    seed = spec.removeprefix(PREFIX)
    if not (seed.isascii() and seed.isdecimal() and len(seed) <= 18):
        found = f"`{seed[:40]}` is no seed"
        raise _refused(Path(spec[:60]), "checkpoint.missing-file", found, "use random:0")
    return Random(int(seed))


def _folder(path: Path) -> Reader:
    """One file where it is there, else the shards; as transformers chooses."""
    if (path / SINGLE).exists():
        return safetensors.open_file(path / SINGLE)
    if (path / INDEX).exists():
        return safetensors.open_shards(path / INDEX)
    others = sorted(one.name for one in path.iterdir())
    if any(name.endswith(PICKLES) for name in others):
        found = "the folder holds pickles and no safetensors, and a pickle is never opened"
        raise _refused(path, "checkpoint.pickle", found, "save the checkpoint as safetensors")
    readable = [name for name in others if name.endswith((".gguf", ".safetensors"))]
    way = f"name the file: {', '.join(readable[:4])}" if readable else WAYS
    found = f"the folder holds neither `{SINGLE}` nor its index"
    raise _refused(path, "checkpoint.missing-file", found, way)


def _refused(path: Path, code: str, found: str, way: str = WAYS) -> TopocError:
    return TopocError(error(code, found, Place(str(path)), help=way))
