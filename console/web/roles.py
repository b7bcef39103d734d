"""Who has signed in, and what each role may."""

from collections.abc import Mapping
from enum import StrEnum

from relight.config.console import Role
from relight.domain.base import Value

__all__ = ["Identity", "May", "Role"]


class May(StrEnum):
    """One thing that a person may do in the console."""

    SEE_OWN = "see own jobs"
    SEE_ALL = "see everything"
    DECIDE_OWN = "decide on restarts of own jobs"
    REJECT = "reject"
    APPROVE = "approve"
    SEE_SETTINGS = "see the settings in force"


_VIEWER = frozenset({May.SEE_OWN, May.SEE_ALL, May.DECIDE_OWN})
_OPERATOR = _VIEWER | {May.REJECT}
_APPROVER = _OPERATOR | {May.APPROVE}
RIGHTS: Mapping[Role, frozenset[May]] = {
    Role.USER: frozenset({May.SEE_OWN, May.DECIDE_OWN}),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: _OPERATOR,
    Role.APPROVER: _APPROVER,
    Role.ADMIN: _APPROVER | {May.SEE_SETTINGS},
}
"""What the console lets each role try. Whether a decision then counts is the workflow's to judge, by its own list."""
RANK = tuple(RIGHTS)
"""From the least to the most."""


class Identity(Value):
    """A person who has signed in."""

    name: str
    """The user name on the cluster."""
    role: Role
    way: str
    """How: `token`, `oidc`, `bearer` (a token with each request), or `dev` (nobody was asked)."""
    session: str = ""
    """Names the session; empty where there is none."""
    csrf: str = ""
    """What requests of this session that change anything must carry."""

    def may(self, what: May) -> bool:
        """True where the role lets this person."""
        return what in RIGHTS[self.role]

    def sees(self, owner: str) -> bool:
        """True where this person may see what belongs to a user's job."""
        return self.may(May.SEE_ALL) or (owner != "" and owner == self.name)
