"""The usual path to a palettized layer: trace a module, convert it, `palettize_weights`.

What `tests/bench/compile_int4.py` compares with: one decode step of a Gemma 4 layer as a PyTorch
module, with caches as inputs. Per-layer inputs are left out, whose small groups coremltools gives
to scikit-learn. All times are CPU seconds of one thread.
"""

import logging
import warnings
from contextlib import redirect_stderr
from io import StringIO
from math import prod
from time import process_time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu


class Layer(nn.Module):
    """The four norms, attention over a cache and this token, and the gated MLP."""

    def __init__(self, spec, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.q = linear(hidden, spec.heads * spec.head_dim)
        self.owns = spec.donor is None
        if self.owns:
            self.k, self.v = (linear(hidden, spec.kv_heads * spec.head_dim) for _ in range(2))
        self.o = linear(spec.heads * spec.head_dim, hidden)
        self.gate, self.up = (linear(hidden, spec.mlp_width) for _ in range(2))
        self.down = linear(spec.mlp_width, hidden)
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(1, hidden, 1, 1)) for _ in range(4))

    def forward(self, x, keys, values, mask, turns):
        cos, sin = turns
        normed = norm(x) * self.gains[0]
        q = turned(self.rows(self.q(normed), self.heads), cos, sin)
        made = ()
        if self.owns:
            k = turned(self.rows(self.k(normed), self.kv_heads), cos, sin)
            made = k, self.rows(self.v(normed), self.kv_heads)
            keys = torch.cat([keys[:, :, 1:], made[0]], 2)
            values = torch.cat([values[:, :, 1:], made[1]], 2)
        keys, values = (one.repeat(1, self.heads // self.kv_heads, 1, 1) for one in (keys, values))
        weights = torch.softmax(q @ keys.transpose(2, 3) + mask, -1)
        attended = (weights @ values).transpose(2, 3).reshape(1, -1, 1, 1)
        x = x + norm(self.o(attended)) * self.gains[1]
        normed = norm(x) * self.gains[2]
        fed = self.down(gelu(self.gate(normed), approximate="tanh") * self.up(normed))
        return x + norm(fed) * self.gains[3], *made

    def rows(self, x, heads):
        return x.reshape(1, heads, self.head_dim, 1).transpose(2, 3)


class Head(nn.Module):
    """Some rows of the matrix that makes logits."""

    def __init__(self, hidden, rows):
        super().__init__()
        self.logits = linear(hidden, rows)

    def forward(self, x):
        return self.logits(x)


def linear(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 1, bias=False)


def norm(x):
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)


def turned(x, cos, sin):
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


def layer_seconds(spec, hidden, context, bits, group):
    """What one layer costs."""
    head, span = spec.head_dim, spec.window or context
    cache = (1, spec.kv_heads, span, head)
    given = [(1, hidden, 1, 1), cache, cache, (1, 1, 1, span), (2, 1, 1, head)]
    return seconds(Layer(spec, hidden), given, bits, group)


def head_seconds(hidden, rows, sample, bits, group):
    """What a head of so many rows costs, by a sample of them."""
    return seconds(Head(hidden, sample), [(1, hidden, 1, 1)], bits, group) * rows / sample


def seconds(module, shapes, bits, group):
    """Trace, convert and palettize a module."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        import coremltools as ct
        import coremltools.optimize.coreml as cto

        given = [torch.rand(shape) for shape in shapes]
        start = process_time()
        traced = torch.jit.trace(module.eval(), given, check_trace=False)
        model = ct.convert(
            traced,
            inputs=[
                ct.TensorType(name=f"in{at}", shape=one, dtype=np.float16)
                for at, one in enumerate(shapes)
            ],
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16,
            skip_model_load=True,
        )
        recipe = cto.OpPalettizerConfig(
            nbits=bits, granularity="per_grouped_channel", group_size=group, weight_threshold=0
        )
        cto.palettize_weights(model, cto.OptimizationConfig(global_config=recipe))
        return process_time() - start


def weights_of(spec, hidden):
    """How many weights the matrices of a layer have."""
    return sum(prod(one.shape) for one in Layer(spec, hidden).parameters() if one.shape[0] > 1)
