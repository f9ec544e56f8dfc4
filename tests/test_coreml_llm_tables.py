"""The runtime's host tables: int8 rows with fp16 scales, angles in two files, and their limits."""

import json
import shutil

import numpy as np
import pytest
import torch
from attrs import evolve
from coreml_llm_bundles import Made
from safetensors.torch import load_file, save_file
from tiny_bundle import tiny_manifest
from tiny_gemma4 import E2B, text_config

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle, BundleWriter, examine, open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.tables import HostTables
from topoc.lowering.plan import plan
from topoc.lowering.stored import Rounded
from topoc.lowering.tables import write_ropes, write_table

TEXT = "topology t extends swa4 {\n  features coreml_llm\n}\n"
NAMES = {"embed": "embed_tokens", "ple_table": "embed_tokens_per_layer"}
LEAST = 2.0**-24  # the least that fp16 holds above zero
# The greatest |value| of a row, and its scale: fp16's nearest, but never its zero.
PEAKS = {
    0: (0.0, LEAST),
    1: (1e-9, LEAST),
    2: (2.0**-25, LEAST),  # a tie, which fp16 takes to zero
    3: (2.0**-25 * 1.01, LEAST),
    4: (LEAST, LEAST),
    5: (1e-6, 17 * LEAST),
    6: (1.0004, 1.0),  # rounded down: the peak is 127.05 steps
    7: (1.0006, 1.0 + 2**-10),  # rounded up: the peak is 126.95 steps
    8: (65504.0, 65504.0),
    9: (65519.0, 65504.0),
    10: (1.4 * LEAST, LEAST),  # 178 steps, of which a byte holds 127
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("tables"))


def altered(made, target, change, **config):
    """A folder like the checkpoint's, with other tensors."""
    target.mkdir()
    tensors = load_file(made.checkpoint().folder / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(text_config(**E2B, **config)))
    return target


def with_peaks(tensors):
    """Rows of known peaks, the peak below zero and in the middle."""
    for name in NAMES.values():
        table = tensors[f"model.{name}.weight"]
        for row, (peak, _) in PEAKS.items():
            table[row] = torch.linspace(-0.5, 0.5, table.shape[1]) * peak
            table[row, 7] = -peak


def laid(made, checkpoint):
    request = made.request(TEXT, checkpoint)
    weights = bind(open_checkpoint(str(checkpoint)), read(checkpoint))
    return plan(request.topology, weights.architecture), Rounded(weights, lambda _: None)


