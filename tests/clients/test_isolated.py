"""Programs of ours that must not be led astray by their environment."""

import os
import subprocess
import sys
from pathlib import Path

PARENT = """
import subprocess, sys
from relight.clients.isolated import isolated
sys.exit(subprocess.run([sys.executable, *isolated("only_here"), "word"]).returncode)
"""


def test_it_finds_what_its_parent_found_and_nothing_that_lies_about(tmp_path: Path) -> None:
    """By PYTHONPATH, which it does not read itself; a module in the folder in which it starts is not taken."""
    library, elsewhere = tmp_path / "library", tmp_path / "elsewhere"
    for folder in (library, elsewhere):
        folder.mkdir()
    (library / "only_here.py").write_text(
        "import sys\ndef main(): import json; sys.exit(print(*sys.argv[1:], json.dumps(1)))\n"
    )
    (elsewhere / "json.py").write_text("raise SystemExit('led astray')\n")
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.append({str(library)!r})\n{PARENT}"],
        env={**os.environ, "PYTHONPATH": str(elsewhere)},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "word 1\n"), done.stderr
