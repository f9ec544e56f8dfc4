"""Every rule, by the subjects that it looks at, in the order in which findings are gathered.

A rule is imported when it is asked for: a start of `topoc lint` pays for those that it runs.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from topoc.dsl.lint.rule import Rule

# On topologies: what can't be, then what won't run, then what differs.
TOPOLOGY = (
    # Who owns what; the later rules take it for granted.
    *("kv.shares-itself", "kv.share-without-owner", "kv.share-across-geometry"),
    "kv.no-own-weights",
    # What is kept, for whom, and when.
    *("kv.donor-forgets", "kv.read-before-produce", "kv.write-unfit-for-store"),
    # Calls of several tokens.
    *("kv.tentative-commit", "kv.batch-over-window", "kv.split-ring", "kv.layouts-disagree"),
    # The author's own budgets.
    "expect.breach",
    # What the Neural Engine takes.
    *("chunk.too-many-layers", "state.update"),
    # What differs from the checkpoint, and what was tried before.
    *("lossy.narrowed-attention", "lossy.widened-attention", "lossy.shared-kv"),
    "ledger.revived-verdict",
)

# On the MIL of a package, ours or another's.
MIL: tuple[str, ...] = ()

# On the checkpoint that a topology is compiled with.
CHECKPOINT: tuple[str, ...] = ()

CODES = tuple(dict.fromkeys((*TOPOLOGY, *MIL, *CHECKPOINT)))


def every() -> Iterator[type[Rule]]:
    """All rules."""
    return map(rule, CODES)


@cache
def rule(code: str) -> type[Rule]:
    """The class in the file that a code names: `state.unlike-pair` is `state/unlike_pair.py`."""
    family, _, name = code.partition(".")
    module = import_module(f"{__name__}.{family}.{name.replace('-', '_')}")
    found: type[Rule] = getattr(module, "".join(map(str.capitalize, name.split("-"))))
    return found
