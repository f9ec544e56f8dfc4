"""A compiled bundle with every feature, buffer, chunk, function and file called otherwise."""

import json
import random
import shutil
from pathlib import Path

from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.coreml_proto import messages


def renamed_copy(bundle: Path, target: Path, seed: int) -> Path:
    """Copy a bundle, renaming all that a host might be tempted to read meaning from."""
    names = Names(random.Random(seed))
    manifest = json.loads((bundle / "manifest.json").read_text())
    target.mkdir()
    for file in manifest["files"]:
        source, new = bundle / file["path"], target / names.of(file["path"])
        if source.is_dir():
            shutil.copytree(source, new)
            _rename_package(new, names)
        else:
            shutil.copyfile(source, new)
    renamed = _renamed(manifest, names)
    for file in renamed["files"]:
        file["bytes"], file["sha256"] = tree_digest(target / file["path"])
    renamed["files"].sort(key=lambda one: one["path"])
    (target / "manifest.json").write_text(json.dumps(renamed))
    return target


class Names:
    """Random names, the same for the same old one."""

    def __init__(self, rng):
        self.rng, self.new = rng, {}

    def of(self, old):
        if old is None:
            return None
        if old not in self.new:
            self.new[old] = f"n{self.rng.randrange(16**10):x}"
        return self.new[old]


def _renamed(manifest, names):
    """The manifest with every name replaced; meanings stay."""
    for file in manifest["files"]:
        file["path"] = names.of(file["path"])
    for group in ("tables", "ropes"):
        for one in manifest[group].values():
            one["path"] = names.of(one["path"])
            if "scales" in one:
                one["scales"] = names.of(one["scales"])
        manifest[group] = {names.of(key): one for key, one in manifest[group].items()}
    for buffer in manifest["buffers"]:
        buffer["id"] = names.of(buffer["id"])
    if manifest["per_layer"] is not None:
        for part in ("embedding", "rows", "projection", "gain"):
            manifest["per_layer"][part] = names.of(manifest["per_layer"][part])
    manifest["tokenizer"] = [names.of(one) for one in manifest["tokenizer"]]
    for function in manifest["functions"]:
        function["name"] = names.of(function["name"])
        for one in function["copies"]:
            one["buffer"], one["package"] = names.of(one["buffer"]), names.of(one["package"])
            one["others"] = [names.of(other) for other in one["others"]]
        for step in function["steps"]:
            step["package"], step["function"] = (
                names.of(step["package"]),
                names.of(step["function"]),
            )
            for one in step["inputs"]:
                one["feature"] = names.of(one["feature"])
                one["source"]["name"] = names.of(one["source"]["name"])
            for one in step["outputs"]:
                one["feature"] = names.of(one["feature"])
                one["sink"]["name"] = names.of(one["sink"]["name"])
                one["sink"]["probe"] = names.of(one["sink"]["probe"])
    return manifest


def _rename_package(package, names):
    """The same in the package's own protobuf: features, functions and every value inside."""
    path = package / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = messages().Model()
    model.ParseFromString(path.read_bytes())
    for function in model.description.functions:
        function.name = names.of(function.name)
        for feature in [*function.input, *function.output, *function.state]:
            feature.name = names.of(feature.name)
    model.description.defaultFunctionName = names.of(model.description.defaultFunctionName)
    functions = dict(model.mlProgram.functions.items())
    for old, function in functions.items():
        for one in function.inputs:
            one.name = names.of(one.name)
        for block in function.block_specializations.values():
            _rename_block(block, names)
        model.mlProgram.functions[names.of(old)].CopyFrom(function)
        del model.mlProgram.functions[old]
    path.write_bytes(model.SerializeToString(deterministic=True))


def _rename_block(block, names):
    outputs = [names.of(name) for name in block.outputs]
    del block.outputs[:]
    block.outputs.extend(outputs)
    for op in block.operations:
        for one in op.outputs:
            one.name = names.of(one.name)
        for argument in op.inputs.values():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "name":
                    binding.name = names.of(binding.name)
