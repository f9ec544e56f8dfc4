"""What the device runtime of CoreML-LLM does with a bundle's folder, rebuilt from its source.

It knows nothing of topoc: packages are read as protobuf, everything else as plain files. Where the
runtime would fill in a default or go on with zeros, this reader fails instead.

After Sources/CoreMLLLM/{CoreMLLLM,ChunkedEngine,ModelConfig,EmbeddingLookup}.swift and the builders
in conversion/ of CoreML-LLM as of 2026-05-06 (72178c6).
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

FLOAT16, INT32 = 65_552, 131_104  # of ArrayFeatureType.ArrayDataType
SLIDING, FULL = "sliding_attention", "full_attention"
ROTARY = (256, 512)  # constants of the runtime, like the width of a cache's row, the second
WHOLE = ("chunk1", "chunk2", "chunk3", "chunk4")
MERGED = ("chunk1", "chunk2_3way", "chunk3_3way")
LARGE = ("chunk1_topoI", "chunk2_topoI", "chunk3_topoI")
READ = {  # the keys of `model_config.json` that it reads, and their types
    "model_name": str,
    "architecture": str,
    "hidden_size": int,
    "num_layers": int,
    "num_hidden_layers": int,
    "vocab_size": int,
    "context_length": int,
    "sliding_window": int,
    "per_layer_dim": int,
    "num_kv_shared_layers": int,
    "layer_types": list,
    "embed_scale": float,
    "per_layer_embed_scale": float,
    "per_layer_model_projection_scale": float,
    "per_layer_input_scale": float,
    "bos_token_id": int,
    "eos_token_id": int,
}
WRITTEN = {  # those that its builder writes and nobody reads
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "global_head_dim": int,
    "rms_norm_eps": float,
    "final_logit_softcapping": float,
    "quantization": str,
    "compute_units": str,
    "tokenizer_repo": str,
}


class UnloadableError(Exception):
    """The runtime would not load this folder, or would compute something else with it."""


def demand(holds, message):
    if not holds:
        raise UnloadableError(message)


@dataclass
class Function:
    """A function of a package: each feature's shape and data type."""

    inputs: dict
    outputs: dict


@dataclass
class Package:
    """A package's functions by name; without names, the one it has is None."""

    functions: dict
    default: str | None

    @property
    def loaded(self):
        """What is called when no function is named."""
        return self.functions[self.default]


@dataclass
class Loaded:
    """A folder that the runtime would load."""

    folder: Path
    config: dict
    chunks: dict
    verify: int | None
    tables: dict
    ropes: dict
    stops: set
    rotary: tuple


def load(folder, *, rotary=ROTARY, topology_i=False):
    """The folder as the runtime sees it; UnloadableError with the first thing that stops it."""
    folder = Path(folder)
    demand(_found(folder, "chunk1") or topology_i, "no chunk1: taken for a monolith")
    names = _layout(folder, topology_i=topology_i)
    config = _config(folder)
    theirs = _hf(folder)
    packages = {name: _package(folder, name) for name in names}
    ranges = _ranges(config, names)
    for name, package in packages.items():
        features = package.loaded.inputs
        demand("causal_mask_full" in features, f"{name}: no causal_mask_full")
        last = features["causal_mask_full"][0][-1]
        context = config["context_length"]
        demand(last == context, f"{name}: a mask of {last} for {context} positions")
    nkv = packages[names[0]].loaded.inputs["K_sliding_in"][0][1]
    demand(nkv == theirs["num_key_value_heads"], f"{nkv} KV heads")
    shapes = Shapes(config, nkv, rotary)
    for at, (name, package) in enumerate(packages.items()):
        wanted = shapes.decode(ranges, at)
        _same(package.loaded, wanted, name)
    demand(not _found(folder, "prefill_chunk1"), "prefill chunks, which this reader doesn't know")
    verify = _verify(packages, shapes, ranges) if names == WHOLE else None
    return Loaded(
        folder=folder,
        config=config,
        chunks={name: folder / f"{name}.mlpackage" for name in names},
        verify=verify,
        tables=_tables(folder, config),
        ropes=_ropes(folder, config, theirs, rotary),
        stops={1, 106, 151_645, config["eos_token_id"]},
        rotary=rotary,
    )


def _found(folder, name):
    """A compiled model counts if it is whole."""
    compiled = folder / f"{name}.mlmodelc"
    return (compiled / "coremldata.bin").is_file() or (folder / f"{name}.mlpackage").is_dir()


