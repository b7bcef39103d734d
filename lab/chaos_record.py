"""Slurm's own record of what was done to jobs and nodes: slurmctld's log and accounting, read as deeds.

slurmctld has to log at level debug2, which names the user of each request. The words are those of 22.05; where a
line is not understood it is no deed, so a checker that counts deeds must also be told how many there should be.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

CARRIED_OUT_WITHIN = timedelta(seconds=1)
"""From the line of a request to that of its effect; a slurmctld that was stopped in between is no matter here."""


class What(StrEnum):
    """What slurmctld wrote down."""

    START = "start"
    """A job got nodes."""
    REQUEUE = "requeue"
    """Somebody asked for it, and it was done."""
    ENDED = "ended"
    """A job's script ended badly."""
    NODE_FAIL = "node fail"
    """Slurm itself queued the job again, or failed it, because a node was lost or did not launch it."""
    CANCEL = "cancel"
    EXCLUDE = "exclude"
    BEGIN = "begin"
    """A job's start time was set."""
    PRIORITY = "priority"
    """A hold or a release."""
    OTHER = "other"
    """Another change of a job."""
    DRAIN = "drain"
    DOWN = "down"
    RESUME = "resume"
    RECOVERED = "recovered"
    """slurmctld started, and had this job in its saved state: what it had done since then is forgotten."""


class Deed(NamedTuple):
    """One thing that was done."""

    at: datetime
    what: What
    job: int = 0
    node: str = ""
    uid: int | None = None
    """Who asked for it; None: Slurm itself."""
    text: str = ""


class Execution(NamedTuple):
    """A row of `sacct --duplicates`."""

    job: int
    state: str
    submit: datetime
    start: datetime | None
    end: datetime | None
    nodes: str


_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})\] (?:error: )?(.*)")
_ASKED = re.compile(r"debug2: Processing RPC: (REQUEST_JOB_REQUEUE|REQUEST_UPDATE_NODE) from UID=(\d+)")
_PLAIN = (
    (re.compile(r"sched: Allocate JobId=(?P<job>\d+) NodeList=(?P<node>\S+)"), What.START),
    (re.compile(r"sched/backfill: _start_job: Started JobId=(?P<job>\d+) .* on (?P<node>\S+)"), What.START),
    (re.compile(r"requeue job JobId=(?P<job>\d+) due to failure of node (?P<node>\S+)"), What.NODE_FAIL),
    (re.compile(r"Killing JobId=(?P<job>\d+) on failed node (?P<node>\S+)"), What.NODE_FAIL),
    (re.compile(r"debug:  _job_requeue_op: Holding JobId=(?P<job>\d+), requeue-hold exit"), What.NODE_FAIL),
    # "per user/system request": its node could not launch it (seen where the node had lost its power just before).
    (re.compile(r"_job_complete: requeue JobId=(?P<job>\d+) (?:due to node failure|per user)"), What.NODE_FAIL),
    (re.compile(r"_job_complete: JobId=(?P<job>\d+) (?:OOM|(?:WEXITSTATUS|WTERMSIG) [1-9])"), What.ENDED),
    (re.compile(r"Recovered JobId=(?P<job>\d+) "), What.RECOVERED),
)
"""Lines that tell all in one."""
_CANCELLED = re.compile(r"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=(\d+) uid (\d+)")
_REQUEUED = re.compile(r"debug:  _job_requeue_op: JobId=(\d+) state")
_REFUSED = re.compile(r"_slurm_rpc_requeue: Requeue of JobId=(\d+) returned an error")
_CHANGING = re.compile(r"sched: _update_job: (.*) for JobId=(\d+)")
_CHANGED = re.compile(r"_slurm_rpc_update_job: complete JobId=(\d+) uid=(\d+)")
_REASON = re.compile(r"update_node: node (\S+) reason set to: (.*)")
_STATE = re.compile(r"update_node: node (\S+) state set to (\S+)")

_CHANGES = (
    ("setting exc_nodes", What.EXCLUDE),
    ("setting begin", What.BEGIN),
    ("set priority", What.PRIORITY),
)


def read_log(lines: Iterable[str]) -> list[Deed]:
    """Return the deeds of slurmctld's log, in its order."""
    return _Reader().read(lines)


