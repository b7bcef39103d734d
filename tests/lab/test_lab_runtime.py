"""Our Python as another user: it reaches what lies below a closed home, and its own libraries before the system's."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from relight.lab.runtime import as_user

LOOK = """
import os, ssl, sys
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "/libpython" in line}
print(os.getuid(), sys.prefix, *loaded)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_runs_our_python_with_its_own_libraries():
    """With the system's libpython it would find no `_ssl`, and so would not reach PostgreSQL (seen)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        check(folder)


def check(folder):
    """Who it is, where its Python is, and which libpython it has loaded."""
    command = as_user("daemon", folder, ["-c", LOOK])
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    user, prefix, *loaded = done.stdout.split()
    assert (user != "0", prefix) == (True, str(folder / "python"))
    assert all(library.startswith(str(folder)) for library in loaded)
