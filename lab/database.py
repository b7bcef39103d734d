"""Accounting of a lab cluster: MariaDB and slurmdbd in the cluster's folder, and who may do what."""

from dataclasses import dataclass
from pathlib import Path

from relight.lab.users import Users


@dataclass(frozen=True)
class Database:
    """A MariaDB of its own: no TCP, none of /etc/mysql, a socket that only `user` (and root) can reach."""

    folder: Path
    user: str

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return self.folder / "run/db/mysql.sock"

    def install_command(self) -> list[str]:
        """Return the command that makes an empty data folder; one that is there already is left alone."""
        if (self.folder / "db/mysql").exists():
            return ["true"]
        options = ["--no-defaults", f"--user={self.user}", f"--datadir={self.folder}/db", "--skip-test-db"]
        return ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]

    def server_command(self) -> list[str]:
        """Return the server's command, kept small and without waiting for the disk at each commit."""
        options = ["--no-defaults", f"--user={self.user}", f"--datadir={self.folder}/db", f"--socket={self.socket}"]
        options += [f"--pid-file={self.folder}/run/db/mariadbd.pid", "--skip-networking", "--skip-log-bin"]
        options += ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
        options += ["--innodb-lock-wait-timeout=900"]  # slurmdbd asks for it
        # Slurm 26.05 asks for it; `loose` because older servers do not know it.
        return ["mariadbd", *options, "--loose-innodb-snapshot-isolation=OFF"]

    def ping_command(self) -> list[str]:
        """Return the command that succeeds once the server answers."""
        return ["mariadb-admin", "--no-defaults", f"--socket={self.socket}", "--user=root", "ping"]

    def create_command(self) -> list[str]:
        """Return the command that creates slurmdbd's database.

        slurmdbd would do it, but dies of it with Debian 13's libmariadb ("Number of columns in result": seen).
        """
        create = "create database if not exists slurm_acct_db"
        return ["mariadb", "--no-defaults", f"--socket={self.socket}", "--user=root", "--execute", create]


def register_command(accounts_file: Path | None) -> tuple[str, ...]:
    """Return the command that registers the cluster: from a file of accounts where there is one.

    An ordinary user, though he is SlurmUser, may not load a file (seen), and needs no accounts.
    """
    if accounts_file is None:
        return "sacctmgr", "-i", "add", "cluster", "lab"
    return "sacctmgr", "-i", "load", str(accounts_file)


def accounts(users: Users) -> str:
    """Return the cluster, its account, and the people with their admin levels, as `sacctmgr load` reads them.

    One file, because each `sacctmgr add` takes half a second.
    """
    people = "".join(f"User - '{name}'\n" for name in (users.owner, users.other))
    return f"""\
Cluster - 'lab'
Parent - 'root'
Account - 'lab':Description='lab':Organization='lab'
Parent - 'lab'
{people}User - '{users.service}':AdminLevel='Operator'
User - '{users.admin}':AdminLevel='Administrator'
"""
