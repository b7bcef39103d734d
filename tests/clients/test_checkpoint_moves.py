"""Going back to an older checkpoint, by a real process in real folders: nothing lost, nothing outside touched."""

import getpass
import os
import pwd
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

from relight.clients import checkpoint_mover
from relight.clients.checkpoint_mover import MoveError, Wish, carry_out
from relight.clients.checkpoint_moves import CheckpointMover
from relight.clients.checkpoints import MovesUnavailableError
from relight.domain.checkpoint_look import FallBack, Why

ME = getpass.getuser()
INTO = "relight-aside-i1"


@pytest.fixture
def run(tmp_path):
    """A folder with three checkpoints and a tracker."""
    for step in (10, 20, 30):
        folder = tmp_path / "run" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "data").write_text(str(step))
    (tmp_path / "run" / "latest").write_text("step-30\n")
    return tmp_path / "run"


def aside(run, *names):
    return FallBack(why=Why.DAMAGED, folder=str(run), target="step-10", step=10, aside=names)


def tracker(run, was="step-30", now="step-10"):
    return FallBack(why=Why.DAMAGED, folder=str(run), target=now, tracker="latest", was=was, now=now)


def wish(run, **more):
    return Wish(**{"folder": str(run), "into": INTO, "write": True, "user": os.geteuid(), **more})


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_newer_ones_are_put_aside_whole(run):
    """Under their own names, in a folder within the same one. A look before it changes nothing."""
    mover, change = CheckpointMover(), aside(run, "step-30", "step-20")
    before = tree(run)
    assert await mover.look(change, ME, "i1") == (False, "")
    assert tree(run) == before
    assert await mover.make(change, ME, "i1") == (True, "")
    assert {path.name for path in run.iterdir()} == {"step-10", "latest", INTO}
    assert (run / INTO / "step-30" / "data").read_text() == "30"
    assert await mover.look(change, ME, "i1") == (True, "")
    assert await mover.make(change, ME, "i1") == (True, ""), "what is done is found done"


async def test_a_tracker_gets_another_text_at_once(run):
    """With the mode that it had; the old one is kept; once changed, it is found changed."""
    (run / "latest").chmod(0o640)
    assert await CheckpointMover().make(tracker(run), ME, "i1") == (True, "")
    assert (run / "latest").read_text() == "step-10"
    assert (run / "latest").stat().st_mode & 0o777 == 0o640
    assert (run / INTO / "latest").read_text() == "step-30\n"
    assert await CheckpointMover().make(tracker(run), ME, "i1") == (True, "")
    assert (run / INTO / "latest").read_text() == "step-30\n"
    assert tree(run / INTO) == {"latest"}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_was_half_done_is_done_to_its_end(run, monkeypatch, count):
    """The process was killed after so many of three renames."""
    rename, left = os.rename, [count]

    def dies(*args, **kwargs):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        rename(*args, **kwargs)

    asked = wish(run, aside=("step-30", "step-20"), tracker="latest", was="step-30", now="step-10")
    with monkeypatch.context() as killed:
        killed.setattr(os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            carry_out(asked)
    assert carry_out(asked) == (True, "")
    assert {path.name for path in run.iterdir()} == {"step-10", "latest", INTO}
    assert (run / "latest").read_text() == "step-10"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"aside": ("../outside",)}, "no names"),
        ({"aside": ("..",)}, "no names"),
        ({"aside": ("a\0b",)}, "no names"),
        ({"aside": ("step-30",), "into": "../x"}, "no names"),
        ({"aside": ("step-30",), "folder": "run"}, "no names"),
        ({"tracker": "latest", "was": "step-30", "now": "a\nb"}, "no text"),
        ({"aside": ("step-30",), "private": ("/",)}, "Relight's own"),
        ({"tracker": "latest", "was": "step-20", "now": "step-10"}, "says 'step-30' now"),
        ({"tracker": "gone", "was": "", "now": "step-10"}, "says 'nothing' now"),
    ],
)
def test_what_leads_elsewhere_or_is_not_as_planned_is_refused(run, change, words):
    """And nothing is changed."""
    before = tree(run)
    with pytest.raises(MoveError, match=words):
        carry_out(wish(run, **change))
    assert tree(run) == before


