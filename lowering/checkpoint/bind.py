"""Which stored tensor is which weight; everything that does not fit is found at once."""

from collections.abc import Iterable, Mapping

from attrs import define, field

from topoc.dsl.diagnostic import Diagnostic, Label, Place, TopocError, error
from topoc.lowering.architecture import Architecture, TensorSpec
from topoc.lowering.checkpoint.agreement import contradictions
from topoc.lowering.checkpoint.gguf import DTYPES, Gguf
from topoc.lowering.checkpoint.random import Random
from topoc.lowering.checkpoint.reader import Entry, Reader
from topoc.lowering.checkpoint.safetensors import FLOATS
from topoc.lowering.checkpoint.weights import Weights

# What may stand before `layers.`; the longest are of image-and-text models.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "")

# Other towers of image, sound and text models, and tables that older files stored.
IGNORED = (
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "multi_modal_projector.",
    "vision_tower.",
)
IGNORED_ENDS = (".rotary_emb.inv_freq",)

# Name endings of packed weights, and the method that writes them; the first that fits counts.
PACKED = (
    (".g_idx", "GPTQ"),
    (".qzeros", "GPTQ or AWQ"),
    (".qweight", "GPTQ or AWQ"),
    (".weight_packed", "compressed-tensors"),
    (".absmax", "bitsandbytes"),
    (".SCB", "bitsandbytes"),
    (".weight_scale", "a scaled format"),
    (".weight_scale_inv", "a scaled format"),
)
# Families whose GGUF files have been held against the checkpoints that they were made from.
GGUF_FAMILIES = ("gemma3",)

HEAD_NAME, HEAD_GGUF = "lm_head.weight", "output.weight"
SHOWN = 4


def bind(reader: Reader, architecture: Architecture) -> Weights:
    """The weights of an architecture in a checkpoint, or one error that names all that is wrong."""
    if isinstance(reader, Random):
        reader = reader.fitted(architecture)
        roles = {one.role: one.role for one in architecture.tensors}
        return Weights(reader, architecture, roles, dict.fromkeys(roles, 0.0))
    _refuse_packed(reader)
    _refuse_gguf(reader, architecture)
    binding = _Binding(reader, architecture)
    if isinstance(reader, Gguf):
        binding.findings += contradictions(reader, architecture)
    for spec in architecture.tensors:
        binding.find(spec)
    if architecture.tied:
        binding.tie()
    return binding.finish()


def _refuse_packed(reader: Reader) -> None:
    for end, method in PACKED:
        packed = [name for name in reader.entries if name.endswith(end)]
        if packed:
            found = f"the checkpoint is quantised with {method}: `{packed[0]}`"
            way = "use the checkpoint that it was made from, or a GGUF file"
            place = Place(str(reader.path), packed[0])
            raise TopocError(error("checkpoint.quantised", found, place, help=way))


def _refuse_gguf(reader: Reader, architecture: Architecture) -> None:
    """Names alone don't say what a converter did to the values."""
    if isinstance(reader, Gguf) and architecture.family not in GGUF_FAMILIES:
        found = f"GGUF files of family `{architecture.family}` are not read: none has been compared"
        way = "use the safetensors that it was made from"
        place = Place(str(reader.path), "general.architecture")
        raise TopocError(error("checkpoint.unknown-format", found, place, help=way))


