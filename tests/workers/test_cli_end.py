"""How the process of a `relight` command ends."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, types
from relight.workers import cli
if {loaded}:
    sys.modules[cli.BRIDGE] = types.ModuleType("bridge")
    class Unsafe:
        def __del__(self):
            print("the interpreter is taken down")
    cli.kept = Unsafe()
atexit.register(print, "what is to be done at exit")
def main():
    sys.stdout.write("done, and ")
    sys.exit({code!r})
cli.main = main
cli.run()
"""


@pytest.mark.parametrize(
    ("code", "status", "said"), [(0, 0, ""), (None, 0, ""), (2, 2, ""), ("no such job", 1, "no such job\n")]
)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_command_ends_with_its_exit_code_and_all_that_it_said(
    code: int | str | None, status: int, said: str, loaded: bool
) -> None:
    """Also where Temporal's native threads make it unsafe to take the interpreter down: then it is not."""
    program = PROGRAM.format(loaded=loaded, code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "done, and what is to be done at exit\n", said)


def test_that_is_the_name_of_temporals_native_part() -> None:
    """Where it is called something else, commands may abort at their end again."""
    program = (
        "import temporalio.client, sys; from relight.workers.cli import BRIDGE; sys.exit(BRIDGE not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
