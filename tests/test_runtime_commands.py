"""`topoc run` and `topoc trace`, with the tiny reader in the place of the interpreter."""

import json
import re

import attrs
import numpy as np
import pytest
from click.testing import CliRunner
from tiny_bundle import DECODE, VOCABULARY, prefill, tiny_manifest, write_bundle
from tiny_reader import Reader, truth

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.cli import run, trace
from topoc.lowering.engine import session
from topoc.lowering.tokenizer import Tokenizer


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "predictor_of", lambda *_, **__: Reader())
    write_bundle(tmp_path / "b", tiny_manifest())
    return tmp_path / "b"


def answer(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(truth(tokens)[-1][1] % VOCABULARY)
    return tokens[len(prompt) :]


def ran(command, *arguments, stdin=None):
    return CliRunner().invoke(command.command, list(map(str, arguments)), input=stdin)


def test_run_gives_ids_where_there_is_no_tokenizer(path):
    found = ran(run, path, "--prompt-ids", "2,7,11", "--max-tokens", 6)
    assert found.exit_code == 0, found.output
    assert [int(one) for one in found.stdout.split()] == answer([2, 7, 11], 6)
    assert found.stderr.startswith("3 prompt tokens in ")
    assert "6 tokens at " in found.stderr


class Chatty(Reader):
    """Says three tokens over and over, so that drafts are right now and then."""

    letters = 3


@pytest.mark.parametrize("sampling", [[], ["--temperature", "0.3", "--seed", "1"]])
def test_speculation_gives_the_same_text(path, monkeypatch, sampling):
    monkeypatch.setattr(session, "predictor_of", lambda *_, **__: Chatty())
    write_bundle(path, tiny_manifest(head="logits"))
    asked = [path, "--prompt-ids", "2,1", "--max-tokens", 36, *sampling]
    plain, drafted = ran(run, *asked), ran(run, *asked, "--speculate")
    assert drafted.exit_code == 0, drafted.output
    assert drafted.stdout == plain.stdout
    accepted, total = re.search(r"· (\d+) of (\d+) drafts accepted", drafted.stderr).groups()
    assert int(not sampling) <= int(accepted) < int(total)
    assert "draft" not in plain.stderr


def test_speculation_needs_a_verify(path):
    write_bundle(path, tiny_manifest(calls=(DECODE, prefill(4))))
    found = ran(run, path, "--prompt-ids", "2", "--speculate")
    assert found.exception.findings[0].code == "run.no-such-function"
    assert "verify(tokens = 2)" in found.exception.findings[0].help


def test_run_stops_at_any_of_the_eos_set(path):
    third = answer([2, 7], 3)[2]
    manifest = open_bundle(path).manifest
    eos = attrs.evolve(manifest, model=attrs.evolve(manifest.model, eos=(96, third)))
    write_bundle(path, eos)
    found = ran(run, path, "--prompt-ids", "2,7", "--max-tokens", 9)
    assert [int(one) for one in found.stdout.split()] == answer([2, 7], 2)


def test_ctrl_c_ends_with_what_was_generated(path, monkeypatch):
    class Stopped(Reader):
        def predict(self, step, inputs, probes):
            if len(self.seen) == 4:
                raise KeyboardInterrupt
            return super().predict(step, inputs, probes)

    monkeypatch.setattr(session, "predictor_of", lambda *_, **__: Stopped())
    found = ran(run, path, "--prompt-ids", "2,7", "--max-tokens", 9)
    assert found.exit_code == 0
    assert [int(one) for one in found.stdout.split()] == answer([2, 7], 3)
    assert found.stderr.endswith("interrupted\n")


def test_generation_ends_where_the_context_is_full(path):
    found = ran(run, path, "--prompt-ids", "2", "--max-tokens", "99")
    assert found.exit_code == 0
    assert len(found.stdout.split()) == 40
    assert found.stderr.endswith("the context of 40 tokens is full\n")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--prompt", "x"], "run.no-tokenizer"),
        (["--prompt-ids", "2", "--temperature", "1"], "run.no-logits"),
        (["--prompt-ids", "97"], "run.unknown-token"),
        (["--prompt-ids", ",".join("1" * 41)], "run.context-full"),
    ],
)
def test_run_refuses_by_name(path, options, code):
    found = ran(run, path, *options)
    assert isinstance(found.exception, TopocError)
    assert found.exception.findings[0].code == code


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--prompt", "x", "--prompt-ids", "2"],
        ["--prompt-ids", "2;3"],
        ["--prompt-ids", "2", "--chat"],
    ],
)
def test_run_asks_for_one_prompt(path, options):
    assert ran(run, path, *options).exit_code == 2


class Letters:
    """A tokenizers backend of one letter a token."""

    @attrs.frozen
    class Encoding:
        ids: list

    def encode(self, text, *, add_special_tokens):
        return self.Encoding([2] * add_special_tokens + [ord(c) - 32 for c in text])

    def decode(self, ids, **_):
        return "".join(chr(one + 32) for one in ids)


