"""What this machine allows a lab cluster: namespaces, GPU stand-ins, Slurm's version."""

import os
import re
import stat
import subprocess
from pathlib import Path

from relight.lab.packages import find_program
from relight.lab.slurm_conf import GPUS_PER_NODE

SPARE_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")


def slurm_version() -> tuple[int, int]:
    """Return major and minor of the installed Slurm, such as (22, 5)."""
    text = subprocess.run([find_program("slurmctld") or "slurmctld", "-V"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)\.(\d+)", text.stdout)
    if found is None:
        raise ValueError(f"cannot tell Slurm's version from {text.stdout!r}")
    return int(found[1]), int(found[2])


def namespace_command() -> list[str]:
    """Return the command that runs another as PID 1 of a PID namespace with its own /proc.

    SIGKILL of that PID 1 ends everything in it at once, which is what a power cut does to a node. An ordinary
    user needs a user namespace for it.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]


def namespaces_work() -> bool:
    """Return whether this user may make PID namespaces here (many containers refuse)."""
    return subprocess.run([*namespace_command(), "true"], capture_output=True, check=False).returncode == 0


def gpu_stand_ins(folder: Path) -> tuple[str, ...]:
    """Return eight character devices for gres.conf, made in `folder` or, where that is refused, found in /dev.

    slurmd looks only at the kind of file; with a regular file, or none, the node is INVAL (seen).
    """
    made = [folder / f"nvidia{number}" for number in range(GPUS_PER_NODE)]
    try:
        for device in made:
            if not device.is_char_device():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        spare = [Path("/dev", name) for name in SPARE_DEVICES]
        more = [device for device in sorted(Path("/dev").iterdir()) if device not in spare]
        made = [device for device in spare + more if device.is_char_device()][:GPUS_PER_NODE]
    return tuple(str(device) for device in made)


def closed_parents(folder: Path) -> list[Path]:
    """Return those folders on the way to `folder`, itself included, that other users cannot pass through."""
    return [part for part in (folder, *folder.parents) if part.exists() and not part.stat().st_mode & stat.S_IXOTH]