@pytest.fixture(scope="module")
def extreme(made, tmp_path_factory):
    """The tables of rows of known peaks, as stored and as they were."""
    folder = tmp_path_factory.mktemp("extreme")
    planned, rounded = laid(made, altered(made, folder / "checkpoint", with_peaks))
    tables = {name: write_table(planned, rounded, folder, name) for name in NAMES}
    return folder, tables, {name: rounded.weights.rows(name, 0, 131).numpy() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_127ths_of_the_rounded_peak(extreme, name):
    folder, tables, values = extreme
    told, stored = tables[name], values[name]
    assert (told.path, told.scales) == (f"{NAMES[name]}_q8.bin", f"{NAMES[name]}_scales.bin")
    assert (told.dtype, told.scales_dtype, told.divisor) == ("int8", "fp16", 127.0)
    codes = np.fromfile(folder / told.path, np.int8).reshape(stored.shape)
    scales = np.fromfile(folder / told.scales, "<f2")
    assert scales.shape == (131,)
    peaks = np.abs(stored).max(1)
    assert {row: float(scales[row]) for row in PEAKS} == {row: s for row, (_, s) in PEAKS.items()}
    assert np.array_equal(scales[11:], peaks[11:].astype(np.float16))
    steps = stored.astype(np.float64) * 127 / scales.astype(np.float64)[:, None]
    assert np.abs(np.clip(steps, -127, 127) - codes).max() <= 0.5 + 1e-4
    reach = np.abs(codes.astype(int)).max(1)
    assert [reach[row] for row in PEAKS] == [0, 2, 64, 64, 127, 125, *[127] * 5]
    assert (reach[11:] == 127).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_reads_every_row_back_to_half_a_step(extreme, name):
    folder, tables, values = extreme
    host = HostTables(Bundle(folder, evolve(tiny_manifest(), tables=tables, ropes={})))
    found = host.rows(name, range(131)) / np.float32(tables[name].multiplier)
    scales = np.fromfile(folder / tables[name].scales, "<f2").astype(np.float32)[:, None]
    wrong = np.abs(found - values[name])
    rounding = 2.0**-11 * scales + 2.0**-25  # by which a peak may pass its scale
    assert (wrong <= scales / 254 * 1.001 + rounding).all()
    assert not found[0].any()
    assert np.isfinite(found).all()


def test_rows_come_in_blocks(made, tmp_path, monkeypatch):
    planned, rounded = laid(made, made.checkpoint().folder)
    whole = write_table(planned, rounded, tmp_path, "ple_table")
    before = [(tmp_path / one).read_bytes() for one in (whole.path, whole.scales)]
    blocks, sizes = type(rounded.weights).blocks, []

    def small(self, role, **options):
        for block in blocks(self, role, 5 * 4 * 280, **options):
            sizes.append(len(block))
            yield block

    monkeypatch.setattr(type(rounded.weights), "blocks", small)
    again = write_table(planned, rounded, tmp_path, "ple_table")
    assert [(tmp_path / one).read_bytes() for one in (again.path, again.scales)] == before
    assert max(sizes) == 5


def test_a_row_beyond_fp16_is_refused(made, tmp_path):
    def beyond(tensors):
        tensors["model.embed_tokens.weight"][4, 4] = 65_520.0

    planned, rounded = laid(made, altered(made, tmp_path / "checkpoint", beyond))
    with pytest.raises(TopocError, match=r"checkpoint\.beyond-fp16"):
        write_table(planned, rounded, tmp_path, "embed")


def test_angles_are_transformers_own(made, tmp_path):
    """Also far beyond the context: the table is as long as the runtime's is."""
    planned, _ = laid(made, made.checkpoint().folder)
    told = write_ropes(planned, tmp_path)
    theirs = made.checkpoint().oracle.model.model.rotary_emb
    for kind in ("sliding", "full"):
        cosines, sines = (np.load(tmp_path / f"{half}_{kind}.npy") for half in ("cos", "sin"))
        assert (told[kind].path, told[kind].sines) == (f"cos_{kind}.npy", f"sin_{kind}.npy")
        assert cosines.shape == sines.shape == (told[kind].positions, told[kind].width)
        assert told[kind].positions == 4096
        at = torch.tensor([[0, 1, 63, 64, 1000, 4095]])
        wanted = theirs(torch.zeros(1, 6, 8), at, f"{kind}_attention")
        for mine, other in zip((cosines, sines), wanted, strict=True):
            # their angles are products in fp32, which a far position shows
            assert np.abs(mine[at[0]] - other[0].numpy()).max() < 1.5e-3


@pytest.mark.parametrize("context", [64, 2048, 5000])
def test_angles_come_in_blocks(made, tmp_path, context, monkeypatch):
    from topoc.lowering import tables
    from topoc.lowering.rope import table

    monkeypatch.setattr(tables, "ROPE_BLOCK", 999)
    planned, _ = laid(made, made.checkpoint().folder)
    planned = evolve(planned, topology=evolve(planned.topology, context=context))
    told = write_ropes(planned, tmp_path)
    rows = max(2 * context, 4096)
    whole = table(planned.architecture.rope("full"), rows, np.float16)
    assert told["full"].positions == rows
    assert np.array_equal(np.load(tmp_path / "cos_full.npy"), whole[0])
    assert np.array_equal(np.load(tmp_path / "sin_full.npy"), whole[1])


# --- what keeps a checkpoint from such a bundle -----------------------------------------------


def refusal(made, checkpoint, target):
    with pytest.raises(TopocError) as failure:
        compile_bundle(made.request(TEXT, checkpoint), target)
    assert not target.exists()
    (found,) = failure.value.findings
    assert found.code == "features.cannot-express"
    assert found.at.at.text == "t"
    return found.message


def test_a_stream_that_needs_a_scale_is_refused(made, tmp_path):
    """The runtime's embeddings come as they are, and fp16 would not hold what they grow to."""

    def large(tensors):
        tensors["model.embed_tokens.weight"] *= 2.0**13

    checkpoint = altered(made, tmp_path / "checkpoint", large)
    found = refusal(made, checkpoint, tmp_path / "bundle")
    assert "feeds embeddings unscaled, and fp16 holds this stream times 0." in found
    for text in (TEXT.replace("coreml_llm", "topoc"), TEXT):
        request = evolve(made.request(text, checkpoint), rescale=text != TEXT)
        told = compile_bundle(request, tmp_path / "bundle")
        assert (set(told.residual_scales) == {1.0}) == (text == TEXT)


def test_tokens_without_a_per_layer_row_are_refused(made, tmp_path):
    def fewer(tensors):
        name = "model.embed_tokens_per_layer.weight"
        tensors[name] = tensors[name][:100].clone()

    checkpoint = altered(made, tmp_path / "c", fewer, vocab_size_per_layer_input=100)
    found = refusal(made, checkpoint, tmp_path / "bundle")
    assert "looks for a per-layer row of every token, and 100 of 131 tokens have one" in found


# --- what opening looks at --------------------------------------------------------------------


def opened_with(sound, target, change):
    """The codes of what is wrong with a bundle whose files were changed before it was sealed."""
    with BundleWriter(target) as writer:
        shutil.copytree(sound.path, writer.directory, dirs_exist_ok=True)
        writer.seal(change(writer.directory, sound.manifest))
    return {(one.code, one.message) for one in examine(target)[1]}


def wide_scales(folder, manifest):
    file = folder / "embed_tokens_scales.bin"
    np.fromfile(file, "<f2").astype("<f4").tofile(file)
    return manifest


def shorter_sines(folder, manifest):
    file = folder / "sin_full.npy"
    np.save(file, np.load(file)[:64])
    return manifest


def sines_gone(folder, manifest):
    (folder / "sin_full.npy").unlink()
    return manifest


def halves_in_one(folder, manifest):
    ropes = {name: evolve(one, sines=None) for name, one in manifest.ropes.items()}
    return evolve(manifest, ropes=ropes)


def divided_by(number):
    def change(_, manifest):
        tables = {name: evolve(one, divisor=number) for name, one in manifest.tables.items()}
        return evolve(manifest, tables=tables)

    return change


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (wide_scales, "bundle.shapes-disagree", "has 524 bytes, and table `embed` asks for 262"),
        (shorter_sines, "bundle.shapes-disagree", "`sin_full.npy` is not floats of (4096, 32)"),
        (sines_gone, "bundle.not-listed", "`sin_full.npy` is used and not listed"),
        (halves_in_one, "bundle.shapes-disagree", "`cos_full.npy` is not floats of (2, 4096, 32)"),
        (divided_by(0.0), "bundle.scale", "the divisor is 0.0, not above zero"),
    ],
)
def test_a_bundle_whose_tables_are_not_as_told_is_refused(made, tmp_path, change, code, words):
    found = opened_with(made.bundle("A"), tmp_path / "bundle", change)
    assert any(one == code and words in message for one, message in found), found


def test_an_untouched_copy_opens(made, tmp_path):
    assert not opened_with(made.bundle("A"), tmp_path / "bundle", lambda _, manifest: manifest)
    assert open_bundle(tmp_path / "bundle").manifest.ropes["full"].sines == "sin_full.npy"
