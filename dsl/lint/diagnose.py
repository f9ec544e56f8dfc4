"""From a message of a compiler or runtime to the rules that may be behind it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import frozen

from topoc.dsl.lint.rule import Rule
from topoc.dsl.lint.rules import every
from topoc.dsl.lint.symptoms import SYMPTOMS, Symptom
from topoc.dsl.plain import Plain

_TOKEN = re.compile(r"0x[0-9a-f]+|-?\d+|[a-z]+")
_NOISE = frozenset(("a", "an", "the", "of", "to", "in", "for", "with", "is", "error", "failed"))
_LEAST = 0.55  # of the words of one of the two
_LONG = 5  # letters; shorter words are alike by chance
_MOST = 5


@frozen(eq=False, repr=False)
class Match(Plain):
    """A rule or symptom behind a message, the text that it goes by, and how well that fits."""

    behind: type[Rule] | Symptom
    text: str
    score: float


def diagnose(message: str) -> tuple[Match, ...]:
    """What may be behind a message, the likeliest first; a few at most."""
    known = list(_known())
    rarity = _rarity(text for _, text in known)
    words = _words(message)
    best: dict[str, Match] = {}
    for behind, text in known:
        match = Match(behind, text, _score(words, _words(text), rarity))
        name = behind.texts[0] if isinstance(behind, Symptom) else behind.code
        if match.score >= _LEAST and match.score > getattr(best.get(name), "score", 0.0):
            best[name] = match
    return tuple(sorted(best.values(), key=lambda one: one.score, reverse=True)[:_MOST])


def _known() -> Iterator[tuple[type[Rule] | Symptom, str]]:
    for symptom in SYMPTOMS:
        yield from ((symptom, text) for text in symptom.texts)
    for rule in every():
        yield from ((rule, text) for text in rule.error_texts)


def _words(text: str) -> frozenset[str]:
    """Its words and numbers; those of names like `_ANECompiler` apart."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return frozenset(_TOKEN.findall(spaced.lower())) - _NOISE


def _rarity(texts: Iterable[str]) -> Counter[str]:
    """In how many known texts each word stands."""
    return Counter(word for text in set(texts) for word in _words(text))


def _score(asked: frozenset[str], known: frozenset[str], rarity: Counter[str]) -> float:
    """How much of one text stands in the other; among equals the closer in length is ahead."""
    covers = _covered(known, asked, rarity), _covered(asked, known, rarity)
    return max(covers) + min(covers) / 10


def _covered(text: frozenset[str], other: frozenset[str], rarity: Counter[str]) -> float:
    """The share of a text that another holds; rare words count for more."""
    held = (word for word in text if word in other or _like(word, other))
    whole = _weight(text, rarity)
    return _weight(held, rarity) / whole if whole else 0.0


def _weight(words: Iterable[str], rarity: Counter[str]) -> float:
    return sum(1.0 / max(1, rarity[word]) for word in words)


def _like(word: str, others: frozenset[str]) -> bool:
    """Whether a long word stands there with a slip of the pen."""
    from difflib import get_close_matches  # a message is diagnosed once

    return len(word) > _LONG and bool(get_close_matches(word, others, n=1, cutoff=0.85))
