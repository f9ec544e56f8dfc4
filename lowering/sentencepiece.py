"""A SentencePiece vocabulary from GGUF metadata, as `tokenizer.json` spells it.

GGUF stores pieces and no merges. Gemma's merges are every way to cut a piece into two others,
earlier pieces first; its scores do not follow that order.
"""

from collections.abc import Mapping, Sequence

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.gguf import Gguf

GEMMAS = ("gemma", "gemma2", "gemma3")
SPACE = "▁"
CONTROL, USER_DEFINED = 3, 4
NAMED = (
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
)


def vocabulary(source: Gguf) -> dict[str, object]:
    """The content of `tokenizer.json`."""
    _refuse_others(source)
    pieces = _pieces(source)
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise _refused(source, "tokenizer.ggml.tokens", "two tokens are spelled alike")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(source, ids),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": _frame(source, pieces),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _model(ids, _named(source).get("unk_token")),
    }


def _model(ids: Mapping[str, int], unknown: str | None) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": ids,
        "merges": merges(ids),
    }


def settings(source: Gguf) -> dict[str, object]:
    """The content of `tokenizer_config.json`."""
    found: dict[str, object] = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": _flag(source, "add_bos_token", default=True),
        "add_eos_token": _flag(source, "add_eos_token", default=False),
        "clean_up_tokenization_spaces": False,
        **_named(source),
    }
    template = source.metadata.get("tokenizer.chat_template")
    return found | ({"chat_template": template} if isinstance(template, str) else {})


def merges(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every cut of every piece into two pieces: pieces in order, the longest first half first."""
    return [
        (first, piece[cut:])
        for piece in ids
        for cut in range(len(piece) - 1, 0, -1)
        if (first := piece[:cut]) in ids and piece[cut:] in ids
    ]


def _refuse_others(source: Gguf) -> None:
    for key, known in (
        ("general.architecture", GEMMAS),
        ("tokenizer.ggml.model", ("llama",)),
        ("tokenizer.ggml.pre", ("default", None)),
        ("tokenizer.ggml.merges", (None,)),
        ("tokenizer.ggml.add_space_prefix", (False, None)),
    ):
        value = source.metadata.get(key)
        if value not in known:
            found = f"a tokenizer with `{key}` {str(value)[:40]} is not read from GGUF"
            raise _refused(source, key, found, "put tokenizer.json beside safetensors weights")


def _pieces(source: Gguf) -> list[str]:
    """The tokens; runs of spaces are stored as they are and looked up as they are normalised."""
    tokens = _tokens(source)
    rows = source.entries.get("token_embd.weight")
    if rows is not None and len(tokens) > rows.shape[0]:
        found = f"there are {len(tokens)} tokens and {rows.shape[0]} embeddings"
        raise _refused(source, "tokenizer.ggml.tokens", found)
    return [SPACE * len(one) if one and not one.strip(" ") else one for one in tokens]


def _tokens(source: Gguf) -> list[str]:
    key = "tokenizer.ggml.tokens"
    found = source.metadata.get(key)
    if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
        raise _refused(source, key, "the file holds no tokens")
    return [str(one) for one in found]


def _added(source: Gguf, ids: Mapping[str, int]) -> list[dict[str, object]]:
    """Tokens that are matched in the text before anything is cut."""
    kinds = source.metadata.get("tokenizer.ggml.token_type")
    tokens = _tokens(source)
    if not isinstance(kinds, tuple) or len(kinds) != len(tokens):
        found = f"there are {len(tokens)} tokens and not as many token types"
        raise _refused(source, "tokenizer.ggml.token_type", found)
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in {CONTROL, USER_DEFINED} and token in ids
    ]


def _frame(source: Gguf, pieces: Sequence[str]) -> dict[str, object]:
    """What stands before and after every sequence."""
    named, marks = _named(source), {}
    for name, default in (("bos_token", True), ("eos_token", False)):
        if not _flag(source, f"add_{name}", default=default):
            continue
        if name not in named:
            raise _refused(source, f"tokenizer.ggml.{name}_id", "a token is added and not named")
        marks[name] = named[name]
    return {
        "type": "TemplateProcessing",
        "single": _around("A", 0, marks),
        "pair": _around("A", 0, marks) + _around("B", 1, marks),
        "special_tokens": {
            mark: {"id": mark, "ids": [pieces.index(mark)], "tokens": [mark]}
            for mark in marks.values()
        },
    }


def _around(text: str, number: int, marks: Mapping[str, str]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = [{"Sequence": {"id": text, "type_id": number}}]
    if "bos_token" in marks:
        parts.insert(0, {"SpecialToken": {"id": marks["bos_token"], "type_id": number}})
    if "eos_token" in marks:
        parts.append({"SpecialToken": {"id": marks["eos_token"], "type_id": number}})
    return parts


def _named(source: Gguf) -> dict[str, str]:
    """The special tokens that the metadata names, spelled out."""
    tokens = _tokens(source)
    found = {}
    for name, key in NAMED:
        index = source.metadata.get(key)
        if index is None:
            continue
        if not isinstance(index, int) or not 0 <= index < len(tokens):
            raise _refused(source, key, f"`{key}` is {index} and there are {len(tokens)} tokens")
        found[name] = tokens[index]
    return found


def _flag(source: Gguf, name: str, *, default: bool) -> bool:
    return bool(source.metadata.get(f"tokenizer.ggml.{name}", default))


def _refused(source: Gguf, key: str, found: str, way: str = "") -> TopocError:
    return TopocError(error("tokenizer.not-read", found, Place(str(source.path), key), help=way))
