"""The documents tell the truth about the repository, and nothing in it belongs to one machine."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from relight.workers.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
BUILT = re.compile(r"[.]venv|[.]git|__pycache__|build|dist|[.]relight|[.]lab|[.]hypothesis|.*_cache|.*[.]egg-info")

# One letter of each in brackets: this file is looked through as well.
FOREIGN = re.compile(
    r"/work/(?:mai[n]|share[d]|steerin[g]|[.]librar[y])\b"
    r"|/opt/(?:pyp[i]|wheel[s])|/root/[.]pyen[v]"
    r"|index-ur[l]|find-link[s]|pypi[.]org|files[.]pythonhosted|download[.]pytorch"
    r"|BEGIN [A-Z ]*PRIVATE KE[Y]",
)


def files() -> list[Path]:
    """Every file that is, or is about to be, in the repository."""
    git = shutil.which("git")
    listing = [git or "", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=False) if git else None
    if done and not done.returncode and done.stdout:
        found = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    else:  # an unpacked archive
        found = [path for path in ROOT.rglob("*") if not any(map(BUILT.fullmatch, path.relative_to(ROOT).parts))]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def test_nothing_names_an_index_or_a_place_on_one_machine() -> None:
    """No package index, no path of the machine it was written on, no key stands in any file."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not found


def make_targets() -> set[str]:
    """The targets that `make help` lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def commands(text: str, program: str) -> set[str]:
    """First words after `program` where a document shows a command: in a code block, or between backticks."""
    shown = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    return {word for code in shown for word in re.findall(rf"(?:^|[`\s;&(]){program} ([a-z][a-z-]*)", code)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_make_targets_that_exist(document: Path) -> None:
    """Whoever types what a document shows finds that target."""
    assert commands(document.read_text(), "make") <= make_targets()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_commands_that_exist(document: Path) -> None:
    """Whoever types what a document shows finds that subcommand of `relight`."""
    assert commands(document.read_text(), "relight") <= set(main.list_commands(click.Context(main)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """Every relative link names a file or folder that is there."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_documents_name_are_there(document: Path) -> None:
    """`folder/test_file.py::test_name` is a test, `folder/test_file.py` a file, below tests/."""
    for file, name in re.findall(r"`(?:tests/)?(\w+/test_\w+[.]py)(?:::(\w+))?`", document.read_text()):
        there = ROOT / "tests" / file.removeprefix("tests/")
        assert there.is_file(), file
        assert not name or f"def {name}(" in there.read_text(), f"{file}::{name}"


def test_decisions_are_numbered_without_gaps_and_titled() -> None:
    """NNNN-name.md, from 0001 on, each with its number in the title, a decision, reasons and what was not taken."""
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [path.name[:5] for path in decisions] == [f"{number:04}-" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text()
        assert text.startswith(f"# {path.name[:4]}: ")
        assert len(text.splitlines()) <= 50


def test_the_architecture_lists_every_folder() -> None:
    """The table of folders has a row for each package."""
    rows = re.findall(r"^\| `([a-z]+)/`", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
    folders = {package for package in PACKAGES if package.count(".") == 1}
    assert {f"relight.{row}" for row in rows if row != "tests"} == folders


def test_each_dependency_has_its_reason() -> None:
    """Every requirement stands in the record of dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    record = (ROOT / "docs/decisions/0002-dependencies.md").read_text().lower()
    names = [re.split(r"[\[<>=;]", requirement)[0].lower() for requirement in project["dependencies"]]
    known = {"opentelemetry-sdk": "-sdk"}
    assert [name for name in names if known.get(name, name) not in record] == []
    assert [extra for extra in project["optional-dependencies"] if f"`{extra}`" not in record] == []


def test_make_alone_explains_itself() -> None:
    """`make` without a target lists every target and changes nothing."""
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == make_targets()


def test_the_licence_is_the_one_that_is_named() -> None:
    """LICENSE holds the whole text of the Apache License 2.0."""
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