def _layout(folder, *, topology_i):
    """The chunks of decode, in the order in which the runtime asks for them."""
    if topology_i and all(_found(folder, name) for name in LARGE):
        return LARGE
    if all(_found(folder, name) for name in MERGED[1:]):
        return MERGED
    for name in WHOLE:
        demand(_found(folder, name), f"{name} is missing")
    return WHOLE


def _json(path):
    demand(path.is_file(), f"{path.name} is missing")
    return json.loads(path.read_text(encoding="utf-8"))


def _config(folder):
    config = _json(folder / "model_config.json")
    for key, kind in {**READ, **WRITTEN}.items():
        demand(key in config, f"model_config.json has no {key}")
        demand(type(config[key]) is kind, f"{key} is {config[key]!r}")
    demand({*config} == {*READ, *WRITTEN}, "model_config.json has other keys")
    hidden, layers = config["hidden_size"], config["num_layers"]
    demand(config["architecture"] == "gemma4", "another architecture")
    demand(config["num_hidden_layers"] == layers == len(config["layer_types"]), "layers")
    demand({*config["layer_types"]} == {SLIDING, FULL}, "layer types")
    for key, value in {
        "embed_scale": math.sqrt(hidden),
        "per_layer_embed_scale": math.sqrt(config["per_layer_dim"]),
        "per_layer_model_projection_scale": hidden**-0.5,
        "per_layer_input_scale": 2**-0.5,
    }.items():
        demand(math.isclose(config[key], value, rel_tol=1e-6), f"{key} is {config[key]}")
    return config


def _hf(folder):
    """The config of the folder from which the tokenizer is loaded."""
    home = folder / "hf_model"
    config = _json(home / "config.json")
    demand("vocab" in str(_json(home / "tokenizer.json").get("model", {}).keys()), "no vocabulary")
    return config.get("text_config", config)


def _producers(config):
    """The last layers of each type that make keys and values of their own."""
    own = config["layer_types"][: config["num_layers"] - config["num_kv_shared_layers"]]
    return {kind: max(at for at, one in enumerate(own) if one == kind) for kind in (SLIDING, FULL)}


def _ranges(config, names):
    """First and last layer of each chunk, the last excluded."""
    layers = config["num_layers"]
    end = _producers(config)[FULL] + 1
    first, third = (end + 1) // 2, end + (layers - end) // 2
    cuts = {
        WHOLE: (0, first, end, third, layers),
        MERGED: (0, first, third, layers),
        LARGE: (0, end, third, layers),
    }[names]
    return list(pairwise(cuts))


def _package(folder, name):
    """The description inside a package, by way of its list of items."""
    from coremltools.proto import Model_pb2

    path = folder / f"{name}.mlpackage"
    items = _json(path / "Manifest.json")
    root = items["itemInfoEntries"][items["rootModelIdentifier"]]
    model = Model_pb2.Model()
    model.ParseFromString((path / "Data" / root["path"]).read_bytes())
    described = model.description
    whole = {one.name: one for one in described.functions} or {None: described}
    return Package(
        {key: Function(_features(one.input), _features(one.output)) for key, one in whole.items()},
        described.defaultFunctionName or None,
    )


def _features(described):
    found = {}
    for one in described:
        array = one.type.multiArrayType
        found[one.name] = (tuple(array.shape), array.dataType)
    return found


