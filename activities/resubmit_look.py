"""What has become of a fresh job that slurmctld does not show, and of one that runs: looked at, never guessed."""

from datetime import timedelta

from relight.activities import contracts as c
from relight.activities.site import Site, poll
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt
from relight.domain.incidents import Outcome
from relight.domain.resubmission import FreshJob

SEEN_WITHIN = timedelta(seconds=30)
"""How soon the watchers should have seen an attempt that runs."""
LOOK_AGAIN = timedelta(seconds=0.5)


async def told_of(site: Site, running: c.Running) -> c.Running:
    """The same, once the watchers have seen the attempt: by their snapshot its progress is followed."""
    until = site.clock() + SEEN_WITHIN
    while running.attempt and site.clock() < until and await site.known(running.attempt) is None:
        await poll(site, LOOK_AGAIN)
    return running


async def look_for_fresh_job(site: Site, stand_in: Attempt, fresh: FreshJob) -> c.Running:
    """Why slurmctld does not show the fresh job.

    It has run, and was seen; or it has run and is over; or slurmctld has forgotten it, which one that is killed may
    within 5 s of a submission (it gives the number to another job then). Where that is not known it is not submitted
    once more: two jobs would write one checkpoint folder.
    """
    now = site.clock()
    states = await site.ledger.attempts_of_job(site.cluster, fresh.job_id, limit=5)
    mine = [state.attempt for state in states if state.attempt.lineage == stand_in.lineage]
    if mine:
        nodes = mine[0].record.nodes[:64]
        return c.Running(attempt=mine[0].key, nodes=nodes, at=now, text=f"job {fresh.job_id} ran meanwhile")
    gone = f"Slurm no longer knows job {fresh.job_id}"
    try:
        rows = await site.slurm.executions(fresh.job_id)
    except SlurmError as error:
        text = f"{gone}, and whether it ran is not known: {error}"
        return c.Running(at=now, outcome=Outcome.FAILED, text=text[:500])
    own = [row for row in rows if row.submit_time == fresh.submit_time]
    if any(row.start_time for row in own):
        return c.Running(at=now, outcome=Outcome.FAILED, text=f"{gone}, and by accounting it ran")
    return c.Running(at=now, forgotten=True, text=f"slurmctld has forgotten job {fresh.job_id}")
