"""A real sshd on loopback with folder, keys and port of its own. One of a cluster ends with it.

Started by root, it runs in a namespace of its own in which the account that Relight logs in to has a shell and a home;
the machine's own accounts stay as they are.
"""

import os
import pwd
import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relight.clients import relight_gate
from relight.lab import machine, packages, ports
from relight.lab.cluster import Cluster
from relight.lab.errors import WayMissingError
from relight.lab.processes import MARK, Process, children, descendants, kill_all, spawn, wait_until
from relight.lab.spec import Profile
from relight.lab.users import current_user

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0

# As a lab's node: bash is PID 1 of the namespace, and when it ends, everything in there does, logins included.
INIT = """\
mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/shadow" /etc/shadow || exit
"$1" -D -e -f "$0/sshd_config" & wait
"""
# sshd writes its title over the environment by which a cluster knows its processes; its parent keeps it.
INIT_UNPRIVILEGED = 'setpriv --pdeathsig TERM "$1" -D -e -f "$0/sshd_config" & wait'
CONFIG = """\
ListenAddress {host}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
# Its parents may be anybody's to write, such as /tmp.
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp {sftp_server}
MaxStartups 100
LogLevel VERBOSE
{more}
"""
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


class Sshd:
    """An sshd that lets one account in.

    Args:
        folder: for its keys, settings and log; below a cluster's folder it ends with the cluster.
        user: the account.
        home: that account's home, when root starts the sshd.
        mark: the folder of the cluster with which it ends; None: its own.
    """

    def __init__(self, folder: Path, user: str, home: Path, mark: Path | None = None) -> None:
        self.folder, self.user = folder, user
        self.port = 0
        self.key = folder / "key"
        """A private key to log in with, once `authorize` has let it in."""
        self.known_hosts = folder / "known_hosts"
        self._home, self._mark = home, mark or folder
        self._log = folder / "sshd.log"
        self._process: Process | None = None

    @classmethod
    def of(cls, cluster: Cluster, name: str = "sshd") -> "Sshd":
        """One for a running cluster's service: its user in the production profile, else the current one."""
        user = cluster.users.service if cluster.spec.profile is Profile.PRODUCTION else current_user()
        return cls(cluster.folder / "ssh" / name, user, cluster.work_folder(user), cluster.folder)

    @property
    def login(self) -> dict[str, Any]:
        """How to reach it, in the words of `SshConnection` and of the settings."""
        keys = {"key": str(self.key), "known_hosts": str(self.known_hosts)}
        return {"host": HOST, "port": self.port, "user": self.user, **keys}

    def authorize(self, key: Path | None = None, command: str = "", *options: str) -> None:
        """Let a key in (by default `key`), restricted to one command, or to `options` alone. Replaces all others."""
        words = ["restrict", *([f'command="{command}"'] if command else []), *options]
        public = Path(f"{key or self.key}.pub").read_text()
        (self.folder / "authorized_keys").write_text(f"{','.join(words)} {public}")

    def start(self) -> None:
        """Start it and return when it listens; a second time at the same port.

        Raises:
            WayMissingError: when the machine lacks something.
        """
        program = _program()
        self._make_folder()
        with ports.claimed_ports(1) as port:
            self.port = self.port or port
            self._write_config(program)
            environment = {"PATH": os.pathsep.join(packages.SYSTEM_FOLDERS), MARK: str(self._mark)}
            self._process = spawn(self._command(program), self._log, environment)
            wait_until(self._listens, START_TIMEOUT_S, f"sshd to listen; its log is {self._log}")
        host_key = (self.folder / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"[{HOST}]:{self.port} {host_key[0]} {host_key[1]}\n")

    def stop(self) -> None:
        """End it, with all logins."""
        if self._process is not None:
            self.drop_connections()
            self._process.kill()
            self._process = None
            wait_until(lambda: not self._listens(), START_TIMEOUT_S, "sshd to be gone")

    def drop_connections(self) -> None:
        """Cut every connection, as a lost network does; the commands that were run over them go on."""
        servers = self._servers()
        kill_all(
            [
                process
                for pid in servers
                for child in children(pid)
                if child in servers and (process := Process.of(child))
            ]
        )

    def running(self) -> list[str]:
        """The names of the programs that run for a login, shells left out."""
        pids = descendants(self._process.pid) if self._process else []
        return [name for name in map(_name, pids) if not name.startswith(("sshd", "bash", "sh", "unshare"))]

    def _servers(self) -> list[int]:
        """The listener and those of its children that serve a login."""
        if self._process is None:
            return []
        return [pid for pid in (self._process.pid, *descendants(self._process.pid)) if _name(pid).startswith("sshd")]

    def _make_folder(self) -> None:
        if self.folder.exists():
            return
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        for name in ("host_key", "key"):
            new_key(self.folder / name)
        (self.folder / "authorized_keys").touch()
        (self.folder / "shadow").touch(mode=0o600)
        accounts = [self._usable(entry) for entry in pwd.getpwall()]
        (self.folder / "passwd").write_text("".join(f"{':'.join(map(str, entry))}\n" for entry in accounts))
        # `*` has no password and is not locked; sshd without PAM refuses an account with `!`.
        (self.folder / "shadow").write_text("".join(f"{entry[0]}:*:::::::\n" for entry in accounts))

    def _usable(self, entry: pwd.struct_passwd) -> tuple[str | int, ...]:
        """The line of an account in passwd, with a shell and a home for the one that is logged in to."""
        return tuple(entry) if entry.pw_name != self.user else (*entry[:5], str(self._home), "/bin/sh")

    def _write_config(self, program: str) -> None:
        # From 9.8 on sshd shuts out for a while an address that has failed to log in, and all of a lab's are one.
        more = "PerSourcePenalties no" if _version(program) >= (9, 8) else ""
        sftp = next((path for path in SFTP_SERVERS if Path(path).exists()), SFTP_SERVERS[0])
        text = CONFIG.format(host=HOST, port=self.port, folder=self.folder, sftp_server=sftp, more=more)
        (self.folder / "sshd_config").write_text(text)

    def _command(self, program: str) -> list[str]:
        if os.geteuid() != 0:
            return ["sh", "-c", INIT_UNPRIVILEGED, str(self.folder), program]
        if not machine.namespaces_work():
            raise WayMissingError("sshd of a lab needs namespaces, which this machine does not allow")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # made by systemd or an init script elsewhere
        return [*machine.namespace_command(), "bash", "-c", INIT, str(self.folder), program]

    def _listens(self) -> bool:
        if self._process is not None and not self._process.alive:
            raise WayMissingError(f"sshd ended while starting: {self._log.read_text(errors='replace')[-500:]}")
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False


