"""The Debian packages that a lab cluster needs, and their installation.

Nothing is installed that is there already, and no service is left running that was not running before: a
lab cluster starts daemons of its own, in its own folder.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SYSTEM_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where Debian puts the binaries; an ordinary user's PATH lacks the `sbin` ones."""

CORE = {"slurmctld": "slurmctld", "slurmd": "slurmd", "slurm-client": "sbatch", "munge": "munged"}
ACCOUNTING = {"slurmdbd": "slurmdbd", "slurm-wlm-mysql-plugin": "", "mariadb-server": "mariadbd"}
PRODUCTION = {"sudo": "sudo"}
SSH = {"openssh-server": "sshd", "openssh-client": "ssh-agent", "mount": "mount"}
METRICS = {"prometheus": "prometheus"}
TESTED_WITH = {"postgresql": "", "chromium": "chromium", "git": "git"}
"""Package name to a binary that shows it is there (empty: ask dpkg)."""

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Written by relight.lab for the length of one apt-get run: starts no service.\nexit 101\n"


class SlurmNotInstallableError(Exception):
    """Slurm is missing and cannot be installed here; the message says why and what to do."""


def find_program(name: str) -> str | None:
    """Return the absolute path of a program, looking into the system folders too."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS)))


def missing(
    accounting: bool, production: bool, ssh: bool = False, metrics: bool = False, tested_with: bool = False
) -> list[str]:
    """Return the packages that a cluster of this kind lacks on this machine, in order of installation.

    `tested_with` adds what only tests of the ledger, its anchors and the console need.
    """
    wanted = CORE | (ACCOUNTING if accounting else {}) | (PRODUCTION if production else {}) | (SSH if ssh else {})
    wanted |= (METRICS if metrics else {}) | (TESTED_WITH if tested_with else {})
    return [package for package, binary in wanted.items() if not _present(package, binary)]


def install(packages: Sequence[str], say: Callable[[str], None]) -> None:
    """Install `packages` with apt-get, saying each command before it is run.

    Does nothing for an empty list. Raises `SlurmNotInstallableError` where there is no apt-get, no way to
    become root, or apt-get fails.
    """
    if not packages:
        return
    wanted = " ".join(packages)
    if find_program("apt-get") is None:
        raise SlurmNotInstallableError(f"this is not Debian (no apt-get): install {wanted} by your own means")
    root = _as_root(wanted)
    say(f"The lab needs packages that are missing here: {wanted}")
    with _no_service_starts(root, say):
        _apt(root, ["update"], say)
        _apt(root, ["install", "--yes", "--no-install-recommends", *packages], say)


def ensure(accounting: bool, production: bool, say: Callable[[str], None], ssh: bool = False) -> None:
    """Install whatever a cluster of this kind lacks."""
    install(missing(accounting, production, ssh), say)


def _present(package: str, binary: str) -> bool:
    if binary:
        return find_program(binary) is not None
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"
    except FileNotFoundError:
        return False


def _as_root(wanted: str) -> list[str]:
    if os.geteuid() == 0:
        return []
    sudo = find_program("sudo")
    if sudo is None:
        raise SlurmNotInstallableError(
            f"you are not root and there is no sudo; ask an administrator to run: apt-get install {wanted}"
        )
    return [sudo]


def _apt(root: list[str], command: list[str], say: Callable[[str], None]) -> None:
    # env(1) rather than env=: sudo would drop the variable.
    line = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300", *command]
    say("running: " + " ".join(line))
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise SlurmNotInstallableError(f"`{' '.join(line)}` failed with exit code {done.returncode}:\n{tail}")


@contextmanager
def _no_service_starts(root: list[str], say: Callable[[str], None]) -> Iterator[None]:
    """Keep the packages' own scripts from starting mariadb, munge and so on with the distribution's settings.

    Debian's way is /usr/sbin/policy-rc.d. One that is there already is an administrator's (or a container
    image's) and stays in force untouched. Enabled units would still start at the next boot: `_disable` sees to that.
    """
    before = _enabled_units()
    ours = not POLICY.exists()
    if ours:
        say(f"writing {POLICY} for the length of the installation, so that it starts no service")
        subprocess.run([*root, "tee", str(POLICY)], input=POLICY_TEXT, text=True, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([*root, "chmod", "755", str(POLICY)], check=True)
    try:
        yield
    finally:
        if ours:
            subprocess.run([*root, "rm", "-f", str(POLICY)], check=True)
        _disable(root, _enabled_units() - before, say)


UNITS = (
    *("slurmctld.service", "slurmd.service", "slurmdbd.service", "munge.service", "mariadb.service"),
    *("ssh.service", "ssh.socket", "prometheus.service", "postgresql.service"),
)


def _enabled_units() -> set[str]:
    if not Path("/run/systemd/system").exists():
        return set()
    return {unit for unit in UNITS if _systemctl("is-enabled", "--quiet", unit)}


def _systemctl(*arguments: str) -> bool:
    return subprocess.run(["systemctl", *arguments], capture_output=True, check=False).returncode == 0


def _disable(root: list[str], units: set[str], say: Callable[[str], None]) -> None:
    """Disable the units that this installation has newly enabled: nobody asked for them at the next boot."""
    if units:
        line = [*root, "systemctl", "disable", *sorted(units)]
        say("running: " + " ".join(line))
        subprocess.run(line, capture_output=True, check=False)


def main() -> None:
    """`python -m relight.lab.packages`: install all that the lab and the system tests need."""
    try:
        install(missing(accounting=True, production=True, ssh=True, metrics=True, tested_with=True), print)
    except SlurmNotInstallableError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
