"""A stranger cannot steer a run: nothing listens beyond this machine without need, and only who knows the secret takes part."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from real import Process, begin, environment, finish, free_port, start, until
from test_runtime import children, experiment
from test_sites import hospitals
from torch.distributed import HashStore, TCPStore

from milodo.cli.main import run
from milodo.errors import InvalidInput
from milodo.network.greeting import Greeting
from milodo.runtime.group import Group, joined
from milodo.runtime.sealed import Altered, Sealed
from milodo.secret import Secret, read_secret, run_secret, write_secret

OURS = "of this run, with many characters"
LATE = """
import os, sys, time
from pathlib import Path
from milodo.cli.main import entry
from milodo.runtime.group import Group

hear, attacked = Group.hear, Path(sys.argv[1])
del sys.argv[1]

def late(group, key, of=0):
    while key == "plan" and group.rank == 1 and not attacked.exists():
        time.sleep(0.01)
    return hear(group, key, of)

Group.hear = late
entry()
"""
"""`milodo ARGUMENTS`, where process 1 asks for the plan only when the file is there that comes first."""


def test_a_plan_that_was_overwritten_in_the_store_is_refused_by_its_name(tmp_path):
    """γ = 0.02 instead of 0.05 would be a run that ends well, with another result."""
    limit = timedelta(seconds=60)
    server = TCPStore("127.0.0.1", 0, None, is_master=True, timeout=limit, wait_for_workers=False)
    words = ["-c", LATE, str(tmp_path / "attacked"), "run", str(experiment(tmp_path)), "--out", str(tmp_path / "real")]
    held = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MILODO_SECRET": OURS}
    processes = start([*words, "--processes", "2"], 2, server.port, **held)
    until(lambda: server.check(["milodo/life"]), *processes)

    def plan():
        """Its key; until all have come processes may be called more than once."""
        said = server.get("milodo/life").decode()
        return f"milodo/{json.loads(said[said.index('{') :])['life']}/plan"

    until(lambda: server.check([plan()]), *processes)
    before = server.get(plan())
    assert before.count(b"0.05") == 1
    server.set(plan(), before.replace(b"0.05", b"0.02"))
    (tmp_path / "attacked").touch()
    ends = finish(processes)
    errors = "\n".join(end.err for end in ends)
    assert sorted(end.code for end in ends) == [2, 3], errors  # who reads it first refuses it, and the other hears of it
    assert "what stands under 'plan' at the meeting point was not written by a process that knows this run's secret" in errors
    assert "the same MILODO_SECRET" in errors and errors.count("milodo:") == 1 and "Traceback" not in errors


def nodes(folder):
    hospitals(folder)
    words = ["-m", "milodo", "node", "--target", "progression", "--l1", "1", "--standardise"]
    return [*words, "--data", str(folder / "site-{rank}.csv"), "--out", str(folder / "fit"), "--timeout", "100"]


def test_a_stranger_who_takes_a_rank_is_refused_and_named_and_the_run_goes_on_without_him(tmp_path):
    words, port = nodes(tmp_path), free_port()
    first = [begin(words, rank, 3, port, MILODO_SECRET=OURS) for rank in (0, 1)]
    other, none = begin(words, 2, 3, port, MILODO_SECRET="x" * 40), begin(words, 2, 3, port)
    for stranger in finish([other, none]):
        assert stranger.code == 2 and stranger.err.count("\n") == 1
        assert "what stands under 'life' at the meeting point was not written by a process that knows" in stranger.err
    ends = finish([*first, begin(words, 2, 3, port, MILODO_SECRET=OURS)])
    assert all(end.code == 0 for end in ends), ends
    for stranger in (other, none):
        said = [line for line in ends[0].err.splitlines() if f"process {stranger.pid} on " in line]
        assert len(said) == 1 and said[0].startswith("milodo: warning: a process that says it is rank 2"), ends[0].err
        assert "does not know this run's secret and is refused" in said[0]
    assert (tmp_path / "fit" / "node-2" / "fit.json").exists()


def test_two_who_claim_one_rank_are_both_named_and_all_stop(tmp_path):
    words, port = nodes(tmp_path), free_port()
    both = [begin(words, 2, 3, port, MILODO_SECRET=OURS) for _ in range(2)]
    ends = finish([*both, *(begin(words, rank, 3, port, MILODO_SECRET=OURS) for rank in (0, 1))])
    errors = "\n".join(end.err for end in ends)
    assert all(end.code in (2, 3) for end in ends), errors
    assert "rank 2 is claimed twice" in errors and all(f"process {one.pid} on " in errors for one in both)
    assert "Traceback" not in errors and not list((tmp_path / "fit").glob("**/fit.json"))


def listening(pid):
    """Addresses at which a process listens, by its open files and the kernel's tables."""
    files = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()]
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in files:
                words = bytes.fromhex(local.split(":")[0])
                address = b"".join(words[k : k + 4][::-1] for k in range(0, len(words), 4))  # each word in this machine's order
                found.append(ipaddress.ip_address(address))
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the tables of Linux")
@pytest.mark.parametrize("how", ["launched", "by hand"])
def test_a_run_on_one_machine_listens_at_its_loopback_address_only(tmp_path, how):
    words = ["-m", "milodo", "run", str(experiment(tmp_path, iterations=10**6)), "--out", str(tmp_path / "real")]
    if how == "launched":
        started = [Process([*words, "--processes", "2"], environment(GLOO_SOCKET_IFNAME="no such interface"))]
    else:
        started = start(words, 2)
    try:
        until((tmp_path / "real" / "run.json").exists, *started)
        pids = [pid for process in started for pid in (process.pid, *children(process.pid))]
        addresses = [listening(pid) for pid in pids]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert len(pids) == (3 if how == "launched" else 2)
    assert all(addresses), "the store in one of them, gloo in those that compute"
    assert all(address.is_loopback for each in addresses for address in each), addresses


