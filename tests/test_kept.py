"""What compiles of one checkpoint share: measured values and whole files, whole or made anew."""

import os
import shutil
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from attrs import define, evolve, field
from compiled import resolved, topology_text
from safetensors.torch import save_file
from tiny_checkpoint import by_name, four_layers
from twins import int4, with_weights

from topoc.dsl.cli import main
from topoc.lowering import kept as keeping
from topoc.lowering import sums as summing
from topoc.lowering import tables
from topoc.lowering.architecture import read
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.compress.cache import Cache
from topoc.lowering.interpret import ranges
from topoc.lowering.ir import DType
from topoc.lowering.kept import Kept
from topoc.lowering.request import Request
from topoc.lowering.sums import PIECE, sums

OTHERS = "chunk one = L0\n  chunk two = L1-3 + norm + head(argmax)"
TABLE = "embed.int8.bin"


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "kept")


def test_a_value_is_noted_and_told(kept):
    value = [0.1, 1e300, {"a": None}]
    assert kept.fact("a") is None
    kept.note("a", value, "a value")
    assert kept.fact("a") == value
    (entry,) = kept.entries()
    assert (entry.key, entry.label, entry.recipe) == ("a", "a value", "measured")


def test_a_value_of_another_byte_is_no_value(kept):
    kept.note("a", 1.5, "a value")
    path = kept.root / "a.fact"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept.fact("a") is None, at
    assert not path.exists()


def test_bytes_are_kept_as_they_are(kept):
    assert kept.values("a") is None
    kept.keep_values("a", b"\x00gain", "a gain", "rounded")
    assert bytes(kept.values("a")) == b"\x00gain"
    (entry,) = kept.entries()
    assert (entry.key, entry.label, entry.recipe) == ("a", "a gain", "rounded")
    path = kept.root / "a.values"
    path.write_bytes(path.read_bytes()[:-1] + b"m")
    assert kept.values("a") is None
    assert kept.damaged == ["a"]


@pytest.fixture
def file(tmp_path):
    """Two pieces and a bit."""
    path = tmp_path / "table.bin"
    path.write_bytes(os.urandom(1 << 20) * 33)
    assert len(sums(path)) == 3
    assert path.stat().st_size % PIECE
    return path


def test_a_kept_file_gets_another_name_and_no_copy(kept, file, tmp_path):
    digest = kept.keep("a", file, "table.bin")
    assert digest == sha256(file.read_bytes()).hexdigest()
    assert kept.link("a", tmp_path / "again") == digest
    assert (tmp_path / "again").samefile(file)
    assert kept.link("b", tmp_path / "other") is None
    (entry,) = kept.entries()
    assert (entry.label, entry.recipe) == ("table.bin", "host table")
    assert entry.bytes > file.stat().st_size


