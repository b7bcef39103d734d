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
            f"Watching cluster **{arg.cluster}**: jobs, nodes, job logs, node agents, metrics; delivering detections."
        )
        watchers = [
            do(c.WATCH_JOBS, arg, "read all jobs again and again"),
            do(c.WATCH_NODES, arg, "read all nodes again and again"),
            do(c.FOLLOW_LOGS, arg, "follow the outputs of running jobs"),
            do(c.DELIVER_DETECTIONS, arg, "start or tell the incident of each detection"),
        ]
        # A run begun by a worker of an older version goes on as it was until it continues as new.
        if workflow.patched("agents-and-metrics"):
            watchers += [
                do(c.WATCH_AGENTS, arg, "notice nodes whose agents have fallen silent"),
                do(c.WATCH_METRICS, arg, "read GPU metrics where no agent is"),
            ]
        if workflow.patched("anchors"):
            watchers.append(do(c.ANCHOR_LEDGER, arg, "keep the ledger's head in other places"))
        if workflow.patched("outputs-expire"):
            watchers.append(do(c.EXPIRE_OUTPUTS, arg, "let kept outputs expire"))
        await asyncio.gather(*watchers)
        workflow.continue_as_new(arg)
