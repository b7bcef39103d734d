"""The frame of every mutation: no ledger, no mutation; look before each write; read again after it."""

from typing import Any

from relight.activities.contracts import Done, IncidentRef
from relight.activities.guard_standing import check_write
from relight.activities.records import row
from relight.activities.site import Site
from relight.domain.ledger import Change, Entry, RowKind


class Mutation:
    """One change to the outside on behalf of one incident, named by a step that stays the same over retries."""

    def __init__(self, site: Site, incident: IncidentRef, step: str, *, lineage: str = "") -> None:
        """Bind the change to its incident and its place in the ledger."""
        self._site = site
        self._incident = incident
        self._step = step
        self._lineage = lineage
        self._meant = False

    async def before(self) -> tuple[Done | None, bool]:
        """What an earlier call of the same step left: its recorded effect, and whether it meant to write.

        With an intent but no effect a write may have happened and its answer been lost: look, never repeat
        blindly.
        """
        effects = await self._site.ledger.rows(incident=self._incident.id, kind=RowKind.EFFECT)
        for effect in effects:
            if effect.id == self._id("effect"):
                return Done.model_validate(effect.body["done"]), True
        self._meant = await self._site.ledger.has(self._id("intent"))
        return None, self._meant

    async def intend(self, what: dict[str, Any], node: str = "") -> None:
        """Write down what is about to be done. A failure here stops the mutation.

        Raises:
            StoppedError: a kill switch, and for nodes a pause or the breaker, stands against it; never for an undo.
        """
        await check_write(self._site, str(what.get("what", "")), node)
        await self._site.ledger.commit(Change(entries=(self._entry(RowKind.INTENT, "intent", what, node),)))
        self._meant = True

    async def effect(self, done: Done, node: str = "", cursors: dict[str, dict[str, Any]] | None = None) -> Done:
        """Write down what was read back, and whether anything had been meant to be written.

        With it, in the same transaction, what others go by.
        """
        body = {"step": self._step, "done": done.model_dump(mode="json"), "meant": self._meant}
        entry = self._entry(RowKind.EFFECT, "effect", body, node)
        await self._site.ledger.commit(Change(entries=(entry,), cursors=cursors or {}))
        return done

    def _id(self, phase: str) -> str:
        return self._incident.entry(self._step, phase)

    def _entry(self, kind: RowKind, phase: str, body: dict[str, Any], node: str) -> Entry:
        return row(
            self._site,
            self._incident,
            self._step,
            kind,
            body,
            phase=phase,
            lineage=self._lineage,
            node=node,
        )
