"""`incidents`, `show` and `why` on the ledger of a bad night."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relight.clients.ledger_sql import SqlLedger
from relight.console.pending import Now, Trying, sentences
from relight.domain.incidents import Phase
from relight.domain.ledger import RowKind
from relight.domain.plan import Mode
from relight.workers.cli import main

from .conftest import Night, ago, recovered, verdict_for, waiting

Relight = Callable[..., Result]


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


# --- incidents ---


def test_the_list_is_newest_first_and_leaves_out_false_alarms(bad_night: Night, relight: Relight):
    """What needs a person is on top; what was not confirmed is counted, not listed."""
    out = relight("incidents").output
    ids = ["i3fa9c1d2e4", "i0bb5e7ed99", "i5eed0000aa", "i07be11ab02"]
    assert [out.index(i) for i in ids] == sorted(out.index(i) for i in ids)
    assert "i00c0ffee00" not in out
    assert "1 not confirmed, not shown (--all)" in out
    assert "1 incident waiting for you: relight show i3fa9c1d2e4" in out


def test_all_shows_false_alarms_and_open_shows_what_goes_on(bad_night: Night, relight: Relight):
    """--all leaves nothing out; --open leaves only what has no outcome."""
    assert "i00c0ffee00" in relight("incidents", "--all").output
    opened = json.loads(relight("incidents", "--open", "-o", "json").stdout)
    assert [each["id"] for each in opened] == ["i3fa9c1d2e4"]


def test_the_list_of_one_job_takes_slurms_own_names(bad_night: Night, relight: Relight):
    """--job takes an array task by the name that Slurm prints."""
    found = json.loads(relight("incidents", "--job", "4666_2", "-o", "json").stdout)
    assert [(each["job"], each["job_id"]) for each in found] == [("4666_2", 4669)]
    assert relight("incidents", "--job", "99").exit_code == 4


def test_json_is_stable_and_complete(bad_night: Night, relight: Relight):
    """Programs get the same keys for each incident, ISO times with zone, and null where nothing is known."""
    found = json.loads(relight("incidents", "--all", "-o", "json").stdout)
    assert len({tuple(each) for each in found}) == 1
    first = found[0]
    assert (first["phase"], first["mode"], first["cause"]) == (
        "waiting for approval",
        "approve",
        "CUDA_ECC_UNCORRECTABLE",
    )
    assert first["detected_at"].endswith(("Z", "+00:00"))
    assert first["closed_at"] is None
    assert first["nodes"] == ["gpu-003"]
    assert json.loads(relight("incidents", "--limit", "1", "-o", "json").stdout) == found[:1]


def test_what_the_list_leaves_out_is_counted(bad_night: Night, relight: Relight):
    """Older ones beyond the limit are not passed over in silence, and an empty answer says to what."""
    assert "3 older, not shown (--limit)" in relight("incidents", "--limit", "1").output
    assert "No open incidents of job 4650." in relight("incidents", "--open", "--job", "4650").output


def test_a_quiet_cluster_says_since_when_it_is_watched(night: Night, relight: Relight):
    """No incident is good news only where somebody watches."""
    night.attempt(1, ago(hours=3))
    out = relight("incidents").output
    assert "No incidents." in out
    assert "Watching main since" in out
    assert "1 job running now" in out
    assert json.loads(relight("incidents", "-o", "json").stdout) == []


def test_an_empty_ledger_is_not_called_quiet(ledger: SqlLedger, relight: Relight):
    """Before the first job was seen, the list says so."""
    assert "no job has been seen yet" in relight("incidents").output


def test_reading_never_makes_a_ledger(data: Path, relight: Relight):
    """Where there is none, the command says where it looked, fails, and leaves nothing behind."""
    result = relight("incidents")
    assert result.exit_code == 1
    assert str(data / "ledger.sqlite") in result.stderr
    assert list(data.iterdir()) == []


# --- show ---


def test_the_story_of_a_waiting_incident_ends_with_what_to_do(bad_night: Night, relight: Relight):
    """Who, why with file and line, plan, and, last, until when and how to decide."""
    out = relight("show", "i3fa").output
    plan = verdict_for(bad_night_attempt(bad_night), Mode.APPROVE).plan
    for told in (
        "WAITING FOR APPROVAL",
        "4711 llama-70b of alice",
        "/home/alice/slurm-4711.out:18234",
        "node gpu-003, rank 17, GPU 0000:3b:00",
        "96% sure",
        "412 further lines only echo it",
        "kernel log of gpu-004: permission denied",
        "requeue job 4711 excluding gpu-003; drain gpu-003",
        f"digest {plan.digest[:12]}",
        "approve: cluster policy says approve",
        "http://ui.example:8233/namespaces/default/workflows/recover%2Fmain%2F4711%2F",
    ):
        assert told in out
    assert out.rstrip().splitlines()[-2:] == [
        f"  relight approve i3fa9c1d2e4 --digest {plan.digest[:8]}",
        f'  relight reject  i3fa9c1d2e4 --digest {plan.digest[:8]} --reason "..."',
    ]


def test_the_story_is_told_with_temporal_down(bad_night: Night, relight: Relight):
    """Only what is being tried right now is then unknown, and said to be."""
    out = relight("show", "i3fa").output
    assert "What is being tried right now is not known: Temporal at 127.0.0.1:1 cannot be reached" in out
    told = json.loads(relight("show", "i07be", "-o", "json").stdout)
    assert (told["trying"], told["trying_unknown"]) == ([], None)


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (Now(), ()),
        (Now((Trying("plan_recovery", 1, ""),)), (("plan_recovery is under way", False),)),
        (
            Now((Trying("diagnose_attempt", 3, "disk full"),)),
            (("diagnose_attempt is tried for the 3rd time; the last failed: disk full", True),),
        ),
        (Now((Trying("x", 112, "y"),)), (("x is tried for the 112th time; the last failed: y", True),)),
    ],
)
def test_what_keeps_failing_is_told(at: Now, told: object):
    """An activity that is tried again and again is the answer to why nothing happens."""
    assert sentences(at) == told


def test_a_phase_that_is_done_is_not_shown_as_going_on(night: Night, relight: Relight):
    """Confirmed in the ledger: by now it is being diagnosed."""
    attempt = night.attempt(5001, ago(hours=5))
    incident = night.incident("i2222222222", attempt, ago(minutes=1), phase=Phase.CONFIRMING)
    assert "CONFIRMING" in relight("show", "i222").output
    night.opened(incident, attempt)
    assert "DIAGNOSING" in relight("show", "i222").output
    night.commit(incidents=(incident.model_copy(update={"phase": Phase.DIAGNOSING}),))
    assert "PLANNING" in relight("show", "i222").output


def bad_night_attempt(night: Night):
    with closing(sqlite3.connect(night.ledger._engine.url.database)) as database:
        state = database.execute("SELECT state FROM attempts WHERE job_id = 4711").fetchone()[0]
    from relight.domain.attempts import AttemptState

    return AttemptState.model_validate_json(state).attempt


def test_log_text_cannot_drive_the_terminal(bad_night: Night, relight: Relight):
    """Escapes, bidirectional marks and markup in a log line are shown as text or not at all."""
    for command in (("show", "i3fa9c1d2e4"), ("why", "4711"), ("incidents",)):
        assert printable(relight(*command).output)
    assert "[bold red]x[/]" in relight("show", "i3fa").output


def test_json_keeps_what_the_terminal_must_not_see(bad_night: Night, relight: Relight):
    """-o json is pure ASCII and loses nothing of a hostile line."""
    raw = relight("show", "i3fa", "-o", "json").stdout
    assert raw.isascii()
    assert printable(raw)
    told = json.loads(raw)
    assert told["incident"]["diagnosis"]["hypotheses"][0]["evidence"][0]["text"].startswith("\x1b[2J")
    assert told["standing"]["phase"] == "waiting for approval"
    assert [row["kind"] for row in told["rows"]][:2] == ["opened", "confirmed"]


def test_a_job_id_shows_its_newest_incident(bad_night: Night, relight: Relight):
    """At three in the morning one knows the job, not the incident."""
    assert "Incident i07be11ab02" in relight("show", "4650").output
    assert "Incident i5eed0000aa" in relight("show", "4666_2").output


def test_a_closed_story_tells_leave_deeds_and_seconds(bad_night: Night, relight: Relight):
    """The guard's word, each write with what was read back, and the timeline from the detection on."""
    out = relight("show", "i07be11ab02").output
    for told in (
        "RECOVERED",
        "drain gpu-003 granted",
        "requeue job 4650 → Slurm shows restart 1, PENDING",
        "+48.0 s  recovered",
    ):
        assert told in out
    assert "relight approve" not in out


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("i0", "is the beginning of 3 incidents: i00c0ffee00, i0bb5e7ed99, i07be11ab02"),
        ("i3fa9c1d2e5", "Did you mean i3fa9c1d2e4?"),
        ("ifffffff", "relight incidents --all"),
        ("nonsense", "ids look like i3fa9c1d2e4"),
        ("99", "no incident of job 99"),
    ],
)
def test_an_id_that_names_nothing_says_what_comes_near(bad_night: Night, relight: Relight, wanted: str, said: str):
    """Exit 4, and on standard error the nearest there is."""
    result = relight("show", wanted)
    assert (result.exit_code, result.stdout) == (4, "")
    assert said in result.stderr


