"""Compiled patterns in the user's cache: kept whole, and believed only where nobody else can have written them."""

import os
from pathlib import Path

import pytest

from relight.attribution import compiled
from relight.attribution.hyperscan_automaton import HyperscanAutomaton

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder that databases are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "relight" / "scan"


def test_what_is_kept_is_read(cache):
    """By nobody but the user."""
    compiled.write(KEY, b"database")
    assert compiled.read(KEY) == b"database"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert (cache / KEY).stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in cache.iterdir()] == [KEY]


def loosen_folder(cache):
    cache.chmod(0o770)


def loosen_file(cache):
    (cache / KEY).chmod(0o620)


def give_file(cache):
    os.chown(cache / KEY, 12345, -1)


def give_folder(cache):
    os.chown(cache, 12345, -1)


def link_file(cache):
    (cache / KEY).rename(cache / "other")
    (cache / KEY).symlink_to("other")


def link_folder(cache):
    cache.rename(cache.with_name("other"))
    cache.symlink_to("other")


def flip(cache):
    content = bytearray((cache / KEY).read_bytes())
    content[-1] ^= 1
    (cache / KEY).write_bytes(content)


def cut(cache):
    (cache / KEY).write_bytes((cache / KEY).read_bytes()[:-1])


def empty(cache):
    (cache / KEY).write_bytes(b"")


@pytest.mark.parametrize(
    "tamper", [loosen_folder, loosen_file, give_file, give_folder, link_file, link_folder, flip, cut, empty]
)
def test_what_somebody_else_may_have_written_is_not_believed(cache, tamper):
    """Or what is not whole: a database is as good as code."""
    if tamper in {give_file, give_folder} and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    compiled.write(KEY, b"database")
    tamper(cache)
    assert compiled.read(KEY) is None


def test_nothing_is_written_where_others_may_write(cache):
    """Nor does that stop a diagnosis."""
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    compiled.write(KEY, b"database")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("home", ["/dev/null/nowhere", "relative"])
def test_no_cache_is_no_error(home, monkeypatch):
    """A container without a home, a full or read-only disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    compiled.write(KEY, b"database")
    assert compiled.read(KEY) is None


def test_old_ones_go(cache):
    """The newest are kept."""
    for number in range(compiled.MOST_KEPT + 3):
        compiled.write(f"{number:064}", b"database")
        os.utime(cache / f"{number:064}", (number, number))
    compiled.write(KEY, b"database")
    assert len(list(cache.iterdir())) == compiled.MOST_KEPT
    assert compiled.read(KEY)
    assert compiled.read(f"{0:064}") is None


def test_patterns_are_compiled_once(cache):
    """The second automaton has them from the cache, and finds the same; other patterns have databases of their own."""
    patterns = ["lost contact", r"exit code \d+"]
    first = HyperscanAutomaton(patterns)
    assert not first.ready
    first.prepare()
    second = HyperscanAutomaton(patterns)
    assert second.ready
    data = b"fine\nlost contact\nexit code 7\n"
    assert second.hits(data) == first.hits(data) != []
    assert not HyperscanAutomaton([*patterns, "more"]).ready


def test_a_database_that_hyperscan_refuses_is_compiled_anew(cache):
    """Of another processor, say: home folders are shared."""
    first = HyperscanAutomaton(["lost contact"])
    first.prepare()
    for entry in list(cache.iterdir()):
        compiled.write(entry.name, b"a whole file, but no database")
    assert not HyperscanAutomaton(["lost contact"]).ready
    assert HyperscanAutomaton(["lost contact"]).hits(b"lost contact\n") == [(12, 0)]


def test_the_folder_is_the_users(monkeypatch):
    """XDG's, else in the home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    assert compiled.folder() == Path("/home/ada/.cache/relight/scan")
