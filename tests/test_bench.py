"""`topoc bench`, with coremltools and the clock replaced: figures that a topology can hold."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_bundle import tiny_manifest, write_bundle
from tiny_reader import Reader, truth
from topo_text import gemma3, resolved

from topoc.dsl.cli import main
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.bundle.writes import states_of
from topoc.lowering.cli import bench
from topoc.lowering.engine import predict, stopwatch
from topoc.lowering.engine.driver import Engine

# Seconds of the calls of a step, one after another; the first loads.
SLOW = {
    ("near", "decode"): (9, 0.005, 0.007, 0.0065),
    ("far", "decode"): (9, 0.002, 0.001, 0.002),
    ("near", "prefill_4"): (9, 0.020, 0.030, 0.010),
    ("far", "prefill_4"): (9, 0.0004, 0.0005, 0.0006),
    ("near", "prefill_7"): (9, 0.04, 0.04, 0.04),
    ("far", "prefill_7"): (9, 0.05, 0.05, 0.05),
    ("near", "verify_3"): (9, 0.012, 0.011, 0.013),
    ("far", "verify_3"): (9, 0.003, 0.003, 0.003),
}
MEDIANS = """\
  near decode 6.50 ms  # 5.00 to 7.00
  far decode 2.00 ms  # 1.00 to 2.00
  decode 8.00 ms  # 7.00 to 8.50
  near prefill_4 20.00 ms  # 10.00 to 30.00
  far prefill_4 0.5000 ms  # 0.4000 to 0.6000
  prefill_4 20.40 ms  # 10.60 to 30.50
  near prefill_7 40.00 ms  # 40.00 to 40.00
  far prefill_7 50.00 ms  # 50.00 to 50.00
  prefill_7 90.00 ms  # 90.00 to 90.00
  near verify_3 12.00 ms  # 11.00 to 13.00
  far verify_3 3.00 ms  # 3.00 to 3.00
  verify_3 15.00 ms  # 14.00 to 16.00
