"""Checkpoint views from short texts, as the examples of rules write them.

tensor NAME shape 640x2048 [group 32] [axis 0] [sqnr 20.3]
stream LAYER peak 41000 [scale 0.0625]
no-bos
"""

from topoc.dsl.lint.checkpoint import Checkpoint, Stream, Tensor


def read(text):
    """A checkpoint of the tensors and streams that a text lists."""
    lines = [line.split() for line in text.strip().splitlines()]
    return Checkpoint(
        path="weights.safetensors",
        tensors=tuple(_tensor(words) for words in lines if words[0] == "tensor"),
        streams=tuple(_stream(words) for words in lines if words[0] == "stream"),
        starts_with_bos=["no-bos"] not in lines,
    )


def _tensor(words):
    given = dict(zip(words[2::2], words[3::2], strict=True))
    return Tensor(
        name=words[1],
        shape=tuple(map(int, given.pop("shape").split("x"))),
        **{key: float(value) if key == "sqnr" else int(value) for key, value in given.items()},
    )


def _stream(words):
    given = dict(zip(words[2::2], map(float, words[3::2]), strict=True))
    return Stream(layer=int(words[1]), **given)