def test_an_approval_in_the_ledger_ends_the_waiting(night: Night, relight: Relight):
    """The read model keeps no phase while a plan is carried out: the decision's row tells."""
    incident = waiting(night)
    attempt = bad_night_attempt(night)
    decision = {"approved": True, "digest": "0" * 64, "by": "erin", "reason": "go"}
    body = {"decision": decision, "counts": True, "remark": ""}
    night.row(incident, attempt, "decision-1/done", RowKind.DECISION, ago(minutes=2), body)
    night.row(incident, attempt, "requeue/intent", RowKind.INTENT, ago(minutes=1), {"what": "requeue", "job": 4711})
    out = relight("show", incident.id).output
    assert "ACTING" in out
    assert "approved  by erin: go" in out
    assert "requeue job 4711  meant, and not (yet) read back" in out
    assert "relight approve" not in out


def test_a_wait_that_should_have_ended_points_to_the_worker(night: Night, relight: Relight):
    """Past its time and still open: nobody is there to close it."""
    attempt = night.attempt(5000, ago(hours=5))
    verdict = verdict_for(attempt, Mode.APPROVE, approval_expires=timedelta(minutes=5))
    incident = night.incident("i1111111111", attempt, ago(hours=4), plan=verdict.plan)
    night.opened(incident, attempt, verdict)
    assert "does the worker run? relight doctor" in relight("show", "i111").output


