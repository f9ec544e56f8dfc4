"""What a bundle tells of its compressed weights; a host needs none of it to run the bundle."""

from attrs import frozen

from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Tensor(Plain):
    """One compressed weight."""

    weight: str  # the role in the model, rows of it, and what each element is multiplied by
    role: str  # as a topology's `quantize` has it: `q`, `down`, `head`
    layer: int | None  # None outside layers
    scheme: str  # as a topology's `quantize` has it
    bytes: int  # of all its constants
    sqnr: float | None  # signal to error, in dB; None where nothing was lost
    output_error: float | None = None  # part of the output's power, on text that was kept back


@frozen(kw_only=True, eq=False, repr=False)
class Quantization(Plain):
    """All compressed weights, and the bytes of each role."""

    bytes: dict[str, int]
    tensors: tuple[Tensor, ...]
