"""The real Gemma 3 270M: its text, its gates, and what it would say without the rescale."""

from pathlib import Path

import numpy as np
import pytest
from by_hand import Left
from twins import session

from topoc.dsl.load import load
from topoc.lowering import measured
from topoc.lowering.architecture import layers, read
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.cli.lint import of_ranges
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.engine.speculation import Speculation
from topoc.lowering.ir import DType
from topoc.lowering.parity.gates import difference, teacher_forced
from topoc.lowering.parity.ladder import Form, ladder
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.parity.proof import default_positions, named, prove
from topoc.lowering.parity.shipped import shipped as shipped_of
from topoc.lowering.request import Request
from topoc.lowering.rescale import scales_for
from topoc.lowering.tokenizer import load_tokenizer

pytest_plugins = ["real_model"]
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real")]

PROMPT = "The capital of France is"
BEGINNING = " the capital of the country of France. It is the largest city in France"
COUNT = 30
DRAFTED = 64


def compiled(gguf, name, target, model=None, **options):
    topology, findings = load(name, layers=layers, model=model)
    assert topology is not None, findings
    request = Request(
        topology=topology,
        architecture=read(topology.layers.config),
        reader=open_checkpoint(gguf),
        **options,
    )
    compile_bundle(request, target)
    return open_bundle(target)


@pytest.fixture(scope="module")
def oracle(real_gguf):
    config = Path(__file__).parent.parent / "topologies" / "models" / "gemma3-270m.json"
    weights = bind(open_checkpoint(real_gguf), read(config))
    folder = real_gguf.parent / "reference"
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    return Oracle.of(folder / "config.json", weights)


@pytest.fixture(scope="module")
def shipped(real_gguf, tmp_path_factory):
    return compiled(real_gguf, "gemma3_270m", tmp_path_factory.mktemp("shipped") / "bundle")


@pytest.fixture(scope="module")
def tokenizer(shipped):
    return load_tokenizer(shipped.path)


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def continuation(oracle, prompt):
    """What transformers says next, greedily, from a full pass for every token."""
    return oracle.greedy(prompt, COUNT)


def said(bundle, prompt, only):
    """What a bundle says next; `only` is the function that reads the prompt."""
    engine = Engine(bundle, InterpreterPredictor(bundle))
    token = engine.feed(prompt, only=only).token
    tokens = [token]
    while len(tokens) < COUNT:
        tokens.append(engine.feed(tokens[-1:], only="decode").token)
    return tokens


def test_reference_speaks_of_the_capital(tokenizer, prompt, continuation):
    assert prompt[0] == 2
    assert tokenizer.decode(continuation).startswith(BEGINNING)


@pytest.mark.parametrize("name", ["gemma3_270m", "gemma3_270m_1chunk"])
def test_fp32_build_says_what_transformers_says(real_gguf, tmp_path, prompt, continuation, name):
    bundle = compiled(real_gguf, name, tmp_path / "bundle", precision=DType.FP32)

    assert said(bundle, prompt, "decode") == continuation
    assert said(bundle, prompt, None) == continuation


def test_shipped_package_holds_every_gate(shipped, oracle):
    """At the positions around the window of 512 and its double too."""
    verdicts = list(prove(shipped, oracle, default_positions(shipped.manifest)))

    assert [verdict.gate for verdict in verdicts] == ["ii", "ii-unrounded", "iii"]
    assert all(verdict.kept for verdict in verdicts), verdicts


@pytest.fixture(scope="module")
def six(real_gguf, tmp_path_factory):
    """The demo's: six bits a weight, calibrated on the text beside its script."""
    text = (Path(__file__).parent.parent / "examples" / "calibration.txt").read_text("utf-8")
    target = tmp_path_factory.mktemp("six") / "bundle"
    return compiled(real_gguf, "gemma3_270m_6bit", target, calibrate=text)


def test_the_demo_says_what_the_whole_model_says(six, tokenizer, prompt):
    """For a while, as its page shows; at four bits it does not."""
    assert tokenizer.decode(said(six, prompt, None)).startswith(BEGINNING)


def test_the_demo_holds_every_gate_and_stays_near_the_checkpoint(six, oracle, continuation, prompt):
    verdicts = list(prove(six, oracle, (0, 1, 5)))
    form = Form(name="six", rounded=True, weights=named(six.path / "config.json", shipped_of(six)))
    *_, rung = ladder(oracle, [form], [(*prompt, *continuation)])

    assert [verdict.gate for verdict in verdicts] == ["ii", "ii-unrounded", "iii", "iv"]
    assert all(verdict.kept for verdict in verdicts), verdicts
    assert rung.kl <= 0.1