# --- why ---


@pytest.mark.parametrize("step", ["4650.0", "4650.batch", "4650.extern"])
def test_a_steps_id_means_its_job(bad_night: Night, relight: Relight, step: str):
    """As srun and sacct print it."""
    assert relight("why", step).output == relight("why", "4650").output


def test_why_tells_the_whole_decision_path(bad_night: Night, relight: Relight):
    """Attempts with last steps, then evidence, cause, plan, mode, deeds, proof, and the sum of it."""
    out = relight("why", "4650").output
    path = [
        "2 attempts, 1 incident",
        "FAILED, queued again by relight",
        "last step 910",
        "Incident i07be11ab02",
        "Evidence",
        "Plan",
        "auto: cluster policy says auto",
        "drain gpu-003 → gpu-003 has the drain flag",
        "step 911, past step 910",
        "Attempt 2  running",
        "It runs, and no interruption has been seen.",
        "Retries without progress: 0 of 3 used",
    ]
    places = [out.index(told) for told in path]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("state", "hand", "said"),
    [
        ("CANCELLED", "nobody", "CANCELLED is no interruption"),
        ("COMPLETED", "nobody", "COMPLETED is no interruption"),
        ("FAILED", "unknown", "somebody else (the user, their tool, an administrator) queued it again"),
    ],
)
def test_why_nothing_was_done(night: Night, relight: Relight, state: str, hand: str, said: str):
    """An attempt without an incident has a reason too."""
    attempt = night.attempt(6000, ago(hours=2))
    night.ended(attempt, ago(hours=1), state, hand)
    assert said in relight("why", "6000").output
    assert said in json.loads(relight("why", "6000", "-o", "json").stdout)["attempts"][0]["why_nothing"]


def test_a_detection_without_an_incident_points_to_temporal(night: Night, relight: Relight):
    """Detected but never opened: the outbox was not delivered."""
    attempt = night.attempt(6001, ago(hours=2))
    night.ended(attempt, ago(hours=1), "FAILED")
    row = night.entry(f"{attempt.key}/ended/detected", RowKind.DETECTED, ago(hours=1), {}, attempt)
    night.commit(entries=(row,))
    assert "no incident was opened: does Temporal and the worker run?" in relight("why", "6001").output


def test_blindness_is_told(night: Night, relight: Relight):
    """A log that could not be followed explains a silence."""
    attempt = night.attempt(6002, ago(hours=2))
    body = {"what": "log", "why": "/home/x.out: Permission denied\x1b[2J"}
    night.commit(entries=(night.entry("blind/1", RowKind.BLIND, ago(hours=1), body, attempt),))
    out = relight("why", "6002").output
    assert "log: /home/x.out: Permission denied" in out
    assert printable(out)


