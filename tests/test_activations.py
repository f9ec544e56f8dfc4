"""Activations in int8, held against plain torch on transformers' own modules."""

import numpy as np
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from compiled import compile_text, engine_of, logits_after, weights_of
from coreml_llm_bundles import TEXTS, Made
from test_calibrate import role_of
from test_ladder import TEXT, ran, text_of
from tiny_gemma import tiny_gemma3
from tiny_gemma4 import tiny_gemma4
from tiny_tokenizer import with_tokenizer

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.load import load
from topoc.lowering import compiler
from topoc.lowering.activations import LEAST, scale_of
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.calibration import calibration_text
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.lint.programs import emitted
from topoc.lowering.parity.activations import activation_scales, told
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.parity.proof import agree, prove
from topoc.lowering.rescale import Scales

torch.set_num_threads(1)

TOKENS = [2, 0, 130, 5, 7, *((37 * at) % 131 for at in range(15))]
EPS = (
    2.0**-16
)  # fp16 holds it, as it holds every weight here: rounding to int8 makes much of little
MODELS = {
    "gemma3": (
        lambda folder: tiny_gemma3(folder, kv_heads=2, query_pre_attn_scalar=16, rms_norm_eps=EPS),
        {},
    ),
    "gemma4": (
        lambda folder: tiny_gemma4(
            folder,
            layers=10,
            period=5,
            shared=5,
            kv_heads=2,
            rms_norm_eps=EPS,
            final_logit_softcapping=16.0,
        ),
        {"layers": 10, "ple": "ple + "},
    ),
}
RULES, TARGET = "activations: int8", "target ane ios18 a17"


class Case:
    """A checkpoint whose numbers fp16 holds, transformers' model of it, and its bundles."""

    def __init__(self, name, folder):
        make, self.layout = MODELS[name]
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        self.model = make(self.checkpoint)
        offset = 1.0 if name == "gemma3" else 0.0
        _held_by_fp16(self.checkpoint / "model.safetensors", self.model, offset)
        with_tokenizer(self.checkpoint)
        self.weights = weights_of(self.checkpoint)
        self.table = "\n    ple_table: none" if "ple" in self.layout else ""

    def compile(self, name, rules=RULES, **options):
        text = text_of(rules + self.table, **self.layout)
        text = text.replace("functions decode", "functions decode, prefill(tokens = 8)")
        return compile_text(text, self.checkpoint, self.folder / name, **options)

    def peaks(self, windows):
        """The greatest |x| that each projection reads."""
        found = {}

        def watch(role):
            def see(_, inputs):
                found[role] = max(found.get(role, 0.0), inputs[0].abs().max().item())

            return see

        self.hooked(watch, windows, fed=False)
        return found

    def logits(self, tokens, scales, whole=True):
        """Those of the model whose projections read int8."""

        def through(role):
            def kept(_, inputs):
                steps = inputs[0] / scales[role]
                low, high = -128 * scales[role], 127 * scales[role]
                rounded = torch.round(steps) * scales[role] if whole else inputs[0]
                return torch.minimum(torch.maximum(rounded, torch.tensor(low)), torch.tensor(high))

            return kept

        return self.hooked(through, [tokens], fed=True)[0]

    def hooked(self, make, windows, *, fed):
        hooks = [
            module.register_forward_pre_hook(make(role_of(name, tied=True)))
            for name, module in self.model.named_modules()
            if isinstance(module, torch.nn.Linear)
        ]
        hooks += [
            module.register_forward_hook(_by_host)
            for name, module in self.model.named_modules()
            if fed and name.endswith(("rotary_emb", "embed_tokens", "embed_tokens_per_layer"))
        ]
        try:
            rows = [torch.arange(len(one)) for one in windows]
            return [
                self.model(torch.tensor([one]), use_cache=False, logits_to_keep=keep).logits[0]
                for one, keep in zip(windows, rows, strict=True)
            ]
        finally:
            for one in hooks:
                one.remove()