def test_gloo_is_told_to_stay_on_this_machine_and_to_take_addresses_from_its_own_run(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port(), "MILODO_SECRET": OURS}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    begun, seen = dist.init_process_group, []

    def begin_group(*args, store, **options):
        seen.append((os.environ.get("GLOO_SOCKET_IFNAME"), store.underlying_store))
        begun(*args, store=store, **options)

    monkeypatch.setattr(dist, "init_process_group", begin_group)
    with joined(20):
        pass
    ((interface, store),) = seen
    assert interface in ("lo", "lo0") and "GLOO_SOCKET_IFNAME" not in os.environ
    assert isinstance(store, Sealed) and store.secret == Secret(OURS.encode())


FORGED = {
    "no JSON": lambda _: b"\xff{",
    "nothing": lambda _: b"",
    "one character more": lambda sealed: sealed["plan"] + b" ",
    "the value of another key": lambda sealed: sealed["facts"],
    "the value of another run": lambda sealed: sealed["other run"],
    "a value under another secret": lambda sealed: sealed["other secret"],
}


@pytest.mark.parametrize("kind", FORGED)
def test_whatever_a_stranger_writes_is_one_sentence_that_names_the_key(kind):
    bare, said = HashStore(), json.dumps({"gamma": 0.05})
    ours = Sealed(bare, Secret(OURS.encode()), "a")
    sealed = {"facts": ours.seal("facts", said), "other run": Sealed(bare, ours.secret, "b").seal("plan", said)}
    sealed |= {"plan": ours.seal("plan", said), "other secret": Sealed(bare, Secret(b"x" * 40), "a").seal("plan", said)}
    group = Group(0, 1, ours, 60.0)
    group.tell("plan", {"gamma": 0.05})
    assert group.hear("plan") == {"gamma": 0.05}
    bare.set("plan", FORGED[kind](sealed))
    with pytest.raises(Altered, match=r"what stands under 'plan' .* Give all processes the same MILODO_SECRET"):
        group.hear("plan")


