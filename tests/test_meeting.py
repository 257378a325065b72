"""Meeting: who has come for this start, who was told another number of processes, and what is no meeting point at all."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from real import free_port
from test_sites import write_csv
from torch.distributed import PrefixStore, TCPStore

from milodo.cli.main import run
from milodo.errors import InvalidInput, Stopped
from milodo.runtime.group import Group, joined
from milodo.runtime.meeting import RollCall, all_here
from milodo.runtime.rank_claims import Claim, enter
from milodo.runtime.sealed import Sealed
from milodo.secret import Secret

SECRET = Secret(b"of this run, with many characters")
ENOUGH = 60.0
"""Seconds: a roll call takes milliseconds, on any machine."""


@pytest.fixture(scope="module")
def connect():
    """connect(rank): its own line to one store. Kept, because torch asks the name server about every new one."""
    limit, lines = timedelta(seconds=ENOUGH), {}
    server = TCPStore("127.0.0.1", 0, None, is_master=True, timeout=limit, wait_for_workers=False)

    def connect(rank):
        if rank not in lines:
            lines[rank] = TCPStore("127.0.0.1", server.port, None, is_master=False, timeout=limit)
        return lines[rank]

    connect.port = server.port
    return connect


@pytest.fixture
def meet(connect, request):
    """meet({rank: world, ...}): what each of them learns, all at once."""

    def meet(worlds, timeout=ENOUGH):
        found = {}

        def one(rank, roll):
            try:
                roll.take()
                found[rank] = roll.verdict or f"met in {roll.life}"
            except InvalidInput as error:
                found[rank] = str(error)

        rolls = {
            rank: RollCall(PrefixStore(meet.place, connect(rank)), rank, world, timeout, SECRET) for rank, world in worlds.items()
        }
        threads = [threading.Thread(target=one, args=pair) for pair in rolls.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    meet.place = request.node.name
    return meet


def everybody_met(found):
    return len(set(found.values())) == 1 and all(said.startswith("met in") for said in found.values())


WRONG = {
    "too large on rank 0": {0: 4, 1: 3, 2: 3},
    "too small on rank 0": {0: 2, 1: 3, 2: 3},
    "too large on another": {0: 3, 1: 3, 2: 5},
    "too small on another": {0: 3, 1: 2, 2: 3},
    "too small for its own rank": {0: 3, 1: 3, 2: 2},
}


@pytest.mark.parametrize("name", WRONG)
def test_another_world_size_is_reported_as_such_with_who_has_which(meet, name):
    worlds = WRONG[name]
    for rank, said in meet(worlds).items():
        assert said.startswith(f"WORLD_SIZE is {worlds[0]} for rank 0"), (rank, said)
        named = [other for other in worlds if f"rank {other}" in said]
        assert any(worlds[other] != worlds[0] for other in named)
        for other in named:  # each beside its own number
            number = next(part for part in said.split(".")[0].split("but") if f"rank {other}" in part)
            assert f"{worlds[other]} for" in number


@pytest.mark.parametrize("earlier", [{0: 5, 1: 5, 2: 5, 3: 5, 4: 5}, {0: 2, 1: 2}, {0: 3, 1: 3, 2: 3}])
def test_words_of_an_earlier_start_are_not_taken_for_processes(meet, connect, earlier, monkeypatch):
    """torchrun's store outlives its processes, and their number may change from start to start."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert everybody_met(first := meet(earlier))
    store = PrefixStore(meet.place, connect(0))
    enter(store, Sealed(store, SECRET, ""), Claim.own(7, 8))  # of one who was killed
    assert everybody_met(second := meet({0: 3, 1: 3, 2: 3}))
    assert set(first.values()).isdisjoint(second.values())


def test_who_comes_with_another_world_size_when_all_have_begun_is_told_so_at_once(meet):
    assert everybody_met(meet({0: 2, 1: 2}))
    assert meet({2: 3})[2].startswith("WORLD_SIZE is 2 for rank 0, but 3 for rank 2")


def test_who_is_missing_is_named_by_all_who_are_there(meet, connect):
    rolls = [RollCall(PrefixStore(meet.place, connect(rank)), rank, 4, 1.0, SECRET) for rank in (1, 0, 3)]
    for roll in rolls:
        enter(roll.store, roll.hall, roll.mine)
    assert str(rolls[0]._too_late()).startswith("rank 0 did not appear within 1 s")  # nobody has called yet
    assert not any(roll._may_go() for _ in range(3) for roll in rolls)
    for roll in rolls:
        assert str(roll._too_late()).startswith("rank 2 did not appear within 1 s. Start it with WORLD_SIZE 4")


def test_two_who_answer_for_one_rank_are_both_named_to_all(meet, connect):
    rolls = [RollCall(PrefixStore(meet.place, connect(rank)), rank, 2, ENOUGH, SECRET) for rank in (0, 1, 1)]
    for pid, roll in enumerate(rolls, 1000):
        roll.mine = replace(roll.mine, pid=pid)
        enter(roll.store, roll.hall, roll.mine)
    for _ in range(3):
        gone = [roll._may_go() for roll in rolls]
    assert all(gone) and {roll.verdict for roll in rolls} == {rolls[0].verdict}
    assert rolls[0].verdict.startswith("rank 1 is claimed twice: by process 1001 on ")
    assert "and by process 1002 on " in rolls[0].verdict


