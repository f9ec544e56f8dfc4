"""A bundle that is not what its manifest says is refused by name before anything runs."""

import hashlib
import json
import shutil

import pytest
from attrs import evolve
from test_engine import AFTER_THE_WRITE, APART, AS_IF_WRITTEN, IN_GRAPH
from tiny_bundle import CONTEXT, PLE_ROWS, VECTOR, VOCABULARY, WINDOW, tiny_manifest, write_bundle
from tiny_package import write_package

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle.manifest_json import dumps
from topoc.lowering.bundle.reader import open_bundle, tree_digest


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "b"
    write_bundle(path, tiny_manifest("blend"))
    return path


@pytest.fixture
def path(good, tmp_path):
    return shutil.copytree(good, tmp_path / "b")


def refused(path, code, *, words="", check=True):
    with pytest.raises(TopocError) as found:
        open_bundle(path, check=check)
    told = [one for one in found.value.findings if one.code == code]
    assert told, found.value
    assert any(words in f"{one.message} {one.at.at}" for one in told), found.value
    for one in found.value.findings:
        assert not one.message[0].isupper()
        assert not one.message.endswith(".")
        assert len(one.message) <= 100
        assert one.help


def edited(path, edit):
    """The manifest on disk after a change of its JSON."""
    file = path / "manifest.json"
    raw = json.loads(file.read_text())
    edit(raw)
    file.write_text(json.dumps(raw))


def test_opens_what_was_written(path):
    bundle = open_bundle(path)
    assert (bundle.path, bundle.manifest.name) == (path, "tiny")


def test_a_changed_byte_is_found(path):
    for name in ("embed.bin", "near.npy", "far.mlpackage/Data/weight.bin"):
        file = path / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refused(path, "bundle.hash", words=name.split("/")[0])
        open_bundle(path, check=False)
        file.write_bytes(whole)
    (path / "far.mlpackage" / "more").write_text("x")
    refused(path, "bundle.hash", words="bytes, not")


def test_a_package_of_another_build_is_found(path):
    (path / "far.mlpackage/Data/weight.bin").write_bytes(b"WEIGHTS")  # as many bytes
    refused(path, "bundle.hash", words="another hash")


def test_a_missing_file_or_package_is_named(path):
    for name in ("embed.scale.bin", "near.mlpackage"):
        (path / name).rename(path.parent / name)
        refused(path, "bundle.missing-file", words=name, check=False)
        (path.parent / name).rename(path / name)


def test_a_file_that_is_not_of_the_bundle_is_named(path):
    (path / ".DS_Store").write_text("x")
    open_bundle(path)
    (path / "chunk3.mlpackage").mkdir()
    refused(path, "bundle.extra-file", words="chunk3.mlpackage")


@pytest.mark.parametrize(
    "bad",
    [
        "/etc/passwd",
        "../b/embed.bin",
        "x/../../y",
        "",
        ".",
        "./embed.bin",
        "a//b",
        "a\\b",
        "c:x",
        "a\0b",
    ],
)
def test_a_path_out_of_the_bundle_is_refused(path, bad):
    def listed(raw):
        raw["files"][0]["path"] = bad

    def used(raw):
        raw["tables"]["embed"]["path"] = bad

    whole = (path / "manifest.json").read_text()
    for edit in (listed, used):
        (path / "manifest.json").write_text(whole)
        edited(path, edit)
        refused(path, "bundle.path", check=False)


