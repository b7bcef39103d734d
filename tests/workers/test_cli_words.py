"""The command line as a whole: its overview, the page about it, and what is misspelt."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.workers.cli import COMMANDS, main

PAGE = Path(__file__).parents[2] / "docs/cli.md"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("statu", "status"), ("incident", "incidents"), ("diagnos", "diagnose"), ("audit verfy", "verify")],
)
def test_a_misspelt_command_is_answered_with_the_nearest(wrong: str, right: str):
    """Also below a command."""
    found = CliRunner().invoke(main, wrong.split())
    assert found.exit_code == 2
    assert f"Did you mean '{right}'" in found.output


def test_what_is_near_nothing_is_only_refused():
    """No guess where there is none; an option of the program itself is still one."""
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0


def test_every_command_stands_in_the_page_about_them():
    """And none that is not there."""
    told = set(re.findall(r"^\| `([a-z-]+)[ `]", PAGE.read_text(), re.MULTILINE))
    assert told == set(COMMANDS)


def test_the_overview_groups_every_command_once():
    """By what it is for."""
    shown = CliRunner().invoke(main, ["--help"]).output
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