class _Reader:
    """Joins lines that tell of one request. slurmctld writes them under one lock, so they stand in its order."""

    def __init__(self) -> None:
        self._deeds: list[Deed] = []
        self._asked: dict[str, list[tuple[datetime, int]]] = {"REQUEST_JOB_REQUEUE": [], "REQUEST_UPDATE_NODE": []}
        self._changing: dict[int, list[tuple[What, str]]] = {}
        self._reasons: dict[str, str] = {}

    def read(self, lines: Iterable[str]) -> list[Deed]:
        for line in lines:
            found = _LINE.match(line)
            if found:
                # slurmctld writes local time without a zone.
                self._line(datetime.fromisoformat(found[1]).astimezone(UTC), found[2])
        return self._deeds

    def _line(self, at: datetime, text: str) -> None:
        if asked := _ASKED.match(text):
            self._asked[asked[1]].append((at, int(asked[2])))
        elif text.startswith("slurmctld version"):
            for waiting in self._asked.values():
                waiting.clear()
            self._changing.clear()
        else:
            self._job(at, text)
            self._node(at, text)

    def _job(self, at: datetime, text: str) -> None:
        for pattern, what in _PLAIN:
            if found := pattern.match(text):
                self._deeds.append(Deed(at, what, int(found["job"]), found.groupdict().get("node", ""), text=text))
        if found := _CANCELLED.match(text):
            self._deeds.append(Deed(at, What.CANCEL, int(found[1]), uid=int(found[2]), text=text))
        elif found := _REQUEUED.match(text):
            uid = self._who("REQUEST_JOB_REQUEUE", at)
            self._deeds.append(Deed(at, What.REQUEUE, int(found[1]), uid=uid, text=text))
        elif found := _REFUSED.match(text):
            self._refused(int(found[1]), at)
        elif found := _CHANGING.match(text):
            what = next((kind for words, kind in _CHANGES if found[1].startswith(words)), What.OTHER)
            self._changing.setdefault(int(found[2]), []).append((what, text))
        elif found := _CHANGED.match(text):
            job, uid = int(found[1]), int(found[2])
            changes = self._changing.pop(job, [(What.OTHER, text)])
            self._deeds += [Deed(at, what, job, uid=uid, text=words) for what, words in changes]

    def _refused(self, job: int, at: datetime) -> None:
        """A refusal may follow the line of the attempt, whose request it was; else it has one of its own."""
        newest = next((deed for deed in reversed(self._deeds) if deed.what is What.REQUEUE), None)
        if newest and newest.job == job and not self._asked["REQUEST_JOB_REQUEUE"]:
            self._deeds.remove(newest)
        else:
            self._who("REQUEST_JOB_REQUEUE", at)

    def _node(self, at: datetime, text: str) -> None:
        if found := _REASON.match(text):
            self._reasons[found[1]] = found[2]
        elif found := _STATE.match(text):
            node, state = found[1], found[2]
            what = What.DRAIN if state.startswith("DRAIN") else What.DOWN if state.startswith("DOWN") else What.RESUME
            reason = self._reasons.pop(node, "")
            self._deeds.append(Deed(at, what, node=node, uid=self._who("REQUEST_UPDATE_NODE", at), text=reason))

    def _who(self, request: str, at: datetime) -> int | None:
        """Whose request it is: the one just before, as each is carried out at once. What did nothing has no line."""
        waiting, self._asked[request] = self._asked[request], []
        return waiting[-1][1] if waiting and at - waiting[-1][0] < CARRIED_OUT_WITHIN else None


SACCT = ("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", "--allusers")
SACCT_FIELDS = "--format=jobidraw,state,submit,start,end,nodelist"


def read_accounting(text: str) -> list[Execution]:
    """Return the rows that `SACCT` printed; it writes local time without a zone."""
    return list(_executions(text))


def _executions(text: str) -> Iterator[Execution]:
    for line in text.splitlines():
        job, state, submit, start, end, nodes = line.split("|")
        submitted = _time(submit)
        if submitted is not None:
            yield Execution(int(job), state.split()[0], submitted, _time(start), _time(end), nodes)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None  # `Unknown`, `None`