def test_links_lead_nowhere(run, tmp_path):
    """A link in the place of what is made, of the tracker, of the folder itself: what it points to stays as it is."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "latest").write_text("step-30")
    (run / INTO).symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        carry_out(wish(run, aside=("step-30",)))
    (run / INTO).unlink()
    (run / "latest").unlink()
    (run / "latest").symlink_to(outside / "latest")
    with pytest.raises(OSError, match="symbolic"):
        carry_out(wish(run, tracker="latest", was="step-30", now="step-10"))
    (run / "step-40").symlink_to(outside)
    assert carry_out(wish(run, aside=("step-40",))).done
    assert (run / INTO / "step-40").is_symlink()
    assert tree(outside) == {"latest"}
    assert (outside / "latest").read_text() == "step-30"


def test_a_folder_reached_by_a_link_is_changed_where_it_is(run, tmp_path):
    """Sites link /scratch to wherever it lies."""
    (tmp_path / "scratch").symlink_to(run)
    assert carry_out(wish(tmp_path / "scratch", aside=("step-30",))).done
    assert (run / INTO / "step-30").is_dir()


async def test_what_is_gone_is_said(run):
    """Somebody else has moved it: not done, and nothing is made."""
    standing = await CheckpointMover().make(aside(run, "step-50"), ME, "i1")
    assert standing == (False, "step-50 is not there any more")
    assert not (run / INTO).exists()


async def test_another_users_files_are_none_of_the_jobs(run):
    """The folder must be the job's own user's, whoever Relight works as."""
    other = next(each for each in pwd.getpwall() if each.pw_uid not in (0, os.geteuid()))
    standing = await CheckpointMover().make(aside(run, "step-30"), other.pw_name, "i1")
    assert not standing.done
    assert "belong" in standing.problem or "files of user" in standing.problem or "denied" in standing.problem
    assert (run / "step-30").exists()
    nobody = await CheckpointMover().make(aside(run, "step-30"), "no-such-user", "i1")
    assert nobody == (False, "user no-such-user is not known here")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_as_root_it_gives_up_all_other_rights():
    """It becomes the job's user: what this user may not write the kernel refuses."""
    owner = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        for path in (run, run / "step-30", run / "step-20"):
            path.mkdir(exist_ok=True)
            os.chown(path, owner.pw_uid, owner.pw_gid)
        assert (await CheckpointMover().make(aside(run, "step-30"), "nobody", "i1")).done
        assert (run / INTO).stat().st_uid == owner.pw_uid
        os.chmod(run, 0o500)  # noqa: PTH101 - a temporary folder, at once
        standing = await CheckpointMover().make(aside(run, "step-20"), "nobody", "i1")
        assert standing == (False, f"no permission to write in {run}")


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (("sleep", "9"), "did not answer within"),
        (("echo", "no JSON"), "no answer that can be read"),
        (("/no/such/program",), "No such file"),
    ],
)
async def test_a_process_that_does_not_answer_tells_nothing(run, wrapper, words):
    """Whether it was done is not known then: that is raised, so that the next try looks first."""
    mover = CheckpointMover(wrapper=wrapper, timeout=timedelta(seconds=0.3))
    with pytest.raises(MovesUnavailableError, match=words):
        await mover.make(aside(run, "step-30"), ME, "i1")


async def test_a_sites_own_command_becomes_the_user(run, tmp_path):
    """`{user}` stands for the job's user; it runs the same program."""
    script = tmp_path / "as-user"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/who\nexec {sys.executable} -I {checkpoint_mover.__file__}\n')
    script.chmod(0o755)
    mover = CheckpointMover(wrapper=(str(script), "{user}"))
    assert (await mover.make(aside(run, "step-30"), ME, "i1")).done
    assert (tmp_path / "who").read_text().strip() == ME
