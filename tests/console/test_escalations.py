"""What was left to a person: told by `show` and `status` until the job runs again; and the script to submit anew."""

import json
import re
from collections.abc import Callable

import pytest
from click.testing import Result

from relight.domain.attempts import AttemptState
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode

from .conftest import HOSTILE, Night, ago, verdict_for

Relight = Callable[..., Result]
FRESH = "relight show i2222222222 --script > job.sh && sbatch --chdir=/home/alice job.sh"


@pytest.fixture
def expired(night: Night) -> Incident:
    """Job 4800 waited for a person, and nobody came."""
    attempt = night.attempt(4800, ago(hours=2))
    night.commit(attempts=(AttemptState(attempt=attempt.model_copy(update={"script": "#!/bin/sh\nsrun train\n"})),))
    incident = night.incident(
        "i2222222222",
        attempt,
        ago(hours=1),
        plan=verdict_for(attempt, Mode.APPROVE).plan,
        phase=Phase.CLOSED,
        outcome=Outcome.EXPIRED,
        outcome_reason="nobody decided in time; nothing was done",
        closed_at=ago(minutes=30),
    )
    told = {"outcome": "expired", "reason": "nobody", "next": f"Slurm forgets job 4800; submit it anew: {FRESH}"}
    night.row(incident, attempt, "escalate/done", RowKind.ESCALATED, ago(minutes=30), told)
    return incident


def test_show_says_what_to_do(expired: Incident, relight: Relight):
    """The command that a person can copy."""
    page = " ".join(relight("show", expired.id).stdout.split())
    assert f"To do Slurm forgets job 4800; submit it anew: {FRESH}" in page


def test_status_lists_it_until_the_job_runs_again(expired: Incident, night: Night, relight: Relight):
    """For people and for programs."""
    page = relight("status").stdout
    assert "1 incident ended with nothing done, and left to you:" in page
    assert re.search(r"job 4800, 3\d min ago: relight show i2222222222", page), page
    (told,) = json.loads(relight("status", "-o", "json").stdout)["incidents"]["escalated"]
    assert (told["incident"], told["job_id"], FRESH in told["next"]) == ("i2222222222", 4800, True)
    night.attempt(4800, ago(minutes=1), restarts=1)
    assert "left to you" not in relight("status").stdout
    assert json.loads(relight("status", "-o", "json").stdout)["incidents"]["escalated"] == []


def test_yesterdays_are_no_longer_listed(night: Night, relight: Relight):
    """The story keeps them."""
    attempt = night.attempt(4801, ago(hours=60))
    incident = night.incident("i3333333333", attempt, ago(hours=50), phase=Phase.CLOSED, outcome=Outcome.EXPIRED)
    night.row(incident, attempt, "escalate/done", RowKind.ESCALATED, ago(hours=49), {"next": HOSTILE})
    assert "left to you" not in relight("status").stdout
    page = relight("show", incident.id).stdout
    assert "To do" in page
    assert "\x1b[2J" not in page


def test_the_script_that_was_kept(expired: Incident, relight: Relight):
    """Byte for byte into a file."""
    assert relight("show", expired.id, "--script").stdout == "#!/bin/sh\nsrun train\n"


def test_a_script_that_could_not_be_read_is_said(night: Night, relight: Relight):
    """Rather than an empty file that would be submitted."""
    attempt = night.attempt(4802, ago())
    incident = night.incident("i4444444444", attempt, ago())
    result = relight("show", incident.id, "--script")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "no batch script of job 4802 could be read when it ran" in result.stderr