"""


class State:
    """An MLState: what a package keeps, by the names of its features."""

    def __init__(self, step):
        shapes = {one.feature: one.shape for one in step.inputs if one.source.kind == "state"}
        self.package = step.package
        self.values = {(step.package, of): np.zeros(shape) for of, shape in shapes.items()}

    def read_state(self, name):
        return self.values[self.package, name]

    def write_state(self, name, value):
        assert value.shape == self.values[self.package, name].shape
        self.values[self.package, name][...] = value


class Clock:
    """Time that only predictions take."""

    def __init__(self):
        self.now, self.calls = 100.0, {}

    def __call__(self):
        return self.now

    def predicts(self, package, function):
        key = Path(package).stem, function
        at = self.calls[key] = self.calls.get(key, -1) + 1
        self.now += SLOW[key][min(at, 3)]


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(stopwatch, "measure", partial(stopwatch.measure, clock=made))
    return made


@pytest.fixture
def path(tmp_path):
    write_bundle(tmp_path / "b", tiny_manifest())
    return tmp_path / "b"


@pytest.fixture
def mac(monkeypatch, path, clock):
    """A Mac whose Core ML computes what the tiny reader does, in the clock's time."""
    loaded = []

    def steps(package, function):
        (made,) = [
            step
            for one in open_bundle(Path(package).parent).manifest.functions
            for step in one.steps
            if (step.package, step.function) == (Path(package).name, function)
        ]
        return made

    class MLModel:
        def __init__(self, package, *, compute_units, function_name):
            self.step = steps(package, function_name)
            loaded.append((Path(package).name, function_name, compute_units))

        def make_state(self):
            return State(self.step)

        def predict(self, inputs, state=None):
            kept = {name for name, _ in states_of(self.step)}
            assert set(inputs) == {one.feature for one in self.step.inputs} - kept
            assert (state is None) == (not kept)
            clock.predicts(self.step.package, self.step.function)
            reader = Reader()
            reader.states = state.values if state else {}
            return reader.predict(self.step, inputs, ())

    coremltools = ModuleType("coremltools")
    coremltools.models = SimpleNamespace(MLModel=MLModel)
    coremltools.ComputeUnit = SimpleNamespace(CPU_AND_NE="ne")
    monkeypatch.setitem(sys.modules, "coremltools", coremltools)
    monkeypatch.setattr(predict, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(bench, "_sysctl", {"hw.model": "Mac15,3"}.get)
    monkeypatch.setattr(bench.platform, "mac_ver", lambda: ("26.1", (), ""))
    return loaded


def benched(*arguments, status=0):
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def test_a_mac_gives_a_block_of_medians_without_the_first_calls(path, mac):
    found = benched(path, "--rounds", 3, "--warm", 1)
    head, rest = found.stdout.split("\n", 1)
    assert head.startswith("measured on 20")
    assert rest == (
        '  device "Mac15,3"\n  under  "macOS 26.1, coremltools 9.0, topoc bench"\n'
        + MEDIANS
        + "}\n"
    )
    assert found.stderr == "median of 3 calls, 1 before them; the range is that of all\n"


def test_the_block_can_be_pasted(path, mac):
    block = benched(path, "--rounds", 3, "--warm", 1, "--device", 'A "new" \\ phone').stdout
    chunks = "chunk near = L0-5\n  chunk far = L6-17 + norm + head(argmax)"
    more = "functions decode, prefill(tokens = 4), prefill(tokens = 7), verify(tokens = 3)"
    topology, findings = resolved(gemma3(f"{more}\n{block}", chunks=chunks))
    assert not [(one.code, one.message) for one in findings]
    (measured,) = topology.measurements
    assert dict(measured.notes)["device"] == 'A "new" \\ phone'
    assert (("near", "decode"), 6.5, "ms") in measured.figures
    assert (("verify_3",), 15.0, "ms") in measured.figures
    assert len(measured.figures) == 12


def test_each_function_of_a_package_is_loaded_once_for_its_unit(path, mac):
    benched(path, "--rounds", 3, "--warm", 1)
    assert sorted(mac) == sorted((f"{name}.mlpackage", of, "ne") for name, of in SLOW)


@pytest.mark.parametrize("write", ["append", "slice"])
def test_packages_with_states_are_measured_and_keep_them(path, mac, write):
    """Rows stored by the host and by the graph; the answers tell whether they were kept."""
    write_bundle(path.parent / "kept", tiny_manifest(write, store="state"))
    found = benched(path.parent / "kept", "--rounds", 3, "--warm", 1).stdout
    assert found.endswith(MEDIANS + "}\n")
    bundle, tokens = open_bundle(path.parent / "kept"), [3, 1, 4, 1, 5, 9, 2, 6]
    engine = Engine(bundle, predict.CoreMLPredictor(bundle), want_logits=False)
    near_and_far = [engine.feed([one], only="decode").hidden for one in tokens]
    assert [tuple(map(round, one)) for one in near_and_far] == truth(tokens)


def test_the_context_is_begun_again_where_it_is_full(path, mac):
    found = benched(path, "--rounds", 90, "--function", "prefill_7")
    assert found.stdout.count("prefill_7") == 3


class Timed(Reader):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def predict(self, step, inputs, probes):
        self.clock.predicts(step.package, step.function)
        return super().predict(step, inputs, probes)


def test_the_interpreter_says_that_it_is_no_device(path, clock, monkeypatch):
    monkeypatch.setattr(predict, "InterpreterPredictor", lambda *_: Timed(clock))
    lines = benched(path, "--engine", "interpreter", "--rounds", 3, "--warm", 1).stdout.splitlines()
    assert all(line.startswith("# ") for line in lines)  # nothing that a fit could read
    assert lines[0].startswith("# no device: the interpreter on ")
    assert [line.removeprefix("# ") for line in lines[1:]] == MEDIANS.splitlines()


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Core ML")
def test_elsewhere_core_ml_is_refused(path):
    refused = benched(path, status=2).stderr
    assert "run.no-core-ml" in refused
    assert "use `--engine interpreter`" in refused


def test_a_function_that_is_none_is_refused(path):
    refused = benched(path, "--function", "prefill_9", status=2).stderr
    assert "error[run.no-such-function]: `tiny` has no function `prefill_9`" in refused
    assert "name one of decode, prefill_4, prefill_7, verify_3" in refused