def test_who_comes_late_to_a_rank_that_is_taken_names_both_and_stops_the_run(meet, connect):
    assert everybody_met(meet({0: 2, 1: 2}))
    late = RollCall(PrefixStore(meet.place, connect(1)), 1, 2, ENOUGH, SECRET)
    here, late.mine = late.mine, replace(late.mine, pid=late.mine.pid + 1)  # met above by threads of this very process
    with pytest.raises(InvalidInput, match="rank 1 is claimed twice") as refused:
        late.take()
    for claim in (here, late.mine):
        assert f"process {claim.pid} on {claim.host}, started {claim.start[:10]}" in str(refused.value)
    with pytest.raises(Stopped, match="rank 1 is claimed twice"):
        Group(0, 2, late.room, ENOUGH).heed()


def test_who_meets_again_where_it_met_before_is_not_taken_for_another_process(meet, connect):
    """As a program that gossips twice does; process 0 may come to the second meeting last."""
    assert everybody_met(meet({0: 2, 1: 2}))
    again = RollCall(PrefixStore(meet.place, connect(1)), 1, 2, ENOUGH, SECRET)
    enter(again.store, again.hall, again.mine)
    assert not again._may_go()
    assert everybody_met(meet({0: 2, 1: 2}))


@pytest.mark.parametrize(
    ("address", "local", "world", "expected"),
    [
        ("127.0.0.1", None, 3, True),
        ("localhost", None, 3, True),
        ("::1", None, 3, True),
        ("", None, 3, True),
        ("10.0.0.1", None, 3, False),
        ("a.host", None, 3, False),
        ("a.host", 3, 3, True),
        ("a.host", 1, 3, False),
    ],
)
def test_all_are_here_if_they_meet_at_the_loopback_address_or_torchrun_started_all_here(
    address, local, world, expected, monkeypatch
):
    """A name is not looked up: a machine often knows its own name as a loopback address, which others do not."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked a name server"))
    for name, value in {"MASTER_ADDR": address, "LOCAL_WORLD_SIZE": local, "WORLD_SIZE": world}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, str(value))
    assert all_here() is expected


@pytest.fixture
def node(tmp_path, monkeypatch, capfd):
    """node(RANK=...): what `milodo node` prints here, C++ included; its exit code is 2."""
    write_csv(tmp_path / "a.csv", ["a"], [[1.0], [2.0]], "y", [1.0, 2.0])

    def node(*, timeout=0.5, **settings):
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "MILODO_SECRET"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        assert run(["node", "--data", str(tmp_path / "a.csv"), "--timeout", str(timeout), "--out", str(tmp_path / "fit")]) == 2
        shown = capfd.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1, shown.err
        assert not (tmp_path / "fit").exists()
        return shown.err

    return node


def test_settings_that_lead_to_no_meeting_point_are_one_sentence(node, monkeypatch):
    asked = socket.getaddrinfo

    def name_server(host, *args, **kwargs):
        if host == "no.such.host.invalid":  # a real one may take its time
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return asked(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", name_server)
    assert "one of several processes" in node()
    assert "MASTER_PORT is not set" in node(RANK=0, WORLD_SIZE=3)
    assert "RANK is 'x'" in node(RANK="x", WORLD_SIZE=3)
    assert "ports go from 1 to 65535" in node(RANK=1, WORLD_SIZE=3, MASTER_PORT=65536)
    assert "ranks go from 0 to 2" in node(RANK=3, WORLD_SIZE=3, MASTER_PORT=free_port())
    for address in ("no.such.host.invalid", "a..b", "x" * 300):
        for rank in (0, 1):
            there = {"MASTER_ADDR": address, "MASTER_PORT": free_port()}
            assert "without a secret whoever reaches it could take part" in node(RANK=rank, WORLD_SIZE=3, **there)
            said = node(RANK=rank, WORLD_SIZE=3, MILODO_SECRET="s" * 32, **there)
            assert f"MASTER_ADDR is '{address}', which is no address" in said
    assert "rank 1 did not appear within 0.5 s" in node(RANK=0, WORLD_SIZE=3, MASTER_PORT=free_port())


def test_where_nobody_listens_that_is_all_that_is_said(node):
    port = free_port()
    said = node(RANK=1, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert said == f"milodo: no meeting point at 127.0.0.1:{port} within 0.5 s. Is rank 0 running, and reachable from here?\n"


def test_a_rank_beyond_its_world_warns_those_who_wait_for_it(meet, connect, monkeypatch):
    """It is refused at once; the others learn why from it, and do not wait until their time is up."""
    found, meet.place = {}, "milodo"
    waiting = threading.Thread(target=lambda: found.update(meet({0: 3, 1: 3})))
    waiting.start()
    place = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(connect.port)}
    for name, value in {**place, "MILODO_SECRET": SECRET.key.decode()}.items():
        monkeypatch.setenv(name, value)
    until = time.monotonic() + ENOUGH / 2
    while waiting.is_alive() and time.monotonic() < until:  # one knock is enough unless the machine is very busy
        with pytest.raises(InvalidInput, match="ranks go from 0 to 1"), joined(1.0):
            pass
        waiting.join(1.0)
    waiting.join()
    assert set(found.values()) == {found[0]} and found[0].startswith("WORLD_SIZE is 3 for rank 0")
    assert "2 for rank 2" in found[0]


def test_a_call_that_reaches_itself_is_no_answer(monkeypatch):
    """Calling a free port of one's own machine may be given that very port to call from, and TCP then connects the two ends."""
    from milodo.runtime import meeting

    with socket.socket() as both:
        both.bind(("127.0.0.1", 0))
        both.connect(both.getsockname())
        address, port = both.getpeername()
        monkeypatch.setattr(meeting.socket, "create_connection", lambda *_, **__: both)
        with pytest.raises(ConnectionRefusedError):
            meeting._knock(address, port, 1.0)
