"""A group that does not divide the channels of a tensor."""

from collections.abc import Iterator

from topoc.dsl.lint.checkpoint import Checkpoint
from topoc.dsl.lint.gather import by_recipe
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.lint.tensors import inputs, outputs
from topoc.dsl.model import Layers, Recipe


class IndivisibleGroup(Rule):
    """A group divides the channels that it stands over, in every tensor.

    Where it does not, other compilers leave the tensor in fp16 and say nothing, and a package
    weighs twice what its topology promised. Here each such tensor is named.
    """

    evidence = (
        Evidence(
            "a tensor that a group does not divide is passed over with a line in the log",
            "coremltools, optimize/coreml/_quantization_passes.py:899-923",
            "2025-11",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Linux",
            figure="the weight stays fp16",
        ),
    )
    remedy = "Choose a group that divides the channels, or write a rule for these tensors."
    bad = """
topology groups_of_48 {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { q, k, v: palettize(bits = 4, group = 48) }
}
"""
    good = """
topology groups_of_32 {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { q, k, v: palettize(bits = 4, group = 32) }
}
"""
    bad_checkpoint = """
tensor layers.0.up shape 2050x640 group 32 axis 0
"""
    good_checkpoint = """
tensor layers.0.up shape 2048x640 group 32 axis 0
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        topology = subject.topology
        faulty = [one for one in topology.recipes if _rest(topology.layers, one) is not None]
        for span, tensors in by_recipe(subject, faulty):
            first = next(one for one in faulty if (one.span or subject.whole) == span)
            group, channels = _rest(topology.layers, first) or (0, 0)
            message = f"groups of {group} do not divide {channels} channels ({tensors})"
            help_ = "choose a divisor, or write a rule of their own for these tensors"
            yield self.flag(span, message, help=help_)

    def _check_checkpoint(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in subject.tensors:
            channels = tensor.shape[tensor.axis]
            if tensor.group is not None and channels % tensor.group:
                message = (
                    f"groups of {tensor.group} do not divide the {channels} of `{tensor.name}`"
                )
                help_ = "choose a divisor, or write a rule of its own for this tensor"
                place = tensor.span or subject.place(tensor.name)
                yield self.flag(place, message, f"{tensor.shape}", help=help_)


def _rest(layers: Layers, recipe: Recipe) -> tuple[int, int] | None:
    """A group and the channels that it does not divide, where the topology can tell."""
    for one in recipe.schemes:
        arguments = dict(one.arguments)
        found = (arguments.get("group"), outputs(layers, recipe))
        if one.name == "int4":
            found = (arguments.get("block"), inputs(layers, recipe))
        group, channels = found
        if isinstance(group, int) and channels and channels % group and group < channels:
            return group, channels
    return None