@define
class _Binding:
    """The work of one bind."""

    reader: Reader
    architecture: Architecture
    entries: Mapping[str, Entry] = field(init=False)
    names: dict[str, str] = field(factory=dict)
    findings: list[Diagnostic] = field(factory=list)
    notices: list[str] = field(factory=list)
    spare: set[str] = field(factory=set)  # a second copy of the embedding

    def __attrs_post_init__(self) -> None:
        self.entries = self.reader.entries

    def find(self, spec: TensorSpec) -> None:
        """The stored tensor of one spec, if it is there, once and as it should be."""
        stored = self.stored(spec.name, spec.gguf)
        if not stored and spec.role == "embed" and self.architecture.tied:
            stored = self.stored(HEAD_NAME, HEAD_GGUF)
            if stored:
                self.notices.append(f"`{stored[0]}` is the embedding too")
        if not stored:
            self.lack(spec)
            return
        self.names[spec.role] = stored[0]
        for other in stored[1:]:
            self.flag(
                "checkpoint.duplicate", f"`{stored[0]}` and `{other}` are the same weight", other
            )
        self.check(spec, self.entries[stored[0]])

    def stored(self, name: str, gguf: str) -> list[str]:
        """The names under which a tensor is stored."""
        if isinstance(self.reader, Gguf):
            return [gguf] if gguf in self.entries else []
        return [prefix + name for prefix in PREFIXES if prefix + name in self.entries]

    def lack(self, spec: TensorSpec) -> None:
        """Note that a tensor is not there."""
        name = spec.gguf if isinstance(self.reader, Gguf) else spec.name
        found = f"the checkpoint holds no `{name}`, {_size(spec.shape)}"
        if spec.role == "head":
            found += ", and the config says that the head is not tied"
        self.flag("checkpoint.missing", found, name)

    def check(self, spec: TensorSpec, entry: Entry) -> None:
        """Note a shape or a type that does not fit."""
        if entry.shape != spec.shape:
            found = (
                f"`{entry.name}` is {_size(entry.shape)} and the config wants {_size(spec.shape)}"
            )
            self.flag("checkpoint.shape", found, entry.name)
        known = DTYPES if isinstance(self.reader, Gguf) else FLOATS
        if entry.dtype not in known:
            found = f"`{entry.name}` is stored as {entry.dtype}, which is not read"
            self.flag("checkpoint.dtype", found, entry.name)

    def tie(self) -> None:
        """A head matrix beside a tied embedding must be its copy."""
        embed = self.names.get("embed")
        for head in self.stored(HEAD_NAME, HEAD_GGUF):
            if head == embed:
                continue
            self.spare.add(head)
            if embed is None or self.findings:
                continue
            if self.entries[head].shape == self.entries[embed].shape and self.equal(embed, head):
                self.notices.append(f"`{head}` equals the embedding it is tied to")
                continue
            found = f"the config ties the head to the embedding and `{head}` is another matrix"
            self.flag("checkpoint.untied-head", found, head, "set tie_word_embeddings to false")

    def equal(self, one: str, other: str) -> bool:
        """Whether two stored matrices hold the same numbers."""
        import torch

        if self.entries[other].dtype not in (DTYPES if isinstance(self.reader, Gguf) else FLOATS):
            return False
        height, width = self.entries[one].shape
        tall = max(1, (4 << 20) // width)
        spans = ((at, min(at + tall, height)) for at in range(0, height, tall))
        rows = self.reader.rows
        return all(torch.equal(rows(one, *span), rows(other, *span)) for span in spans)

    def finish(self) -> Weights:
        """The binding, with nothing left over."""
        rest = self.entries.keys() - set(self.names.values()) - self.spare
        duplicates = {one.at.at.part for one in self.findings if isinstance(one.at.at, Place)}
        towers = {name for name in rest if self.ignores(name)}
        redundant = rest & self.redundant()
        self.leave(sorted(rest - towers - redundant - duplicates))
        if self.findings:
            raise TopocError(*self.findings)
        if towers:
            self.notices.append(f"{len(towers)} tensors of other towers are passed over")
        if redundant:
            note = f"{len(redundant)} tensors of layers that share keys and values are passed over"
            self.notices.append(note)
        ignored = tuple(sorted(towers | redundant))
        gguf = isinstance(self.reader, Gguf)
        return Weights(
            self.reader,
            self.architecture,
            self.names,
            {one.role: one.gguf_offset if gguf else 0.0 for one in self.architecture.tensors},
            ignored,
            tuple(self.notices),
        )

    def ignores(self, name: str) -> bool:
        """Whether a stored tensor is known to be none of the decoder's."""
        if isinstance(self.reader, Gguf):
            return False
        return name.removeprefix("model.").startswith(IGNORED) or name.endswith(IGNORED_ENDS)

    def redundant(self) -> set[str]:
        """The names of what the model has no use for, with every prefix."""
        return {prefix + name for prefix in PREFIXES for name in self.architecture.redundant}

    def leave(self, names: list[str]) -> None:
        """Note tensors that nothing would use."""
        if not names:
            return
        shown = ", ".join(f"`{name}`" for name in names[:SHOWN])
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        plural = "tensor is" if len(names) == 1 else "tensors are"
        found = f"{len(names)} stored {plural} used by nothing: {shown}{more}"
        path = str(self.reader.path)
        labels = tuple(Label(Place(path, name)) for name in names)
        self.findings.append(
            error("checkpoint.extra", found, Place(path, names[0]), related=labels)
        )

    def flag(self, code: str, found: str, part: str, way: str = "") -> None:
        """Note a finding about one tensor."""
        self.findings.append(error(code, found, Place(str(self.reader.path), part), help=way))


def _size(shape: Iterable[int]) -> str:
    return "×".join(str(axis) for axis in shape) or "a number"