def _by_host(_, __, out):
    """What a host looks up comes in fp16."""
    return (
        tuple(one.half().float() for one in out) if isinstance(out, tuple) else out.half().float()
    )


def _held_by_fp16(file, model, offset):
    from safetensors.torch import load_file, save_file

    def held(one):
        shift = offset if one.ndim == 1 else 0.0
        return (one + shift).half().float() - shift

    save_file({n: held(one) for n, one in load_file(file).items()}, file, {"format": "pt"})
    factors = (one for name, one in model.named_buffers() if name.endswith("layer_scalar"))
    for one in (*model.parameters(), *factors):
        one.copy_(held(one))


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    made = Case(request.param, tmp_path_factory.mktemp(request.param))
    made.bundle = made.compile("int8", calibrate=TEXT)
    return made


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    made = Case("gemma3", tmp_path_factory.mktemp("alone"))
    made.bundle = made.compile("int8", calibrate=TEXT)
    return made


def error(found, wanted):
    """The greatest difference at each position, in standard deviations."""
    return np.abs(found - wanted).max(1) / wanted.std()


# --- what it computes -----------------------------------------------------------------------


def test_scales_are_the_peaks_of_what_the_text_makes_projections_read(case):
    seen = calibration_text(case.weights.architecture, case.checkpoint, TEXT).seen
    peaks, scales = case.peaks(seen), told(case.bundle)

    assert scales.keys() == peaks.keys()
    for role, one in scales.items():
        assert one == float(np.float16(one))
        assert one == pytest.approx(peaks[role] / 127, rel=1e-3), role


@pytest.mark.parametrize("only", ["decode", None])
def test_a_bundle_computes_what_torch_does_with_inputs_in_int8(case, only):
    scales, engine = told(case.bundle), engine_of(case.bundle)
    wanted = case.logits(TOKENS, scales).numpy()
    if only:
        places = list(range(len(TOKENS)))
        found = [logits_after(engine, [one], only=only) for one in TOKENS]
    else:
        places = [10, 18]
        found = [logits_after(engine, TOKENS[:11]), logits_after(engine, TOKENS[11:19])]
    lost = error(np.stack(found), wanted[places])
    clipped = case.logits(TOKENS, scales, whole=False).numpy()
    free = case.logits(TOKENS, dict.fromkeys(scales, 1e3), whole=False).numpy()

    # A hair's difference may tip a rounding on another machine, and shows in what follows.
    assert np.median(lost) < 1e-5
    assert lost.max() < 0.2 * error(clipped, wanted).max()
    assert error(clipped, free).max() > 100 * lost.max(), "no input is beyond the text's"


def test_scales_are_no_subnormals_and_have_the_bits_of_fp16():
    assert scale_of(0.0) == scale_of(1e-9) == LEAST == 2.0**-14
    assert scale_of(127.0) == 1.0
    assert scale_of(127 * (1 + 2.0**-12)) == 1.0
    assert scale_of(127 * (1 + 3 * 2.0**-12)) == 1 + 2.0**-10
    assert scale_of(127 * 2.0**20) == 2.0**20


# --- the kernels against coremltools --------------------------------------------------------

