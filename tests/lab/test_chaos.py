"""The chaos harness: its bounds, its draws, its reading of Slurm's record, a checker that can fail, and a real run."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey
from relight.domain.ledger import Row, RowKind
from relight.lab import chaos_liar, packages
from relight.lab.chaos_bounds import at_most, upper_bound
from relight.lab.chaos_check import Case, Kind, Truth, check, story
from relight.lab.chaos_commands import CALLS, Commands
from relight.lab.chaos_draw import COMMANDS, Fault, How, Part, draw
from relight.lab.chaos_record import Deed, Execution, What, read_accounting, read_log
from relight.lab.chaos_seen import mark
from relight.lab.cli import lab

OURS, OWNER, ADMIN = 994, 999, 993
AT = datetime(2026, 12, 1, 9, 0, 0, tzinfo=UTC)
JOB, INCIDENT = 7, "i0123456789"
RUN = "recover/lab/7/20261201T090000Z/run"


def at(second: float) -> datetime:
    return AT + timedelta(seconds=second)


# --- bounds


@pytest.mark.parametrize(
    ("times", "trials", "bound"), [(0, 200, 0.01487), (1, 200, 0.02350), (0, 1, 0.95), (3, 3, 1), (0, 0, 1)]
)
def test_the_bound_is_clopper_and_pearsons(times: int, trials: int, bound: float) -> None:
    """As tables have it; 0 of 200 leaves at most 1.5 %."""
    assert upper_bound(times, trials) == pytest.approx(bound, abs=1e-5)


@given(st.integers(1, 300), st.data())
def test_a_rate_at_the_bound_is_as_rare_as_said(trials: int, data: st.DataObject) -> None:
    """So few events come about at that rate in one case of twenty."""
    times = data.draw(st.integers(0, trials - 1))
    assert at_most(times, trials, upper_bound(times, trials)) == pytest.approx(0.05, abs=1e-6)


def test_more_events_than_trials_are_refused() -> None:
    """That would be a fault of the count."""
    with pytest.raises(ValueError, match="3 of 2"):
        upper_bound(3, 2)


# --- draws


def test_a_seed_draws_one_trial_and_all_seeds_draw_all_of_them() -> None:
    """A trial can be played again; and nothing that can break is left out."""
    scripts = [draw(seed) for seed in range(2000)]
    assert scripts == [draw(seed) for seed in range(2000)]
    assert {script.fault for script in scripts} == {*Fault}
    assert {(script.part, script.how) for script in scripts if script.part is not Part.COMMAND} == {
        (part, how) for part in Part if part is not Part.COMMAND for how in (How.KILL, How.STOP)
    }
    troubled = [script for script in scripts if script.part is Part.COMMAND]
    assert {script.command for script in troubled} == {*COMMANDS} == {*CALLS}
    assert {script.how for script in troubled} == {How.SLOW, How.HANG, How.LATE, How.LIE, How.GARBLE}


# --- Slurm's record

LOG = """\
[2026-12-01T09:00:01.004] sched: Allocate JobId=7 NodeList=n[1-2] #CPUs=2 Partition=main
[2026-12-01T09:00:09.750] _job_complete: JobId=7 WEXITSTATUS 143
[2026-12-01T09:00:11.000] debug2: Processing RPC: REQUEST_UPDATE_NODE from UID=0
[2026-12-01T09:00:11.100] update_node: node n2 reason set to: relight:i0123456789:XID_48: Double-bit memory error.
[2026-12-01T09:00:11.100] update_node: node n2 state set to DRAINING
[2026-12-01T09:00:12.000] debug2: Processing RPC: REQUEST_JOB_REQUEUE from UID=994
[2026-12-01T09:00:12.001] debug:  _job_requeue_op: JobId=7 state 0x8000 reason 24 priority -65540
[2026-12-01T09:00:12.500] debug2: Processing RPC: REQUEST_JOB_REQUEUE from UID=994
[2026-12-01T09:00:12.501] _slurm_rpc_requeue: Requeue of JobId=7 returned an error: Job is pending execution
[2026-12-01T09:00:12.845] sched: _update_job: setting exc_nodes to n2 for JobId=7
[2026-12-01T09:00:12.845] _slurm_rpc_update_job: complete JobId=7 uid=994 usec=207
[2026-12-01T09:00:12.900] _slurm_rpc_update_job: JobId=7 uid=994: Job is no longer pending execution
[2026-12-01T09:00:14.753] sched: _update_job: setting begin to 2026-12-01T09:00:14 for JobId=7
[2026-12-01T09:00:14.753] _slurm_rpc_update_job: complete JobId=7 uid=994 usec=210
[2026-12-01T09:00:15.262] sched/backfill: _start_job: Started JobId=7 in main on n[3-4]
[2026-12-01T09:00:20.000] requeue job JobId=8 due to failure of node n5
[2026-12-01T09:00:21.960] debug:  _job_requeue_op: Holding JobId=9, requeue-hold exit
[2026-12-01T09:00:22.426] _job_complete: JobId=10 WEXITSTATUS 0
[2026-12-01T09:00:22.426] _job_complete: requeue JobId=10 per user/system request
[2026-12-01T09:00:28.000] debug2: Processing RPC: REQUEST_UPDATE_NODE from UID=993
[2026-12-01T09:00:28.001] update_node: node n2 state set to IDLE
[2026-12-01T09:00:28.873] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 999
"""


def test_slurmctlds_log_is_read_as_deeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 22.05 wrote it at debug2: who did what to what; what was refused is no deed."""
    monkeypatch.setenv("TZ", "UTC")
    told = [(d.what, d.job or d.node, d.uid) for d in read_log(LOG.splitlines())]
    assert told == [
        (What.START, 7, None),
        (What.ENDED, 7, None),
        (What.DRAIN, "n2", 0),
        (What.REQUEUE, 7, OURS),
        (What.EXCLUDE, 7, OURS),
        (What.BEGIN, 7, OURS),
        (What.START, 7, None),
        (What.NODE_FAIL, 8, None),
        (What.NODE_FAIL, 9, None),
        (What.NODE_FAIL, 10, None),
        (What.RESUME, "n2", ADMIN),
        (What.CANCEL, 7, OWNER),
    ]


