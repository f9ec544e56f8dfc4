"""What compression costs: the ladder, against plain torch on transformers' own modules."""

import copy
import re

import numpy as np
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from compiled import compile_text, weights_of
from tiny_gemma import tiny_gemma3
from tiny_gemma4 import tiny_gemma4
from tiny_tokenizer import with_tokenizer

from topoc.dsl.diagnostic import TopocError
from topoc.dsl.model import Budget
from topoc.lowering import compiler
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.calibration import windows
from topoc.lowering.cli import ladder as printed
from topoc.lowering.cli import verify
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.recipe import Linear, Palettize
from topoc.lowering.compress.source import Held
from topoc.lowering.parity.damage import by_layer, output_errors, plain
from topoc.lowering.parity.ladder import Form, Rung, breaches, ladder
from topoc.lowering.parity.oracle import Oracle, state_name
from topoc.lowering.parity.proof import default_positions, named, prove
from topoc.lowering.parity.shipped import shipped
from topoc.lowering.rescale import Scales

torch.set_num_threads(1)

TEXT = "the quick brown Fox jumps over the lazy Dog and sees that nothing comes of it " * 8
WINDOWS = ((2, *((37 * at) % 131 for at in range(70))), (2, 5, 9), (2, 130))
LOOSE, TIGHT = "kl <= 9\n    cosine >= 0.1\n    top1 >= 1 %", "kl <= 9\n    top1 >= 101 %"


def text_of(rules, *, head="argmax", expect="", layers=4, ple=""):
    return f"""topology tiny {{
  model "config.json"
  context 64
  chunk one = {ple}L0-1
  chunk two = L2-{layers - 1} + norm + head({head})
  functions decode
  quantize {{
    embed: none
    {rules}
  }}
  {expect and f"expect {{{chr(10)}    {expect}{chr(10)}  }}"}
}}
"""


class Case:
    def __init__(self, folder, make, **options):
        self.checkpoint = folder / "checkpoint"
        self.model = make(self.checkpoint)
        with_tokenizer(self.checkpoint)
        self.weights = weights_of(self.checkpoint)
        self.bundle = compile_text(text_of(**options), self.checkpoint, folder / "bundle")
        self.oracle = Oracle.of(self.checkpoint / "config.json", self.weights)

    def wanted(self, role, how, runs=1):
        """A matrix as compressing the checkpoint's numbers gives it."""
        whole = torch.cat(list(self.weights.blocks(role)))
        parts = [Held(role, one) for one in whole.chunk(runs)]
        return np.concatenate([dense(compress(p, how, pad_groups=True)) for p in parts])

    def form(self):
        held = named(self.checkpoint / "config.json", shipped(self.bundle))
        return Form(name="as shipped", rounded=True, weights=held)


def gemma3(folder):
    return tiny_gemma3(folder, kv_heads=2)


def gemma4(folder):
    return tiny_gemma4(folder, layers=10, period=5, shared=5, kv_heads=2)


FOUR = Palettize(4, 8)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    rules = "weights: palettize(bits = 4, group = 8)\n    head: none\n    down: int8(per = channel)"
    return Case(tmp_path_factory.mktemp("three"), gemma3, rules=rules)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    rules = "weights: palettize(bits = 4, group = 8)\n    head: none\n    ple_table: none"
    return Case(tmp_path_factory.mktemp("four"), gemma4, rules=rules, layers=10, ple="ple + ")


# --- what ships -----------------------------------------------------------------------------


def test_shipped_weights_are_what_the_recipes_make_of_the_checkpoint(three):
    found = shipped(three.bundle)

    assert len(found) == 7 * 4
    for role, one in found.items():
        how = Linear(8, "channel") if role.endswith("down") else FOUR
        assert np.array_equal(one.numpy(), three.wanted(role, how).astype(np.float32)), role


def test_gemma_4_ships_its_per_layer_projections(four):
    found = shipped(four.bundle)

    assert {"layers.3.ple_gate", "layers.9.ple_projection", "ple.projection"} <= found.keys()
    assert "layers.7.k" not in found
    for role in ("layers.3.ple_gate", "layers.9.down", "ple.projection"):
        assert np.array_equal(found[role].numpy(), four.wanted(role, FOUR).astype(np.float32))


