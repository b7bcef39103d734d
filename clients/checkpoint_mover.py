"""The process that lets a job go on from an older checkpoint, with the rights of the job's own user.

It is started for one wish, read as JSON from standard input, and prints one answer. Either Relight runs as that user
already, or as root and gives all of that up first, or the site names a command that becomes the user
(`slurm.checkpoint_wrapper`). So the kernel decides what may be changed, and no link or race leads to another's files.

Nothing is deleted, and nothing is written outside the folder: a checkpoint is renamed into a folder within the same
one; a tracker is replaced by a file that was written beside it, and the old one kept aside. Folders are opened without
following links from then on. What is done already is found done.

It imports the standard library only.
"""

import json
import os
import re
import stat
import sys
from contextlib import suppress
from typing import Any, NamedTuple

LONGEST_TRACKER = 4096
MOST_NAMES = 200
CLIPPED = 60
"""Characters of a tracker's text that are compared, as the survey clips it."""
_INTO = re.compile(r"relight-aside-[A-Za-z0-9]{1,40}")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MoveError(Exception):
    """It cannot be done, or must not; the message says why."""


class Wish(NamedTuple):
    """What is to be changed in one folder."""

    folder: str
    into: str
    """Name of the folder, within it, that takes what is put aside."""
    aside: tuple[str, ...] = ()
    tracker: str = ""
    was: str = ""
    now: str = ""
    write: bool = False
    """False: only look whether it could be done, and how it stands."""
    user: int = -1
    """Whose rights are to be used; as root all others are given up."""
    group: int = -1
    groups: tuple[int, ...] = ()
    private: tuple[str, ...] = ()
    """Folders of Relight's own, in which nothing is changed."""


class Standing(NamedTuple):
    """How it stands."""

    done: bool
    problem: str = ""
    """Why it could not be (or is not wholly) done; empty where it is done, or can be."""


def main() -> None:
    """Read a wish, carry it out, print how it stands."""
    wish = _wish(json.loads(sys.stdin.buffer.read(1 << 20)))
    try:
        become(wish)
        answer = carry_out(wish)
    except MoveError as error:
        answer = Standing(done=False, problem=str(error))
    except OSError as error:
        answer = Standing(done=False, problem=f"{error.strerror or error} ({error.filename or wish.folder})")
    sys.stdout.write(json.dumps(answer))


def _wish(told: dict[str, Any]) -> Wish:
    lists = {key: tuple(told.get(key, ())) for key in ("aside", "groups", "private")}
    return Wish(**{**told, **lists})


def become(wish: Wish) -> None:
    """Give up what root may do for what the user may.

    Raises:
        MoveError: this process is neither root nor that user.
    """
    if wish.user < 0:
        raise MoveError("the job's user is not known here")
    if os.geteuid() == 0 and wish.user != 0:
        os.setgroups(wish.groups)
        os.setresgid(wish.group, wish.group, wish.group)
        os.setresuid(wish.user, wish.user, wish.user)
    if os.geteuid() != wish.user:
        raise MoveError(f"these are files of user {wish.user}, and Relight works as user {os.geteuid()}")


def carry_out(wish: Wish) -> Standing:
    """Do what is left to be done; with `write` False only tell whether something is, and whether it could be."""
    _check(wish)
    real = os.path.realpath(wish.folder)
    if any(real == each or real.startswith(each.rstrip("/") + "/") for each in wish.private):
        raise MoveError("it is a folder of Relight's own")
    here = os.open(real, _FLAGS)
    try:
        _check_owner(here, wish)
        left = [name for name in wish.aside if _there(here, name)]
        text = _tracker(here, wish) if wish.tracker else ""
        told = text is not None and text[:CLIPPED] == wish.now[:CLIPPED]
        if not left and (not wish.tracker or told):
            return _found_done(here, wish)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=here, effective_ids=True):
            raise MoveError(f"no permission to write in {wish.folder}")
        if wish.tracker and not told and (text is None or text[:CLIPPED] != wish.was):
            raise MoveError(f"{wish.tracker} says {(text or 'nothing')[:CLIPPED]!r} now, not {wish.was!r}")
        if not wish.write:
            return Standing(done=False)
        into = _into(here, wish)
        try:
            for name in left:
                _put_aside(here, into, name, wish)
            if wish.tracker:
                _replace(here, into, wish)
            os.fsync(into)
        finally:
            os.close(into)
        os.fsync(here)
        return Standing(done=True)
    finally:
        os.close(here)


