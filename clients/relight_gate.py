#!/usr/bin/python3 -I
"""relight-gate: the forced command of the account by which Relight reaches a cluster over SSH.

It lets exactly those command lines through that Relight sends, word by word, and reading over SFTP; everything else is
refused with exit status 126 and a line in syslog. It imports nothing but the standard library, starts no shell, and
takes nothing from its caller's environment but the command line.

An administrator installs this one file, owned by root, as /usr/local/bin/relight-gate (mode 0755), and writes into the
authorized_keys of the account, on one line:
  restrict,command="/usr/local/bin/relight-gate" ssh-ed25519 AAAA... relight
The account needs a POSIX shell (sshd starts the forced command by it) and, for job logs, leave to read them.

Settings, for this file as PREFIX/bin/NAME: PREFIX/etc/NAME.conf where that exists, else /etc/NAME.conf; owned by root,
`key = value` lines, all of them optional:
  write = yes                 no: only reading, for a site that monitors
  submit = no                 yes: also sbatch, as this very account, and relight-submit, as those that sudo allows
  sftp = yes                  no: job logs, kernel logs and checkpoints are not read over this account
  bin = /usr/bin              folder of Slurm's commands
  slurm_conf = /etc/slurm/slurm.conf
  slurm_user = slurm          as whom sstat may be run by sudo
  relight_node = /usr/local/sbin/relight-node
  relight_submit = /usr/local/bin/relight-submit
  sftp_server = /usr/lib/openssh/sftp-server
  timeout = 120               seconds after which a command is ended; none for SFTP
"""

import os
import pwd
import re
import shlex
import signal
import stat
import sys
import syslog
from typing import NoReturn

REFUSED = 126
PATTERNS = {
    "<job>": r"[1-9][0-9]{0,9}",
    "<one>": r"[1-9][0-9]{0,9}(?:_[0-9]{1,10}|\+[0-9]{1,5})?",
    "<pending>": r"[1-9][0-9]{0,9}(?:_[0-9]{1,10}|_\[[0-9][0-9,:-]{0,200}\]|\+[0-9]{1,5})?",
    "<dependency>": r"[a-z]{1,32}(?:[:,?][a-z0-9_*+]{1,40}){0,200}",
    "<node>": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}",
    "<nodes>": r"(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,254}(?:,[A-Za-z0-9][A-Za-z0-9_.-]{0,254})*)?",
    "<json>": r"--json(?:=latest\+complex)?",
    "<columns>": r"%[A-Za-z](?:\|%[A-Za-z])*",
    "<fields>": r"[A-Za-z]+(?:,[A-Za-z]+)*",
    "<user>": r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}",
    "<start>": r"now(?:\+[1-9][0-9]{0,5})?",
    "<reason>": r"relight:[^\x00-\x1f\x7f]{1,200}",
    "<folder>": r"/[^\x00-\x1f\x7f]{0,4000}",
}
READS = """
squeue --all --states=all <json>
squeue --all --states=all --jobs=<job> <json>
squeue --all --states=all --noheader --jobs=<job> --format=<columns>
squeue --all --steps --noheader --jobs=<job> --format=<columns>
sinfo --all <json>
sinfo --all <json> --nodes=<node>
scontrol --version
scontrol --all show <json> node
scontrol --all show <json> node <node>
scontrol show config
scontrol show topology
scontrol write batch_script <job> -
sacct --duplicates --allocations --noheader --parsable2 --jobs=<job> --starttime=1970-01-01 --format=<fields>
sstat --allsteps --noheader --parsable2 --jobs=<job> --format=<fields>
sudo -n -u <slurm_user> sstat --allsteps --noheader --parsable2 --jobs=<job> --format=<fields>
sudo -n -u <slurm_user> --preserve-env=SLURM_CONF sstat --allsteps --noheader --parsable2 --jobs=<job> --format=<fields>
sacctmgr -nP show user name=<user> format=adminlevel
id -un
"""
WRITES = """
scontrol requeue <one>
scontrol update JobId=<one> ExcNodeList=<nodes>
scontrol update JobId=<one> StartTime=<start>
scontrol update JobId=<pending> Dependency=<dependency>
scontrol hold <one>
scontrol release <one>
scancel <one>
sudo -n <relight_node>
sudo -n <relight_node> drain <node> <reason>
sudo -n <relight_node> undrain <node>
sudo -n <relight_node> down <node> <reason>
<relight_node>
<relight_node> drain <node> <reason>
<relight_node> undrain <node>
<relight_node> down <node> <reason>
"""
SUBMITS = """
sudo -n -u <user> <relight_submit>
sbatch --parsable --chdir=<folder>
sbatch --parsable --chdir=<folder> --hold
"""
ELSEWHERE = {"id": "/usr/bin/id", "sudo": "/usr/bin/sudo"}
"""What is not Slurm's."""
PREFIX = re.compile(r"LC_ALL=C|TZ=UTC|SLURM_TIME_FORMAT=standard|SLURM_CONF=/.*|PATH=/.*", re.DOTALL)
"""What Relight sets by env(1) for an ordinary account. Left out here: `environment` decides."""
SFTP = re.compile(r"(?:internal-sftp|/\S+/sftp-server)(?: [ -~]*)?")
SFTP_REQUESTS = "open,close,read,stat,lstat,fstat,realpath,readlink,opendir,readdir,limits"
DEFAULTS = {
    "write": "yes",
    "submit": "no",
    "sftp": "yes",
    "bin": "/usr/bin",
    "slurm_conf": "",
    "slurm_user": "slurm",
    "relight_node": "/usr/local/sbin/relight-node",
    "relight_submit": "/usr/local/bin/relight-submit",
    "sftp_server": "/usr/lib/openssh/sftp-server",
    "timeout": "120",
}


