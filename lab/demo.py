"""The demo: a real job on a real cluster is broken, and the terminal tells what Relight sees and does about it."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from relight.config.settings import Way
from relight.domain.checkpoint_formats import ASIDE
from relight.domain.checkpoint_look import CheckpointLook
from relight.domain.incidents import Incident
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Plan
from relight.lab import faults, packages, simulated
from relight.lab.job import Engine, JobSpec, render
from relight.lab.processes import wait_until
from relight.lab.scenario import DEMOS, NODES_OF_JOB, TASKS_PER_NODE, Scenario
from relight.lab.simulated import SimulatedStack
from relight.lab.stack import Stack, StackSpec
from relight.lab.watching import LedgerView, ledger_of

STARTS_WITHIN_S = 90
ENDS_WITHIN_S = 240
LOOK_EVERY_S = 0.2
STILL_STOPPED_FOR = timedelta(seconds=5)

_label: ContextVar[str] = ContextVar("label", default="")
"""Stands before each line: what is simulated is never told without saying so."""


class DemoFailedError(Exception):
    """The demo did not end as it must; the message says what is wrong."""


def run_demo(fault: str, *, leave: bool, engine: Engine, simulate: bool = False, way: Way = Way.COMMANDS) -> None:
    """Play one fault; raise `DemoFailedError` when the outcome is not the right one.

    With `simulate`, Slurm and the training job are simulated; what Relight does about them is not.
    """
    scenario = DEMOS[fault]
    if simulate and scenario.goes_back:
        raise DemoFailedError(f"{fault} needs a real training job with real checkpoints: not with --simulated")
    if simulate:
        _label.set(simulated.LABEL)
    else:
        _ensure_slurm(fault, way)
    folder = Path(tempfile.mkdtemp(prefix="relight-demo-"))
    # Others' Python must reach the run folder through it; the parts below have modes of their own.
    folder.chmod(0o755)
    stack = SimulatedStack(folder) if simulate else Stack(StackSpec(folder=folder, way=way))
    with _cleaned_up(stack):
        began = time.monotonic()
        _title(f"{simulated.TITLE if simulate else 'Relight demo'}: {fault}")
        stack.start(lambda text: _say(f"started {text}"))
        console = stack.start_console()
        if console:
            _say(f"started Relight's web console: {console}")
        _say(f"all up after {time.monotonic() - began:.1f} s, in {folder}")
        with ledger_of(stack.config) as view:
            _play(stack, view, scenario, engine, console)
        if not leave:
            _wait_for_the_end(stack)


def _ensure_slurm(fault: str, way: Way) -> None:
    """Install Slurm where it is missing; where that is impossible, name the demo that needs none."""
    try:
        packages.ensure(accounting=False, production=False, say=_say, ssh=way is Way.SSH)
    except packages.SlurmNotInstallableError as error:
        instead = f'make demo FAULT={fault} ARGS="--simulated --exit"'
        raise packages.SlurmNotInstallableError(
            f"{error}\nThe demo runs a real Slurm, which cannot be installed here. To see it with a SIMULATED "
            f"cluster and training job instead, labelled so on every line:\n\n  {instead}\n"
        ) from error


ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _cleaned_up(stack: Stack) -> Iterator[None]:
    """Whatever happens, and when: nothing is left behind."""
    # SIGINT too: a shell without job control starts background jobs with SIGINT ignored, and Python leaves it so.
    before = {number: signal.signal(number, _interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        # A second Ctrl-C must not stop the cleaning up.
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        stack.stop()
        if sys.exc_info()[0] in (None, KeyboardInterrupt):
            shutil.rmtree(stack.folder, ignore_errors=True)
        else:
            click.echo(f"The logs are kept in {stack.folder}", err=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _play(stack: Stack, view: LedgerView, scenario: Scenario, engine: Engine, console: str) -> None:
    job = _submit(stack, scenario, engine)
    _train(stack, view, job, scenario.healthy_for)
    step = view.step(job) or 0
    _title(f"The fault: {scenario.told}")
    inject = simulated.inject if isinstance(stack, SimulatedStack) else faults.inject
    injection = inject(stack.cluster, job, scenario.fault(step))
    where = f" on {injection.node}" if injection.node else ""
    _say(f"done{where}, with training at step {step}")
    _title("What Relight sees and does (seconds since the fault)")
    incident = _tell(stack, view, job, injection.at, console)
    _check(stack, view, scenario, incident, injection)
    _summary(stack, scenario, incident, injection.at)


def _submit(stack: Stack, scenario: Scenario, engine: Engine) -> int:
    run = stack.cluster.make_run_folder("train")
    spec = JobSpec(
        run=run,
        name="pretrain",
        nodes=NODES_OF_JOB,
        tasks_per_node=TASKS_PER_NODE,
        engine=engine,
        busy=scenario.busy,
        checkpoint_every=10,
        sharded=scenario.goes_back,
    )
    job = stack.cluster.submit(render(spec))
    ranks = NODES_OF_JOB * TASKS_PER_NODE
    _say(f"sbatch: job {job}, {ranks} ranks on {NODES_OF_JOB} nodes, output in {run}")
    return job


def _train(stack: Stack, view: LedgerView, job: int, healthy_for: timedelta) -> None:
    """Wait until training runs and has run undisturbed for a while, showing how far it is."""
    wait_until(lambda: view.step(job) is not None, STARTS_WITHIN_S, f"the first step of job {job}", LOOK_EVERY_S)
    attempt = view.attempts(job)[0].attempt
    _say(f"training runs on {', '.join(attempt.record.nodes)}")
    until = time.monotonic() + healthy_for.total_seconds()
    while time.monotonic() < until:
        _progress(f"step {view.step(job)}, all is well")
        time.sleep(LOOK_EVERY_S)
    _progress("")
    if stack.cluster.job_field(job, "JobState") != "RUNNING":
        raise DemoFailedError(f"job {job} did not keep running before the fault")


def _tell(stack: Stack, view: LedgerView, job: int, since: datetime, console: str) -> Incident:
    """Print each thing as the ledger gets it, until the incident has closed."""
    seen, linked = 0, False
    until = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < until:
        # Looked at before the rows, so that the row that closes it is told too.
        incidents = [i for i in view.incidents(job) if i.opened_at >= since]
        for row in view.rows(after=seen):
            seen = row.seq
            line = narrate(row) if row.at >= since else None
            if line:
                _progress("")
                _say(f"{(row.at - since).total_seconds():6.1f}  {line}")
        if incidents and not linked:
            linked = True
            if console:
                _say(f"        the incident in the console:  {console}/incidents/{incidents[0].id}")
            _say(f"        the incident in Temporal: {link(stack, incidents[0])}")
        if incidents and not incidents[0].open:
            return incidents[0]
        _progress(f"{(datetime.now(UTC) - since).total_seconds():.0f} s, step {view.step(job)}")
        time.sleep(LOOK_EVERY_S)
    raise DemoFailedError(f"no incident of job {job} closed within {ENDS_WITHIN_S} s")


Body = dict[str, Any]


def _detected(body: Body) -> str:
    first = (body["detection"]["evidence"] or [{"text": ""}])[0]["text"]
    return f"detected    {body['detection']['kind']}: {first}"


def _diagnosed(body: Body) -> str:
    cause = body["hypotheses"][0]
    return f"diagnosed   {cause['summary']} [{cause['signature']}, {cause['category']}]"


def _left(body: Body) -> str:
    leave = body["leave"]
    return f"guard       {'leave' if leave['granted'] else 'no leave'} to drain {leave['node']}: {leave['reason']}"


def _verified(body: Body) -> str:
    text = f"on {', '.join(body['nodes'])}" if body["what"] == "running" else body["text"]
    return f"{body['what']:<11} {text}"


_WORDS: dict[RowKind, Callable[[Body], str]] = {
    RowKind.DETECTED: _detected,
    RowKind.CONFIRMED: lambda body: f"confirmed   {body['reason']}",
    RowKind.DIAGNOSED: _diagnosed,
    RowKind.PLANNED: lambda body: f"{_damage(body)}planned     {_plan(body)} (mode {body['mode']})",
    RowKind.EFFECT: lambda body: f"{body['step'].partition('-')[0]:<11} {body['done']['text']}",
    RowKind.LEAVE: _left,
    RowKind.VERIFIED: _verified,
    RowKind.OUTPUTS_KEPT: lambda body: f"outputs     kept {len(body['kept'])} of the failed attempt",
    RowKind.CLOSED: lambda body: f"closed      {body['outcome']}: {body['reason']}",
}


def narrate(row: Row) -> str | None:
    """A ledger row in words, or None for one that is of no interest here."""
    words = _WORDS.get(row.kind)
    return words(row.body) if words else None


def _damage(body: Body) -> str:
    """A line of its own on the checkpoints, where the plan goes back to an older one."""
    found = CheckpointLook.model_validate(body["checkpoints"]) if body["plan"].get("fall_back") else None
    return f"checkpoints {found.sentence}\n{' ' * 10}" if found else ""


def _plan(body: Body) -> str:
    return Plan.model_validate(body["plan"]).describe()


def _check(stack: Stack, view: LedgerView, scenario: Scenario, incident: Incident, hit: faults.Injection) -> None:
    """Compare with what must have happened, by Slurm's own word."""
    if incident.outcome is not scenario.outcome:
        raise DemoFailedError(f"ended as {incident.outcome}, not as {scenario.outcome}: {incident.outcome_reason}")
    job = incident.attempt.job_id
    if scenario.drains:
        node = hit.node or ""
        state = (stack.cluster.node_states() or {}).get(node, "")
        if "DRAIN" not in state.upper():
            raise DemoFailedError(f"{node} should be drained and is {state}")
        again = view.attempts(job)[0].attempt.record.nodes
        if node in again:
            raise DemoFailedError(f"the retry runs on {node}, the broken node")
    if scenario.goes_back:
        _check_went_back(stack, incident)
    if scenario.outcome.value == "stopped":
        time.sleep(STILL_STOPPED_FOR.total_seconds())
        state = stack.cluster.job_field(job, "JobState") or "gone"
        if state in {"PENDING", "RUNNING"}:
            raise DemoFailedError(f"job {job} should be left stopped and is {state}")
        _say(f"Slurm still shows job {job} as {state}: no retry loop")


