"""Whose signatures count, as written in the file: people's own SSH public keys."""

from collections import Counter
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from relight.domain.rights import OF_NODES, Approver, Right, fingerprint, public_key

MOST_APPROVERS = 100


def _some(may: tuple[Right, ...]) -> tuple[Right, ...]:
    if not may:
        raise ValueError("an empty list allows nothing; leave the key out to allow everything")
    return may


def _of_jobs(may: tuple[Right, ...]) -> tuple[Right, ...]:
    if nodes := [right for right in may if right in OF_NODES]:
        accepted = ", ".join(right for right in Right if right not in OF_NODES)
        raise ValueError(f"{nodes[0]} takes a node from others; accepted: {accepted}")
    return may


PersonName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")]


class ApproverSettings(BaseModel):
    """One person's key, or that of a service that vouches for people it has signed in (the web console).

    A person with several keys stands here several times, under one name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PersonName
    key: Annotated[str, AfterValidator(public_key)]
    may: Annotated[tuple[Right, ...], AfterValidator(_some)] = tuple(Right)
    vouches_for: tuple[PersonName, ...] = Field(default=(), max_length=1000)
    """Only for a service: for whom its signature stands."""
    owner_may: Annotated[tuple[Right, ...], AfterValidator(_of_jobs)] = ()
    """Only for a service: what the user of a job may approve by it, for that job."""


class ApprovalSettings(BaseModel):
    """Whose signatures count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approvers: tuple[ApproverSettings, ...] = Field(default=(), max_length=MOST_APPROVERS)
    """Empty: the site's own key, that the controller worker makes."""

    @field_validator("approvers")
    @classmethod
    def _no_key_is_two_peoples(cls, listed: tuple[ApproverSettings, ...]) -> tuple[ApproverSettings, ...]:
        twice = [key for key, times in Counter(each.key for each in listed).items() if times > 1]
        if twice:
            names = ", ".join(each.name for each in listed if each.key == twice[0])
            raise ValueError(f"the key {fingerprint(twice[0])} is listed more than once ({names})")
        return listed

    @property
    def people(self) -> tuple[Approver, ...]:
        """As decisions are judged by."""
        return tuple(Approver(**each.model_dump()) for each in self.approvers)
