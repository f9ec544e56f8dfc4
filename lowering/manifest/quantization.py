"""What a bundle tells of what it compresses; a host needs none of it to run the bundle."""

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
class Activations(Plain):
    """What goes through fewer bits on its way into projections."""

    scheme: str  # as a topology's `quantize` has it
    scales: dict[str, float]  # of true values, by the role of the weight; one input has one scale


@frozen(kw_only=True, eq=False, repr=False)
class Quantization(Plain):
    """All compressed weights, the bytes of each role, and what projections read quantised."""

    bytes: dict[str, int]
    tensors: tuple[Tensor, ...]
    activations: Activations | None = None
