"""Several tokens a call: drafts looked up in the text so far, and verified all at once.

The text is the plain run's. Each token is chosen by the sampler from the row that a plain run
would have got it from, in the same order; a draft only decides which rows are computed together.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from attrs import define, field

from topoc.lowering.engine.driver import Engine, Sampler
from topoc.lowering.engine.schedule import no_verify, sees_all, verify_taking

LONGEST = 3
"""Tokens of the text's end that are looked up; fewer where they stand nowhere else."""


def looked_up(text: Sequence[int], most: int) -> list[int]:
    """`most` tokens: what followed the text's end where it last stood before, and on from there.

    Where that reaches the end itself the copy goes on with what it has made. No tokens where the
    end stands nowhere else.
    """
    for length in range(min(LONGEST, len(text) - 1), 0, -1):
        end = tuple(text[-length:])
        for at in range(len(text) - length - 1, -1, -1):
            if tuple(text[at : at + length]) == end:
                whole = list(text)
                for source in range(at + length, at + length + most):
                    whole.append(whole[source])
                return whole[len(text) :]
    return []


@define
class Speculation:
    """Generates as `Engine.generate` does, with drafts; tells how many were accepted."""

    engine: Engine
    drafted: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    _most: int = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        functions = self.engine.bundle.manifest.functions
        self._most = max((one.tokens for one in functions if one.role == "verify"), default=0)
        if self._most < 2:  # a token and one draft
            raise no_verify(self.engine.bundle.manifest, 2)

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampler: Sampler,
        eos: AbstractSet[int],
    ) -> Iterator[int]:
        """Yield the tokens that follow the prompt; the session ends where a plain run's does."""
        if max_tokens < 1:
            return
        text = [*prompt, sampler(self.engine.feed(prompt))]
        fresh = text[len(prompt) :]
        while True:
            for token in fresh:
                if token in eos:
                    return
                yield token
            made = len(text) - len(prompt)
            if made >= max_tokens or self._room() == 0:
                return
            fresh = self._next(text, max_tokens - made, sampler, eos)
            text += fresh

    def _next(
        self, text: list[int], wanted: int, sampler: Sampler, eos: AbstractSet[int]
    ) -> list[int]:
        """The tokens that one call gives after the last one of the text, `wanted` at most."""
        drafts = self._drafts(text, wanted)
        if not drafts:
            return [sampler(self.engine.feed(text[-1:]))]
        call = self.engine.verify([text[-1], *drafts])
        chosen: list[int] = []
        for row, draft in enumerate([*drafts, None]):
            chosen.append(sampler(call.result(row)))
            if chosen[-1] != draft or draft in eos:
                break
        self.engine.accept(call, len(chosen))
        self.drafted += len(drafts)
        self.accepted += sum(a == b for a, b in zip(drafts, chosen, strict=False))
        return chosen

    def _drafts(self, text: list[int], wanted: int) -> list[int]:
        """What the text so far suggests, as many as can be verified here."""
        engine, most = self.engine, min(self._most, wanted, self._room())
        function = verify_taking(engine.bundle.manifest, most)
        if function is None or not sees_all(function, engine.position, most):
            return []
        return looked_up(text, most - 1)

    def _room(self) -> int:
        """How many more tokens the context holds."""
        return self.engine.bundle.manifest.model.context - self.engine.position
