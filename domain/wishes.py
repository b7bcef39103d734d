"""What a job's comment asks: `{"relight": {"mode": "monitor", "progress": "progress.jsonl"}}`, or Mission Control's.

Other tools share the comment: their keys are left alone, and nothing is ever written into a job's (a fresh job gets
the comment of the one that it takes over from, with a mark: `domain.resubmission`). A comment only lowers
what the site allows.
"""

import json
from typing import Any, NamedTuple

from relight.domain.base import below, clip
from relight.domain.permits import Permit
from relight.domain.plan import Mode
from relight.domain.slurm import JobRecord

_OURS, _MISSION_CONTROL = "relight", "APS"
_KNOWN = frozenset({"checkpoints", "fresh", "mode", "progress", "resubmit"})
REQUEUE, SINGLETON = "requeue", "singleton_dependency"
"""Values of Mission Control's `auto_resume_mode` (its Administration Guide, "Confirming AJR is Operational")."""


class Wishes(NamedTuple):
    """What a comment asks, as far as it can be read."""

    mode: Mode | None = None
    """The most that may be done to this job; None: not said."""
    chained: bool = False
    """Its own chain of jobs goes on after a failure, so it is not requeued."""
    most_requeues: int | None = None
    resubmit: Permit | None = None
    """How far a fresh job may go in place of this one; None: not said."""
    remarks: tuple[str, ...] = ()
    """What could not be read and is ignored."""


def wishes(comment: str) -> Wishes:
    """Read a comment; what is not understood is ignored and said."""
    remarks: list[str] = []
    ours, theirs = (_section(comment, name, remarks) for name in (_OURS, _MISSION_CONTROL))
    mode, resubmit = _mode(ours, remarks), _resubmit(ours, remarks)
    return Wishes(mode, *_mission_control(theirs, remarks), resubmit, tuple(remarks))


def _section(comment: str, name: str, remarks: list[str]) -> dict[str, Any]:
    """What stands under the name; empty where it is not named, or is nothing that can be read."""
    if f'"{name}"' not in comment:
        return {}
    try:
        found = json.loads(comment)
    except (ValueError, RecursionError):
        remarks.append(f"the job's comment names {name} but is not JSON: ignored")
        return {}
    section = found.get(name, {}) if isinstance(found, dict) else None
    if isinstance(section, dict):
        return section
    remarks.append(f"the job's comment names {name} but not as an object: ignored")
    return {}


def _mode(ours: dict[str, Any], remarks: list[str]) -> Mode | None:
    if unknown := sorted(ours.keys() - _KNOWN):
        remarks.append(f"the job's comment: relight.{clip(unknown[0], 40)} is no key of ours: ignored")
    asked = ours.get("mode")
    if "mode" not in ours:
        return None
    if isinstance(asked, str) and asked in {*Mode}:
        return Mode(asked)
    remarks.append(f"the job's comment: relight.mode {_shown(asked)} is none of {', '.join(Mode)}: ignored")
    return None


def _resubmit(ours: dict[str, Any], remarks: list[str]) -> Permit | None:
    asked = ours.get("resubmit")
    if "resubmit" not in ours:
        return None
    if isinstance(asked, str) and asked in {*Permit}:
        return Permit(asked)
    remarks.append(f"the job's comment: relight.resubmit {_shown(asked)} is none of {', '.join(Permit)}: ignored")
    return None


def _mission_control(theirs: dict[str, Any], remarks: list[str]) -> tuple[bool, int | None]:
    """`requeue` asks for what the site may do anyway; `max_requeue_times` 0 or more."""
    asked, most = theirs.get("auto_resume_mode"), theirs.get("max_requeue_times")
    if asked not in (None, REQUEUE, SINGLETON):
        told = f"APS.auto_resume_mode {_shown(asked)} is none of {REQUEUE}, {SINGLETON}"
        remarks.append(f"the job's comment: {told}: ignored")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
        remarks.append(f"the job's comment: APS.max_requeue_times {_shown(most)} is no number from 0 on: ignored")
        most = None
    return asked == SINGLETON, most


def _shown(value: Any) -> str:
    return clip(json.dumps(value)[:200], 40)


def progress_file(record: JobRecord) -> str | None:
    """The progress file that a job's comment names, `{"relight": {"progress": "progress.jsonl"}}`, or None.

    It lies below the job's working directory.
    """
    path = _section(record.comment, _OURS, []).get("progress")
    return below(record.work_dir, path) if isinstance(path, str) and path and record.work_dir else None


def checkpoint_folder(record: JobRecord) -> str | None:
    """Where a job's comment says that its checkpoints are, `{"relight": {"checkpoints": "/scratch/run7"}}`, or None.

    As written: absolute, or below its working directory. Whoever looks there looks at this user's files only.
    """
    path = _section(record.comment, _OURS, []).get("checkpoints")
    return path if isinstance(path, str) and path else None