@dataclass
class Shapes:
    """What a chunk must take and give, computed from the config alone."""

    config: dict
    nkv: int
    rotary: tuple

    def owned(self, span, kind):
        """How many layers of a type keep KV in a chunk."""
        own = self.config["num_layers"] - self.config["num_kv_shared_layers"]
        kinds = self.config["layer_types"]
        return sum(kinds[at] == kind for at in range(*span) if at < own)

    def decode(self, ranges, at):
        """Of the chunk in this place, by the names that the runtime feeds and fetches."""
        into = self._common(1) | {"update_mask": (1, 1, self.context, 1)}
        out = {"hidden_states_out": (1, 1, self.config["hidden_size"])}
        caches = self._caches(ranges[at])
        into |= {f"{name}_in": shape for name, shape in caches.items()}
        out |= {f"{name}_out": shape for name, shape in caches.items()}
        if at == len(ranges) - 1:
            out |= {"token_id": (1,), "token_logit": (1,)}
        return self._ends(into, out, ranges, at, 1)

    def verify(self, ranges, at, tokens):
        """The same of a call of several candidates."""
        into, caches = self._common(tokens), self._caches(ranges[at])
        out = {"hidden_states_out": (1, tokens, self.config["hidden_size"])}
        if caches:
            into["update_indicator"] = (1, 1, self.context, tokens)
        into |= {f"{name}_in": shape for name, shape in caches.items()}
        for name, (slots, nkv, _, _) in caches.items():
            width = self.rotary[name.endswith("full")]
            out[f"new_{name}"] = (slots, nkv, tokens, width)
        if at == len(ranges) - 1:
            out["token_ids"] = (1, tokens)
        return self._ends(into, out, ranges, at, tokens)

    @property
    def context(self):
        return self.config["context_length"]

    def _common(self, tokens):
        sliding, full = self.rotary
        angles = {"cos_s": sliding, "sin_s": sliding, "cos_f": full, "sin_f": full}
        return {
            "hidden_states": (1, tokens, self.config["hidden_size"]),
            "causal_mask_full": (1, 1, tokens, self.context),
            "causal_mask_sliding": (1, 1, tokens, self.config["sliding_window"]),
        } | {name: (1, 1, tokens, width) for name, width in angles.items()}

    def _caches(self, span):
        slots = {"sliding": self.config["sliding_window"], "full": self.context}
        counts = {"sliding": self.owned(span, SLIDING), "full": self.owned(span, FULL)}
        return {
            f"{holds}_{kind}": (counts[kind], self.nkv, slots[kind], self.rotary[1])
            for kind in slots
            for holds in "KV"
            if counts[kind]
        }

    def _ends(self, into, out, ranges, at, tokens):
        """With per-layer vectors, and with the KV that travels between chunks."""
        vectors = (1, tokens, self.config["num_layers"] * self.config["per_layer_dim"])
        into["per_layer_combined" if at else "per_layer_raw"] = vectors
        if not at:
            out["per_layer_combined_out"] = vectors
        sliding, full = self.rotary
        donors = {
            "kv13": (1, self.nkv, self.config["sliding_window"], sliding),
            "kv14": (1, self.nkv, self.context, full),
        }
        travel = {f"{name}_{holds}": shape for name, shape in donors.items() for holds in "kv"}
        producer = _producers(self.config)[FULL]
        if ranges[at][0] <= producer < ranges[at][1]:
            out |= travel
        elif ranges[at][0] > producer:
            into |= travel
        return into, out


def _same(function, wanted, name):
    for way, found, asked in (
        ("takes", function.inputs, wanted[0]),
        ("gives", function.outputs, wanted[1]),
    ):
        demand({*found} == {*asked}, f"{name} {way} {sorted({*found} ^ {*asked})}")
        for feature, (shape, dtype) in found.items():
            demand(shape == asked[feature], f"{name}: {feature} is {shape}, not {asked[feature]}")
            kind = INT32 if feature.startswith("token_id") else FLOAT16
            demand(dtype == kind, f"{name}: {feature} has data type {dtype}")


def _verify(packages, shapes, ranges):
    """How many candidates the chunks' second function takes; None without one."""
    last = packages[WHOLE[-1]].functions
    names = [name for name in last if name is not None and name.startswith("verify_q")]
    if not names:
        return None
    (name,) = names
    tokens = last[name].outputs["token_ids"][0][-1]
    demand(name == f"verify_q{tokens}", f"{name} of {tokens} tokens")
    for at, (chunk, package) in enumerate(packages.items()):
        demand(name in package.functions, f"{chunk} has no {name}")
        demand(package.default == "decode_q1", f"{chunk} begins with {package.default}")
        _same(package.functions[name], shapes.verify(ranges, at, tokens), f"{chunk}.{name}")
    return tokens


def _tables(folder, config):
    """Codes and scales of tokens and of their per-layer rows."""
    rows, found = config["vocab_size"], {}
    vectors = config["num_layers"] * config["per_layer_dim"]
    widths = {"embed_tokens": config["hidden_size"], "embed_tokens_per_layer": vectors}
    for name, width in widths.items():
        codes = _raw(folder / f"{name}_q8.bin", np.int8, (rows, width))
        scales = _raw(folder / f"{name}_scales.bin", "<f2", (rows,))
        demand(np.isfinite(scales).all() and (scales > 0).all(), f"{name}: scales")
        peaks = np.abs(codes.astype(np.int16)).max(1)
        demand((peaks <= 127).all(), f"{name}: a code of -128")
        normal = scales >= 2.0**-13
        demand((peaks[normal] == 127).all(), f"{name}: rows that don't reach their scale")
        found[name] = codes, scales
    return found


