"""Who may decide on a plan in the console, and by which key it then signs. The workflow judges again, by its own list.

Two gates, one behind the other: the role that a person has here, and what the site's list of approvers lets the
console say for this person (`domain.rights.vouched`). A site that lists nobody has one key: who may read it signs.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from relight.clients.signing_keys import KeyFileError, public_half, read_key
from relight.config.settings import Settings
from relight.console.signer import Signer
from relight.console.standing import verdict_of
from relight.console.web.errors import Refused
from relight.console.web.read_incident_values import ApprovalView
from relight.console.web.roles import Identity, May
from relight.domain.incidents import Incident
from relight.domain.ledger import Row
from relight.domain.rights import Approver, Right, rights_of, vouched

OWN = frozenset({Right.RESTART})
"""What the console lets the user of a job decide about it."""


class Question(NamedTuple):
    """What a decision would be about."""

    rights: Collection[Right]
    owner: str
    """The user of the job; empty: it is about no job."""
    approvers: Sequence[Approver]
    """As the workflow that asks knows them."""


class Judge:
    """Knows the console's keys."""

    def __init__(self, settings: Settings) -> None:
        self._service = settings.console_key
        self._site = settings.approval_key
        self._public: dict[tuple[Path, int], str] = {}

    def seen_by(self, who: Identity, incident: Incident, rows: Sequence[Row], stands: ApprovalView) -> ApprovalView:
        """Where an approval stands, with what this person may do about it here. Reads key files."""
        verdict = verdict_of(rows)
        if not stands.waiting or verdict is None:
            return stands
        question = Question(rights_of(verdict.plan), incident.user, verdict.approvers)
        no, not_even_no = (self.why_not(who, question, approve=approve) for approve in (True, False))
        return stands.model_copy(update={"may_approve": not no, "may_reject": not not_even_no, "why_not": no})

    def why_not(self, who: Identity, question: Question, *, approve: bool) -> str:
        """Why this person may not decide on this here; empty where the person may."""
        return may_not(who, question, approve=approve) or self._cannot_sign(who, question, approve=approve)

    def signer(self, who: Identity, question: Question, *, approve: bool) -> tuple[Signer, str]:
        """The key that signs for this person, and the name it signs for.

        Raises:
            Refused: none does.
        """
        if wrong := self.why_not(who, question, approve=approve):
            raise Refused(wrong)
        of_site = _of_site(question.approvers)
        path = self._site if of_site else self._service
        try:
            key = read_key(path, private_to_owner=not of_site)
        except (KeyFileError, OSError) as error:
            raise Refused(f"the console cannot sign: {_plain(error)}") from error
        public = public_half(key)
        approver = next((each for each in question.approvers if each.key == public), None)
        return Signer(key, public, path, approver), f"{who.name} (console)" if of_site else who.name

    def _cannot_sign(self, who: Identity, question: Question, *, approve: bool) -> str:
        own_key = "decide with your own key: relight approve"
        if _of_site(question.approvers):
            known = self._public_of(self._site, private=False)
            if known and (not question.approvers or any(each.key == known for each in question.approvers)):
                return ""
            return (
                f"this console cannot read the site's approval key {self._site}: who can decides with relight approve"
            )
        public = self._public_of(self._service, private=True)
        service = next((each for each in question.approvers if each.vouches and each.key == public), None)
        if service is None:
            return f"this site lets no console sign for people (approvals.approvers: vouches_for); {own_key}"
        if not approve:
            known_here = who.name in service.vouches_for or (service.owner_may and who.name == question.owner)
            return "" if known_here else f"the console may not sign for {who.name}; {own_key}"
        may = vouched(question.approvers, service, who.name, question.owner)
        missing = ", ".join(right for right in question.rights if right not in may)
        return f"the console may not sign for {who.name}: {missing}; {own_key}" if missing else ""

    def _public_of(self, path: Path, *, private: bool) -> str:
        """The public half of a key; empty where it cannot be read. Read anew when the file has changed."""
        try:
            mark = (path, path.stat().st_mtime_ns)
            if mark not in self._public:
                self._public = {mark: public_half(read_key(path, private_to_owner=private))}
            return self._public[mark]
        except (KeyFileError, OSError):
            return ""


def may_not(who: Identity, question: Question, *, approve: bool) -> str:
    """Why this person's role does not let them decide on this; empty where it does."""
    needed = May.APPROVE if approve else May.REJECT
    if who.may(needed):
        return ""
    own = question.owner != "" and question.owner == who.name and who.may(May.DECIDE_OWN)
    more = ", ".join(right for right in question.rights if right not in OWN)
    if own and not more:
        return ""
    if own:
        return f"the job is yours, but the plan is more than its restart ({more}): an approver decides"
    return f"{who.name} is {who.role} here: that role may not {needed}"


def _of_site(approvers: Sequence[Approver]) -> bool:
    """True on a site that lists nobody; also for incidents begun before there were lists."""
    return all(each.site for each in approvers)


def _plain(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