def test_an_array_task_is_found_after_it_ended(bad_night: Night, relight: Relight):
    """123_4 is found although its record has an id of its own."""
    out = relight("why", "4666_2").output
    assert "Job 4666_2 sweep" in out
    assert "Retries without progress: 1 of 3 used" in out
    assert relight("why", "4666_3").exit_code == 4


def test_a_reused_id_is_another_job(night: Night, relight: Relight):
    """Attempts of the older job under the same id are left out, and said to be."""
    night.attempt(7000, ago(days=20), lineage="j0000000old", name="old", user="zoe")
    night.attempt(7000, ago(hours=1), lineage="j0000000new", name="new", user="yan")
    out = relight("why", "7000").output
    assert "Job 7000 new" in out
    assert "1 attempt under this id belong" in out


def test_an_unknown_job_says_where_else_to_look(night: Night, relight: Relight):
    """Exit 4, with the three usual reasons."""
    result = relight("why", "99")
    assert result.exit_code == 4
    assert "never saw job 99 running on cluster main" in result.stderr
    assert "another cluster (--config)" in result.stderr


@pytest.mark.parametrize("wanted", ["0", "-1", "12x", "123_", "1+2+3", "i3fa", "٣"])
def test_what_is_no_job_id_is_a_usage_error(relight: Relight, wanted: str):
    """Exit 2, with the forms that are accepted."""
    result = relight("why", "--", wanted)
    assert result.exit_code == 2
    assert "accepted: 123, 123_4 (array task), 123+1 (component)" in result.stderr


# --- all of them ---


@pytest.mark.parametrize("command", [("incidents",), ("show", "i1"), ("why", "1"), ("approve", "i1"), ("doctor",)])
def test_a_bad_settings_file_is_named_with_its_key(tmp_path: Path, command: tuple[str, ...]):
    """File, key, and what is accepted there; never a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_text("policy:\n  moode: auto\n")
    result = CliRunner().invoke(main, [*command, "--config", str(path)])
    assert result.exit_code == 1
    assert "policy.moode: no such key; accepted here:" in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_missing_settings_file_is_named(tmp_path: Path):
    """The path that was given, and what the system said."""
    result = CliRunner().invoke(main, ["incidents", "--config", str(tmp_path / "no.yaml")])
    assert result.exit_code == 1
    assert "no.yaml: cannot be read: No such file or directory" in result.stderr


def test_a_ledger_key_open_to_others_is_refused(bad_night: Night, data: Path, relight: Relight):
    """The ledger's own words reach the person."""
    (data / "ledger.key").chmod(0o644)
    result = relight("incidents")
    assert result.exit_code == 1
    assert "is open to others: chmod 600 it" in result.stderr


def test_a_fault_of_ours_ends_with_a_line(night: Night, relight: Relight, monkeypatch: pytest.MonkeyPatch):
    """Even an error nobody foresaw is one line with its place."""

    def burst(*_: object) -> None:
        raise KeyError("surprise\x1b[2J")

    monkeypatch.setattr("relight.console.context.settings_from", burst)
    result = relight("incidents")
    assert result.exit_code == 1
    assert "unexpected KeyError" in result.stderr
    assert "This is a fault in Relight" in result.stderr
    assert printable(result.stderr)


def test_completion_offers_ids_and_never_disturbs(bad_night: Night, config: Path, tmp_path: Path):
    """The shell gets ids; with no ledger it gets nothing at all."""
    env = {"_RELIGHT_COMPLETE": "bash_complete", "COMP_WORDS": "relight show i0", "COMP_CWORD": "2"}
    found = CliRunner(env={**env, "RELIGHT_CONFIG": str(config)}).invoke(main, prog_name="relight")
    assert {"plain,i00c0ffee00", "plain,i0bb5e7ed99", "plain,i07be11ab02"} == set(found.stdout.split())
    lost = CliRunner(env={**env, "RELIGHT_CONFIG": str(tmp_path / "no.yaml")}).invoke(main, prog_name="relight")
    assert lost.output.strip() == ""


def test_a_terminal_of_80_columns_is_enough(bad_night: Night, relight: Relight):
    """No line of the stories runs past a narrow terminal, but the link that one clicks on."""
    for command in (("show", "i3fa"), ("why", "4650"), ("show", "i07b")):
        out = relight(*command, env={"COLUMNS": "80"}).output
        assert all(len(line) <= 80 for line in out.splitlines() if "http://" not in line)


def test_recovered_alone_needs_nobody(night: Night, relight: Relight):
    """Where nothing waits, the list does not ask for anybody."""
    recovered(night)
    assert "waiting for you" not in relight("incidents").output
