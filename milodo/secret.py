"""The run's secret: where it comes from. Whoever knows it may take part in the run; nobody else may."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from milodo.errors import InvalidInput, shortened
from milodo.files import cache_folder

VARIABLE = "MILODO_SECRET"
"""In the environment, which other users of a machine cannot read; the command line they can."""
SHORTEST = 32
"""Characters: of what travels somebody may keep a copy, and try as many secrets on it as he likes."""
LONGEST = 4096
OF_OTHERS = 0o027
"""Permissions that the file of a secret must not give: to read it, for others; to change it, for the group."""


PROOF = hashlib.sha256().digest_size
"""Bytes of a proof."""


@dataclass(frozen=True)
class Secret:
    """What the processes of a run know and nobody else does."""

    key: bytes = field(repr=False)

    def proof(self, *parts: str | bytes) -> bytes:
        """HMAC-SHA256 of the parts, each with its length before it, so that no two lists of parts give the same bytes."""
        made = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            content = part.encode() if isinstance(part, str) else part
            made.update(len(content).to_bytes(8, "big") + content)
        return made.digest()


PUBLIC = Secret(b"")
"""Where a program has initialised torch.distributed itself and gives no secret: everybody knows it, and so it proves nothing."""


def new_secret() -> str:
    return secrets.token_hex(32)


def given_secret() -> Secret | None:
    """That of the environment, if there is one."""
    text = os.environ.get(VARIABLE)
    return None if text is None else _checked(os.fsencode(text), VARIABLE)


def run_secret(address: str, *, all_here: bool) -> Secret:
    """That of the environment; on one machine also the user's own, which all processes of one user find by themselves."""
    if (given := given_secret()) is not None:
        return given
    if all_here:
        return _users_own()
    raise InvalidInput(
        f"processes meet at {shortened(address)}, and without a secret whoever reaches it could take part and change the "
        f"result. Make one with `milodo secret FILE`, copy it to all machines, and give it to all processes, or set {VARIABLE}.",
        "secret",
    )


def read_secret(path: Path) -> Secret:
    """From a file that others cannot read."""
    try:
        with path.open("rb") as file:
            about, content = os.fstat(file.fileno()), file.read(LONGEST + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"cannot read the secret in {path}: {why}. Make one with `milodo secret FILE`.") from error
    mode = stat.S_IMODE(about.st_mode)
    if os.name == "posix" and (mode & OF_OTHERS or about.st_uid not in (0, os.getuid())):
        raise InvalidInput(
            f"{path} has mode {mode:04o} and belongs to user {about.st_uid}, so others here may read or change the "
            "secret in it. Make a new one with `milodo secret FILE`, or, if nobody has seen it, own it and chmod 600."
        )
    return _checked(content, str(path))


def write_secret(path: Path) -> None:
    """A new one, in a new file that only this user can read; a file that is there already stays as it is."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # only its owner may read it
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(new_secret() + "\n")
        os.link(part, path)  # whole, or not at all, and only one of several who do so at once
    finally:
        if part is not None:
            Path(part).unlink()


def _users_own() -> Secret:
    """Made at its first use, in the user's cache folder."""
    try:
        path = cache_folder() / "secret"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was faster
                write_secret(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"cannot keep a secret in the cache folder ({why}). Set {VARIABLE} to the same {SHORTEST} characters or more for all "
            "processes.",
            "secret",
        ) from error
    return read_secret(path)


def _checked(content: bytes, where: str) -> Secret:
    key = content.strip()
    if not SHORTEST <= len(key) <= LONGEST:
        raise InvalidInput(
            f"the secret in {where} has {len(key)} characters, but it must have {SHORTEST} to {LONGEST}: short ones are guessed. "
            "Make one with `milodo secret FILE`.",
        )
    return Secret(key)
