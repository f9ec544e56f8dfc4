"""The features and host tables of the runtime's profile, by name, order, shape and dtype.

Written out by hand from what conversion/build_verify_chunks.py, build_gemma4_3way.py and
build_gemma4_bundle.py of CoreML-LLM declare (72178c6), for 2048 positions and three candidates.
"""

import json

import pytest
from click.testing import CliRunner

from topoc.dsl.cli import main

# H the width of the stream, P that of all per-layer vectors, N the KV heads, S and F how many
# sliding and full layers keep KV in a chunk, T the tokens of a call.
MODELS = {
    "E2B": {"H": 1536, "P": 8960, "N": 1, "V": 262_144, "owners": ((7, 1), (5, 2))},
    "E4B": {"H": 2560, "P": 10_752, "N": 2, "V": 262_144, "owners": ((10, 2), (10, 2))},
}
SHARED = {
    "hidden": "hidden_states 1,T,H",
    "masks": "causal_mask_full 1,1,T,2048 | causal_mask_sliding 1,1,T,512",
    "angles": "cos_s 1,1,T,256 | sin_s 1,1,T,256 | cos_f 1,1,T,512 | sin_f 1,1,T,512",
    "raw": "per_layer_raw 1,T,P",
    "combined": "per_layer_combined 1,T,P",
    "caches": "K_sliding_in S,N,512,512 | V_sliding_in S,N,512,512"
    " | K_full_in F,N,2048,512 | V_full_in F,N,2048,512",
    "written": "K_sliding_out S,N,512,512 | V_sliding_out S,N,512,512"
    " | K_full_out F,N,2048,512 | V_full_out F,N,2048,512",
    "rows": "new_K_sliding S,N,T,256 | new_V_sliding S,N,T,256"
    " | new_K_full F,N,T,512 | new_V_full F,N,T,512",
    "donors": "kv13_k 1,N,512,256 | kv13_v 1,N,512,256 | kv14_k 1,N,2048,512 | kv14_v 1,N,2048,512",
    "out": "hidden_states_out 1,T,H",
    "mark": "update_mask 1,1,2048,1",
    "columns": "update_indicator 1,1,2048,T",
    "token": "token_id 1:int32 | token_logit 1",
    "tokens": "token_ids 1,T:int32",
}
# Of each part of a layout what goes in and what comes out; `-` stands for nothing.
FIRST = {
    "decode_q1": (
        "hidden masks mark raw angles caches",
        "out | per_layer_combined_out 1,T,P | written",
    ),
    "verify_q3": (
        "hidden masks columns raw angles caches",
        "out | per_layer_combined_out 1,T,P | rows",
    ),
}
SECOND = {
    "decode_q1": ("hidden masks mark combined angles caches", "out | written | donors"),
    "verify_q3": ("hidden masks columns combined angles caches", "out | rows | donors"),
}
THIRD = {
    "decode_q1": ("hidden masks mark combined angles donors", "out"),
    "verify_q3": ("hidden masks combined angles donors", "out"),
}
LAST = {
    "decode_q1": ("hidden masks mark combined angles donors", "token | out"),
    "verify_q3": ("hidden masks combined angles donors", "tokens | out"),
}
LAYOUTS = {
    "E2B A": ("swa4", {"chunk1": FIRST, "chunk2": SECOND, "chunk3": THIRD, "chunk4": LAST}),
    "E4B A": ("e4b_swa4", {"chunk1": FIRST, "chunk2": SECOND, "chunk3": THIRD, "chunk4": LAST}),
    "E2B C": ("threeway", {"chunk1": FIRST, "chunk2_3way": SECOND, "chunk3_3way": LAST}),
    "E4B C": ("e4b_threeway", {"chunk1": FIRST, "chunk2": SECOND, "chunk3": LAST}),
}
# Both files of a table together: a byte a value and two a row, or two headers and two a value.
TABLES = {
    "E2B": {
        "embed": ([262_144, 1536], "int8", 384 * 2**20 + 2**19),
        "ple_table": ([262_144, 8960], "int8", 2240 * 2**20 + 2**19),
    },
    "E4B": {
        "embed": ([262_144, 2560], "int8", 640 * 2**20 + 2**19),
        "ple_table": ([262_144, 10_752], "int8", 2688 * 2**20 + 2**19),
    },
}


def written(parts, model, tokens, owners):
    """A list of features, each as its name, shape and dtype."""
    slots = dict(zip("SF", owners, strict=True)) | {"T": tokens} | MODELS[model]
    found = []
    for one in " | ".join(SHARED.get(part, part) for part in parts).split(" | "):
        name, _, rest = one.partition(" ")
        shape, _, dtype = rest.partition(":")
        sizes = [int(slots.get(size, size)) for size in shape.split(",")]
        found.append((name, sizes, dtype or "fp16"))
    return found


def planned(base, folder, more="features coreml_llm"):
    budgets = "expect {\n fp16 per chunk <= 9 GB\n kv io per step <= 1 GB\n }"
    text = f"topology t extends {base} {{\n  target gpu\n  {more}\n  {budgets}\n}}\n"
    (folder / "t.topo").write_text(text)
    result = CliRunner().invoke(main, ["plan", str(folder / "t.topo"), "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def said(features):
    return [(one["name"], one["shape"], one["dtype"]) for one in features]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_are_those_that_the_runtime_was_built_for(layout, tmp_path):
    base, chunks = LAYOUTS[layout]
    model = layout.partition(" ")[0]
    plan = planned(base, tmp_path)
    assert [one["name"] for one in plan["chunks"]] == [*chunks]
    for at, chunk in enumerate(plan["chunks"]):
        owners = (*MODELS[model]["owners"], (0, 0), (0, 0))[at]
        wanted = chunks[chunk["name"]]
        assert [one["name"] for one in chunk["functions"]] == [*wanted]
        for function in chunk["functions"]:
            tokens = 1 if function["name"] == "decode_q1" else 3
            into, out = wanted[function["name"]]
            assert said(function["inputs"]) == written(into.split(), model, tokens, owners)
            assert said(function["outputs"]) == written(out.split(" | "), model, tokens, owners)


@pytest.mark.parametrize(("model", "base"), [("E2B", "swa4"), ("E4B", "e4b_threeway")])
def test_host_tables_are_those_that_the_runtime_maps(model, base, tmp_path):
    wanted = TABLES[model] | {
        "rope full": ([2, 4096, 512], "fp16", 2 * 128 + 8 * 2**20),
        "rope sliding": ([2, 4096, 256], "fp16", 2 * 128 + 4 * 2**20),
    }
    found = planned(base, tmp_path)["tables"]
    assert {one["name"]: (one["shape"], one["dtype"], one["bytes"]) for one in found} == wanted


@pytest.mark.parametrize(("context", "positions"), [(1024, 4096), (2048, 4096), (8192, 16_384)])
def test_angles_reach_twice_as_far_as_the_context(context, positions, tmp_path):
    more = f"features coreml_llm\n  param C = {context}"
    found = planned("swa4", tmp_path, more)["tables"]
    shapes = {one["name"]: one["shape"] for one in found}
    assert shapes["rope full"] == [2, positions, 512]


def test_the_shipped_three_chunks_only_decode():
    result = CliRunner().invoke(main, ["plan", "threeway_coreml_llm", "--format", "json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    names = [(one["name"], [of["name"] for of in one["functions"]]) for one in plan["chunks"]]
    wanted = ("chunk1", "chunk2_3way", "chunk3_3way")
    assert names == [(name, ["decode_q1"]) for name in wanted]