class Refusal(Exception):  # noqa: N818 - it ends the program
    """Why nothing is run, in one line for a person."""


def settings_file(program: str) -> str:
    """Where the settings are: decided by where root has put the program, never by the caller."""
    name = os.path.basename(program).removesuffix(".py").replace("_", "-")  # noqa: PTH119 - pathlib costs 5 ms
    beside = os.path.join(os.path.dirname(os.path.dirname(program)), "etc", f"{name}.conf")  # noqa: PTH118, PTH120
    return beside if os.path.exists(beside) else f"/etc/{name}.conf"  # noqa: PTH110


def read_settings(path: str, owner: int) -> dict[str, str]:
    """The settings file, believed only where nobody but root (or the program's owner) can write it."""
    settings = dict(DEFAULTS)
    try:
        file = open(path, encoding="utf-8")  # noqa: PTH123, SIM115
    except FileNotFoundError:
        return settings
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error.strerror}") from None
    with file:
        about = os.fstat(file.fileno())
        if about.st_uid not in (0, owner) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Refusal(f"{path} is not root's alone")
        lines = file.read().splitlines()
    for line in lines:
        key, sign, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not sign or key.strip() not in settings:
                raise Refusal(f"{path}: not a setting: {line.strip()!r}")
            settings[key.strip()] = value.strip()
    check_settings(path, settings)
    return settings


def check_settings(path: str, settings: dict[str, str]) -> None:
    """Refuse everything for a setting that means nothing: a mistyped `no` must not be a yes."""
    for key in ("write", "submit", "sftp"):
        if settings[key] not in ("yes", "no"):
            raise Refusal(f"{path}: {key} is `yes` or `no`")
    for key in ("bin", "relight_node", "relight_submit", "sftp_server"):
        if not settings[key].startswith("/"):
            raise Refusal(f"{path}: {key} must be an absolute path")
    if not settings["timeout"].isdecimal():
        raise Refusal(f"{path}: timeout is a number of seconds")


