"""The tokenizer made from a GGUF file is the one that transformers makes of it."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from topoc.dsl.diagnostic import TopocError
from topoc.lowering import measured, tokenizer
from topoc.lowering.architecture import read
from topoc.lowering.calibration import calibration_tokens
from topoc.lowering.checkpoint.gguf import open_file
from topoc.lowering.kept import Kept
from topoc.lowering.reuse import Reuse
from topoc.lowering.sentencepiece import merges
from topoc.lowering.tokenizer import load_tokenizer, write_tokenizer

gguf = pytest.importorskip("gguf")
pytest_plugins = ["real_model"]

PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>", "\n", "\n\n", "  ", "   "]
PIECES += [f"<0x{byte:02X}>" for byte in range(256)]
PIECES += ["▁a", "b", "ab", "▁", "a", "▁▁ab", "c", "bc", "abc", "中", "e", "é", "�"]
CONTROL = {"<pad>", "<eos>", "<bos>", "<unk>", "<turn>"}


def kind(piece):
    if piece in CONTROL:
        return 3
    if piece.startswith("<0x"):
        return 6
    return 4 if not piece.strip(" \n") else 1


def write(file, pieces=PIECES, **changes):
    writer = gguf.GGUFWriter(file, changes.pop("architecture", "gemma3"))
    writer.add_tokenizer_model(changes.pop("model", "llama"))
    writer.add_tokenizer_pre(changes.pop("pre", "default"))
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types([kind(piece) for piece in pieces])
    writer.add_bos_token_id(changes.pop("bos", 2))
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(changes.pop("add_bos", True))
    writer.add_add_eos_token(changes.pop("add_eos", False))
    writer.add_add_space_prefix(changes.pop("space", False))
    if "template" in changes:
        writer.add_chat_template(changes.pop("template"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert not changes
    return open_file(file)


@pytest.fixture
def made(tmp_path):
    write_tokenizer(write(tmp_path / "m.gguf", template="{{ x }}"), tmp_path)
    return load_tokenizer(tmp_path)


STRINGS = [
    "", " ", "  ", "   ab", "ab ", "a b c", "abc", "bc\nab", "\n\n\n", "\t", "中é", "😀 a",
    "<bos>a", "x<turn>y", "<0x41>", "\ufffd\U00010380\U00010381", "▁a", "\x00\x07", "e\u0301",
    "<unk>", "a\u00a0b", "\ufffd a",
]  # fmt: skip


def test_merges_take_the_longest_first_half_first():
    ids = {piece: index for index, piece in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    assert merges(ids) == [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]


@pytest.mark.parametrize("text", STRINGS)
def test_text_comes_back(made, text):
    ids = made.encode(text)
    assert ids[0] == 2
    assert ids[1:] == made.encode(text, bos=False)
    assert made.decode(ids[1:]) == text.replace("▁", " ")


def test_the_kinds_of_tokens_are_kept(made, tmp_path):
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    added = {one["content"]: one["special"] for one in content["added_tokens"]}
    assert added == dict.fromkeys(CONTROL, True) | {"\n": False, "\n\n": False}
    assert made.encode("b   b", bos=False) == [PIECES.index(one) for one in ("b", "   ", "b")]


def test_special_tokens_are_left_away_on_demand(made):
    ids = made.encode("a<turn>b<eos>")
    assert made.decode(ids) == "<bos>a<turn>b<eos>"
    assert made.decode(ids, special=False) == "ab"
    assert made.chat_template == "{{ x }}"


def stream(made, ids):
    one = made.stream()
    return [*map(one.push, ids), one.finish()]


@pytest.mark.parametrize("text", [*STRINGS, "中" * 40 + "😀" * 9 + "ж"])
def test_a_stream_gives_whole_characters_and_the_same_text(made, text):
    ids = made.encode(text)
    parts = stream(made, ids)
    assert "".join(parts) == made.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)
    assert sum(part != "" for part in parts) > 0


def test_a_stream_keeps_the_words_around_bytes_that_are_no_text(made):
    broken = [PIECES.index(f"<0x{byte:02X}>") for byte in (0xFF, 0xE4, 0xB8, 0x80)]
    dice = random.Random(2)
    for _ in range(300):
        ids = [dice.choice([*broken, PIECES.index("a"), PIECES.index("中")]) for _ in range(30)]
        text = "".join(stream(made, ids))
        assert [one for one in text if one in "a中"] == [
            one for one in made.decode(ids) if one in "a中"
        ]


def test_a_stream_waits_for_no_more_than_one_character(made):
    one = made.stream()
    waits = [one.push(PIECES.index("<0xFF>")) == "" for _ in range(12)]
    assert waits == [True] * 3 + [False] * 9


def test_a_stream_leaves_special_tokens_away(made):
    one = made.stream(special=False)
    ids = made.encode("a<turn><turn>b<eos>c")
    assert "".join(map(one.push, ids)) == "abc"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "gpt2"},
        {"pre": "llama-bpe"},
        {"architecture": "llama"},
        {"space": True},
        {"bos": 99999},
        {"pieces": [*PIECES, "a"]},
    ],
)
def test_other_tokenizers_are_refused(tmp_path, changes):
    with pytest.raises(TopocError, match=r"tokenizer\.not-read"):
        write_tokenizer(write(tmp_path / "m.gguf", **changes), tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()


def test_flags_frame_the_text(tmp_path):
    write_tokenizer(write(tmp_path / "m.gguf", add_bos=False, add_eos=True), tmp_path)
    assert load_tokenizer(tmp_path).encode("a") == [PIECES.index("a"), 1]


def test_what_was_made_of_a_file_is_not_made_again(tmp_path, monkeypatch):
    """Nor is the tokenizer loaded for the tokens that the stream is measured on."""
    source, reuse = write(tmp_path / "m.gguf"), Reuse("hash", Kept(tmp_path / "kept"))
    config = read(Path(__file__).parents[1] / "examples" / "conformance" / "config.json")
    folders = [tmp_path / name for name in ("plain", "first", "again")]
    for folder in folders:
        folder.mkdir()
    plain = calibration_tokens(config, write_tokenizer(source, folders[0])[0].parent)
    write_tokenizer(source, folders[1], reuse)
    assert measured.tokens(config, folders[1], reuse) == plain
    with monkeypatch.context() as patch:
        for module, name in ((tokenizer, "vocabulary"), (measured, "calibration_tokens")):
            patch.setattr(module, name, lambda *_: pytest.fail("it was made before"))
        write_tokenizer(source, folders[2], reuse)
        assert measured.tokens(config, folders[2], reuse) == plain
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(folder / name).read_bytes() for folder in folders}) == 1
    other = write(tmp_path / "n.gguf", pieces=[*PIECES[:5], "zz", *PIECES[5:]])
    write_tokenizer(other, folders[2], Reuse("other", reuse.cache))
    assert measured.tokens(config, folders[2], reuse) != plain


def test_a_folder_is_copied_as_it_is(made, tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ y }}")
    other = tmp_path / "other"
    other.mkdir()
    written = write_tokenizer(tmp_path, other)
    assert [one.name for one in written] == [
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    ]  # fmt: skip
    for one in written:
        assert one.read_bytes() == (tmp_path / one.name).read_bytes()
    assert load_tokenizer(other).chat_template == "{{ y }}"


def test_no_tokenizer_is_said(tmp_path):
    with pytest.raises(TopocError, match=r"tokenizer\.missing"):
        write_tokenizer(tmp_path, tmp_path)
    with pytest.raises(TopocError, match=r"tokenizer\.missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TopocError, match=r"tokenizer\.unreadable"):
        load_tokenizer(tmp_path)


def test_a_text_that_has_no_tokens_is_told(tmp_path):
    """A vocabulary of words without one for the unknown."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="?")).save(str(tmp_path / "tokenizer.json"))  # noqa: S106 - no password
    made = load_tokenizer(tmp_path)
    assert made.encode("a") == [0]
    with pytest.raises(TopocError) as raised:
        made.encode("a word that it lacks, and many more")
    (found,) = raised.value.findings
    assert found.code == "tokenizer.no-token"
    assert "'a word that it lacks, an…'" in found.message
    assert str(found.at.at) == str(tmp_path / "tokenizer.json")
    assert "unk_token" in found.help


