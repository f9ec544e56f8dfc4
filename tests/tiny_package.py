"""A package that says what it takes and gives, and computes nothing."""

import json

from topoc.lowering.coreml_proto import messages, mil

MODEL = "com.apple.CoreML/model.mlmodel"
ARRAY = {"fp16": 65552, "fp32": 65568, "int32": 131104}  # of the description
TENSOR = {"fp16": 10, "fp32": 11, "int32": 23}  # of the program


def write_package(path, steps, build):
    """A package of one function a step, of this build, with some weights."""
    model = messages().Model(specificationVersion=9)
    if build is not None:
        model.description.metadata.userDefined["topoc.build"] = build
    for step in steps:
        _describe(model.description.functions.add(name=step.function), step)
        _program(model.mlProgram.functions[step.function], step)
    (path / "Data" / MODEL).parent.mkdir(parents=True)
    (path / "Data" / MODEL).write_bytes(model.SerializeToString(deterministic=True))
    entries = {"m": {"path": MODEL}}
    index = {"itemInfoEntries": entries, "rootModelIdentifier": "m"}
    (path / "Manifest.json").write_text(json.dumps(index))
    (path / "Data" / "weight.bin").write_bytes(b"weights")


def _describe(description, step):
    held = [one for one in step.inputs if one.source.kind == "state"]
    fed = [one for one in step.inputs if one.source.kind != "state"]
    for listed, features in ((description.input, fed), (description.output, step.outputs)):
        for one in features:
            _array(listed.add(name=one.feature).type.multiArrayType, one)
    for one in held:
        _array(description.state.add(name=one.feature).type.stateType.arrayType, one)


def _array(array, one):
    array.dataType = ARRAY[one.dtype]
    array.shape.extend(one.shape)


def _program(function, step):
    function.opset = "CoreML8"
    block = function.block_specializations["CoreML8"]
    for one in step.inputs:
        state = one.source.kind == "state"
        function.inputs.append(_typed(one.feature, one.shape, one.dtype, state=state))
    op = block.operations.add(type="made")
    for one in step.outputs:
        op.outputs.append(_typed(one.feature, one.shape, one.dtype))
        block.outputs.append(one.feature)
        if one.sink.probe:
            op.outputs.append(_typed(one.sink.probe, (1,), "fp32"))


def _typed(name, shape, dtype, *, state=False):
    named = mil().NamedValueType(name=name)
    kind = named.type.stateType.wrappedType if state else named.type
    tensor = kind.tensorType
    tensor.dataType, tensor.rank = TENSOR[dtype], len(shape)
    for size in shape:
        tensor.dimensions.add().constant.size = size
    return named