def test_a_head_in_slices_and_padded_groups_come_back_whole(tmp_path):
    def make(folder):
        return tiny_gemma3(folder, vocab_size=134)

    rules = "weights: none\n    head: palettize(bits = 4, group = 8)"
    case = Case.__new__(Case)
    case.checkpoint = tmp_path / "c"
    make(case.checkpoint)
    case.weights = weights_of(case.checkpoint)
    case.bundle = compile_text(
        text_of(rules, head="argmax, split = 2"),
        case.checkpoint,
        tmp_path / "b",
        pad_groups=True,
    )
    wanted = case.wanted("embed", FOUR, runs=2).astype(np.float32)

    assert np.array_equal(shipped(case.bundle)["embed"].numpy(), wanted)
    assert np.array_equal(plain(case.bundle, case.weights)["embed"].numpy(), wanted)
    oracle = Oracle.of(case.checkpoint / "config.json", case.weights)
    verdicts = list(prove(case.bundle, oracle, default_positions(case.bundle.manifest)))
    assert all(one.kept for one in verdicts)


def test_a_factor_that_keeps_fp16_is_taken_out_again(tmp_path, monkeypatch):
    lifted = Scales(residual=(1.0,) * 5, branches=((2.0, 8.0), (1.0, 1.0), (4.0, 1.0), (1.0, 1.0)))
    monkeypatch.setattr(compiler, "scales_for", lambda *_: lifted)
    case = Case(tmp_path, gemma3, rules="weights: palettize(bits = 4, group = 8)\n    head: none")
    found = shipped(case.bundle)

    assert any("* 8.0" in one.weight for one in case.bundle.manifest.quantization.tensors)
    for role in ("layers.0.o", "layers.0.down", "layers.2.o", "layers.1.down"):
        assert np.array_equal(found[role].numpy(), case.wanted(role, FOUR).astype(np.float32)), role


def test_a_bundle_without_compression_ships_nothing(tmp_path):
    case = Case(tmp_path, gemma3, rules="weights: none")

    assert shipped(case.bundle) == {}
    gates = [one.gate for one in prove(case.bundle, case.oracle, (0, 1))]
    assert gates == ["ii", "ii-unrounded", "iii"]


def test_a_manifest_that_names_other_weights_is_refused(three):
    said = three.bundle.manifest.quantization
    for name, code in (("layers.0.scalar", "verify.no-weight"), ("a b", "bundle.manifest")):
        tensors = (*said.tensors, evolve(said.tensors[0], weight=name))
        told = evolve(three.bundle.manifest, quantization=evolve(said, tensors=tensors))
        with pytest.raises(TopocError) as caught:
            shipped(evolve(three.bundle, manifest=told))
        assert caught.value.findings[0].code == code


# --- the gates on compressed bundles --------------------------------------------------------


@pytest.mark.parametrize("name", ["three", "four"])
def test_gates_hold_a_compressed_bundle_against_its_own_weights(name, request):
    case = request.getfixturevalue(name)
    verdicts = {one.gate: one for one in prove(case.bundle, case.oracle, (0, 1, 8, 17))}

    assert list(verdicts) == ["ii", "ii-unrounded", "iii", "iv"]
    assert all(one.kept for one in verdicts.values())
    assert "compressed weights as shipped" in verdicts["ii"].against
    assert verdicts["iv"].found.error > 20 * verdicts["ii-unrounded"].found.error


def test_other_weights_than_the_shipped_ones_break_the_gates(three, monkeypatch):
    from topoc.lowering.parity import proof

    def off(bundle):
        found = shipped(bundle)
        found["layers.2.up"] = found["layers.2.up"].roll(1, 0)
        return found

    monkeypatch.setattr(proof, "shipped", off)
    verdicts = {one.gate: one for one in prove(three.bundle, three.oracle, (0, 1, 8, 17))}

    assert not verdicts["ii"].kept
    assert not verdicts["iii"].kept


def test_the_oracle_is_as_before_once_it_holds_nothing_more(three):
    before = three.oracle.logits(WINDOWS[0])
    with three.oracle.holding(three.form().weights):
        assert not np.array_equal(three.oracle.logits(WINDOWS[0]), before)

    assert np.array_equal(three.oracle.logits(WINDOWS[0]), before)


def test_a_head_that_is_held_leaves_the_table_alone(three):
    spec = next(one for one in three.weights.architecture.tensors if one.role == "embed")
    name = state_name(spec, projects=True)
    with three.oracle.holding({name: torch.zeros(spec.shape)}):
        assert not three.oracle.logits((2, 5)).any()
        assert three.oracle.model.get_input_embeddings().weight.any()


# --- the rungs ------------------------------------------------------------------------------