def command(line: str, settings: dict[str, str]) -> tuple[list[str], bool]:
    """The program's path and its arguments for the client's line, and whether it changes anything.

    Raises:
        Refusal: for every other line.
    """
    if SFTP.fullmatch(line):
        if settings["sftp"] != "yes":
            raise Refusal("no SFTP here (sftp = no)")
        return [settings["sftp_server"], "-R", "-p", SFTP_REQUESTS], False
    try:
        words = without_prefix(shlex.split(line))
    except ValueError:
        raise Refusal("unbalanced quotes") from None
    if fits(words, READS, settings):
        return programs(words, settings), False
    for table, key in ((WRITES, "write"), (SUBMITS, "submit")):
        if fits(words, table, settings):
            if settings["write"] != "yes" or settings[key] != "yes":
                raise Refusal(f"only reading is allowed here ({key} = no)")
            return programs(words, settings), True
    raise Refusal("not a command of Relight's")


def without_prefix(words: list[str]) -> list[str]:
    """The words after `env NAME=VALUE ...`, where those are the ones that Relight sends."""
    if words[:1] != ["env"]:
        return words
    rest = words[1:]
    while rest and PREFIX.fullmatch(rest[0]):
        rest = rest[1:]
    return rest


def fits(words: list[str], table: str, settings: dict[str, str]) -> bool:
    """Whether the words are one of the table's lines, each of them wholly."""
    own = {f"<{key}>": re.escape(settings[key]) for key in ("slurm_user", "relight_node", "relight_submit")}
    for line in table.split("\n"):
        wanted = line.split()
        if not wanted or len(wanted) != len(words):
            continue
        patterns = (pattern(word, PATTERNS | own) for word in wanted)
        if all(re.fullmatch(one, word) for one, word in zip(patterns, words, strict=True)):
            return True
    return False


def pattern(word: str, patterns: dict[str, str]) -> str:
    """A word of a table as a regular expression."""
    return "".join(patterns.get(part) or re.escape(part) for part in re.split(r"(<\w+>)", word))


def programs(words: list[str], settings: dict[str, str]) -> list[str]:
    """The words with each program by its whole path."""
    first = ELSEWHERE.get(words[0], words[0])
    return [
        f"{settings['bin']}/{first}" if "/" not in first else first,
        *(f"{settings['bin']}/sstat" if word == "sstat" else word for word in words[1:]),
    ]


def environment(settings: dict[str, str]) -> dict[str, str]:
    """The whole environment of what is run."""
    account = pwd.getpwuid(os.getuid())
    own = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    fixed = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    fixed["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"  # big JSON documents: a sixth of the time is saved (seen)
    conf = {"SLURM_CONF": settings["slurm_conf"]} if settings["slurm_conf"] else {}
    return own | fixed | conf | {"PATH": f"{settings['bin']}:/usr/bin:/bin"}


def run(words: list[str], settings: dict[str, str]) -> NoReturn:
    """Become that program. The alarm stays set over exec, and ends what a lost connection has left behind."""
    if words[0] != settings["sftp_server"]:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(int(settings["timeout"]))
    os.execve(words[0], words, environment(settings))  # noqa: S606 - on purpose without one


def main() -> int:
    """Run as a program."""
    program = os.path.realpath(__file__)
    if sys.argv[1:]:
        print(__doc__)  # noqa: T201
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else REFUSED
    line = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0] or "?"
    try:
        settings = read_settings(settings_file(program), os.stat(program).st_uid)  # noqa: PTH116
        words, changes = command(line, settings)
        if changes:
            log(syslog.LOG_NOTICE, f"{client}: {shlex.join(words)}")
        run(words, settings)
    except Refusal as refusal:
        said = str(refusal)
    except (OSError, ValueError) as error:
        said = f"cannot be run: {error}"
    log(syslog.LOG_WARNING, f"{client}: refused: {said}: {line or 'no command'}")
    # "permission denied" are the words by which Relight tells a refusal from a failure of Slurm.
    print(f"relight-gate: permission denied: {ascii(said)[1:-1]}", file=sys.stderr)  # noqa: T201
    return REFUSED


def log(level: int, text: str) -> None:
    """One line, whatever is in it."""
    syslog.openlog("relight-gate", syslog.LOG_PID, syslog.LOG_AUTH)
    syslog.syslog(level, ascii(text[:1000])[1:-1])


if __name__ == "__main__":
    sys.exit(main())
