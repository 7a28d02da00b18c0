"""The resources that processes hold, and the finding if they do not release them."""

import os
from collections import Counter
from dataclasses import replace
from mmap import PAGESIZE, mmap

import pytest

from testbed.kernel import BpfObject, Map
from testbed.kernel.maps import BPF_F_MMAPABLE
from testbed.soak.failures import Finding
from testbed.soak.holdings import MOST_GROWTH, Holdings, outlived, trim

ARRAY, PROG_ARRAY = 2, 3  # enum bpf_map_type


def mine() -> Holdings:
    trim()
    return Holdings.of(os.getpid())


def test_a_descriptor_that_stays_open_is_found():
    before = mine()
    read, write = os.pipe()
    try:
        with pytest.raises(Finding, match=r"^h1 goes on holding 2 pipe$"):
            mine().growth("h1", before)
    finally:
        os.close(read)
        os.close(write)
    assert mine().growth("h1", before) < MOST_GROWTH


def test_memory_that_stays_is_found():
    before = Holdings(10 << 20, Counter(), frozenset())
    assert replace(before, memory=9 << 20).growth("h1", before) == 0
    assert replace(before, memory=12 << 20).growth("h1", before) == 2 << 20
    with pytest.raises(Finding, match=r"^h1 has grown by 16\.0 MiB since earlier scenarios"):
        replace(before, memory=before.memory + MOST_GROWTH + 1).growth("h1", before)


def test_memory_counts_only_what_a_process_does_not_share():
    before = mine()
    held = bytearray(os.urandom(1 << 20) * 32)
    grown = mine().memory - before.memory
    assert abs(grown - len(held)) < 4 << 20  # other objects come and go meanwhile


@pytest.mark.kernel
def test_a_map_is_identified_by_its_number_and_gone_when_closed():
    before = mine()
    made = Map.create("made", ARRAY, 4, 8, 1)
    found = mine().objects - before.objects
    assert found == {("map", made.number)}
    os.close(made.fd)
    assert mine().objects == before.objects
    assert outlived(found) == []


@pytest.mark.kernel
def test_a_mapping_keeps_a_map_and_is_found(monkeypatch):
    monkeypatch.setattr("testbed.soak.holdings._GRACE", 0.0)
    before = mine()
    made = Map.create("made", ARRAY, 4, 8, 1, BPF_F_MMAPABLE)
    number = made.number
    with mmap(made.fd, PAGESIZE):
        os.close(made.fd)
        with pytest.raises(Finding, match="1 mapping of anon_inode:bpf-map"):
            mine().growth("h1", before)
    assert mine().growth("h1", before) < MOST_GROWTH
    monkeypatch.undo()
    assert outlived([("map", number)]) == []


@pytest.mark.kernel
def test_an_entry_of_a_map_keeps_a_program_without_descriptors(monkeypatch):
    calls = Map.create("calls", PROG_ARRAY, 4, 4, 1)
    try:
        with BpfObject("dispatch") as loaded:
            program = loaded.programs["dispatch_link"]
            before = mine().objects
            calls.update(0, program.fd)
        gone = {found for found in before - mine().objects if found[0] == "prog"}
        monkeypatch.setattr("testbed.soak.holdings._GRACE", 1.0)
        assert len(outlived(gone)) == 1
        calls.delete(0)
        monkeypatch.undo()
        assert outlived(gone) == []
    finally:
        os.close(calls.fd)