def _check_went_back(stack: Stack, incident: Incident) -> None:
    """By the job's own word: it resumed from the checkpoint that the plan names, and the damaged one lies aside."""
    back = incident.plan.fall_back if incident.plan else None
    if back is None:
        raise DemoFailedError("the plan does not go back to an older checkpoint")
    output = Path(stack.cluster.job_field(incident.attempt.job_id, "StdOut") or "").read_text()
    line = next((each for each in output.splitlines() if each.startswith("resumed from checkpoint")), "no such line")
    if f"step {back.step} " not in line:
        raise DemoFailedError(f"the retry should go on from step {back.step}; its output says: {line}")
    _say(f"the job's own output: {line}")
    aside = Path(back.folder, f"{ASIDE}{incident.id}")
    _say(f"put aside, not deleted: {', '.join(str(each) for each in sorted(aside.iterdir()))}")


def _summary(stack: Stack, scenario: Scenario, incident: Incident, since: datetime) -> None:
    _title("Look for yourself")
    _say(f"Temporal web UI: {stack.temporal.web_ui if stack.temporal else ''}")
    _say(f"the incident:    {link(stack, incident)}")
    _say(f"its story:       RELIGHT_CONFIG={stack.config} relight show {incident.id}")
    total = ((incident.closed_at or datetime.now(UTC)) - since).total_seconds()
    found = (incident.detected_at - since).total_seconds()
    how = f"{incident.outcome} in {total:.1f} s (detected after {found:.1f} s)"
    click.secho(f"{_label.get()}{scenario.name}: {how} - {incident.outcome_reason}", bold=True)


def link(stack: Stack, incident: Incident) -> str:
    """Address of the incident in Temporal's web UI."""
    return f"{stack.temporal.web_ui if stack.temporal else ''}{path_in_ui(incident.workflow_id, incident.run_id)}"


def path_in_ui(workflow_id: str, run_id: str) -> str:
    """Path of a workflow's run in Temporal's web UI."""
    return f"/namespaces/default/workflows/{quote(workflow_id, safe='')}/{run_id}"


def _wait_for_the_end(stack: Stack) -> None:
    _say("Everything is left running. Ctrl-C ends it and cleans up.")
    try:
        while stack.worker() is not None:
            time.sleep(0.5)
        raise DemoFailedError(f"the controller worker has ended by itself; see {stack.worker_log}")
    except KeyboardInterrupt:
        _say("ending")


def _title(text: str) -> None:
    click.secho(f"\n{_label.get()}{text}", bold=True)


def _say(text: str) -> None:
    click.echo(f"{_label.get()}  {text}")


def _progress(text: str) -> None:
    """One line that is written over, where somebody watches."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = f"{_label.get()}  {text}"[: width - 2] if text else ""
        click.echo(f"\r{' ' * (width - 1)}\r{line}", nl=False)
