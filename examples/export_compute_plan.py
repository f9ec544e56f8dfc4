"""Write what Core ML plans for each op of a package, for `topoc lint --ops --plan`.

    python examples/export_compute_plan.py decode.mlpackage -o plan.json [--units ane]

It needs a Mac with macOS 14.4 or later and coremltools 9. Unproven: it was written from the
interface of coremltools and has run on no Mac yet. A plan tells where ops would run; the memory of
a process may still tell otherwise.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNITS = {"ane": "CPU_AND_NE", "all": "ALL", "gpu": "CPU_AND_GPU", "cpu": "CPU_ONLY"}
DEVICES = {
    "MLNeuralEngineComputeDevice": "ane",
    "MLCPUComputeDevice": "cpu",
    "MLGPUComputeDevice": "gpu",
}
SCHEMA = "topoc.compute-plan/1"


def main() -> None:
    """Plan the package, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--units", choices=UNITS, default="ane")
    options = parser.parse_args()
    if sys.platform != "darwin":
        sys.exit("Core ML plans on macOS only")
    functions = planned(options.package, options.units)
    model = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "hw.model"], capture_output=True, text=True, check=True
    )
    plan = {
        "schema": SCHEMA,
        "model": options.package.name,
        "device": model.stdout.strip(),
        "system": f"macOS {platform.mac_ver()[0]}",
        "units": options.units,
        "functions": functions,
    }
    options.output.write_text(json.dumps(plan, indent=1) + "\n")


def planned(package: Path, units: str) -> dict[str, list[dict[str, Any]]]:
    """The ops of every function, those in blocks included."""
    # here, so that what is no Mac gets its answer before a long import
    import coremltools as ct  # noqa: PLC0415
    from coremltools.models.compute_plan import MLComputePlan  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        compiled = ct.models.utils.compile_model(str(package), str(Path(folder) / "m.mlmodelc"))
        plan = MLComputePlan.load_from_path(compiled, ct.ComputeUnit[UNITS[units]])
        functions = plan.model_structure.program.functions
        return {name: list(ops(plan, function.block)) for name, function in functions.items()}


def ops(plan: Any, block: Any) -> Iterator[dict[str, Any]]:  # coremltools has no types
    """One entry an op that has a result."""
    for op in block.operations:
        if op.outputs:
            yield told(plan, op)
        for inner in op.blocks:
            yield from ops(plan, inner)


def told(plan: Any, op: Any) -> dict[str, Any]:  # as above
    """An op, the device that is preferred, those that could run it, and its share of the cost."""
    usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
    cost = plan.get_estimated_cost_for_mlprogram_operation(op)
    return {
        "op": op.operator_name,
        "output": op.outputs[0].name,
        "unit": None if usage is None else called(usage.preferred_compute_device),
        "supported": [] if usage is None else [called(d) for d in usage.supported_compute_devices],
        "cost": None if cost is None else cost.weight,
    }


def called(device: Any) -> str | None:  # as above
    """Our word for a device."""
    return DEVICES.get(type(device).__name__)


if __name__ == "__main__":
    main()
