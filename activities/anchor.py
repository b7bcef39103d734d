"""Keeps the ledger's head in other places, so that rows cut off its end show. What fails is told and tried again."""

from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.site import Site, poll
from relight.clients.anchors import AnchorError, AnchorPlace
from relight.clients.ledger import LedgerError
from relight.domain.audit import Anchor, AnchorState, AnchorStates, anchors_cursor, failed, kept
from relight.domain.ledger import Change

PERIOD = timedelta(seconds=5)
"""From one look at the clock to the next; each is a heartbeat."""
TRY_AGAIN = timedelta(minutes=1)
"""After a failure, where the interval is not shorter."""


class AnchorLedger:
    """Keeps the head of one cluster's ledger where the settings say."""

    def __init__(self, site: Site, places: tuple[AnchorPlace, ...], every: timedelta) -> None:
        """Bind to a cluster and to the places.

        Args:
            site: has the ledger.
            places: none: there is nothing to do.
            every: from one time to the next, where the ledger has grown meanwhile.
        """
        self._site = site
        self._places = places
        self._every = every
        self._next: dict[str, datetime] = {}
        """By place: when it is due."""
        self._problem = ""

    @activity.defn(name=c.ANCHOR_LEDGER.name)
    async def anchor_ledger(self, arg: c.WatchInput) -> c.Nothing:
        """Do it again and again; whatever goes wrong, recoveries never wait for it."""
        until = self._site.clock() + arg.run_for
        while self._site.clock() < until:
            if due := [place for place in self._places if self._due(place.name)]:
                await self._keep(due)
            await poll(self._site, PERIOD)
        return c.Nothing()

    def _due(self, name: str) -> bool:
        due = self._next.get(name)
        return due is None or self._site.clock() >= due

    async def _keep(self, due: list[AnchorPlace]) -> None:
        """At each of these places, and write down how it went.

        A ledger that does not answer, or whose end was changed, is told in the log: it cannot be written to either.
        """
        try:
            cursor = anchors_cursor(self._site.cluster)
            known = AnchorStates.model_validate(await self._site.ledger.cursor(cursor) or {})
            anchor = await self._site.ledger.anchor(self._site.cluster)
            states = {place.name: known.places.get(place.name, AnchorState()) for place in self._places}
            for place in due:
                states[place.name] = await self._kept_at(place, states[place.name], anchor)
            now = AnchorStates(places=states)
            if now != known:
                await self._site.ledger.commit(Change(cursors={cursor: now.model_dump(mode="json")}))
            self._problem = ""
        except (LedgerError, ValueError) as error:
            if str(error) != self._problem:
                activity.logger.error("the ledger's head is not anchored: %s", error)
            self._problem = str(error)
            self._next |= {place.name: self._site.clock() + self._pause(failing=True) for place in due}

    async def _kept_at(self, place: AnchorPlace, before: AnchorState, anchor: Anchor | None) -> AnchorState:
        if anchor is None or (anchor.hash == before.hash and not before.problem):
            self._next[place.name] = self._site.clock() + self._pause(failing=False)
            return before
        activity.heartbeat()
        try:
            await place.keep(anchor.line)
            after = kept(anchor)
        except AnchorError as error:
            after = failed(before, str(error), self._site.clock())
            if not before.problem:
                activity.logger.error("the ledger's head is not anchored at %s: %s", place.name, error)
        self._next[place.name] = self._site.clock() + self._pause(failing=bool(after.problem))
        self._show(place.name, after)
        return after

    def _pause(self, *, failing: bool) -> timedelta:
        return min(TRY_AGAIN, self._every) if failing else self._every

    def _show(self, name: str, state: AnchorState) -> None:
        """On the worker's metrics page."""
        meter = activity.metric_meter()
        labels = {"cluster": self._site.cluster, "place": name}
        failing = meter.create_gauge("relight_anchor_failing", "1 while the ledger's head cannot be kept there")
        failing.set(int(bool(state.problem)), labels)
        if state.at:
            last = meter.create_gauge_float("relight_anchor_last_timestamp_seconds", "When it last was")
            last.set(state.at.timestamp(), labels)
