"""WatchCluster: keeps exactly one set of watchers running for a cluster, for ever."""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.workflows.options import do


@workflow.defn(name=c.WATCH_WORKFLOW)
class WatchCluster:
    """A few long, heartbeating activities; Temporal starts one again wherever a worker still lives."""

    @workflow.run
    async def run(self, arg: c.WatchInput) -> None:
        """Run all watchers for a while, then continue as new, so that the history stays short."""
        workflow.set_current_details(
            f"Watching cluster **{arg.cluster}**: jobs, nodes, job logs; delivering detections."
        )
        await asyncio.gather(
            do(c.WATCH_JOBS, arg, "read all jobs again and again"),
            do(c.WATCH_NODES, arg, "read all nodes again and again"),
            do(c.FOLLOW_LOGS, arg, "follow the outputs of running jobs"),
            do(c.DELIVER_DETECTIONS, arg, "start or tell the incident of each detection"),
        )
        workflow.continue_as_new(arg)