def by_hand(case, runs):
    """KL, mean and least cosine, top-1, top-5 and perplexity of the shipped model."""
    with case.oracle.rounded():
        model = copy.deepcopy(case.oracle.model)
    modules = dict(model.named_modules())
    for role, one in shipped(case.bundle).items():
        spec = next(s for s in case.weights.architecture.tensors if s.role == role)
        modules[f"model.{spec.name.removesuffix('.weight')}"].weight = torch.nn.Parameter(one)
    kl, cosines, first, five, surprise = [], [], [], [], []
    for run in runs:
        ids, rows = torch.tensor([run]), torch.arange(len(run))
        wanted, found = (
            m(ids, use_cache=False, logits_to_keep=rows).logits[0].double().detach()
            for m in (case.model, model)
        )
        p, q = wanted.softmax(1), found.softmax(1)
        kl += (p * (p / q).log()).sum(1).tolist()
        cosines += ((wanted * found).sum(1) / wanted.norm(dim=1) / found.norm(dim=1)).tolist()
        order = found.argsort(1, descending=True)
        first += (order[:, 0] == wanted.argmax(1)).tolist()
        five += (order[:, :5] == wanted.argmax(1)[:, None]).any(1).tolist()
        surprise += (-q[rows[:-1], ids[0, 1:]].log()).tolist()
    perplexity = np.exp(np.mean(surprise))
    return np.array(
        [np.mean(kl), np.mean(cosines), min(cosines), np.mean(first), np.mean(five), perplexity]
    )


@pytest.mark.parametrize("name", ["three", "four"])
def test_rungs_equal_a_plain_computation(name, request):
    case = request.getfixturevalue(name)
    exact, fp16, last = ladder(case.oracle, [Form(name="fp16", rounded=True), case.form()], WINDOWS)
    found = [last.kl, last.cosine, last.least, last.top1, last.top5, last.perplexity]

    assert np.allclose(found, by_hand(case, WINDOWS), rtol=1e-4)
    assert (exact.kl, exact.top1, exact.top5, exact.positions) == (0.0, 1.0, 1.0, 76)
    assert 0 < fp16.kl < last.kl / 100
    assert last.top1 < 1


def test_the_first_rung_gives_the_perplexity_of_the_model_itself(three):
    (exact,) = ladder(three.oracle, [], WINDOWS)
    told = [
        -three.model(torch.tensor([run])).logits[0].double().log_softmax(1)[at, token].item()
        for run in WINDOWS
        for at, token in enumerate(run[1:])
    ]

    assert exact.perplexity == pytest.approx(np.exp(np.mean(told)), rel=1e-5)


