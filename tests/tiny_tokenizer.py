"""A tokenizer that has a token for each letter, for the tiny checkpoints."""

STRANGER = 400  # the id of `~`, which is beyond the tables


def with_tokenizer(folder):
    """Save the tokenizer in a folder, which need not exist."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    letters = {chr(97 + at): 3 + at for at in range(26)} | {
        chr(65 + at): 40 + at for at in range(26)
    }
    vocabulary = {"?": 0, " ": 99, "~": STRANGER} | letters
    made = Tokenizer(WordLevel(vocabulary, unk_token="?"))  # noqa: S106 - no password
    made.pre_tokenizer = Split("", "isolated")
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder
