"""What a job's comment asks of Relight: `{"relight": {"mode": "monitor", "progress": "progress.jsonl"}}`."""

import json
from typing import Any

from relight.domain.base import below
from relight.domain.plan import Mode, lowest
from relight.domain.slurm import JobRecord


def _wishes(comment: str) -> dict[str, Any]:
    """What a job's comment asks of Relight: `{"relight": {...}}`. Anything else in it belongs to others.

    Raises:
        ValueError: when it names relight but says nothing that can be read.
    """
    if '"relight"' not in comment:
        return {}
    try:
        wishes = json.loads(comment)["relight"]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(comment) from error
    if not isinstance(wishes, dict):
        raise ValueError(comment)  # noqa: TRY004 - what a user wrote
    return wishes


def job_mode(ceiling: Mode, comment: str) -> tuple[Mode, str]:
    """The mode for one job, and why: the site's ceiling, lowered (never raised) by the job's comment.

    The comment is the user's: `{"relight": {"mode": "monitor"}}`. A comment that is not JSON, or a mode unknown to us,
    changes nothing and is said.
    """
    try:
        wishes = _wishes(comment)
        if '"relight"' not in comment or wishes.keys() == {"progress"}:
            return ceiling, f"cluster policy says {ceiling}"
        asked = Mode(wishes["mode"])
    except (ValueError, TypeError, KeyError):
        return ceiling, "the job's comment names relight but no mode that exists: " + ", ".join(Mode)
    mode = lowest(ceiling, asked)
    return mode, f"cluster policy says {ceiling}, the job's comment {asked}"


def progress_file(record: JobRecord) -> str | None:
    """The progress file that a job's comment names, `{"relight": {"progress": "progress.jsonl"}}`, or None.

    It lies below the job's working directory.
    """
    try:
        path = _wishes(record.comment).get("progress")
    except ValueError:
        return None
    return below(record.work_dir, path) if isinstance(path, str) and path and record.work_dir else None