def test_accounting_is_read() -> None:
    """One row an execution; a time that Slurm does not know is none."""
    text = "7|REQUEUED|2026-12-01T09:00:00|2026-12-01T09:00:01|2026-12-01T09:00:09|n[1-2]\n"
    text += "7|CANCELLED by 999|2026-12-01T09:00:12|Unknown|Unknown|None assigned\n"
    rows = read_accounting(text)
    assert [(row.job, row.state, row.start is None) for row in rows] == [(7, "REQUEUED", False), (7, "CANCELLED", True)]


# --- the checker

KEY = AttemptKey(cluster="lab", job_id=JOB, submit_time=AT)


class Records:
    """One recovery in which all is well, to be spoilt: a GPU of n2 failed under job 7, which ran again on n3 and n4."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.add(RowKind.ATTEMPT_SEEN, 1, name="seen", incident="")
        self.add(RowKind.OPENED, 10, name=f"{RUN}/open/done")
        for second, what, node in (
            (11, "drain-n2", "n2"),
            (12, "requeue", ""),
            (12.8, "exclude-n2", ""),
            (14, "start", ""),
        ):
            self.step(second, what, node)
        self.add(RowKind.CLOSED, 20, name=f"{RUN}/close/done", outcome="recovered")
        self.deeds = [
            Deed(at(1), What.START, JOB, "n[1-2]"),
            Deed(at(9), What.ENDED, JOB),
            Deed(at(11), What.DRAIN, node="n2", uid=0, text=f"relight:{INCIDENT}:XID_48: text"),
            Deed(at(12), What.REQUEUE, JOB, uid=OURS),
            Deed(at(12.8), What.EXCLUDE, JOB, uid=OURS),
            Deed(at(14), What.BEGIN, JOB, uid=OURS),
            Deed(at(15), What.START, JOB, "n[3-4]"),
            Deed(at(28), What.CANCEL, JOB, uid=OWNER),
        ]
        self.executions = [
            Execution(JOB, "REQUEUED", AT, at(1), at(9), "n[1-2]"),
            Execution(JOB, "CANCELLED", at(12), at(15), at(28), "n[3-4]"),
        ]
        self.broken = {"n2": [at(8)]}
        self.crashes: list[datetime] = []
        self.until = 29.0
        self.interrupted: tuple[AttemptKey, ...] = (KEY,)

    def add(
        self, kind: RowKind, second: float, *, name: str, incident: str = INCIDENT, node: str = "", **body: Any
    ) -> None:
        number = len(self.rows) + 1
        self.rows.append(
            Row(
                seq=number,
                id=name,
                kind=kind,
                at=at(second),
                cluster="lab",
                incident=incident,
                attempt=str(KEY),
                node=node,
                body=body,
                prev_hash="",
                hash="",
            )
        )

    def step(self, second: float, step: str, node: str = "", run: str = RUN) -> None:
        job = {} if node else {"job": JOB}
        self.add(
            RowKind.INTENT, second - 0.05, name=f"{run}/{step}/intent", node=node, what=step.partition("-")[0], **job
        )
        self.add(RowKind.EFFECT, second + 0.05, name=f"{run}/{step}/effect", node=node, step=step)

    def without(self, kind: RowKind, word: str = "") -> None:
        self.rows = [row for row in self.rows if row.kind is not kind or word not in row.id]

    def found(self) -> set[Kind]:
        return {violation.kind for violation in check(self.truth)}

    @property
    def truth(self) -> Truth:
        """All that is compared."""
        return Truth(
            cases=[Case(1, JOB, self.interrupted, at(self.until))],
            broken=self.broken,
            crashes=self.crashes,
            ours=OURS,
            deeds=sorted(self.deeds, key=lambda deed: deed.at),
            executions=self.executions,
            rows=self.rows,
        )


@pytest.fixture
def records() -> Records:
    """All is well."""
    return Records()


def test_a_recovery_in_which_all_is_well_passes(records: Records) -> None:
    """A checker that always finds something is as worthless as one that never does."""
    assert records.found() == set()


def test_an_interruption_without_an_incident_is_lost(records: Records) -> None:
    """Neither opened nor closed, whether it was inflicted or only Slurm's record shows it."""
    records.rows = [row for row in records.rows if row.kind is RowKind.ATTEMPT_SEEN]
    records.deeds = records.deeds[:2]
    assert records.found() == {Kind.LOST}
    records.interrupted = ()
    assert records.found() == set(), "nobody could have noticed it before the trial was over"
    records.until = 80
    assert records.found() == {Kind.LOST}