def test_a_compile_tells_of_it_too(tmp_path):
    """It measures ranges on a sentence."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0})).save(str(tmp_path / "tokenizer.json"))
    config = Path(__file__).parents[1] / "examples" / "conformance" / "config.json"
    with pytest.raises(TopocError, match=r"tokenizer\.no-token.*'The harbour town wakes"):
        calibration_tokens(read(config), tmp_path)


def texts():
    """A thousand strings of all sorts, always the same."""
    dice = random.Random(11)
    pieces = [
        " ", "  ", " " * 7, " " * 40, "\n", "\n\n", "\n" * 35, "\t", "\t\t", "\r\n", "Hello",
        "world", "é", "e\u0301", "ß", "中文", "日本語", "한국어",
        "العربية", "हिन्दी", "😀", "👩‍👩‍👧", "🇩🇪",
        "\x00", "\x07", "\x1b[0m", "\u200b", "\ufeff", "\ufffd", "\U000e0041", "𐎀𐎁", "ꙮ", "<bos>",
        "<eos>", "<unk>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<table>",
        "</h1>", "[multimodal]", "<0x41>", "<0xE4>", "▁", "▁▁", "the", "def f(x):", "12345", "3.14",
        "...", "!?", "—", "ABC", "Ünïcödé", "\u00a0", "\u3000", "\ufb01", "\uff46\uff55", "\u0301",
        "a" * 50, "zqxjv", "<", ">", "<bo", "s>",
    ]  # fmt: skip
    made = [*pieces, *(f" {one}" for one in pieces), *(f"{one} " for one in pieces)]
    while len(made) < 800:
        made.append("".join(dice.choice(pieces) for _ in range(dice.randint(2, 12))))
    ranges = ((0, 0x250), (0, 0xD800), (0xE000, 0x110000))
    while len(made) < 1000:
        points = (dice.randrange(*dice.choice(ranges)) for _ in range(dice.randint(1, 20)))
        made.append("".join(map(chr, points)))
    return made


@pytest.mark.real
def test_equals_transformers_on_a_thousand_strings(real_gguf, tmp_path):
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    start = time.process_time()
    written = write_tokenizer(open_file(real_gguf), tmp_path)
    assert time.process_time() - start < 6
    ours = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(real_gguf.parent, gguf_file=real_gguf.name)
    assert len(texts()) == 1000
    for text in texts():
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.encode(text, bos=False) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, special=False) == theirs.decode(ids, skip_special_tokens=True)
        assert "".join(stream(ours, ids)) == theirs.decode(ids)
    content = json.loads(written[0].read_text())
    assert content == json.loads(theirs.backend_tokenizer.to_str())
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again("a  b<eos>")["input_ids"] == ours.encode("a  b<eos>")
