"""Which processes run on a node: needed where a node is no namespace that the kernel ends as a whole."""

from pathlib import Path

from relight.lab.processes import MARK, Process, descendants, environ, pids

NODE_MARK = "RELIGHT_LAB_NODE"
"""Environment variable of a node's own processes: its name."""


def on_node(folder: Path, node: str) -> list[Process]:
    """Return slurmd, step daemons, and all they have started, of a node of the cluster in `folder`."""
    roots = [pid for pid in pids() if _belongs(pid, folder, node)]
    whole = dict.fromkeys(pid for root in roots for pid in (root, *descendants(root)))
    return [process for pid in whole if (process := Process.of(pid))]


def in_our_root(pid: int) -> bool:
    """Whether a process sees the same `/` as we do: another Debian root can hold a cluster of the same path."""
    try:
        return Path(f"/proc/{pid}/root").samefile("/")
    except OSError:
        return False


def _belongs(pid: int, folder: Path, node: str) -> bool:
    return _looks_so(pid, folder, node) and in_our_root(pid)


def _looks_so(pid: int, folder: Path, node: str) -> bool:
    entries = set(environ(pid))
    started_by_us = {f"{MARK}={folder}".encode(), f"{NODE_MARK}={node}".encode()}
    conf = f"SLURM_CONF={folder}/etc/slurm.conf".encode()
    task = {conf, f"SLURMD_NODENAME={node}".encode()}
    return started_by_us <= entries or task <= entries or _is_step_daemon(pid, folder / f"log/slurmd-{node}.log")


def _is_step_daemon(pid: int, log: Path) -> bool:
    """Whether it is a step daemon that holds its node's log open.

    Nothing else tells: Slurm gives it an environment without our mark, and 24.11 writes its title over even that.
    """
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() != "slurmstepd":
            return False
        return any(handle.readlink() == log.resolve() for handle in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
