"""The lab's commands where nothing runs: what they say and how they exit."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.lab.cli import lab


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["cluster", "status", "{}"], 4),
        (["cluster", "stop", "{}"], 4),
        (["cluster", "kill-node", "{}", "n1"], 4),
        (["inject", "{}", "1", "node"], 4),
        (["submit", "{}"], 4),
        (["inject", "{}", "one", "node"], 2),
        (["cluster", "start", "{}/with blank"], 2),
        (["cluster", "start", "{}", "--profile", "production", "--no-accounting"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_errors_are_one_line_and_an_exit_code(tmp_path: Path, arguments: list[str], code: int) -> None:
    """4 where there is no cluster, 2 for wrong usage; never a traceback."""
    done = CliRunner().invoke(lab, [argument.format(tmp_path) for argument in arguments])
    assert done.exit_code == code
    assert "Error: " in done.output
    assert "Traceback" not in done.output


def test_help_lists_the_commands() -> None:
    """The group's help names what there is."""
    done = CliRunner().invoke(lab, ["--help"])
    assert all(command in done.output for command in ("cluster", "submit", "inject"))
