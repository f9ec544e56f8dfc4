"""Packages as other tools make them, built by coremltools in a process of its own.

    python tests/lint_packages.py FOLDER

`PACKAGES` in `tests/test_lint_packages.py` tells what lint must say of each.
"""

import logging
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np

HIDDEN, HEADS, KV_HEADS, WIDTH, SLOTS, CLASSES = 64, 4, 2, 16, 32, 96


def decoder(torch):
    """A toy decoder layer with an embedding, rotary angles by look-up, and a head."""
    nn, F = torch.nn, torch.nn.functional

    class Norm(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(size))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(CLASSES, HIDDEN)
            self.norm, self.last = Norm(HIDDEN), Norm(HIDDEN)
            self.q = nn.Linear(HIDDEN, HEADS * WIDTH, bias=False)
            self.kv = nn.Linear(HIDDEN, 2 * KV_HEADS * WIDTH, bias=False)
            self.o = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)
            self.up, self.down = nn.Linear(HIDDEN, 128), nn.Linear(128, HIDDEN)
            self.head = nn.Linear(HIDDEN, CLASSES, bias=False)

        def forward(self, tokens, mask):
            x = self.embed(tokens)
            y = self.norm(x)
            q = self.q(y).view(1, -1, HEADS, WIDTH).transpose(1, 2)
            k, v = self.kv(y).view(1, -1, 2 * KV_HEADS, WIDTH).transpose(1, 2).chunk(2, 1)
            k = k[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, HEADS, -1, WIDTH)
            v = v[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, HEADS, -1, WIDTH)
            scores = torch.softmax(q @ k.transpose(2, 3) * WIDTH**-0.5 + mask, -1)
            x = x + self.o((scores @ v).transpose(1, 2).reshape(1, -1, HEADS * WIDTH))
            x = x + self.down(F.silu(self.up(x)))
            return self.head(self.last(x))

    tokens, mask = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 1, 4, 4)
    return torch.jit.trace(Decoder().eval(), (tokens, mask)), tokens.shape, mask.shape


def cache(torch):
    """A cache in a state, written one row at a time."""

    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kv", torch.zeros(1, KV_HEADS, SLOTS, HIDDEN, dtype=torch.float16))

        def forward(self, q, row, at):
            end = at + 1
            self.kv[:, :, at:end] = row
            return torch.softmax(q @ self.kv.transpose(2, 3), -1) @ self.kv

    q = torch.zeros(1, KV_HEADS, 1, HIDDEN, dtype=torch.float16)
    at = torch.zeros(1, dtype=torch.int32)
    return torch.jit.trace(Cache().eval(), (q, q, at), strict=False), q.shape


