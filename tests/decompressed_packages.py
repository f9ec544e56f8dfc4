"""What coremltools makes of the weights in packages of ours.

    python tests/decompressed_packages.py OUT.npz PACKAGE …

Saves what each convolution multiplies with, by PACKAGE/FUNCTION/RESULT. coremltools reads the
package and decompresses by itself; nothing of ours is imported.
"""

import logging
import sys
from pathlib import Path

import numpy as np
from constexpr_packages import HIDDEN, decompressed


def weights_of(package):
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    model = ct.models.MLModel(str(package), skip_model_load=True)
    program = load(model.get_spec(), model.get_spec().specificationVersion, model.weights_dir)
    for name, function in program.functions.items():
        for op in function.operations:
            if op.op_type == "conv":
                stored = op.weight.op
                whole = stored.op_type == "const"
                value = op.weight.val if whole else decompressed(stored)
                yield f"{package.name}/{name}/{op.outputs[0].name}", np.asarray(value)


if __name__ == "__main__":
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    sys.modules.update(dict.fromkeys(HIDDEN))
    found = [pair for one in sys.argv[2:] for pair in weights_of(Path(one))]
    np.savez(sys.argv[1], **dict(found))
