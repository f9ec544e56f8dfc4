"""Runs of a tensor's rows: streamed alone, or copied from where all rows stand already."""

from io import BytesIO
from struct import unpack_from

import numpy as np
import pytest
import torch
from attrs import evolve
from tiny_topology import Drawn, write_package

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.ir import Binding, DType, Input, Output, Program, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.linear import Linear
from topoc.lowering.stored import Rounded

ROWS, WIDTH = 24, 16
WHOLE = Weight("embed", TensorType(DType.FP16, (ROWS, WIDTH)))
CUTS = ((0, 5), (5, 14), (14, 24))


def run_of(first, last, weight=WHOLE):
    return evolve(weight, first=first, type=evolve(weight.type, shape=(last - first, WIDTH)))


def sliced(cuts=CUTS, whole=WHOLE, name="main"):
    """A head whose logits come in slices."""
    x = Value("x", TensorType(whole.type.dtype, (1, WIDTH, 1, 1)))
    ops = [Linear(x, run_of(*cut, whole)) for cut in cuts]
    made = [Value(f"y{at}", op.result_type()) for at, op in enumerate(ops)]
    bindings = (Binding((y,), op) for y, op in zip(made, ops, strict=True))
    outputs = (Output(y, Sink(kind="value", name=y.name)) for y in made)
    given = Input(x, Source(kind="value", name="x"))
    return Program(name, (given,), tuple(bindings), tuple(outputs))


class Counted(Drawn):
    """Tells which runs were streamed."""

    def blocks(self, role, *, run=None, **options):
        STREAMED.append((role, run))
        return super().blocks(role, run=run, **options)


STREAMED: list[tuple[str, tuple[int, int] | None]] = []


@pytest.fixture
def counted():
    STREAMED.clear()
    return Counted({"embed": (ROWS, WIDTH)})


def rows(weights, first, last, kind=torch.float16):
    return weights.whole("embed")[first:last].to(kind).numpy().tobytes()


def test_each_run_is_a_record_of_its_own_rows(tmp_path, counted):
    path = write_package((sliced(),), counted, tmp_path / "p.mlpackage", DType.FP16)
    data = (path / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()
    at = 64
    for first, last in CUTS:
        _, _, size, start, _ = unpack_from("<IIQQQ", data, at)
        assert data[start : start + size] == rows(counted, first, last)
        at = -(-(start + size) // 64) * 64
    assert at >= len(data)
    assert [("embed", cut) for cut in CUTS] == STREAMED


@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32], ids=lambda one: one.value)
def test_slices_of_a_head_are_the_head_in_slices(dtype, tmp_path, counted):
    whole = evolve(WHOLE, type=evolve(WHOLE.type, dtype=dtype), factor=0.5, offset=1.0)
    path = write_package((sliced(whole=whole),), counted, tmp_path / "p.mlpackage", dtype)
    x = torch.arange(WIDTH, dtype=torch.float32) / 8 - 1
    found = Machine(path).run({"x": x.reshape(1, WIDTH, 1, 1)})
    together = torch.cat([found[f"y{at}"].flatten() for at in range(len(CUTS))])
    kind = torch.float16 if dtype is DType.FP16 else torch.float32
    assert torch.allclose(together, counted.fetch(whole, kind) @ x, rtol=1e-5, atol=1e-5)


def appended(rounded, file, path, weight):
    start = file.tell()
    rounded.append_to(file, path, weight)
    file.flush()
    return start


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_what_stands_already_is_copied_and_not_made_again(factor, tmp_path, counted):
    told = []
    rounded = Rounded(counted, told.append)
    whole, path = evolve(WHOLE, factor=factor), tmp_path / "table.bin"
    with path.open("w+b") as file:
        file.write(b"before")
        appended(rounded, file, path, whole)
    STREAMED.clear()
    other = tmp_path / "weight.bin"
    with other.open("w+b") as file:
        for first, last in CUTS:
            appended(rounded, file, other, run_of(first, last, whole))
    assert STREAMED == []
    wanted = (counted.whole("embed") * factor).half().numpy().tobytes()
    assert other.read_bytes() == wanted
    assert path.read_bytes() == b"before" + wanted
    assert told == [one.type.bytes for one in (whole, *runs(whole))]


def runs(whole):
    return [run_of(*cut, whole) for cut in CUTS]


def test_a_run_under_another_recipe_or_type_is_made_anew(tmp_path, counted):
    rounded, path = Rounded(counted, lambda _: None), tmp_path / "weight.bin"
    wide = evolve(WHOLE, type=TensorType(DType.FP32, (ROWS, WIDTH)))
    with path.open("w+b") as file:
        appended(rounded, file, path, WHOLE)
        STREAMED.clear()
        start = appended(rounded, file, path, run_of(5, 9, wide))
        half = appended(rounded, file, path, run_of(5, 9, evolve(WHOLE, factor=0.5)))
    assert STREAMED == [("embed", (5, 9))] * 2
    data = path.read_bytes()
    assert data[start:half] == rows(counted, 5, 9, torch.float32)
    assert np.array_equal(
        np.frombuffer(data[half:], np.float16) * 2, np.frombuffer(rows(counted, 5, 9), np.float16)
    )


def test_a_run_that_was_written_is_copied_and_its_neighbour_is_not(tmp_path, counted):
    rounded, path = Rounded(counted, lambda _: None), tmp_path / "weight.bin"
    with path.open("w+b") as file:
        for cut in ((3, 7), (3, 7), (7, 11)):
            appended(rounded, file, path, run_of(*cut))
    assert STREAMED == [("embed", (3, 7)), ("embed", (7, 11))]
    assert path.read_bytes() == rows(counted, 3, 7) * 2 + rows(counted, 7, 11)


def test_a_run_that_leaves_fp16_by_its_recipe_is_told(counted):
    rounded = Rounded(counted, lambda _: None)
    large = evolve(run_of(2, 4), factor=1e6)
    with pytest.raises(TopocError, match=r"leaves fp16 as embed\[2:4\]"):
        rounded.append_to(BytesIO(), None, large)


def test_a_file_that_became_shorter_is_told(tmp_path, counted):
    rounded, path = Rounded(counted, lambda _: None), tmp_path / "table.bin"
    with path.open("w+b") as file:
        appended(rounded, file, path, WHOLE)
        file.truncate(100)
        file.seek(0)
        with pytest.raises(OSError, match="became shorter"):
            rounded.append_to(BytesIO(), tmp_path / "other", run_of(5, 9))


def test_whole_and_runs_are_different_constants():
    keys = {one.key for one in (WHOLE, run_of(0, 5), run_of(0, 6), run_of(1, 6))}
    assert keys == {"embed", "embed[0:5]", "embed[0:6]", "embed[1:6]"}