FOUR = """topology four extends gemma3_270m {{
  functions decode
  quantize {{ weights: {} }}
}}
"""


def with_weights(scheme, weights, folder, model=None):
    file = folder / f"{scheme[:4]}.topo"
    file.write_text(FOUR.format(scheme), "utf-8")
    return compiled(weights, file, folder / f"{scheme[:4]} bundle", model)


@pytest.fixture
def stream(monkeypatch):
    """The ranges of the first checkpoint that is measured, which all others then have too."""
    found, measure = [], measured.ranges
    monkeypatch.setattr(
        measured, "ranges", lambda *one: found or found.extend(measure(*one)) or found
    )
    return found


def factors(stream):
    """By their names in a checkpoint, matrices that a package holds times a power of two."""
    lifts = scales_for(tuple(stream), 1e-6).branches
    names = ("self_attn.o_proj", "mlp.down_proj")
    return {
        f"model.layers.{n}.{name}.weight": lift
        for n, layer in enumerate(lifts)
        for name, lift in zip(names, layer, strict=False)
    }


def test_four_bits_are_their_dequantised_weights(oracle, real_gguf, prompt, tmp_path, stream):
    """Bit by bit, and within the gates, though at four bits its text does not hold together."""
    bundle = with_weights("palettize(bits = 4, group = 32)", real_gguf, tmp_path)
    config, tensors = oracle.model.config.to_dict(), oracle.model.state_dict()
    left = Left.of_tensors(config, tensors, factors(stream)).save(tmp_path / "left")
    plain = with_weights("none", left, tmp_path, left / "config.json")
    ours, theirs = session(bundle), session(plain)

    assert bundle.manifest.residual_scales == plain.manifest.residual_scales
    assert plain.manifest.quantization is None
    for token in prompt[:2]:
        found = [one.feed([token], only="decode").logits for one in (ours, theirs)]
        assert np.array_equal(*found)
    assert all(one.kept for one in prove(bundle, oracle, (0, 1, 5)))


def test_stream_is_held_at_two_powers_of_two(shipped):
    assert set(shipped.manifest.residual_scales) == {2.0**-7, 2.0**-9}
    assert max(shipped.manifest.residual_peaks) > 65504


@pytest.fixture(scope="module")
def unscaled(real_gguf, tmp_path_factory):
    target = tmp_path_factory.mktemp("unscaled") / "bundle"
    return compiled(real_gguf, "gemma3_270m", target, rescale=False)


def test_without_the_rescale_fp16_arithmetic_overflows(unscaled, oracle, prompt):
    predictor = InterpreterPredictor(unscaled, rounding=True)
    places = range(len(prompt))
    found = teacher_forced(unscaled, predictor, prompt, places)

    assert not difference(found, oracle.logits(prompt), places).keeps("iii")


def ranges(bundle, ids):
    """What lint says of a bundle's ranges on a prompt, gravest first."""
    findings = of_ranges(str(bundle.path), None, ",".join(map(str, ids)))
    return sorted({(one.severity.value, one.code) for one in findings})


def test_ranges_tell_of_the_missing_rescale_and_nothing_of_the_shipped_one(
    unscaled, shipped, prompt
):
    """BOS alone shows it: the stream passes 65504 at the end of layer 7, by its residual."""
    findings = of_ranges(str(unscaled.path), PROMPT, None)
    over = [one for one in findings if one.code == "range.overflow"]

    assert over[0].message.startswith("`l7_out` reaches 68,3")
    assert over[0].at.at.text == "L6-11"
    assert ranges(shipped, prompt) == []


def test_ranges_on_a_prompt_without_bos_are_warned_about(unscaled, prompt):
    assert ranges(unscaled, prompt[1:]) == [("warning", "range.no-bos")]


def test_speculative_run_says_what_the_plain_run_says(real_gguf, tmp_path, prompt):
    """In fp32: prompt lookup drafts, and some of its drafts are wrong."""
    text = tmp_path / "drafted.topo"
    text.write_text(
        "topology drafted extends gemma3_270m_1chunk {\n  functions decode, verify(tokens = 4)\n}\n"
    )
    bundle = compiled(real_gguf, text, tmp_path / "bundle")
    predictor = InterpreterPredictor(bundle)
    plain = list(Engine(bundle, predictor).generate(prompt, DRAFTED, chosen, frozenset()))
    drafting = Speculation(Engine(bundle, predictor))

    assert list(drafting.generate(prompt, DRAFTED, chosen, frozenset())) == plain
    assert len(plain) == DRAFTED
    assert 0 < drafting.accepted < drafting.drafted


def chosen(result):
    """The token that the package chose."""
    return result.token