def test_an_attempt_that_ran_and_failed_unseen_is_lost(records: Records) -> None:
    """Once there was time to notice it."""
    records.deeds[-1:] = [Deed(at(18), What.ENDED, JOB)]
    records.rows = [row for row in records.rows if row.kind is not RowKind.ATTEMPT_SEEN or row.at < at(15)]
    records.executions.pop()
    assert records.found() == set()
    records.until = 80.0
    assert records.found() == {Kind.LOST}


@pytest.mark.parametrize("outcome", ["", "not_confirmed", "superseded"])
def test_an_incident_that_comes_to_no_end_of_its_own_is_lost(records: Records, outcome: str) -> None:
    """It is open for ever, or was taken for nothing."""
    records.without(RowKind.CLOSED)
    if outcome:
        records.add(RowKind.CLOSED, 20, name="end", outcome=outcome)
    assert records.found() == {Kind.LOST}


def test_a_second_requeue_of_one_attempt_is_doubled(records: Records) -> None:
    """Also where one intent stands for both."""
    records.deeds.append(Deed(at(13), What.REQUEUE, JOB, uid=OURS))
    assert records.found() == {Kind.DOUBLED}


def test_a_requeue_that_slurmctld_forgot_may_be_done_again(records: Records) -> None:
    """Killed within seconds it does not know of it; killed before, or much later, it does."""
    records.deeds.append(Deed(at(13), What.REQUEUE, JOB, uid=OURS))
    records.executions.insert(1, Execution(JOB, "PENDING", at(12), None, None, ""))  # accounting does not forget it
    records.crashes = [at(12.5)]
    assert records.found() == set()
    for crash in (11.0, 13.5):
        records.crashes = [at(crash)]
        assert records.found() == {Kind.DOUBLED}


def test_a_requeue_of_an_attempt_that_nothing_had_interrupted_is_doubled(records: Records) -> None:
    """The new attempt ran, and was requeued for the old one's failure."""
    records.deeds += [Deed(at(18), What.REQUEUE, JOB, uid=OURS), Deed(at(19), What.START, JOB)]
    assert records.found() == {Kind.DOUBLED}


def test_more_executions_than_interruptions_are_doubled(records: Records) -> None:
    """By accounting too, where the log is silent."""
    records.executions.append(Execution(JOB, "CANCELLED", at(20), at(21), at(28), "n[3-4]"))
    assert records.found() == {Kind.DOUBLED}


def test_a_node_that_slurm_lost_is_an_interruption_that_happened(records: Records) -> None:
    """Not inflicted here, but in Slurm's record: a second incident must tell of it, and a third execution is due."""
    records.deeds += [Deed(at(18), What.NODE_FAIL, JOB, "n3"), Deed(at(19), What.START, JOB)]
    assert records.found() == set(), "of an attempt that Relight never saw, it cannot tell"
    second = AttemptKey(cluster="lab", job_id=JOB, submit_time=at(12))
    records.add(RowKind.ATTEMPT_SEEN, 16, name="seen again", incident="")
    records.rows[-1] = records.rows[-1].model_copy(update={"attempt": str(second)})
    records.until = 80
    assert records.found() == {Kind.LOST}


