"""The pages of the rules in Markdown, as `docs/rules/` has them."""

from collections.abc import Iterator
from inspect import cleandoc

from topoc.dsl.lint.lessons import summary
from topoc.dsl.lint.rule import Evidence, Rule
from topoc.dsl.lint.rules import CHECKPOINT, MIL, TOPOLOGY, every
from topoc.dsl.lint.sources import context, footnote

INDEX = "README.md"
_HEAD = "<!-- written by `topoc rules --write docs/rules`; do not edit -->"
_SUBJECTS = (("topologies", TOPOLOGY), ("programs", MIL), ("checkpoints", CHECKPOINT))


def pages() -> dict[str, str]:
    """Every page by its file name: one of each rule, and the list of all."""
    rules = sorted(every(), key=lambda one: one.code)
    found = {f"{rule.code}.md": "\n".join(_page(rule)) + "\n" for rule in rules}
    return {INDEX: "\n".join(_index(rules)) + "\n", **found}


def _index(rules: list[type[Rule]]) -> Iterator[str]:
    yield f"{_HEAD}\n\n# Rules\n"
    yield "`topoc lint` runs the rules on topologies; with `--mil`, and on an `.mlpackage`, also"
    yield "those on programs; `topoc compile` runs those on checkpoints. A severity is that of the"
    yield "gravest finding. What is not about coherence may be allowed with a reason.\n"
    yield "| rule | severity | looks at | in a sentence |"
    yield "| --- | --- | --- | --- |"
    for rule in rules:
        looks = ", ".join(name for name, codes in _SUBJECTS if rule.code in codes)
        link = f"[`{rule.code}`]({rule.code}.md)"
        yield f"| {link} | {rule.severity.value} | {looks} | {summary(rule.code)} |"


def _page(rule: type[Rule]) -> Iterator[str]:
    yield f"{_HEAD}\n\n# `{rule.code}`\n"
    yield f"{_standing(rule)}\n"
    yield cleandoc(rule.__doc__ or "")
    if rule.remedy:
        yield f"\n## What to do\n\n{rule.remedy}"
    if rule.error_texts:
        yield "\n## What compilers and runtimes say\n"
        yield from (f"- `{text}`" for text in rule.error_texts)
    yield from _examples(rule)
    if rule.evidence:
        yield "\n## Evidence\n"
        yield from (_seen(one) for one in rule.evidence)
        if note := footnote(rule.evidence):
            yield f"\n{note}."


def _standing(rule: type[Rule]) -> str:
    looks = " and ".join(name for name, codes in _SUBJECTS if rule.code in codes)
    what = "coherence, can't be allowed" if rule.coherence else "can be allowed with a reason"
    about = "about the Neural Engine; silent for other units" if rule.placement else "on any unit"
    return f"{rule.severity.value.capitalize()} · looks at {looks} · {about} · {what}"


def _examples(rule: type[Rule]) -> Iterator[str]:
    texts = (
        ("Wrong", rule.bad),
        ("Right", rule.good),
        ("Wrong, as a program", rule.bad_mil),
        ("Right, as a program", rule.good_mil),
        ("Wrong, as a checkpoint", rule.bad_checkpoint),
        ("Right, as a checkpoint", rule.good_checkpoint),
    )
    for title, text in texts:
        if text:
            yield f"\n## {title}\n\n```\n{text.strip()}\n```"


def _seen(one: Evidence) -> str:
    where = f" ({context(one)})" if context(one) else ""
    return f"- *{one.trust.value}, {one.date}*: {one.what}{where}. {one.source}"