class Builder:
    """Builds each package into a folder."""

    def __init__(self, folder):
        import coremltools as ct
        import torch
        from coremltools.converters.mil import Builder as mb  # noqa: N813 — its usual name

        self.ct, self.torch, self.mb, self.folder = ct, torch, mb, folder
        self.half = ct.converters.mil.mil.types.fp16
        self.whole = ct.converters.mil.mil.types.int32

    def save(self, name, model):
        path = self.folder / f"{name}.mlpackage"
        model.save(str(path))
        return path

    def traced(self, name, *, opset="iOS18", **options):
        module, tokens, mask = decoder(self.torch)
        ct = self.ct
        model = ct.convert(
            module,
            inputs=options.pop("inputs", None)
            or [
                ct.TensorType("tokens", tokens, dtype=np.int32),
                ct.TensorType("mask", mask, dtype=np.float16),
            ],
            outputs=[ct.TensorType("logits", dtype=options.pop("gives", np.float16))],
            minimum_deployment_target=getattr(ct.target, opset),
            skip_model_load=True,
            **options,
        )
        self.save(name, model)
        return model

    def built(self, name, specs, body, *, opset="iOS18"):
        """A program of the builder; specs are shapes of fp16, or (shape, type) pairs."""
        ct, mb = self.ct, self.mb
        target = getattr(ct.target, opset)
        typed = [one if isinstance(one[-1], type) else (one, self.half) for one in specs]
        inputs = [mb.TensorSpec(shape, dtype=kind) for shape, kind in typed]
        program = mb.program(input_specs=inputs, opset_version=target)(body)
        model = ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=ct.precision.FLOAT32,  # leave the types as they are written
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )
        return self.save(name, model)

    def compressed(self, model, name, apply, config):
        optimize = self.ct.optimize.coreml
        whole = optimize.OptimizationConfig(global_config=getattr(optimize, config[0])(**config[1]))
        self.save(name, getattr(optimize, apply)(model, whole))

    def all(self):
        self.decoders()
        self.states()
        self.ops()
        self.six_axes()
        self.network()

    def decoders(self):
        ct = self.ct
        model = self.traced("decoder_ios18")
        older = self.traced("decoder_ios16", opset="iOS16")
        self.traced("decoder_fp32", compute_precision=ct.precision.FLOAT32, gives=np.float32)
        length = ct.RangeDim(1, 8, default=4)
        self.traced(
            "decoder_dynamic",
            inputs=[
                ct.TensorType("tokens", (1, length), dtype=np.int32),
                ct.TensorType("mask", (1, 1, length, length), dtype=np.float16),
            ],
        )
        small = {"weight_threshold": 1024}
        palette = {"mode": "uniform", "nbits": 4, **small}
        self.compressed(
            model, "decoder_palettised", "palettize_weights", ("OpPalettizerConfig", palette)
        )
        self.compressed(
            older, "decoder_ios16_palettised", "palettize_weights", ("OpPalettizerConfig", palette)
        )
        linear = {"mode": "linear_symmetric", "dtype": "int8", **small}
        self.compressed(
            model, "decoder_int8", "linear_quantize_weights", ("OpLinearQuantizerConfig", linear)
        )

    def states(self):
        ct, torch = self.ct, self.torch
        module, q = cache(torch)
        self.save(
            "stateful",
            ct.convert(
                module,
                inputs=[
                    ct.TensorType("q", q, dtype=np.float16),
                    ct.TensorType("row", q, dtype=np.float16),
                    ct.TensorType("at", (1,), dtype=np.int32),
                ],
                outputs=[ct.TensorType("y", dtype=np.float16)],
                states=[
                    ct.StateType(
                        ct.TensorType(shape=(1, KV_HEADS, SLOTS, HIDDEN), dtype=np.float16),
                        name="kv",
                    )
                ],
                minimum_deployment_target=ct.target.iOS18,
                skip_model_load=True,
            ),
        )

    def ops(self):
        mb, half = self.mb, np.float16
        rng = np.random.default_rng(0)
        square = rng.standard_normal((HIDDEN, HIDDEN)).astype(half)
        self.built("cumsum", [(1, 8, HIDDEN)], lambda x: mb.cumsum(x=x, axis=1))
        self.built(
            "gather_nd",
            [(4, HIDDEN), ((2, 1), self.whole)],
            lambda x, places: mb.gather_nd(x=x, indices=places, validate_indices=False),
        )
        self.built(
            "while_loop",
            [(1, HIDDEN), ((1,), self.whole)],
            lambda x, n: mb.while_loop(
                _cond=lambda _, n: mb.squeeze(x=mb.greater(x=n, y=0), axes=[0]),
                _body=lambda x, n: (mb.mul(x=x, y=half(0.5)), mb.sub(x=n, y=1)),
                loop_vars=(x, n),
            )[0],
        )
        wide = np.zeros((70_000, HIDDEN), half)
        self.built(
            "topk",
            [(1, HIDDEN)],
            lambda x: mb.topk(x=mb.linear(x=x, weight=wide), k=4, axis=-1)[1],
        )
        part = self.built(
            "chunk", [(1, HIDDEN)], lambda x: mb.silu(x=mb.linear(x=x, weight=square))
        )
        self.multi(part, part)
        self.enumerated()

    def multi(self, one, other):
        """Two functions in one package, whose names are not `main`."""
        description = self.ct.utils.MultiFunctionDescriptor()
        description.add_function(str(one), "main", "decode")
        description.add_function(str(other), "main", "prefill")
        description.default_function_name = "decode"
        self.ct.utils.save_multifunction(description, str(self.folder / "multi_function.mlpackage"))

    def enumerated(self):
        """An input of two sizes."""
        ct, torch = self.ct, self.torch
        module = torch.jit.trace(torch.nn.SiLU(), torch.zeros(1, 4, HIDDEN))
        sizes = ct.EnumeratedShapes([(1, 4, HIDDEN), (1, 8, HIDDEN)])
        model = ct.convert(
            module,
            inputs=[ct.TensorType("x", sizes, dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
        self.save("enumerated_rows", model)

    def six_axes(self):
        """coremltools refuses six axes; other tools do not."""
        path = self.folder / "six_axes.mlpackage"
        shutil.copytree(self.folder / "chunk.mlpackage", path)
        file = next(path.rglob("*.mlmodel"))
        spec = self.ct.proto.Model_pb2.Model()
        spec.ParseFromString(file.read_bytes())
        block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
        kind = block.operations[-1].outputs[0].type.tensorType
        for _ in range(4):
            kind.dimensions.add().constant.size = 1
        kind.rank = 6
        file.write_bytes(spec.SerializeToString())

    def network(self):
        """A neural network, which is no ML program."""
        models = self.ct.models
        kind = [("x", models.datatypes.Array(4))]
        network = models.neural_network.NeuralNetworkBuilder(kind, [("y", kind[0][1])])
        network.add_activation("relu", "RELU", "x", "y")
        models.utils.save_spec(network.spec, str(self.folder / "network.mlmodel"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    Builder(Path(sys.argv[1])).all()
