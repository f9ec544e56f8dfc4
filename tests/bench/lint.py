"""How long lint takes over programs, against reading the same package with coremltools.

    python tests/bench/lint.py [TOPOLOGY] [--ops N] [--rounds N] [--smoke]

Two things are timed as users call them, each in a process of its own:

- `topoc lint --mil TOPOLOGY`, against importing the builder of coremltools; by default of Gemma 4
  E2B with three functions, decode, a prefill of 64 and a verify of 3. First with an empty cache,
  where it asks the builder for each different op, then with what that has kept;
- `topoc lint` of a package of N ops that another tool made, against coremltools' `load_spec` of it.

Medians and ratios are printed. Above 12 s for the programs or 3 s for the package the exit status
is 1. `--smoke` runs little once, without limits.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from topoc.lowering.coreml_proto import messages, mil
from topoc.lowering.package import prepare, write_description

E2B = """topology e2b_three_functions extends swa4 {
  functions decode, prefill(tokens = 64), verify(tokens = 3)
}
"""
PROGRAMS, PACKAGE = 12.0, 3.0  # seconds
TOPOC = [sys.executable, "-c", "from topoc.dsl.cli import main; main()", "lint"]
BUILDER = "from topoc.lowering.emit.mil.toolkit import toolkit; toolkit()"
LOAD = "import sys, coremltools; coremltools.utils.load_spec(sys.argv[1])"
CYCLE = ("conv", "mul", "add", "reshape", "transpose", "matmul", "softmax", "slice_by_index")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("topology", nargs="?", help="E2B with three functions by default")
    parser.add_argument("--ops", type=int, default=16_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="one round of little, no limit")
    options = parser.parse_args()
    rounds, count = (1, 200) if options.smoke else (options.rounds, options.ops)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "e2b_three_functions.topo"
        file.write_text(E2B, "utf-8")
        topology = options.topology or ("gemma3_270m" if options.smoke else str(file))
        path = foreign(Path(folder) / "foreign.mlpackage", count)
        programs, name = [*TOPOC, "--mil", topology], Path(topology).stem
        os.environ["XDG_CACHE_HOME"] = cache = str(Path(folder) / "cache")
        empty = partial(shutil.rmtree, cache, ignore_errors=True)
        slow = [
            compared(f"--mil {name}, first", programs, BUILDER, rounds, before=empty) > PROGRAMS,
            compared(f"--mil {name}, again", programs, BUILDER, rounds) > PROGRAMS,
            compared(f"package of {count:,} ops", [*TOPOC, path], LOAD, rounds, path) > PACKAGE,
        ]
    sys.exit(any(slow) and not options.smoke)


def compared(name, command, code, rounds, *arguments, before=lambda: None):
    """The median seconds of a command, printed beside those of its peer in the same rounds."""
    times = {"topoc": [], "peer": []}
    for _ in range(rounds):
        calls = {"topoc": command, "peer": [sys.executable, "-c", code, *arguments]}
        for who, call in calls.items():
            before()
            began = perf_counter()
            done = subprocess.run(call, check=False, capture_output=True, text=True)
            times[who].append(perf_counter() - began)
            assert done.returncode in {0, who == "topoc"}, done.stderr  # 1: there are findings
            assert "want programs" not in done.stdout, done.stdout  # they were built
    ours, peer = median(times["topoc"]), median(times["peer"])
    print(f"{name:40} {ours:6.2f} s, {ours / peer:5.2f} times its peer ({peer:.2f} s)")
    return ours


def foreign(path, count):
    """A package of so many ops with blocks, constants and compressed weights; no weight file."""
    model = messages().Model(specificationVersion=9)
    function = model.mlProgram.functions["main"]
    function.opset = "CoreML8"
    block = function.block_specializations["CoreML8"]
    function.inputs.append(typed("x", (1, 64, 1, 8)))
    last = "x"
    for at in range(count):
        kind, value = CYCLE[at % len(CYCLE)], f"v{at}"
        op = block.operations.add(type=kind)
        op.attributes["name"].CopyFrom(text(value))
        op.inputs["x"].arguments.add().name = last
        op.inputs["y"].arguments.add().name = weight(block, f"w{at}", at)
        op.outputs.append(typed(value, (1, 64, 1, 8)))
        last = value
    block.outputs.append(last)
    prepare(path)
    write_description(path, model.SerializeToString(deterministic=True))
    return str(path)


def weight(block, name, at):
    """A constant, every fourth of them a palette."""
    palette = at % 4 == 0
    op = block.operations.add(type="constexpr_lut_to_dense" if palette else "const")
    op.attributes["name"].CopyFrom(text(name))
    for key in ("indices", "lut") if palette else ("val",):
        value = op.inputs[key].arguments.add().value if palette else op.attributes[key]
        value.type.CopyFrom(typed("", (64, 64, 1, 1)).type)
        value.blobFileValue.fileName = "@model_path/weights/weight.bin"
        value.blobFileValue.offset = 64 * at
    op.outputs.append(typed(name, (64, 64, 1, 1)))
    return name


def text(value):
    found = mil().Value()
    found.type.tensorType.dataType = mil().STRING
    found.immediateValue.tensor.strings.values.append(value)
    return found


def typed(name, shape):
    named = mil().NamedValueType(name=name)
    tensor = named.type.tensorType
    tensor.dataType, tensor.rank = mil().FLOAT16, len(shape)
    for size in shape:
        tensor.dimensions.add().constant.size = size
    return named


if __name__ == "__main__":
    main()
