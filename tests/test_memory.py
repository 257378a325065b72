"""What the machine can hold is asked of the machine, and a number of bytes is said as a person says it."""

from __future__ import annotations

import psutil
import pytest

from milodo import memory
from milodo.errors import InvalidInput
from milodo.memory import free_memory, need_memory
from milodo.words import amount


@pytest.fixture
def limit(tmp_path, monkeypatch):
    """limit(content): what the file of a container says; None for no such file."""

    def say(content):
        (tmp_path / "limit").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "limit").write_text(content, encoding="ascii")
        monkeypatch.setattr(memory, "CGROUPS", (tmp_path / "limit",))

    return say


def test_free_is_within_the_limit_of_a_container(limit):
    limit("1000000\n")
    assert free_memory() == 1_000_000
    for nothing in (None, "max\n"):
        limit(nothing)
        assert 10**6 < free_memory() <= psutil.virtual_memory().total + psutil.swap_memory().total


def test_what_does_not_fit_is_refused_with_what_it_takes_and_what_there_is(limit):
    limit("70000000\n")
    need_memory(69 * 10**6, "this", "")
    with pytest.raises(InvalidInput, match=r"^this would need 3.2 TB of memory, but this machine has 70 MB free. Do that.$"):
        need_memory(3_200_000_000_000, "this", "Do that.")


def test_an_amount_has_three_digits_and_a_unit():
    said = [amount(count) for count in (0, 999, 999_600, 21_300_000_000, 24 * 10**16, 10**21, 10**400)]
    assert said == ["0 B", "999 B", "1 MB", "21.3 GB", "240 PB", "more than 1000 EB", "more than 1000 EB"]