STEPS = np.array([-200, -128.5, -128, -127.5, -2.5, -1.5, -0.5, 0, 0.49, 0.5, 1.5, 126.5, 127.5])
HOW = {
    "int8": {"output_dtype": "int8"},
    "uint8": {"output_dtype": "uint8", "zero_point": np.uint8(7)},
    "odd zero": {"output_dtype": "int8", "zero_point": np.int8(-3)},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scale", [0.5, 0.0625, 3.0])
def test_kernels_round_and_clip_as_coremltools_does(how, scale, tmp_path):
    from topoc.lowering.emit.mil.toolkit import toolkit

    kit, x, step = toolkit(), np.float32(STEPS * scale), np.float32(scale)
    zero = {k: v for k, v in HOW[how].items() if k == "zero_point"}

    def through(one):
        codes = kit.mb.quantize(input=one, scale=step, **HOW[how])
        return codes, kit.mb.dequantize(input=codes, scale=step, **zero)

    given = {"x": kit.mb.placeholder(x.shape, kit.types.fp32)}
    with kit.function(given, opset_version=kit.opset) as function:
        codes, back = through(kit.mb.const(val=x))
        wanted = [codes.val, back.op.materialized_val_inference()]
        codes, back = through(function.inputs["x"])
        function.set_outputs([kit.mb.cast(x=codes, dtype="fp32", name="codes"), back])
    found = Machine(_saved(kit, function, tmp_path)).run({"x": torch.from_numpy(x)})

    assert [one.tolist() for one in found.values()] == [one.tolist() for one in wanted]


def _saved(kit, function, folder):
    from coremltools_peer import saved

    from topoc.lowering.package import prepare, write_description

    program = kit.program()
    program.add_function("main", function)
    path = folder / "one.mlpackage"
    model = saved(program, prepare(path).parent)
    write_description(path, model.SerializeToString())
    return path


def test_fractions_are_clipped_and_not_rounded(gemma3):
    scale = told(gemma3.bundle)["layers.0.q"]
    path = gemma3.bundle.path / "one.mlpackage"
    machine = Machine(path, "decode", fractions=True)
    rng = torch.Generator().manual_seed(0)
    inputs = {one.name: torch.randn(one.shape, generator=rng) for one in machine.function.inputs}
    inputs["hidden"][0, 0] = 1e3
    names = ["l0_input_normed", "l0_input_normed_int8"]
    for _ in range(2):
        found = machine.run(inputs, probes=names)
        x, kept = found[names[0]], found[names[1]]
        assert x.max() > 127 * scale
        torch.testing.assert_close(kept, x.clamp(-128 * scale, 127 * scale), rtol=1e-6, atol=0)


# --- what the packages hold -----------------------------------------------------------------


def operations(bundle):
    """By package and function, the operations as coremltools loads them."""
    import coremltools

    for path in sorted(bundle.path.glob("*.mlpackage")):
        spec = coremltools.utils.load_spec(str(path))
        for name, function in spec.mlProgram.functions.items():
            (block,) = function.block_specializations.values()
            yield path.stem, name, {one.outputs[0].name: one for one in block.operations}


def argument(op, name):
    return op.inputs[name].arguments[0].name


def test_each_projection_reads_a_pair_and_those_of_one_input_share_it(case):
    for package, _, ops in operations(case.bundle):
        kinds = [one.type for one in ops.values()]
        convolutions = {n: argument(o, "x") for n, o in ops.items() if o.type == "conv"}
        read = set(convolutions.values())
        assert kinds.count("quantize") == kinds.count("dequantize") == len(read) > 4
        for name in read:
            back = ops[name]
            there = ops[argument(back, "input")]
            assert (back.type, there.type) == ("dequantize", "quantize")
            assert argument(back, "scale") == argument(there, "scale")
            assert ops[argument(there, "input")].type != "conv" if name != "hidden_int8" else True
        at = 0 if package == "one" else 2
        mine = [convolutions[f"l{at}_{role}"] for role in ("q", "k", "v")]
        assert mine == [f"l{at}_input_normed_int8"] * 3
        assert convolutions[f"l{at}_gate"] == convolutions[f"l{at}_up"] != mine[0]
        assert len({convolutions[f"l{at}_{role}"] for role in ("q", "o", "up", "down")}) == 4


def test_a_pair_adds_no_record_to_the_weights(gemma3):
    plain = gemma3.compile("plain", "weights: none")
    sizes = [
        [one.stat().st_size for one in sorted(bundle.path.rglob("weight.bin"))]
        for bundle in (plain, gemma3.bundle)
    ]

    assert sizes[0] == sizes[1]


def test_compiling_again_gives_the_same_bytes(gemma3):
    again = gemma3.compile("again", calibrate=TEXT)
    other = gemma3.compile("other", calibrate=TEXT[::-1])

    assert again.manifest == gemma3.bundle.manifest
    assert other.manifest.build != gemma3.bundle.manifest.build
    assert told(other).keys() == told(gemma3.bundle).keys()


def test_palettes_and_activations_take_one_text(gemma3):
    rules = "weights: palettize(bits = 4, group = 8)\n    head: none"
    both = gemma3.compile("both", f"{RULES}\n    {rules}", calibrate=TEXT)
    alone = gemma3.compile("palettes", rules, calibrate=TEXT)

    assert told(both) == told(gemma3.bundle)
    assert both.manifest.quantization.tensors == alone.manifest.quantization.tensors
    assert told(alone) == {}


# --- the gates ------------------------------------------------------------------------------


def verdicts(case, bundle):
    oracle = Oracle.of(case.checkpoint / "config.json", case.weights)
    return list(prove(bundle, oracle, (0, 1, 8, 17)))


def test_gates_hold_against_a_reference_that_clips_alike(case):
    found = verdicts(case, case.bundle)
    alike, *gates, whole = found

    assert [one.gate for one in found] == ["iv", "ii", "ii-unrounded", "iii", "iv"]
    assert all(one.kept for one in found)
    assert "activations rounded to int8" in alike.against
    assert all("clipped to int8, not rounded" in one.against for one in gates)
    assert gates[0].found.error < 1e-3
    assert 10 * alike.found.error < whole.found.error


def test_a_reference_that_clips_otherwise_breaks_the_gates(gemma3, monkeypatch):
    from topoc.lowering.parity import proof

    def off(bundle):
        scales = activation_scales(bundle)
        return scales | {"layers.2.down": scales["layers.2.down"] / 16}

    monkeypatch.setattr(proof, "activation_scales", off)
    found = {one.gate: one.kept for one in verdicts(gemma3, gemma3.bundle)}

    assert not found["ii"]
    assert not found["iii"]


@pytest.mark.parametrize("role", ["layers.1.o", "embed"])
def test_scales_that_the_packages_do_not_have_are_refused(gemma3, role):
    said = gemma3.bundle.manifest.quantization
    scales = said.activations.scales
    for other, words in (
        (scales | {role: scales["layers.0.down"]}, f"what `{role}` reads is quantised by"),
        ({k: v for k, v in scales.items() if k != role}, f"no scale of what `{role}` reads"),
    ):
        lying = evolve(said, activations=evolve(said.activations, scales=other))
        manifest = evolve(gemma3.bundle.manifest, quantization=lying)
        with pytest.raises(TopocError, match=words) as caught:
            activation_scales(evolve(gemma3.bundle, manifest=manifest))
        assert caught.value.findings[0].code == "verify.scale"


def test_a_rescaled_stream_is_quantised_by_as_much(tmp_path, monkeypatch):
    case = Case("gemma4", tmp_path)
    plain = case.compile("plain", calibrate=TEXT)
    powers = (0.25, *(0.5,) * 4, *(0.125,) * 6)
    monkeypatch.setattr(compiler, "scales_for", lambda *_: Scales(residual=powers))
    held = case.compile("held", calibrate=TEXT)

    assert told(held) == told(plain) == activation_scales(held)
    found, wanted = (
        np.stack([logits_after(engine_of(one), TOKENS[:at]) for at in (1, 9)])
        for one in (held, plain)
    )
    assert np.median(error(found, wanted)) < 1e-5
    assert all(one.kept for one in verdicts(case, held))


def test_twins_agree_without_the_jumps(gemma3):
    plain = gemma3.compile("whole", "weights: none")

    assert agree(gemma3.bundle, gemma3.bundle, (0, 1, 8)).found.error == 0.0
    assert agree(gemma3.bundle, plain, (0, 1, 8)).found.error > 0.01


def test_the_ladder_tells_what_activations_cost(gemma3, tmp_path):
    (tmp_path / "text").write_text(TEXT[::-1])
    asked = ("--weights", gemma3.checkpoint, "--ladder", "--text", tmp_path / "text")
    found = ran(gemma3.bundle.path, *asked)
    lines = found.stdout.splitlines()
    kl = {one[:12].strip(): float(one.split()[-6]) for one in lines[2:]}

    assert found.exit_code == 0, found.output
    assert list(kl) == ["fp32", "fp16", "weights", "as shipped"]
    assert kl["fp16"] == kl["weights"]
    assert kl["as shipped"] > 10 * kl["weights"]


# --- what is asked for, and refused ---------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_without_a_text_there_are_no_scales(gemma3, precision):
    if precision == "fp32":  # a build that compresses nothing needs none
        bundle = gemma3.compile("fp32", precision=precision)
        assert bundle.manifest.quantization is None
        assert not any(o.type == "quantize" for *_, ops in operations(bundle) for o in ops.values())
        return
    with pytest.raises(TopocError) as caught:
        gemma3.compile("none")
    (finding,) = caught.value.findings
    assert (finding.code, finding.at.at.text) == ("calibrate.missing", "activations: int8")
    assert "--calibrate" in finding.help


def test_a_text_changes_nothing_in_fp32(gemma3):
    with pytest.raises(TopocError, match="nothing is palettized"):
        gemma3.compile("fp32 text", precision="fp32", calibrate=TEXT)


def called(gemma3, folder, *options):
    (folder / "text").write_text(TEXT)
    file = gemma3.checkpoint / f"{folder.name}.topo"
    file.write_text(text_of(RULES).replace("context 64", f"context 64\n  {TARGET}"))
    asked = ["compile", file, "--weights", gemma3.checkpoint, "-o", folder / "b", "--no-cache"]
    return CliRunner().invoke(main, [str(one) for one in (*asked, *options)])


def test_lint_stops_a_compile_until_it_is_allowed(gemma3, tmp_path):
    text = ("--calibrate", tmp_path / "text")
    stopped = called(gemma3, tmp_path, *text)
    assert stopped.exit_code == 1
    assert "error[quant.activations]" in stopped.stderr
    assert not (tmp_path / "b").exists()

    made = called(gemma3, tmp_path, *text, "--allow", "quant.activations=a Mac is to run it")
    assert made.exit_code == 0, made.output
    found = CliRunner().invoke(main, ["lint", str(tmp_path / "b")])
    assert found.exit_code == 0
    assert "note[quant.activations]" in found.stdout


def test_rules_on_programs_see_the_ops_before_and_after_a_compile(gemma3):
    file = gemma3.checkpoint / "seen.topo"
    allow = f'context 64\n  {TARGET}\n  allow quant.activations because "a Mac is to run it"'
    file.write_text(text_of(RULES).replace("context 64", allow))
    topology, _ = load(file)
    for one in emitted(topology):
        (function,) = one.subject.package.functions
        there, back = (len(list(function.of(kind))) for kind in ("quantize", "dequantize"))
        assert there == back >= 8
    found = CliRunner().invoke(main, ["lint", str(file), "--mil"])
    assert found.exit_code == 0
    assert "want programs" not in found.stdout

    found = CliRunner().invoke(main, ["lint", str(gemma3.bundle.path / "one.mlpackage")])
    assert found.exit_code == 1
    assert "activations are quantised, which phones refuse and Macs gain nothing by" in found.stdout


def test_a_runtime_s_features_may_have_it(tmp_path):
    made = Made(tmp_path)
    checkpoint = made.checkpoint()
    text = TEXTS["A"].replace("coreml_llm", "coreml_llm\n  quantize { activations: int8 }")
    words = " ".join(f"w{(37 * at) % 131}" for at in range(300))
    request = evolve(made.request(text, checkpoint.folder), calibrate=words)
    compile_bundle(request, tmp_path / "b")
    bundle = open_bundle(tmp_path / "b")

    assert len(told(bundle)) > 35 * 7
    assert all(one.kept for one in prove(bundle, checkpoint.oracle, (0, 1, 9)))
