"""The language of `.topo` files: text in, a checked topology or diagnostics out."""

if __name__ != "topoc.dsl":
    message = "import topoc.dsl; the folder dsl/ is mapped to that name by pyproject.toml"
    raise ImportError(message)

from topoc.dsl.load import load

__all__ = ["load"]
