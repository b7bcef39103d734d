"""The one table of time-outs and retries names things that exist, and leaves none out."""

from datetime import timedelta

import pytest

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.activities.guard_standing import StoppedError
from relight.activities.restart import ReadBackError
from relight.clients import ledger, slurm
from relight.clients.kill_switch import KillSwitchUnknownError
from relight.workflows.options import DO_NOT_RETRY, OPTIONS

CALLS = {name: value for module in (c, k) for name, value in vars(module).items() if isinstance(value, c.Call)}

HOPELESS = {
    slurm.NotPermittedError,
    slurm.RefusedError,
    slurm.NodeNotFoundError,
    ledger.LedgerCorruptError,
    StoppedError,
    ValueError,
}
WORTH_A_TRY = {
    slurm.SlurmUnavailableError,
    slurm.SlurmBusyError,
    slurm.SlurmVersionError,  # a cluster in the middle of its upgrade
    slurm.AmbiguousWriteError,
    ledger.LedgerUnavailableError,
    KillSwitchUnknownError,
    ReadBackError,
}


def test_names_are_of_classes_that_exist():
    """A class that is renamed must be renamed here: the name is all that Temporal compares."""
    assert {error.__name__ for error in HOPELESS} == set(DO_NOT_RETRY)
    assert len(DO_NOT_RETRY) == len(set(DO_NOT_RETRY))


def test_what_may_pass_is_tried_again():
    """An answer lost or late, a busy slurmctld, and a ledger that is away are no reason to give up."""
    assert {error.__name__ for error in WORTH_A_TRY}.isdisjoint(DO_NOT_RETRY)


def test_every_error_of_slurm_and_ledger_is_known_here():
    """A new error class makes somebody think about whether trying again helps."""
    roots = {slurm.SlurmError, ledger.LedgerError}
    found = {
        value
        for module in (slurm, ledger)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, tuple(roots))
    }
    # Handled where it arises: `Site.record` reads an unknown job as None.
    assert found - roots - HOPELESS - WORTH_A_TRY == {slurm.JobNotFoundError}


def test_there_are_calls():
    """The tests below look at something."""
    assert len(CALLS) > 20


def test_every_call_has_options_and_a_name_of_its_own():
    """Each activity stands in the table once, and the table holds nothing else."""
    names = [call.name for call in CALLS.values()]
    assert len(names) == len(set(names))
    assert set(names) == set(OPTIONS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_options_make_sense(call):
    """Every activity ends some time; one that may run for minutes beats, so that a dead worker is noticed."""
    options = OPTIONS[call.name]
    assert options.start_to_close > timedelta(0)
    assert options.attempts >= 0
    if options.start_to_close > timedelta(minutes=2):
        assert options.heartbeat is not None
        assert options.heartbeat < options.start_to_close