def test_a_file_is_copied_where_it_can_have_no_other_name(kept, file, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    kept.keep("a", file, "table.bin")
    kept.link("a", tmp_path / "again")
    assert not (tmp_path / "again").samefile(file)
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("at", [0, PIECE - 1, PIECE, -1])
def test_a_kept_file_of_another_byte_is_removed(kept, file, tmp_path, at):
    kept.keep("a", file, "table.bin")
    data = bytearray(file.read_bytes())
    data[at] ^= 128
    (kept.root / "a.data").write_bytes(data)
    assert kept.link("a", tmp_path / "again") is None
    assert not (tmp_path / "again").exists()
    assert list(kept.root.iterdir()) == []
    assert kept.damaged == ["a"]


def test_a_file_is_looked_at_ahead(kept, file, tmp_path, monkeypatch):
    digest = kept.keep("a", file, "table.bin")
    monkeypatch.setattr(keeping, "sums", lambda _: pytest.fail("it was looked at"))
    with kept.ahead(["a", "b"]):
        assert kept.link("b", tmp_path / "other") is None
        assert kept.link("a", tmp_path / "again") == digest
        with pytest.raises(pytest.fail.Exception):
            kept.link("a", tmp_path / "once more")
    with kept.ahead(["a"]):
        pass
    with pytest.raises(pytest.fail.Exception):  # what was not asked for is forgotten
        kept.link("a", tmp_path / "later")


def test_looking_ahead_notices_another_byte(kept, file, tmp_path):
    kept.keep("a", file, "table.bin")
    data = bytearray(file.read_bytes())
    data[PIECE] ^= 1
    (kept.root / "a.data").write_bytes(data)
    with kept.ahead(["a"]):
        assert kept.link("a", tmp_path / "again") is None
    assert kept.damaged == ["a"]


def test_a_file_that_goes_while_it_is_looked_at_is_not_there(kept, file, tmp_path):
    kept.keep("a", file, "table.bin")
    with kept.ahead(["a"]):
        kept.prune(0)
        assert kept.link("a", tmp_path / "again") is None
    kept.keep("a", file, "table.bin")
    (kept.root / "a.data").unlink()
    with kept.ahead(["a"]):
        assert kept.link("a", tmp_path / "again") is None
    assert kept.damaged == []


def test_what_was_not_looked_at_is_left_when_a_compile_ends(kept, file, monkeypatch):
    kept.keep("a", file, "table.bin")
    begun, go = [], threading.Event()
    plain = summing._sum

    def slow(*arguments):
        begun.append(arguments)
        go.wait(10)
        return plain(*arguments)

    monkeypatch.setattr(summing, "_sum", slow)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(KeyboardInterrupt), kept.ahead(["a"]):
        threading.Timer(0.1, go.set).start()
        raise KeyboardInterrupt
    assert len(begun) == 1


def test_pruning_takes_the_data_along(kept, file, tmp_path):
    kept.keep("a", file, "table.bin")
    kept.prune(file.stat().st_size)
    assert list(kept.root.iterdir()) == []
    assert kept.link("a", tmp_path / "again") is None
    assert file.exists()


def test_a_file_whose_data_are_gone_is_not_there(kept, file, tmp_path):
    kept.keep("a", file, "table.bin")
    (kept.root / "a.data").unlink()
    assert kept.link("a", tmp_path / "again") is None


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    four_layers(folder)
    return folder


def request(folder, weights, cache, table="int8(per = row)", **options):
    text = topology_text(**options).replace("embed: none", f"embed: {table}")
    return Request(
        topology=with_weights(resolved(text, folder), int4()),
        architecture=read(folder),
        reader=open_checkpoint(weights),
        cache=cache,
    )


def test_another_chunking_measures_nothing_and_codes_no_table(small, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "cache")
    first = compile_bundle(request(small, "random:3", cache), tmp_path / "one")
    fresh = compile_bundle(request(small, "random:3", None, chunks=OTHERS), tmp_path / "fresh")

    def made(*_):
        pytest.fail("it was made before")

    for module, name in ((ranges, "measure"), (tables, "_write_int8")):
        monkeypatch.setattr(module, name, made)
    second = compile_bundle(request(small, "random:3", cache, chunks=OTHERS), tmp_path / "two")
    assert second == fresh
    assert second.build != first.build
    assert tree_digest(tmp_path / "two") == tree_digest(tmp_path / "fresh")
    assert (tmp_path / "two" / TABLE).samefile(tmp_path / "one" / TABLE)
    with pytest.raises(pytest.fail.Exception):
        compile_bundle(request(small, "random:4", cache), tmp_path / "three")


@pytest.mark.parametrize(("weights", "jobs"), [("random:3", "1"), ("model.safetensors", "2")])
def test_a_compile_that_finds_everything_needs_no_torch(
    small, tmp_path, monkeypatch, weights, jobs
):
    """It takes a second to be imported, in each process."""
    monkeypatch.chdir(shutil.copytree(small, tmp_path / "small"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_file(by_name(read(Path())), "model.safetensors")
    recipes = "embed: int8(per = row)\n    weights: palettize(bits = 4, group = 32)"
    for name, chunks in (("one", None), ("two", OTHERS)):
        text = topology_text(chunks=chunks).replace("embed: none", recipes)
        Path(f"{name}.topo").write_text(text)
    main(["compile", "one.topo", "--weights", weights, "-o", "one"], standalone_mode=False)
    asked = ["compile", "two.topo", "--weights", weights, "-o"]
    main([*asked, "fresh", "--no-cache"], standalone_mode=False)
    Path("gone").mkdir()
    Path("gone/torch.py").write_text("raise ModuleNotFoundError('torch is gone')")
    code = [sys.executable, "-c", "from topoc.dsl.cli import main; main()"]
    gone = {**os.environ, "PYTHONPATH": "gone"}
    subprocess.run([*code, *asked, "two", "--jobs", jobs], env=gone, check=True)
    assert tree_digest(Path("two")) == tree_digest(Path("fresh"))


def test_all_tables_of_a_seed_are_looked_at_ahead(small, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = topology_text().replace("embed: none", "embed: int8(per = row)")
    (tmp_path / "tiny.topo").write_text(text.replace("config.json", str(small / "config.json")))
    asked = ["compile", str(tmp_path / "tiny.topo"), "--weights", "random:3", "-o"]
    main([*asked, str(tmp_path / "one")], standalone_mode=False)
    monkeypatch.setattr(keeping, "sums", lambda _: pytest.fail("it was not"))
    main([*asked, str(tmp_path / "two")], standalone_mode=False)
    assert (tmp_path / "two" / TABLE).samefile(tmp_path / "one" / TABLE)


@define
class Heard:
    """What a compile tells of its progress."""

    expected: int = 0
    written: int = 0
    phases: list = field(factory=list)

    def expect(self, total):
        self.expected = total

    def begin(self, phase, _):
        self.phases.append(phase)

    def advance(self, count):
        self.written += count


@pytest.mark.parametrize("table", ["int8(per = row)", "none"])
def test_a_compile_tells_as_much_as_it_expected(small, tmp_path, table):
    """Whether tables are made or are there already, and weights are compressed or not."""
    cache = Cache(tmp_path / "cache")
    for name, precision in (("cold", DType.FP16), ("warm", DType.FP16), ("wide", DType.FP32)):
        heard = Heard()
        asked = evolve(request(small, "random:3", cache, table), precision=precision)
        compile_bundle(asked, tmp_path / name, heard)
        assert heard.written == heard.expected > 0, name
        assert heard.phases[-2:] == ["one", "two"]


def test_a_table_that_somebody_changed_is_made_anew(small, tmp_path):
    cache = Cache(tmp_path / "cache")
    compile_bundle(request(small, "random:3", cache), tmp_path / "one")
    before = (tmp_path / "one" / TABLE).read_bytes()
    (tmp_path / "one" / TABLE).write_bytes(bytes(len(before)))  # the kept one too
    compile_bundle(request(small, "random:3", cache), tmp_path / "two")
    assert (tmp_path / "two" / TABLE).read_bytes() == before
    assert len(cache.damaged) == 1


def test_weights_are_known_by_their_numbers(small, tmp_path):
    """The same tensors in a file that is not the same: nothing is compressed again."""
    cache, found = Cache(tmp_path / "cache"), read(small)
    for name in ("one", "two"):
        save_file(by_name(found), tmp_path / f"{name}.safetensors", metadata={"name": name})
        asked = request(small, str(tmp_path / f"{name}.safetensors"), cache)
        compile_bundle(asked, tmp_path / name)
        weights = [one for one in cache.entries() if one.recipe.startswith("Palettize")]
        assert len(weights) == 4 * 7 + 1
    other = {name: torch.flip(one, [0]) for name, one in by_name(found).items()}
    save_file(other, tmp_path / "three.safetensors")
    compile_bundle(request(small, str(tmp_path / "three.safetensors"), cache), tmp_path / "three")
    weights = [one for one in cache.entries() if one.recipe.startswith("Palettize")]
    assert len(weights) == 2 * (4 * 7 + 1)
