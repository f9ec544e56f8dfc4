"""Checksums: what a disk does to data changes them, and they don't depend on how data is read."""

from hypothesis import given
from hypothesis import strategies as st

from topoc.lowering import sums
from topoc.lowering.sums import PAGE, checksum

LENGTHS = st.integers(0, 3 * PAGE + 100)


def drawn(length):
    return bytes(at * 7 % 251 for at in range(length))


@given(LENGTHS.filter(bool), st.data())
def test_a_changed_bit_is_seen(length, data):
    whole = bytearray(drawn(length))
    before = checksum(bytes(whole))
    at = data.draw(st.integers(0, length - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bytes(whole)) != before


def test_pages_that_are_lost_doubled_or_elsewhere_are_seen():
    first, second, rest = drawn(PAGE), drawn(2 * PAGE)[PAGE:], b"rest"
    others = (
        second + first + rest,
        first + first + rest,
        bytes(PAGE) + second + rest,
        first + rest,
        first + second,
        first + second + rest + b"\0",
    )
    whole = checksum(first + second + rest)
    assert whole not in {checksum(one) for one in others}


@given(LENGTHS, st.integers(0, 3))
def test_runs_of_whole_pages_may_be_taken_one_by_one(length, pages):
    whole = drawn(length)
    cut = min(pages * PAGE, length - length % PAGE)
    assert checksum(memoryview(whole)[cut:], checksum(whole[:cut])) == checksum(whole)


def test_a_file_is_read_in_pieces_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "PIECE", 4 * PAGE)
    monkeypatch.setattr(sums, "BLOCK", PAGE)
    whole = drawn(9 * PAGE + 5)
    (tmp_path / "file").write_bytes(whole)
    pieces = [whole[at : at + 4 * PAGE] for at in range(0, len(whole), 4 * PAGE)]
    assert sums.sums(tmp_path / "file") == [checksum(one) for one in pieces]
