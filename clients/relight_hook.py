#!/usr/bin/python3 -I
"""relight-hook: tells Relight that a job has ended, so that it looks at once.

An administrator installs this one file as /usr/local/sbin/relight-hook (mode 0755, owned by root) on the machine of
slurmctld, and names it in slurm.conf:

  EpilogSlurmctld=/usr/local/sbin/relight-hook

slurmctld takes it up when it is restarted; `scontrol reconfigure` is not enough (seen on 22.05). It runs as SlurmUser
for each job that ends, and always ends with status 0 within two seconds, whatever happens: a job stays COMPLETING while
it runs, and Relight looks by itself soon anyway. What goes wrong is told in syslog. It imports nothing but the standard
library.

Settings, for this file as PREFIX/sbin/NAME: PREFIX/etc/NAME.conf where that exists, else /etc/NAME.conf; writable by
root or SlurmUser alone, `key = value` lines:
  url = https://controller.example:8642      where Relight's ingest endpoint is
  token_file = /etc/slurm/relight-hook.token readable by SlurmUser alone; holds the token of `slurmctld`
  ca_file =                                  certificates that are trusted; empty: those of the system
  insecure = false                           true: send the token unencrypted to another machine
"""

import http.client
import json
import os
import re
import ssl
import stat
import sys
import syslog
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

WITHIN = 1.5
"""Seconds after which it ends, answer or not."""
ACCEPTED = 202
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
DEFAULTS = {"url": "", "token_file": "", "ca_file": "", "insecure": "false"}
TOKEN = re.compile(r"[\x21-\x7e]{16,512}")


class Problem(Exception):  # noqa: N818 - it ends with a line in syslog
    """Why nothing was told."""


class Target(NamedTuple):
    """Where to tell it."""

    tls: bool
    host: str
    port: int
    path: str


def settings_file(program: Path) -> Path:
    """Where the settings are, going by where the program is."""
    name = program.name.removesuffix(".py").replace("_", "-")
    beside = program.parent.parent / "etc" / f"{name}.conf"
    return beside if beside.exists() else Path("/etc", f"{name}.conf")


def read_settings(path: Path) -> dict[str, str]:
    """The settings, believed only where nobody but root or ourselves can write them: they say who gets the token."""
    settings = dict(DEFAULTS)
    for line in _read(path, stat.S_IWGRP | stat.S_IWOTH).splitlines():
        key, sign, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not sign or key.strip() not in settings:
                raise Problem(f"{path}: not a setting: {line.strip()[:80]!r}")
            settings[key.strip()] = value.strip()
    return settings


def read_token(path: Path) -> str:
    """The token, which nobody else may read."""
    token = _read(path, stat.S_IRWXG | stat.S_IRWXO).strip()
    if not TOKEN.fullmatch(token):
        raise Problem(f"{path} holds no token")
    return token


def _read(path: Path, forbidden: int) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            text = file.read(1 << 16)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read {path}: {error}") from None
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & forbidden:
        raise Problem(f"{path} is open to others: chmod go-rwx it")
    return text


def target(url: str, *, insecure: bool) -> Target:
    """Read the endpoint's address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Problem(f"url: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Problem(f"url {url!r} is no address such as https://controller.example:8642")
    tls = parts.scheme == "https"
    if not tls and host not in LOOPBACK and not insecure:
        raise Problem("url would send the token unencrypted: use https, or insecure = true")
    return Target(tls, host, port or (443 if tls else 80), f"{parts.path.rstrip('/')}/v1/epilog")


def tell(program: Path, environment: Mapping[str, str]) -> None:
    """Tell the job's end; raises `Problem` or whatever the network does."""
    job_id = environment.get("SLURM_JOB_ID", "")
    if not (job_id.isascii() and job_id.isdecimal()):
        raise Problem(f"SLURM_JOB_ID is {job_id[:20]!r}: is this run by slurmctld?")
    settings = read_settings(settings_file(program))
    to = target(settings["url"], insecure=settings["insecure"].lower() == "true")
    headers = {
        "Authorization": f"Bearer {read_token(Path(settings['token_file']))}",
        "Content-Type": "application/json",
    }
    connection = _connection(to, settings["ca_file"])
    try:
        connection.request("POST", to.path, json.dumps({"job_id": int(job_id)}), headers)
        answer = connection.getresponse()
        if answer.status != ACCEPTED:
            line = answer.read(300).decode(errors="replace").strip()
            raise Problem(f"{to.host} answers {answer.status}: {line}")
    finally:
        connection.close()


def _connection(to: Target, ca_file: str) -> http.client.HTTPConnection:
    if not to.tls:
        return http.client.HTTPConnection(to.host, to.port, timeout=WITHIN)
    context = ssl.create_default_context(cafile=ca_file or None)
    return http.client.HTTPSConnection(to.host, to.port, timeout=WITHIN, context=context)


def _told(program: Path, environment: Mapping[str, str]) -> None:
    try:
        tell(program, environment)
    except Exception as error:  # noqa: BLE001 - whatever it is, the job's end goes on
        log(f"job {environment.get('SLURM_JOB_ID', '')[:20]} not told: {str(error) or type(error).__name__}")


def log(text: str) -> None:
    """Write a line to syslog."""
    syslog.openlog("relight-hook", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, " ".join(text.split())[:400])


def main() -> None:
    """Tell it in a thread that nobody waits for beyond the limit: a name server may not answer for half a minute."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)  # noqa: T201
        return
    try:
        program = Path(__file__).resolve()
        teller = threading.Thread(target=_told, args=(program, dict(os.environ)), daemon=True)
        teller.start()
        teller.join(WITHIN)
        if teller.is_alive():
            log(f"no answer within {WITHIN} s")
    finally:
        # Without waiting for the thread, and with status 0 whatever happened.
        os._exit(0)


if __name__ == "__main__":
    main()
