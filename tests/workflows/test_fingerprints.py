"""A workflow's code is not changed unawares: what runs today is replayed by the code of tomorrow.

After a change, once the recorded histories replay (test_replay.py) and what changes commands stands behind a patch:

    pytest tests/workflows/test_fingerprints.py --accept
"""

import hashlib
import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import relight.workflows

FILE = Path(__file__).with_name("fingerprints.json")


def fingerprints():
    """Each module of workflow code, by the hash of its text: other measures differ from one Python to the next."""
    modules = [module.name for module in pkgutil.iter_modules(relight.workflows.__path__)]
    found = {name: importlib.import_module(f"relight.workflows.{name}").__file__ for name in sorted(modules)}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] for name, file in found.items()}


def test_workflow_code_is_as_it_was_accepted(request):
    """Changed code is looked at: does it make the same commands for what is open, or is it behind a patch?"""
    now = fingerprints()
    if request.config.getoption("--accept", default=False):
        FILE.write_text(json.dumps(now, indent=1) + "\n")
    accepted = json.loads(FILE.read_text())
    changed = sorted(name for name in now.keys() | accepted.keys() if now.get(name) != accepted.get(name))
    if changed:
        pytest.fail(f"workflow code has changed: {', '.join(changed)}. {__doc__}")