def test_a_node_broken_under_a_run_is_an_interruption_that_happened(records: Records) -> None:
    """Back before slurmctld missed it, the job only hangs: its requeue is due, and its incident too."""
    second = AttemptKey(cluster="lab", job_id=JOB, submit_time=at(12))
    records.add(RowKind.ATTEMPT_SEEN, 16, name="seen again", incident="")
    records.rows[-1] = records.rows[-1].model_copy(update={"attempt": str(second)})
    records.deeds += [Deed(at(22), What.REQUEUE, JOB, uid=OURS), Deed(at(23), What.START, JOB, "n[5-6]")]
    records.step(22, "requeue", run="another")
    assert Kind.DOUBLED in records.found()
    records.broken["n3"] = [at(24)]
    assert Kind.DOUBLED in records.found(), "it runs on other nodes by then"
    records.broken["n3"] = [at(18)]
    assert records.found() == set()
    records.until = 80
    assert records.found() == {Kind.LOST}
    records.add(RowKind.VERIFIED, 16, name=f"{RUN}/verified-running", attempt=str(second))
    assert records.found() == {Kind.LOST}, "the incident before says that it recovered"
    closed = next(row for row in records.rows if row.kind is RowKind.CLOSED)
    records.without(RowKind.CLOSED)
    records.rows.append(closed.model_copy(update={"body": {"outcome": "restarted_no_progress"}}))
    assert records.found() == set(), "it says that the attempt did not get on"


def test_an_attempt_whose_start_and_end_slurmctld_forgot_is_none(records: Records) -> None:
    """It is queued as before, and runs again: nothing is left to be recovered; unless the second run breaks too."""
    records.rows = [row for row in records.rows if row.kind is RowKind.ATTEMPT_SEEN]
    records.deeds = [*records.deeds[:2], Deed(at(15), What.START, JOB, "n[3-4]")]
    records.executions, records.broken = records.executions[:1], {}
    assert records.found() == {Kind.LOST}
    records.crashes = [at(10)]
    assert records.found() == set()
    records.deeds.append(Deed(at(16), What.ENDED, JOB))
    records.until = 80
    assert records.found() == {Kind.LOST}


@pytest.mark.parametrize("step", ["requeue", "exclude-n2", "start", "drain-n2"])
@pytest.mark.parametrize("kind", [RowKind.INTENT, RowKind.EFFECT])
def test_a_change_without_its_rows_is_unrecorded(records: Records, step: str, kind: RowKind) -> None:
    """No intent before it, or no word of what became of it."""
    records.without(kind, f"/{step}/")
    assert records.found() == {Kind.UNRECORDED}


def test_an_intent_that_comes_after_the_change_does_not_count(records: Records) -> None:
    """Written down first, done then: never the other way round."""
    intent = next(row for row in records.rows if row.id.endswith("requeue/intent"))
    records.rows.remove(intent)
    records.rows.append(intent.model_copy(update={"at": at(12.5)}))
    assert records.found() == {Kind.UNRECORDED}


def test_a_change_that_a_person_made_needs_no_row(records: Records) -> None:
    """The owner's requeue is no deed of ours."""
    records.deeds.append(Deed(at(2), What.PRIORITY, JOB, uid=OWNER))
    assert records.found() == set()


def test_a_drain_of_a_node_that_nobody_broke_is_a_healthy_drain(records: Records) -> None:
    """Recorded or not; also of one that was repaired since."""
    records.broken = {"n1": [at(8)]}
    assert records.found() == {Kind.HEALTHY_DRAIN}
    records.broken = {"n2": [at(8)]}
    records.deeds.append(Deed(at(10), What.RESUME, node="n2", uid=ADMIN))
    assert records.found() == {Kind.HEALTHY_DRAIN}


def test_a_node_that_is_drained_twice_for_one_incident_is_doubled(records: Records) -> None:
    """The same mark a second time, and nobody had taken it away."""
    records.deeds.append(records.deeds[2]._replace(at=at(11.5)))
    assert records.found() == {Kind.DOUBLED}


def test_a_drain_that_slurmctld_forgot_may_be_done_again(records: Records) -> None:
    """As a requeue."""
    records.deeds.append(records.deeds[2]._replace(at=at(12.5)))
    records.crashes = [at(12)]
    assert records.found() == set()


