"""A bundle's folder, with the manifest that was read there."""

from pathlib import Path

from attrs import field, frozen

from topoc.lowering.manifest import Manifest

MANIFEST = "manifest.json"
REMEDY = "compile the bundle again, or copy it whole"


@frozen
class Bundle:
    """A folder and its manifest."""

    path: Path
    manifest: Manifest = field(repr=False)

    @property
    def manifest_path(self) -> str:
        """Where findings about the manifest are."""
        return str(self.path / MANIFEST)