@pytest.mark.parametrize("content", ["no JSON", "[1]", "[" * 100_000])
def test_what_a_process_of_the_run_should_not_have_written_is_one_sentence(content):
    group = Group(0, 1, Sealed(HashStore(), Secret(OURS.encode()), "a"), 60.0)
    group.store.set("plan", content)
    with pytest.raises(InvalidInput, match=r"what stands under 'plan' .* was not written by milodo"):
        group.hear("plan")


def test_who_only_repeats_what_he_hears_is_not_taken_for_a_neighbour():
    def echo(sends, receives):
        for (_, said), (_, heard) in zip(sends, receives, strict=True):
            heard.copy_(said)

    greeting = Greeting(Secret(OURS.encode()), "a")
    with pytest.raises(InvalidInput, match="node 1 is refused: it does not know this run's secret"):
        greeting.greet(0, [1], echo, lambda rank: f"node {rank}")
    assert not greeting.known


OWN_GROUP = """
import os, sys, torch, torch.distributed as dist
import milodo
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
try:
    with milodo.gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), graph="path", timeout=60) as g:
        print("begun")
except milodo.InvalidInput as error:
    print(error)
    sys.stdout.flush()
    os._exit(2)
"""


@pytest.mark.parametrize("theirs", [OURS, None], ids=["one secret", "none"])
def test_neighbours_greet_each_other_also_where_the_program_has_initialised_torch(theirs):
    port, given = free_port(), {} if theirs is None else {"MILODO_SECRET": theirs}
    ends = finish([begin(["-c", OWN_GROUP], 0, 2, port, MILODO_SECRET=OURS), begin(["-c", OWN_GROUP], 1, 2, port, **given)])
    for rank, end in enumerate(ends):
        expected = "begun" if theirs == OURS else f"node {1 - rank} (rank {1 - rank}) is refused: it does not know"
        assert end.out.startswith(expected) and end.code == (0 if theirs == OURS else 2), end


def test_a_secret_is_in_a_file_that_nobody_else_can_read(tmp_path, capsys):
    file = tmp_path / "there" / "run.key"
    for expected in (0, 2):  # one that is there already is not replaced
        try:
            code = run(["secret", str(file)])
        except SystemExit as ended:
            code = ended.code
        assert code == expected
    assert "is there already" in capsys.readouterr().err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [path.name for path in file.parent.iterdir()] == ["run.key"]
    secret = read_secret(file)
    assert len(secret.key) == 64 and secret.key.decode() not in repr(secret)
    for mode in (0o644, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(InvalidInput, match=f"has mode {mode:04o}"):
            read_secret(file)
    file.chmod(0o600)
    for content in ("", "short", "x" * 5000):
        file.write_text(content)
        with pytest.raises(InvalidInput, match="it must have 32 to 4096"):
            read_secret(file)
    with pytest.raises(InvalidInput, match="cannot read the secret"):
        read_secret(tmp_path)


def test_processes_of_one_user_on_one_machine_find_one_secret_by_themselves(tmp_path, monkeypatch):
    monkeypatch.delenv("MILODO_SECRET", raising=False)
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    found = []
    threads = [threading.Thread(target=lambda: found.append(run_secret("127.0.0.1", all_here=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({secret.key for secret in found}) == 1
    with pytest.raises(InvalidInput, match=r"processes meet at 10\.0\.0\.1, and without a secret"):
        run_secret("10.0.0.1", all_here=False)
    monkeypatch.setenv("MILODO_SECRET", OURS)
    assert run_secret("127.0.0.1", all_here=True) == run_secret("10.0.0.1", all_here=False) == Secret(OURS.encode())
    (tmp_path / "a file").touch()
    monkeypatch.delenv("MILODO_SECRET")
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "a file"))
    with pytest.raises(InvalidInput, match="cannot keep a secret in the cache folder"):
        run_secret("127.0.0.1", all_here=True)


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    write_secret(tmp_path / "secret")
    before = (tmp_path / "secret").read_bytes()
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "secret")
    assert (tmp_path / "secret").read_bytes() == before