@pytest.fixture
def spoken(path, monkeypatch):
    manifest = attrs.evolve(open_bundle(path).manifest, tokenizer=("near.npy",))
    write_bundle(path, manifest)
    template = "{{ bos_token }}<{{ messages[0]['role'] }}>{{ messages[0].content }}"
    made = Tokenizer(Letters(), template)
    monkeypatch.setattr(session, "load_tokenizer", lambda _: made)
    return path


def test_run_streams_text(spoken):
    expected = "".join(chr(one + 32) for one in answer([2, ord("h") - 32, ord("i") - 32], 4))
    for options, stdin in ((["--prompt", "hi"], None), (["--prompt", "-"], "hi")):
        found = ran(run, spoken, *options, "--max-tokens", 4, stdin=stdin)
        assert found.stdout == expected + "\n"


def test_chat_fills_the_template_and_adds_no_second_bos(spoken):
    expected = "".join(chr(one + 32) for one in answer([ord(c) - 32 for c in "<user>hi"], 5))
    found = ran(run, spoken, "--prompt", "hi", "--chat", "--max-tokens", 5)
    assert found.stdout == expected + "\n"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "run.no-chat-template"),
        ("{{ raise_exception('no') }}", "run.chat-template"),
        ("{{ messages.__class__.__mro__ }}", "run.chat-template"),
        ("{% if %}", "run.chat-template"),
    ],
)
def test_a_chat_template_that_cannot_be_filled_is_told(spoken, monkeypatch, template, code):
    monkeypatch.setattr(session, "load_tokenizer", lambda _: Tokenizer(Letters(), template))
    found = ran(run, spoken, "--prompt", "hi", "--chat")
    assert isinstance(found.exception, TopocError), found.output
    assert found.exception.findings[0].code == code


def test_a_trace_holds_every_feature_of_every_step(path, tmp_path):
    out = tmp_path / "t"
    found = ran(trace, path, "--prompt-ids", "2,7,11,4,5,6,9,8,3", "--max-tokens", 2, "-o", out)
    assert found.exit_code == 0, found.output
    index = json.loads((out / "trace.json").read_text())
    assert index["generated"] == answer(index["prompt"], 2)
    told = [
        (s["call"], s["function"], s["position"], len(s["tokens"])) for s in index["steps"][::2]
    ]
    assert told == [(0, "prefill_7", 0, 7), (1, "prefill_4", 7, 2), (2, "decode", 9, 1)]
    functions = {f.name: f for f in open_bundle(path).manifest.functions}
    for entry in index["steps"]:
        step = functions[entry["function"]].steps[entry["step"]]
        for side, features in (("inputs", step.inputs), ("outputs", step.outputs)):
            shapes = {name: np.load(out / file).shape for name, file in entry[side].items()}
            assert shapes == {one.feature: one.shape for one in features}


def test_a_trace_leaves_out_what_packages_keep_themselves(path, tmp_path):
    write_bundle(path, tiny_manifest("slice", store="state", taps=True))
    ran(trace, path, "--prompt-ids", "2,7,11,4", "-o", tmp_path / "t", "--max-tokens", 2)
    index = json.loads((tmp_path / "t/trace.json").read_text())
    assert index["generated"] == answer(index["prompt"], 2)
    inputs = {name for entry in index["steps"] for name in entry["inputs"]}
    assert "near_index" in inputs
    assert "near_kv" not in inputs
    assert "tap" in index["steps"][0]["outputs"]


def test_a_trace_replays(path, tmp_path):
    """Whoever feeds the traced inputs to the same model gets the traced outputs."""
    ran(trace, path, "--prompt-ids", "2,7,11,4", "-o", tmp_path / "t")
    index = json.loads((tmp_path / "t/trace.json").read_text())
    functions = {f.name: f for f in open_bundle(path).manifest.functions}
    for entry in index["steps"]:
        step = functions[entry["function"]].steps[entry["step"]]
        inputs = {name: np.load(tmp_path / "t" / file) for name, file in entry["inputs"].items()}
        made = Reader().predict(step, inputs, ())
        for name, file in entry["outputs"].items():
            assert (made[name] == np.load(tmp_path / "t" / file)).all()


def test_a_trace_overwrites_nothing(path, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").write_text("x")
    found = ran(trace, path, "--prompt-ids", "2", "-o", tmp_path / "t")
    assert found.exception.findings[0].code == "trace.not-empty"
    assert [one.name for one in (tmp_path / "t").iterdir()] == ["mine"]


def test_core_ml_is_refused_off_the_mac(path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("sys.platform", "linux")
    found = ran(run, path, "--prompt-ids", "2", "--engine", "coreml")
    assert found.exception.findings[0].code == "run.no-core-ml"
