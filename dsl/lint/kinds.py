"""The kinds of error that no rule raises: the parser's, the resolver's, the compiler's."""

KINDS = frozenset(
    f"{family}.{name}"
    for family, names in {
        "syntax": "statement incomplete line unexpected brace text number layers name character",
        "name": "unknown duplicate cycle ambiguous",
        "value": "type range",
        "param": "unknown case unused",
        "model": "missing unreadable contradicts-checkpoint",
        "context": "missing",
        "target": "unknown",
        "features": "unknown cannot-express",
        "layer": "out-of-range backwards",
        "selector": "unknown mixed-list empty",
        "rule": "dead",
        "attention": "unknown argument misfit window-over-context",
        "kv": "unknown clause",
        "chunk": "missing argument gap overlap order no-head",
        "tap": "unknown",
        "part": "unknown argument not-in-model",
        "function": "unknown argument",
        "scheme": "unknown argument",
        "expect": "unknown",
        "allow": "unknown-code not-allowable unknown-chunk unused",
        "status": "unknown",
        "ledger": "incomplete-verdict no-number",
    }.items()
    for name in names.split()
)
