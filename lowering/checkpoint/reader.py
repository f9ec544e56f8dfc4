"""What every checkpoint format offers: named tensors, read by row blocks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch


@frozen(kw_only=True)
class Entry:
    """One stored tensor: its name, its shape with the slowest axis first, and its stored type."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Reader(Protocol):
    """An open checkpoint. Files are mapped; only the rows asked for are brought into memory."""

    @property
    def path(self) -> Path:
        """What was opened: a file or a folder."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that holds weights, in a fixed order."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by their stored names."""

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows of the slowest axis as float32, (stop - start, …); a vector is rows of one."""
