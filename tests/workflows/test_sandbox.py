"""Determinism checked at start-up: workflows load in a sandbox that lets nothing in by accident."""

import importlib
import itertools
import subprocess
import sys

import pytest
from temporalio import workflow
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from relight.workers.controller import PASSED_THROUGH, WORKFLOWS

RAISE = workflow.SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
_numbers = itertools.count()
STRICT = SandboxRestrictions.default.with_import_notification_policy(RAISE)


def load(environment, restrictions, workflows=WORKFLOWS):
    """A worker checks its workflows when it is made."""
    runner = SandboxedWorkflowRunner(restrictions=restrictions)
    return Worker(environment.client, task_queue=f"load-{next(_numbers)}", workflows=workflows, workflow_runner=runner)


async def test_all_workflows_load_with_what_the_worker_passes_through(environment):
    """With the worker's own list nothing else is imported inside the sandbox."""
    load(environment, STRICT.with_passthrough_modules(*PASSED_THROUGH))


@pytest.mark.parametrize("found", WORKFLOWS, ids=lambda found: found.__name__)
async def test_workflow_files_mark_their_own_imports(environment, found):
    """Even reloaded inside the sandbox, a workflow's file reaches our modules only where it says so itself."""
    load(environment, STRICT, [found])


def test_workflows_bring_no_outside_system_along():
    """What runs in a workflow imports no client, no database, no subprocess of ours."""
    names = "care_for_node, recover_job, guard_cluster, notify_channel, watch_cluster"
    code = f"import sys; from relight.workflows import {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [m for m in loaded if m.startswith(("relight.clients", "relight.attribution", "sqlalchemy", "yaml"))] == []


async def test_an_import_that_is_not_marked_is_refused(environment, tmp_path, monkeypatch):
    """The check can fail: a workflow file that imports a library as if it were anything else does not load."""
    text = """
import yaml
from temporalio import workflow

@workflow.defn
class Careless:
    @workflow.run
    async def run(self) -> None:
        yaml.safe_load("")
"""
    (tmp_path / "relight_careless.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    careless = importlib.import_module("relight_careless").Careless
    with pytest.raises(RuntimeError, match="Careless") as refused:
        load(environment, STRICT, [careless])
    assert "yaml was not intentionally passed through" in str(refused.value.__cause__)