def _check(wish: Wish) -> None:
    """Refuse names that lead anywhere else."""
    names = (*wish.aside, *([wish.tracker] if wish.tracker else []))
    plain = all(name and name not in {".", ".."} and "/" not in name and "\0" not in name for name in names)
    if not plain or len(names) > MOST_NAMES or not _INTO.fullmatch(wish.into) or not wish.folder.startswith("/"):
        raise MoveError("these are no names of checkpoints in a folder")
    if "\n" in wish.now or len(wish.now) > CLIPPED:
        raise MoveError("this is no text of a tracker file")


def _check_owner(fd: int, wish: Wish) -> None:
    owner = os.fstat(fd).st_uid
    if owner != wish.user:
        raise MoveError(f"{wish.folder} belongs to user {owner}, not to the job's own")


def _there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _found_done(here: int, wish: Wish) -> Standing:
    """Nothing is left to do: true where what was to be put aside lies there, or nothing was to be."""
    try:
        into = os.open(wish.into, _FLAGS, dir_fd=here)
    except FileNotFoundError:
        if wish.aside:
            return Standing(done=False, problem=f"{wish.aside[0]} is not there any more")
        return Standing(done=True)
    try:
        gone = [name for name in wish.aside if not _there(into, name)]
    finally:
        os.close(into)
    return Standing(done=not gone, problem=f"{gone[0]} is not there any more" if gone else "")


def _into(here: int, wish: Wish) -> int:
    with suppress(FileExistsError):
        os.mkdir(wish.into, 0o755, dir_fd=here)
    into = os.open(wish.into, _FLAGS, dir_fd=here)
    if os.fstat(into).st_uid != wish.user or os.fstat(into).st_dev != os.fstat(here).st_dev:
        os.close(into)
        raise MoveError(f"{wish.into} is there already, and not the user's own folder")
    return into


def _put_aside(here: int, into: int, name: str, wish: Wish) -> None:
    if os.stat(name, dir_fd=here, follow_symlinks=False).st_uid != wish.user:
        raise MoveError(f"{name} belongs to another user")
    if _there(into, name):
        raise MoveError(f"{wish.into}/{name} is there already")
    os.rename(name, name, src_dir_fd=here, dst_dir_fd=into)


def _tracker(here: int, wish: Wish) -> str | None:
    """What stands in the tracker, without what surrounds it; None where it is no plain file of the user's."""
    try:
        fd = os.open(wish.tracker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != wish.user:
            raise MoveError(f"{wish.tracker} is no file of the user's own")
        return os.read(fd, LONGEST_TRACKER).decode(errors="replace").strip().strip("\0").strip()
    finally:
        os.close(fd)


def _replace(here: int, into: int, wish: Wish) -> None:
    """Write the new tracker aside, keep the old one, put the new one in its place at once."""
    if (text := _tracker(here, wish)) is None or text[:CLIPPED] == wish.now:
        return
    mode = stat.S_IMODE(os.stat(wish.tracker, dir_fd=here, follow_symlinks=False).st_mode)
    with suppress(FileExistsError):
        os.link(wish.tracker, wish.tracker, src_dir_fd=here, dst_dir_fd=into, follow_symlinks=False)
    fresh = f".{wish.tracker}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=into)  # half written by an earlier try
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=into)
    try:
        os.write(fd, wish.now.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, wish.tracker, src_dir_fd=into, dst_dir_fd=here)


if __name__ == "__main__":
    main()