def test_a_link_out_of_the_bundle_is_refused(path, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes((path / "embed.bin").read_bytes())
    (path / "embed.bin").unlink()
    (path / "embed.bin").symlink_to(outside)
    refused(path, "bundle.path", words="files[0]")


def test_a_link_out_of_a_package_is_refused(path, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"weights")
    (path / "far.mlpackage/Data/weight.bin").unlink()
    (path / "far.mlpackage/Data/weight.bin").symlink_to(outside)
    refused(path, "bundle.path", words="weight.bin")


def test_a_file_that_is_used_and_not_listed_is_refused(path):
    for i in range(6):
        whole = (path / "manifest.json").read_text()
        edited(path, lambda raw, i=i: raw["files"].pop(i))
        refused(path, "bundle.not-listed")
        (path / "manifest.json").write_text(whole)


def test_a_file_that_is_listed_twice_is_refused(path):
    edited(path, lambda raw: raw["files"].append(raw["files"][0]))
    refused(path, "bundle.path", words="twice")


def test_tables_of_another_size_are_refused(path):
    for edit in (
        lambda raw: raw["tables"]["embed"].update(dtype="fp16"),
        lambda raw: raw["tables"]["embed"].update(width=3),
        lambda raw: raw["tables"]["embed"].update(rows=96),
        lambda raw: raw["model"].update(vocabulary=96),
        lambda raw: raw["model"].update(hidden=3),
        lambda raw: raw["ropes"]["rope_far"].update(positions=CONTEXT - 1),
        lambda raw: raw["ropes"]["rope_far"].update(width=2),
        lambda raw: raw["ropes"]["rope_far"].update(path="embed.bin"),
    ):
        whole = (path / "manifest.json").read_text()
        edited(path, edit)
        refused(path, "bundle.shapes-disagree", check=False)
        (path / "manifest.json").write_text(whole)


def test_no_bundle_at_all(tmp_path):
    refused(tmp_path, "bundle.missing")
    refused(tmp_path / "none", "bundle.missing")
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe")
    refused(tmp_path, "bundle.manifest", words="UTF-8")
    (tmp_path / "manifest.json").write_text('{"schema": "topoc.bundle/2"}')
    refused(tmp_path, "bundle.schema")


def first(raw, role, kind, end="source"):
    """The first feature of a kind in a function of a role."""
    side = "inputs" if end == "source" else "outputs"
    return next(
        one
        for function in raw["functions"]
        if function["role"] == role
        for step in function["steps"]
        for one in step[side]
        if one[end]["kind"] == kind
    )


def drop(raw, role, kind, side="outputs"):
    end = "sink" if side == "outputs" else "source"
    for function in raw["functions"]:
        if function["role"] == role:
            for step in function["steps"]:
                step[side] = [one for one in step[side] if one[end]["kind"] != kind]


def row(**changes):
    """Change the first row of the first buffer."""
    return lambda raw: raw["buffers"][0]["rows"][0].update(changes)


def at(role, source, end="source", **changes):
    """Change fields of a feature, or of its source or sink."""

    def edit(raw):
        one = first(raw, role, source, end)
        for name, value in changes.items():
            (one if name in one else one[end])[name] = value

    return edit


DISAGREEMENTS = {
    "bundle.unknown-name": [
        at("decode", "buffer", name="other"),
        at("decode", "buffer", "sink", name="other"),
        at("decode", "value", name="other"),
        at("decode", "rope_cos", name="other"),
        at("decode", "rope_sin", name=None),
        at("decode", "embedding", name="other"),
        at("decode", "value", "sink", name="other"),
    ],
    "bundle.shapes-disagree": [
        at("decode", "buffer", shape=[1, 1, WINDOW, 2]),
        at("decode", "buffer", dtype="fp16"),
        at("decode", "buffer", "sink", shape=[1, 1, WINDOW + 1, 1]),
        at("decode", "value", shape=[1, 3, 1, 1]),
        at("decode", "value", dtype="fp16"),
        at("decode", "rope_cos", shape=[1, 1, 2, 1]),
        at("decode", "mask", shape=[1, 1, 1, WINDOW + 1]),
        at("prefill", "mask", shape=[1, 1, 4, WINDOW]),
        at("decode", "mask", window=WINDOW + 1),
        at("decode", "mask", rule="shift"),
        at("decode", "slot", rule="shift"),
        at("decode", "slot", shape=[1, 1, WINDOW - 1, 1]),
        at("decode", "buffer", "sink", row=1),
        at("decode", "buffer", "sink", row=-1),
        at("decode", "buffer", "sink", shape=[]),
        at("prefill", "last_row", shape=[1, 1, 1, 5]),
        at("prefill", "rows", "sink", shape=[1, 1, 3, 1]),
        at("prefill", "embedding", shape=[1, 2, 1, 3]),
        at("decode", "token", "sink", dtype="fp32"),
        at("prefill", "token", "sink", shape=[1, 1, 1, 4]),
        at("verify", "token", "sink", shape=[1, 1, 1, 1]),
        at("decode", "hidden", "sink", shape=[1, 3, 1, 1]),
        lambda raw: raw["buffers"][0]["rows"].append({**raw["buffers"][0]["rows"][0], "layer": 1}),
        row(slots=WINDOW + 1),
        row(heads=2),
        row(width=0),
        row(layer=2),
        row(window=0),
        lambda raw: raw["buffers"][0].update(shape=[1, 1, 0, 1]),
        lambda raw: raw["functions"][0].update(tokens=2),
        lambda raw: raw["functions"][1].update(tokens=0),
        lambda raw: raw["functions"][1].update(answers=False),
    ],
    "bundle.mask": [
        at("decode", "mask", fill=0.0),
        at("decode", "mask", fill=1e4),
        at("decode", "mask", fill=-1e39),
        at("decode", "mask", dtype="fp16", fill=-65505.0),
        at("decode", "mask", keys="cache+call"),
        at("prefill", "mask", keys="cache"),
        lambda raw: raw["model"].update(context=CONTEXT + 1),
    ],
    "bundle.incomplete": [
        at("decode", "mask", fill=None),
        at("decode", "mask", keys=None),
        at("decode", "slot", slots=None),
    ],
    "bundle.buffer-writes": [
        lambda raw: drop(raw, "decode", "buffer"),
        lambda raw: drop(raw, "prefill", "rows"),
        lambda raw: first(raw, "decode", "buffer", "sink")["sink"].update(name="far.k"),
    ],
    "bundle.repeated-name": [
        lambda raw: raw["buffers"].append(raw["buffers"][0]),
        lambda raw: raw["functions"].append(raw["functions"][0]),
        at("decode", "mask", feature="near_k"),
        at("decode", "value", "sink", feature="near_k_new"),
        row(holds="v"),
    ],
    "bundle.graph-write": [
        lambda raw: raw["functions"][0].update(role="verify"),
        lambda raw: raw["functions"][1].update(unwrapped=[WINDOW + 1]),
    ],
    "bundle.scale": [
        at("decode", "value", "sink", scale=0.0),
        at("decode", "embedding", scale=-1.0),
    ],
    "bundle.state": [
        lambda raw: raw["buffers"][0].update(store="state"),
        at("decode", "buffer", kind="state"),
    ],
    "bundle.no-function": [
        lambda raw: raw.update(functions=[]),
        lambda raw: [one.update(full_only=True) for one in raw["functions"]],
    ],
}
CASES = [(code, edit) for code, edits in DISAGREEMENTS.items() for edit in edits]


def per_layer(**changes):
    return lambda raw: raw["per_layer"].update(changes)


def copies(edit):
    """Change the copies of each function that has some."""
    return lambda raw: [edit(one["copies"]) for one in raw["functions"] if one["copies"]]


KEPT_IN_STATES = {
    "bundle.state": [
        at("decode", "state", kind="buffer"),
        lambda raw: raw["buffers"][0].update(store="io"),
        lambda raw: raw["buffers"][0].update(initial=1.0),
        lambda raw: raw["buffers"][0].update(dtype="fp32"),
        at("decode", "state", feature="renamed"),
        lambda raw: raw["functions"][1]["steps"][0]["inputs"].remove(
            first(raw, "prefill", "state")
        ),
        at("prefill", "rows", "sink", kind="buffer"),
    ],
    "bundle.copies": [
        copies(lambda held: held.pop()),
        copies(lambda held: held[0].update(others=[])),
        copies(lambda held: held[0].update(others=["far.mlpackage"])),
        copies(lambda held: held[0].update(buffer="other")),
        copies(lambda held: held[0].update(package="other")),
    ],
    "bundle.unknown-name": [
        at("decode", "state", name="other"),
        per_layer(embedding="other"),
        per_layer(rows="other"),
    ],
    "bundle.incomplete": [
        at("decode", "index", rule=None),
        at("decode", "tap", "sink", layer=None),
        at("decode", "tap", "sink", layer=2),
        lambda raw: raw.update(per_layer=None),
    ],
    "bundle.graph-write": [at("decode", "index", rule="shift")],
    "bundle.buffer-writes": [
        lambda raw: drop(raw, "prefill", "rows") or drop(raw, "prefill", "state", "inputs"),
        lambda raw: drop(raw, "decode", "state", "inputs"),
    ],
    "bundle.scale": [
        per_layer(eps=0.0),
        per_layer(projection_factor=-1.0),
        at("decode", "tap", "sink", scale=0.0),
    ],
    "bundle.shapes-disagree": [
        at("decode", "index", shape=[2]),
        at("decode", "index", dtype="fp32"),
        at("decode", "index", slots=WINDOW + 1),
        at("decode", "state", shape=[2, 1, WINDOW, 2]),
        at("prefill", "rows", "sink", shape=[2, 1, 3, 1]),
        at("prefill", "rows", "sink", shape=[2, 2, 4, 1]),
        at("prefill", "rows", "sink", shape=[3, 1, 4, 1]),
        at("prefill", "tap", "sink", shape=[1, 2, 1, 1]),
        at("decode", "per_layer", shape=[1, 2 * VECTOR + 1, 1, 1]),
        at("decode", "per_layer", dtype="int32"),
        per_layer(width=VECTOR + 1),
        per_layer(layers=3),
        per_layer(dtype="fp16"),
        per_layer(gain="projection.bin", projection="gain.bin"),
        lambda raw: raw["tables"]["ple"].update(rows=PLE_ROWS + 1),
        lambda raw: raw["tables"]["ple"].update(rows=VOCABULARY + 1),
        lambda raw: raw["tables"]["ple"].update(rows=0),
    ],
    "bundle.not-listed": [per_layer(gain="other.bin")],
    "bundle.path": [per_layer(projection="../projection.bin")],
    "bundle.repeated-name": [
        lambda raw: raw["functions"][0]["steps"][0]["outputs"].append(
            {**first(raw, "decode", "tap", "sink"), "feature": "again"}
        ),
    ],
}
STATE_CASES = [(code, edit) for code, edits in KEPT_IN_STATES.items() for edit in edits]


@pytest.fixture(scope="module")
def good_states(tmp_path_factory):
    path = tmp_path_factory.mktemp("states") / "b"
    made = tiny_manifest("slice", store="state", calls=APART, taps=True, per_layer=True)
    write_bundle(path, made)
    open_bundle(path)
    return path


@pytest.mark.parametrize(
    ("code", "edit"), STATE_CASES, ids=[f"{c}-{i}" for i, (c, _) in enumerate(STATE_CASES)]
)
def test_a_manifest_with_states_that_disagrees_is_refused(good_states, tmp_path, code, edit):
    path = shutil.copytree(good_states, tmp_path / "b")
    edited(path, edit)
    refused(path, code, check=False)


@pytest.mark.parametrize("write", ["slice", "shift"])
@pytest.mark.parametrize("field", ["full_only", "unwrapped"])
def test_a_call_that_would_spoil_its_caches_is_refused(tmp_path, write, field):
    manifest = tiny_manifest(write, store="state", calls=IN_GRAPH)
    write_bundle(tmp_path / "b", manifest)
    edited(
        tmp_path / "b",
        lambda raw: raw["functions"][1].update({field: type(raw["functions"][1][field])()}),
    )
    if (write, field) == ("shift", "unwrapped"):
        open_bundle(tmp_path / "b", check=False)
    else:
        refused(tmp_path / "b", "bundle.graph-write", check=False)


def test_a_verify_that_shifts_its_rows_in_takes_full_calls_only(tmp_path):
    """Or padding rows would stand where the mask has none."""
    write_bundle(tmp_path / "b", tiny_manifest("shift", slots=WINDOW + 2, calls=AS_IF_WRITTEN))
    open_bundle(tmp_path / "b")
    edited(tmp_path / "b", lambda raw: raw["functions"][2].update(full_only=False))
    refused(tmp_path / "b", "bundle.graph-write", check=False)


@pytest.mark.parametrize("slots", [WINDOW, WINDOW + 2, WINDOW + 3])
def test_a_cache_that_is_written_before_it_is_seen_holds_more_than_a_window(tmp_path, slots):
    """The first of four rows still sees a whole window behind it."""
    write_bundle(tmp_path / "b", tiny_manifest("blend", slots=slots, calls=AFTER_THE_WRITE))
    if slots == WINDOW + 3:
        open_bundle(tmp_path / "b")
    else:
        refused(tmp_path / "b", "bundle.mask", words="the 9 positions")


def test_a_state_must_be_one_in_the_package_too(good_states, tmp_path):
    """The manifest agrees with itself: it is the package that takes an input."""
    manifest = tiny_manifest("slice", store="state", calls=APART, taps=True, per_layer=True)
    path = tmp_path / "b"
    write_bundle(path, manifest)
    step = manifest.functions[0].steps[0]
    fed = [evolve(one, source=evolve(one.source, kind="buffer")) for one in step.inputs]
    shutil.rmtree(path / step.package)
    write_package(path / step.package, [evolve(step, inputs=tuple(fed))], manifest.build)
    refused(path, "bundle.feature", words="has no state `near_kv`", check=False)


@pytest.mark.parametrize(
    ("code", "edit"), CASES, ids=[f"{c}-{i}" for i, (c, _) in enumerate(CASES)]
)
def test_a_manifest_that_disagrees_with_itself_is_refused(path, code, edit):
    edited(path, edit)
    refused(path, code, check=False)


@pytest.mark.parametrize("write", ["shift", "blend", "append"])
@pytest.mark.parametrize("slots", [WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1])
def test_slots_that_can_hold_what_a_query_sees_are_enough(tmp_path, write, slots):
    manifest = tiny_manifest(write, slots=slots)
    write_bundle(tmp_path / "b", manifest)
    if slots >= (WINDOW - 1 if write == "append" else WINDOW):
        open_bundle(tmp_path / "b")
    else:
        refused(tmp_path / "b", "bundle.mask", words="slots can't hold")


def test_the_digest_of_a_package_is_over_paths_sizes_and_hashes(tmp_path):
    for name, text in (("b/c", b"one"), ("a", b"two"), ("b.x", b"")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    lines = "".join(
        f"{name}\t{len(text)}\t{hashlib.sha256(text).hexdigest()}\n"
        for name, text in (("a", b"two"), ("b.x", b""), ("b/c", b"one"))
    )
    assert tree_digest(tmp_path) == (6, hashlib.sha256(lines.encode()).hexdigest())
    assert tree_digest(tmp_path / "a") == (3, hashlib.sha256(b"two").hexdigest())


def test_the_manifest_on_disk_is_canonical(good):
    text = (good / "manifest.json").read_text()
    assert dumps(open_bundle(good).manifest) == text
