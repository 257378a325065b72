"""What the machine can hold is asked of the machine, and a number of bytes is said as a person says it."""

from __future__ import annotations

import pytest

from milodo import memory
from milodo.errors import InvalidInput
from milodo.memory import free_memory, need_memory
from milodo.words import amount


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(meminfo, limit): what the files of a pretended Linux say; None for no such file."""

    def pretend(meminfo, limit):
        for name, content in (("meminfo", meminfo), ("limit", limit)):
            (tmp_path / name).unlink(missing_ok=True)
            if content is not None:
                (tmp_path / name).write_text(content, encoding="ascii")
        monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(memory, "CGROUPS", (tmp_path / "limit",))

    return pretend


MEMINFO = "MemTotal:       8000 kB\nMemAvailable:   3000 kB\nSwapFree:          500 kB\n"


def test_free_is_what_is_available_with_swap_and_within_the_limit_of_a_container(machine):
    machine(MEMINFO, None)
    assert free_memory() == 3500 * 1024
    machine(MEMINFO, "max\n")
    assert free_memory() == 3500 * 1024
    machine(MEMINFO, "1000000\n")
    assert free_memory() == 1_000_000


def test_where_nobody_says_what_is_free_all_there_is_counts_or_nothing_is_refused(machine, monkeypatch):
    machine(None, None)
    monkeypatch.setattr(memory.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}[name])
    assert free_memory() == 4_096_000
    monkeypatch.delattr(memory.os, "sysconf")
    assert free_memory() is None
    need_memory(10**30, "everything", "")


def test_this_machine_has_some():
    assert free_memory() is None or free_memory() > 10**6


def test_what_does_not_fit_is_refused_with_what_it_takes_and_what_there_is(machine):
    machine(MEMINFO.replace("3000 kB", "3000000 kB"), None)
    need_memory(3 * 10**9, "this", "")
    with pytest.raises(InvalidInput, match=r"^this would need 3.2 TB of memory, but this machine has 3.07 GB free. Do that.$"):
        need_memory(3_200_000_000_000, "this", "Do that.")


def test_an_amount_has_three_digits_and_a_unit():
    said = [amount(count) for count in (0, 999, 999_600, 21_300_000_000, 24 * 10**16, 10**21, 10**400)]
    assert said == ["0 B", "999 B", "1 MB", "21.3 GB", "240 PB", "more than 1000 EB", "more than 1000 EB"]
