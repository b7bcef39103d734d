"""Kept outputs expire: written down first, and never while their incident is open."""

import os
from datetime import timedelta

import pytest

from relight.activities.outputs import ExpireOutputs
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import Change, RowKind


@pytest.fixture
async def kept(world, ref, incident):
    """The outputs of two incidents, a closed and an open one, forty days old."""
    attempt = await world.failed()
    files = {}
    for name in ("i1a", "i1b"):
        file = world.site.kept / str(attempt.key.job_id) / name / "out.0123456789ab"
        file.parent.mkdir(parents=True)
        file.write_text("step 1\n")
        at = (world.clock() - timedelta(days=40)).timestamp()
        os.utime(file, (at, at))
        files[name] = file
    known = incident(ref(attempt, name="i1a"), attempt, world.clock())
    closed = known.model_copy(update={"phase": Phase.CLOSED, "outcome": Outcome.RECOVERED, "closed_at": world.clock()})
    still = incident(ref(attempt, name="i1b"), attempt, world.clock())
    await world.ledger.commit(Change(incidents=(closed, still)))
    return files


async def test_what_is_too_old_goes_and_is_on_record(world, kept):
    """All but what belongs to an open incident; a second sweep finds nothing."""
    expire = ExpireOutputs(world.site)
    assert await world.run(expire.sweep) == 1
    assert [name for name, file in kept.items() if file.exists()] == ["i1b"]
    (row,) = await world.rows(RowKind.OUTPUTS_EXPIRED)
    assert row.body["jobs"] == {kept["i1b"].parent.parent.name: 1}
    assert row.body["bytes"] == 7
    assert await world.run(expire.sweep) == 0
    assert len(await world.rows(RowKind.OUTPUTS_EXPIRED)) == 1


@pytest.mark.parametrize("refused", ["ledger", "rows"])
async def test_without_a_row_nothing_is_deleted(world, kept, refused):
    """No ledger, no deletion: neither where it cannot be asked, nor where it cannot be written."""
    if refused == "ledger":
        world.ledger.down = True
    else:
        world.ledger.refused = {RowKind.OUTPUTS_EXPIRED}
    with pytest.raises(LedgerUnavailableError):
        await world.run(ExpireOutputs(world.site).sweep)
    assert all(file.exists() for file in kept.values())