def install_gate(cluster: Cluster, name: str = "relight-gate", settings: Mapping[str, str] | None = None) -> str:
    """Put the gate and its settings below the cluster's folder, and return the path for a forced command."""
    program = cluster.folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.parent.chmod(0o755)
    program.write_text(Path(relight_gate.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    program.chmod(0o755)
    own = {
        "slurm_conf": str(cluster.slurm_conf),
        "bin": str(Path(packages.find_program("squeue") or "/usr/bin/squeue").parent),
        "relight_node": str(cluster.folder / "sbin/relight-node"),
    }
    lines = [f"{key} = {value}\n" for key, value in (own | dict(settings or {})).items()]
    file = cluster.folder / f"etc/{name}.conf"
    file.write_text("".join(lines))
    file.chmod(0o644)
    return str(program)


def new_key(file: Path) -> Path:
    """Make a key pair, `file` and `file.pub`, without a passphrase."""
    line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", file.name, "-f", str(file)]
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL)
    return file


def _program() -> str:
    program = packages.find_program("sshd")
    if program is None or packages.find_program("ssh-keygen") is None:
        raise WayMissingError("openssh-server is not installed (relight.lab.packages.ensure)")
    return program


def _version(program: str) -> tuple[int, int]:
    # An unknown option prints the version on every release; -V alone only on newer ones.
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
