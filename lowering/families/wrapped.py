"""The config of a text model, alone or inside that of a model that sees and hears too."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.families.config import Fields
from topoc.lowering.families.known import HARMLESS, OFF, Neutral
from topoc.lowering.jsonfile import load, named

# What the outer object says for itself, whatever the text model's says.
APART = frozenset({"tie_word_embeddings", "bos_token_id", "eos_token_id", "text_config"})


@frozen(eq=False, repr=False)
class Wrapped:
    """The fields of a text model, and of the object around it: the same where there is none."""

    outer: Fields
    text: Fields

    @classmethod
    def flat(cls, config: Mapping[str, object], file: Path) -> "Wrapped":
        """A text model on its own."""
        fields = Fields(file, config)
        return cls(fields, fields)

    @classmethod
    def nested(cls, config: Mapping[str, object], file: Path, kind: str) -> "Wrapped":
        """The text model of this type inside a larger one."""
        outer = Fields(file, config)
        text = outer.within("text_config")
        if not outer.has("text_config"):
            outer.refuse("text_config", "the config holds no `text_config`")
        if text.values.get("model_type", kind) != kind:
            found = f"the model type of `text_config` is not `{kind}`"
            text.refuse("model_type", found, code="model.not-lowered")
        return cls(outer, text)

    def tied(self) -> bool:
        """Whether the head is the embedding; what the outer object says counts."""
        return self.outer.flag("tie_word_embeddings", default=True)

    def ids(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Token ids that either object gives."""
        outer, text = self.outer, self.text
        given = [fields for fields in (outer, text) if name in fields.values] or [text]
        outer.taken.add(name)
        found = [one for fields in given for one in fields.ids(name, default)]
        rows = text.values.get("vocab_size")
        beyond = [one for one in found if isinstance(rows, int) and one >= rows]
        if beyond:
            outer.refuse(name, f"token {beyond[0]} is beyond the vocabulary of {rows}")
        return tuple(dict.fromkeys(found))

    def stops(self, default: tuple[int, ...]) -> tuple[int, ...]:
        """The stop tokens; `generation_config.json` adds to those of a `config.json`."""
        return tuple(dict.fromkeys((*self.ids("eos_token_id", default), *self._generation())))

    def finish(self, neutral: Neutral) -> tuple[str, ...]:
        """Refuse what is not lowered and not known, stop if anything was found; the notices."""
        outer, text = self.outer, self.text
        if outer is not text:
            self._agree()
        for fields in (outer,) if outer is text else (outer, text):
            fields.neutral(neutral + OFF)
            fields.finish(HARMLESS)
        if outer.findings:
            raise TopocError(*outer.findings)
        return tuple(outer.notices)

    def _agree(self) -> None:
        """The outer object may repeat a field of the text model, and not contradict it."""
        outer, text = self.outer, self.text
        for name in sorted((outer.values.keys() & text.taken) - APART):
            outer.taken.add(name)
            if outer.values[name] != text.values.get(name):
                found = f"`{name}` is {named(outer.values[name])} here and not so in `text_config`"
                outer.refuse(name, found, code="model.contradictory", way="keep the one that holds")
        text.taken.add("tie_word_embeddings")
        said = outer.values.get("tie_word_embeddings")
        if text.values.get("tie_word_embeddings", said) != said:
            outer.notices.append("`tie_word_embeddings` of `text_config` is passed over")

    def _generation(self) -> tuple[int, ...]:
        file = self.outer.file.with_name("generation_config.json")
        if self.outer.file.name != "config.json" or not file.exists():
            return ()
        beside = Fields(file, load(file), "", self.outer.findings)
        return beside.ids("eos_token_id", ())