def test_rungs_are_the_same_bits_again(three):
    forms = [three.form()]

    assert list(ladder(three.oracle, forms, WINDOWS)) == list(ladder(three.oracle, forms, WINDOWS))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_positions_are_counted_once_wherever_blocks_end(length):
    class Fake(Oracle):
        def logits(self, tokens):
            generator = np.random.default_rng(len(tokens))
            return generator.normal(size=(len(tokens), 7)).astype(np.float32)

    window = tuple(at % 7 for at in range(length))
    (rung,) = ladder(Fake(torch.nn.Module()), [], (window,))
    logits = Fake(None).logits(window).astype(np.float64)
    told = np.log(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    wanted = np.exp(-np.mean(told[range(length - 1), window[1:]])) if length > 1 else np.nan

    assert rung.positions == length
    assert rung.top1 == 1.0
    assert rung.perplexity == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_logits_that_are_no_numbers_keep_no_budget():
    class Broken(Oracle):
        calls = 0

        def logits(self, tokens):
            self.calls += 1
            return np.full((len(tokens), 7), 1.0 if self.calls == 1 else np.nan, np.float32)

    *_, rung = ladder(Broken(torch.nn.Module()), [Form(name="broken")], ((1, 2, 3),))

    assert np.isnan([rung.kl, rung.cosine, rung.least]).all()
    lines = [budget("kl", "<=", 9.0), budget("kl", ">", 0.0), budget("cosine", ">=", -1.0)]
    assert len(list(breaches(lines, rung))) == 3


def budget(measure, relation, value):
    return Budget(measure=measure, relation=relation, value=value, span=None)


@pytest.mark.parametrize(
    ("measure", "relation", "limit", "holds"),
    [
        ("kl", "<=", 0.25, True),
        ("kl", "<", 0.25, False),
        ("kl", "<=", 0.2, False),
        ("cosine", ">=", 0.99, True),
        ("cosine", ">", 0.99, False),
        ("top1", ">=", 0.5, True),
        ("top1", "==", 0.5, True),
        ("top1", ">=", 0.51, False),
        ("ms per step", "<", 0.0, True),
    ],
)
def test_a_budget_is_held_against_its_measure(measure, relation, limit, holds):
    rung = Rung(
        name="r", positions=1, kl=0.25, cosine=0.99, least=0.1, top1=0.5, top5=0.9, perplexity=2.0
    )
    assert (not list(breaches([budget(measure, relation, limit)], rung))) == holds


# --- what it costs each projection ----------------------------------------------------------


def test_output_errors_are_those_of_the_modules(three):
    held = shipped(three.bundle)
    found = output_errors(three.weights, held, WINDOWS)
    lost = {role: [0.0, 0.0] for role in held}
    hooks = []
    for role, one in held.items():
        spec = next(s for s in three.weights.architecture.tensors if s.role == role)
        module = three.model.get_submodule(f"model.{spec.name.removesuffix('.weight')}")

        def hook(_, inputs, output, role=role, one=one):
            lost[role][0] += (output - inputs[0] @ one.T).double().square().sum().item()
            lost[role][1] += output.double().square().sum().item()

        hooks.append(module.register_forward_hook(hook))
    for run in WINDOWS:
        three.model(torch.tensor([run]))
    for hook in hooks:
        hook.remove()

    assert found == {r: pytest.approx(gone / whole, rel=1e-3) for r, (gone, whole) in lost.items()}
    layers = dict(by_layer(found))
    assert sorted(layers) == ["L0", "L1", "L2", "L3"]
    assert list(layers.values()) == sorted(layers.values(), reverse=True)
    mean = np.mean([one for role, one in found.items() if role.startswith("layers.2.")])
    assert layers["L2"] == pytest.approx(mean)


# --- the command ----------------------------------------------------------------------------


def ran(bundle, *arguments):
    given = [str(one) for one in (bundle, *arguments)]
    return CliRunner().invoke(verify.command, given)


@pytest.mark.parametrize(("expect", "status"), [("", 0), (LOOSE, 0), (TIGHT, 1)])
def test_the_exit_status_is_that_of_the_budgets(three, tmp_path, expect, status):
    rules = "weights: palettize(bits = 4, group = 8)\n    head: none"
    text = text_of(rules, expect=expect)
    bundle = compile_text(text, three.checkpoint, tmp_path / "bundle")
    (tmp_path / "text").write_text(TEXT)
    found = ran(bundle.path, "--weights", three.checkpoint, "--ladder", "--text", tmp_path / "text")

    assert found.exit_code == status, found.output
    names = re.findall(r"^(fp32|fp16|plain|as shipped)  ", found.stdout, re.MULTILINE)
    assert names == ["fp32", "fp16", "as shipped"]
    assert ("FAILS  top1 >= 1.01" in found.stdout) == (status == 1)
    assert found.stdout.count("holds  ") == {"": 0, LOOSE: 3, TIGHT: 1}[expect]
    assert re.search(r"^output error +as shipped$", found.stdout, re.MULTILINE)


def test_the_command_prints_what_the_ladder_found(three, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    found = ran(
        three.bundle.path, "--weights", three.checkpoint, "--ladder", "--text", tmp_path / "text"
    )
    ids = [
        3 + ord(one) - 97 if one.islower() else 99 if one == " " else ord(one) - 25 for one in TEXT
    ]
    told = windows(three.weights.architecture, ids, 64)
    *_, last = ladder(three.oracle, [three.form()], told)
    line = next(one for one in found.stdout.splitlines() if one.startswith("as shipped"))

    assert line.split()[2:] == [
        f"{last.kl:.5f}", f"{last.cosine:.6f}", f"{last.least:.6f}", f"{last.top1:.3f}",
        f"{last.top5:.3f}", f"{last.perplexity:.3f}",
    ]  # fmt: skip
    assert f"{last.positions} positions" in found.stdout


@pytest.mark.parametrize(
    "options", [["--ladder"], ["--text", "t"], ["--ladder", "--text", "t", "b"]]
)
def test_a_ladder_takes_a_text_and_no_twin(three, options):
    found = ran(three.bundle.path, *options)

    assert found.exit_code == 2
    assert "--ladder goes with --text" in found.output


def test_a_ladder_without_a_tokenizer_is_refused(tmp_path):
    tiny_gemma3(tmp_path / "c")
    bundle = compile_text(text_of("weights: none"), tmp_path / "c", tmp_path / "b")
    (tmp_path / "text").write_text(TEXT)
    found = ran(bundle.path, "--weights", tmp_path / "c", "--ladder", "--text", tmp_path / "text")

    assert isinstance(found.exception, TopocError)
    assert found.exception.findings[0].code == "tokenizer.missing"


def test_windows_are_no_longer_than_the_context(three, tmp_path):
    (tmp_path / "text").write_text(TEXT * 4)
    opened = open_bundle(three.bundle.path)
    told = printed._windows(opened, three.weights, tmp_path / "text")

    assert max(map(len, told)) == 64
    assert sum(len(one) - 1 for one in told) == printed.MOST
