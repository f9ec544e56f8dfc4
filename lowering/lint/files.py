"""What `topoc lint` can read besides topologies: packages, models, and folders of them."""

from pathlib import Path
from typing import Any

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.lint import mil
from topoc.lowering.interpret.package import model_path, parse
from topoc.lowering.lint.views import view

PACKAGE, MODEL, COMPILED = ".mlpackage", ".mlmodel", ".mlmodelc"
SUFFIXES = frozenset({PACKAGE, MODEL, COMPILED})


def packages_in(path: Path) -> tuple[Path, ...]:
    """The package or model that a path is, or those that lie in a folder."""
    if path.suffix in SUFFIXES:
        return (path,)
    return tuple(sorted(one for one in path.iterdir() if one.suffix in SUFFIXES))


def read_package(path: Path) -> mil.Package:
    """The functions of a package, whoever made it.

    Raises TopocError for what can't be read and for models that are no ML programs.
    """
    if path.suffix == COMPILED and path.exists():
        words = f"`{path.name}` is compiled, and what is linted is the package before that"
        raise _refused(path, words, "lint the .mlpackage that it was compiled from")
    model = parse(model_path(path) if path.suffix == PACKAGE else path)
    _check_kind(path, model)
    return view(str(path), model)


def _check_kind(path: Path, model: Any) -> None:
    kind = model.WhichOneof("Type")
    if kind == "mlProgram":
        if model.mlProgram.functions:
            return
        raise _refused(path, f"`{path.name}` holds an ML program without functions", REMEDY)
    if kind is None:
        raise _refused(path, f"`{path.name}` holds no model", REMEDY)
    spelled = "".join(f" {one.lower()}" if one.isupper() else one for one in kind)
    article = "an" if spelled[0] in "aeiou" else "a"
    raise _refused(path, f"`{path.name}` is {article} {spelled}, not an ML program", REMEDY)


REMEDY = 'convert it again with convert_to="mlprogram" and lint that'


def _refused(path: Path, words: str, way: str) -> TopocError:
    return TopocError(error("package.not-a-program", words, Place(str(path)), help=way))
