"""What a Debian root takes over from this machine: the mirror, and the settings of apt, pip and TLS.

All of it is read when it is needed and written nowhere but into the root.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

SHARED_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
"""Names, and the CAs that this machine trusts (a proxy may have one of its own)."""

APT_SETTING = re.compile(r'^(Acquire::(?:(?:https?|ftp)::\S+|Check-\S+|Retries)) "(.+)";$', re.MULTILINE)
"""Proxies, certificates, and how strictly dates are taken: what the way to a mirror depends on."""

PIP_SETTING = re.compile(r"^(global|install|:env:)\.([a-z-]+)=('.*'|\".*\")$", re.MULTILINE)
PIP_SECTIONS = ("global", "install", ":env:")
"""Later ones win, as pip has it."""

OWN_VARIABLES = re.compile(r"(?:PYTHON|LD_|SLURM|SBATCH_|RELIGHT_LAB_|PYTEST_|MAKE|MFLAGS|VIRTUAL_ENV|XDG_|TMPDIR|LC_)")
"""Variables that name this machine's files or another cluster, or that are for the process above us."""


def mirror() -> str | None:
    """Return the URL of the Debian archive in this machine's apt sources; None when there is none."""
    # Without release info also those targets are listed that no `apt-get update` has fetched yet.
    targets = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(COMPONENT)"]
    for line in _output(targets).splitlines():
        url, _, component = line.partition(" ")
        # By its path: the security archive and third parties' have other ones.
        if component == "main" and url.endswith("/debian/"):
            return url
    return None


def apt_settings() -> list[str]:
    """Return this machine's apt settings for the way to a mirror, as `Name "value"`."""
    return [f'{name} "{value}"' for name, value in APT_SETTING.findall(_output(["apt-config", "dump"]))]


def pip_settings() -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return pip's settings on this machine as environment variables, and the files and folders that they name."""
    listed = _output([sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"])
    found = PIP_SETTING.findall(listed)
    settings: dict[str, str] = {}
    for section in PIP_SECTIONS:
        for where, key, value in found:
            if where == section:
                settings["PIP_" + key.upper().replace("-", "_")] = " ".join(ast.literal_eval(value).split())
    places: dict[Path, None] = {}
    for word in " ".join(settings.values()).split():
        # The files of a local index lie beside it: its pages link to ../../files and the like.
        path = Path(word.removeprefix("file://")).parent if word.startswith("file:///") else Path(word)
        if path.is_absolute() and path.exists() and path != Path("/"):
            places[path] = None
    return settings, tuple(places)


def environment() -> dict[str, str]:
    """Return this process's environment without what is of use on this machine only."""
    own = {name: value for name, value in os.environ.items() if not OWN_VARIABLES.match(name)}
    return own | {"HOME": "/root", "LANG": "C.UTF-8"}


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