def _raw(path, dtype, shape):
    demand(path.is_file(), f"{path.name} is missing")
    size = math.prod(shape) * np.dtype(dtype).itemsize
    found = path.stat().st_size
    demand(found == size, f"{path.name} has {found} bytes, not {size}")
    return np.fromfile(path, dtype).reshape(shape)


def _ropes(folder, config, theirs, rotary):
    """Cosines and sines by position, against the angles that the checkpoint's config asks for."""
    found = {}
    for kind, width in zip((SLIDING, FULL), rotary, strict=True):
        short = kind.partition("_")[0]
        rule = theirs["rope_parameters"][kind]
        live = int(rule.get("partial_rotary_factor", 1.0) * width // 2)
        still = rule["rope_theta"] ** -(2.0 * np.arange(width // 2) / width)
        still[live:] = 0.0
        rows = max(2 * config["context_length"], 4096)
        angles = np.arange(rows)[:, None] * np.concatenate([still, still])
        for name, of in (("cos", np.cos), ("sin", np.sin)):
            table = _npy(folder / f"{name}_{short}.npy", (rows, width))
            demand(np.abs(of(angles) - table).max() < 1e-3, f"{name}_{short}: other angles")
            found[name, short] = table
    return found


def _npy(path, shape):
    """As the runtime reads it: a header of a length that stands in bytes 8 and 9."""
    demand(path.is_file(), f"{path.name} is missing")
    raw = path.read_bytes()
    demand(raw[:8] == b"\x93NUMPY\x01\x00", f"{path.name} is no NumPy file of version 1")
    begin = 10 + int.from_bytes(raw[8:10], "little")
    told = raw[10:begin].decode("latin-1").replace(" ", "")
    for part in ("'descr':'<f2'", "'fortran_order':False", f"'shape':({shape[0]},{shape[1]})"):
        demand(part in told, f"{path.name}: {told.strip()}")
    demand(len(raw) - begin == math.prod(shape) * 2, f"{path.name}: {len(raw)} bytes")
    return np.frombuffer(raw, "<f2", offset=begin).reshape(shape)


@dataclass
class Session:
    """The decode loop; `predict` runs the default function of a chunk's package."""

    loaded: Loaded
    predict: object
    position: int = 0

    def __post_init__(self):
        self.caches = {
            (name, feature): np.zeros(shape, np.float16)
            for name in self.loaded.chunks
            for feature, (shape, _) in _inputs(self.loaded.folder, name).items()
            if feature.endswith("_in")
        }

    def step(self, token):
        """Feed one token; what the last chunk gives."""
        fed = self._fed(token)
        for name in self.loaded.chunks:
            inputs = {
                feature: self.caches.get((name, feature), fed.get(feature))
                for feature in _inputs(self.loaded.folder, name)
            }
            outputs = self.predict(name, inputs)
            for feature, value in outputs.items():
                if (name, f"{feature.removesuffix('_out')}_in") in self.caches:
                    self.caches[name, f"{feature.removesuffix('_out')}_in"] = value
            fed |= {"hidden_states": outputs["hidden_states_out"]}
            if "per_layer_combined_out" in outputs:
                fed["per_layer_combined"] = outputs["per_layer_combined_out"]
            fed |= {key: value for key, value in outputs.items() if key.startswith("kv1")}
        self.position += 1
        return outputs

    def _fed(self, token):
        """What the runtime makes itself."""
        config, at = self.loaded.config, self.position
        context, window = config["context_length"], config["sliding_window"]
        full = np.full((1, 1, 1, context), -np.inf, np.float16)
        full[..., : at + 1] = 0
        sliding = np.full((1, 1, 1, window), -np.inf, np.float16)
        sliding[..., window - min(at + 1, window) :] = 0
        mark = np.zeros((1, 1, context, 1), np.float16)
        mark[..., min(at, context - 1), 0] = 1
        angles = {
            f"{name}_{kind[0]}": table[at].reshape(1, 1, 1, -1)
            for (name, kind), table in self.loaded.ropes.items()
        }
        return angles | {
            "hidden_states": self._row("embed_tokens", token, config["embed_scale"]),
            "per_layer_raw": self._row(
                "embed_tokens_per_layer", token, config["per_layer_embed_scale"]
            ),
            "causal_mask_full": full,
            "causal_mask_sliding": sliding,
            "update_mask": mark,
        }

    def _row(self, name, token, scale):
        codes, scales = self.loaded.tables[name]
        row = codes[token].astype(np.float32) * (np.float32(scales[token]) / np.float32(127))
        return (row * np.float32(scale)).astype(np.float16).reshape(1, 1, -1)


@cache
def _inputs(folder, name):
    return _package(folder, name).loaded.inputs
