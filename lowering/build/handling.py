"""What a function does with a cache: whether the graph writes it, and what queries see."""

from attrs import frozen

from topoc.dsl.model import COREML_LLM, Function, Write
from topoc.dsl.plain import Plain
from topoc.lowering import manifest
from topoc.lowering.build.layout import Holds, Member


def kv_value(donor: int, holds: Holds) -> str:
    """The value that carries a donor's keys or values to chunks that read them."""
    return f"l{donor}.{holds}"


def is_kv_value(name: str) -> bool:
    """Whether a value between steps is one of those."""
    return name.endswith((".k", ".v"))


@frozen(kw_only=True, eq=False, repr=False)
class Handling(Plain):
    """What a function does with the cache of one owner."""

    member: Member
    tokens: int
    writes: bool  # in the graph
    sees: manifest.Keys  # what the queries attend over

    @property
    def seen_slots(self) -> int:
        """The keys of a query."""
        return self.member.kv.slots + (self.tokens if self.sees == "cache+call" else 0)


def handling(features: str, function: Function, member: Member) -> Handling:
    """A verify writes nothing: its rows are candidates.

    The verify of `coreml_llm` attends over the cache as it would be with all its rows in it.
    """
    verify = function.role == "verify"
    one = function.tokens == 1 and not verify
    able = member.kv.write is not Write.APPEND
    return Handling(
        member=member,
        tokens=function.tokens,
        writes=able and (one or (function.write == "graph" and not verify)),
        sees="cache" if able and (one or features == COREML_LLM) else "cache+call",
    )


def tries_drafts(features: str, function: Function) -> bool:
    """Whether a verify attends over caches with all its rows in them, padding too."""
    return features == COREML_LLM and function.role == "verify"