def test_what_becomes_of_a_job_after_its_trial_is_not_the_trials(records: Records) -> None:
    """slurmctld forgets that it was cancelled, and runs it again; within the trial that is doubled."""
    records.deeds.append(Deed(at(40), What.START, JOB))
    assert records.found() == set()
    records.until = 60
    assert records.found() == {Kind.DOUBLED}


def test_what_the_audit_finds_is_told() -> None:
    """Of a ledger whose chain is broken nothing counts; nor may be done what nobody had approved."""
    truth = Truth([], {}, [], OURS, [], [], [], findings=["row 4: its hash is wrong"])
    assert [violation.kind for violation in check(truth)] == [Kind.UNRECORDED]


def test_a_story_tells_slurm_and_ledger_in_order_of_time(records: Records) -> None:
    """And nothing of other jobs."""
    records.deeds.append(records.deeds[0]._replace(job=JOB + 1, text="another job's"))
    told = story(records.truth, 1)
    assert told == sorted(told)
    assert {line.split()[1] for line in told} == {"slurmctld:", "ledger:"}
    told_of = sum(deed.job == JOB for deed in records.deeds) + sum(bool(row.attempt) for row in records.rows)
    assert len(told) == told_of


# --- the parts


def test_rows_are_named_as_moments_name_them(records: Records) -> None:
    """By kind, and where there are steps by step."""
    assert [mark(row) for row in records.rows][:5] == [
        "attempt_seen",
        "opened",
        "intent/drain",
        "effect/drain",
        "intent/requeue",
    ]


@pytest.mark.parametrize(
    ("how", "code", "out", "done"),
    [
        ("slow", 0, "first second", True),
        ("hang", 1, "", False),
        ("late", 0, "first second", True),
        ("lie", 1, "", True),
        ("garble", 0, "firs", True),
    ],
)
def test_a_troubled_command_does_what_it_shall_once(tmp_path: Path, how: str, code: int, out: str, done: bool) -> None:
    """The next call is as ever. /usr/bin/sh stands in for one of Slurm's commands."""
    folder = tmp_path / "troubles"
    folder.mkdir()
    trouble = {"call": r"^sh -c .*effect", "how": how, "for_s": 0.1}
    (folder / "1.json").write_text(json.dumps(trouble))
    effect = tmp_path / "effect"
    line = [sys.executable, "-IS", chaos_liar.__file__, str(folder), "sh"]

    def call(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, "-c", text], capture_output=True, text=True, check=False)

    assert call("echo another").stdout == "another\n"
    told = call(f"touch {effect}; printf 'first second'")
    assert (told.returncode, told.stdout, effect.exists()) == (code, out, done)
    assert call(f"touch {effect}; printf again").stdout == "again"


def test_wrapped_commands_are_slurms_own_while_nothing_is_wrong(tmp_path: Path) -> None:
    """Each troubled call uses up one file."""
    commands = Commands(tmp_path)
    script = next(s for s in map(draw, range(1000)) if s.command == "requeue" and s.times == 2)
    armed = commands.arm(script, JOB)
    assert len(armed) == 2
    assert all(json.loads(path.read_text())["call"] == "^scontrol requeue 7$" for path in armed)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--trials", "0"), "0 is not in the range"),
        (("--at-once", "99"), "99 is not in the range"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--ledger", "oracle"), "'oracle' is not one of"),
    ],
)
def test_bad_input_is_told(arguments: Sequence[str], told: str) -> None:
    """In one line, with exit code 2, before anything is started."""
    done = CliRunner().invoke(lab, ["chaos", *arguments])
    assert (done.exit_code, told in done.output) == (2, True), done.output


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.skipif(
    os.geteuid() != 0 or bool(packages.missing(accounting=True, production=True)),
    reason="needs root and the Slurm packages (relight.lab.packages.ensure)",
)
def test_a_small_real_run() -> None:
    """Six trials on real everything: nothing lost, doubled, unrecorded, and every deed of Slurm's record is known."""
    done = CliRunner().invoke(lab, ["chaos", "--trials", "6", "--at-once", "6", "--seed", "200", "--json"])
    told = json.loads(done.stdout)
    assert (told["trials"], told["violations"], told["failed"]) == (6, [], ""), done.stderr
    assert told["upper_95"]["lost"] == pytest.approx(0.39304, abs=1e-5)
    assert {"start", "ended", "requeue", "begin", "cancel"} <= told["conditions"]["deeds"].keys()
    assert told["conditions"]["deeds"]["requeue"] >= 6
    assert {record["seed"] for record in told["records"]} == set(range(200, 206))
