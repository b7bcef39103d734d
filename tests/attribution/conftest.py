"""Fixtures of the tests of attribution: logs made from text."""

import io
from functools import partial

import pytest

from relight.attribution.engine import diagnose
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source


def _log(kind, node, name, lines):
    return LogSource(name, kind, node, partial(io.BytesIO, "\n".join(lines).encode() + b"\n"))


@pytest.fixture(scope="session")
def job_log():
    """Makes a job's output from lines."""
    return lambda *lines, name="slurm-7.out": _log(Source.JOB_LOG, None, name, lines)


@pytest.fixture(scope="session")
def kernel_log():
    """Makes a node's kernel log, as the platform collected it."""
    return lambda node, *lines: _log(Source.KERNEL_LOG, node, f"dmesg-{node}", lines)


@pytest.fixture(scope="session")
def verdict_of(job_log):
    """Diagnoses one job log given as lines and returns the first hypothesis."""
    return lambda *lines, context=None: diagnose([job_log(*lines)], context).verdict
