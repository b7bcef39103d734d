"""What a person can be asked to approve, how heavy it is, and whose word counts."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from relight.domain.base import Value
from relight.domain.plan import Plan, Restart


class Right(StrEnum):
    """One kind of action that a person may be allowed to approve."""

    RESTART = "restart"
    """Requeue the job, or take over Slurm's own requeue of it; exclusions concern that retry alone and belong to it."""
    STOP = "stop"
    """Cancel an attempt that still runs."""
    DRAIN = "drain"
    """Take a node out of service for everybody."""
    RETURN = "return"
    """Give a quarantined node back."""
    DOWN = "down"
    """Declare a node down: Slurm ends what hangs on it."""
    REBOOT = "reboot"
    REPLACE = "replace"
    ROLLBACK = "rollback"
    """Start from an older checkpoint than the newest."""


class Weight(StrEnum):
    """How much is lost when an action was wrong."""

    LIGHT = "light"
    """One job's time."""
    MIDDLE = "middle"
    """A job's end, or a node's capacity; undone with one command."""
    HEAVY = "heavy"
    """What runs on a node, or work that was saved."""


WEIGHTS: Mapping[Right, Weight] = {
    Right.RESTART: Weight.LIGHT,
    Right.STOP: Weight.MIDDLE,
    Right.DRAIN: Weight.MIDDLE,
    Right.RETURN: Weight.MIDDLE,
    Right.DOWN: Weight.HEAVY,
    Right.REBOOT: Weight.HEAVY,
    Right.REPLACE: Weight.HEAVY,
    Right.ROLLBACK: Weight.HEAVY,
}
OF_NODES = frozenset({Right.DRAIN, Right.RETURN, Right.DOWN, Right.REBOOT, Right.REPLACE})
"""What is done to a node, and so to everybody who uses it."""
_HEAVIEST = tuple(Weight)


def weight_of(rights: Iterable[Right]) -> Weight:
    """The weight of the heaviest; light where there is none."""
    return max((WEIGHTS[right] for right in rights), key=_HEAVIEST.index, default=Weight.LIGHT)


def rights_of(plan: Plan) -> tuple[Right, ...]:
    """What the plan asks people to approve; what it is about comes first."""
    held = {
        Right.RESTART: plan.restart is not Restart.NONE,
        Right.ROLLBACK: plan.fall_back is not None,
        Right.STOP: plan.cancel,
        Right.DRAIN: bool(plan.drain),
    }
    return tuple(right for right, there in held.items() if there)


Count = Annotated[int, Field(ge=1, le=10)]
APPROVERS: Mapping[Right, int] = {right: 2 if weight is Weight.HEAVY else 1 for right, weight in WEIGHTS.items()}
"""How many different people must approve, where a policy does not say."""

# --- people -----------------------------------------------------------------------------------------------------------

KEY_TYPE = "ssh-ed25519"
_KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_HEADER = len(KEY_TYPE).to_bytes(4, "big") + KEY_TYPE.encode() + _KEY_BYTES.to_bytes(4, "big")


def public_key(text: str) -> str:
    """An OpenSSH public key as it stands in a `.pub` file, without its comment: `ssh-ed25519 AAAA...`.

    Raises:
        ValueError: anything but one Ed25519 key (RFC 8709, section 4).
    """
    kind, _, rest = text.strip().partition(" ")
    if "\n" in text.strip() or "PRIVATE KEY" in text:
        raise ValueError(f"must be one line, the public key: {KEY_TYPE} AAAA... (the file that ends in .pub)")
    if kind != KEY_TYPE:
        raise ValueError(f"a key of type {kind[:40] or 'none'!r}; accepted: {KEY_TYPE} (ssh-keygen -t ed25519)")
    word = rest.split()[0] if rest.split() else ""
    try:
        blob = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != len(_HEADER) + _KEY_BYTES or not blob.startswith(_HEADER):
        raise ValueError(f"is no complete {KEY_TYPE} key: copy the whole line of the .pub file")
    return f"{KEY_TYPE} {word}"


def key_bytes(key: str) -> bytes:
    """The 32 bytes of a public key as `public_key` returns it."""
    return base64.b64decode(key.split()[1])[len(_HEADER) :]


def fingerprint(key: str) -> str:
    """What `ssh-keygen -l` shows of the key: `SHA256:` and 43 characters."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def person_name(name: str) -> bool:
    """True for what can be a person's user name on a cluster."""
    return _NAME.fullmatch(name) is not None


def _named(name: str) -> str:
    if not person_name(name):
        raise ValueError("must be a user name: letters, digits and . _ @ -, at most 64")
    return name


class Approver(Value):
    """Whose signature counts. Public keys only: it travels with the verdict and stands in the ledger."""

    name: Annotated[str, AfterValidator(_named)]
    """The person's user name on the cluster."""
    key: Annotated[str, AfterValidator(public_key)]
    may: tuple[Right, ...] = tuple(Right)
    """What the person may approve; anybody listed may reject."""
    site: bool = False
    """True for the site's own key, on a site that lists nobody: who reads its file signs with it, under any name."""
    vouches_for: tuple[str, ...] = ()
    """Of a service that signs people in by other means (the web console): for whom its signature stands."""
    owner_may: tuple[Right, ...] = ()
    """Of such a service: what it may say for the user of a job, about that job alone."""

    @property
    def vouches(self) -> bool:
        """True for a service's key: it is nobody's own word."""
        return bool(self.vouches_for or self.owner_may)

    def may_approve(self, rights: Iterable[Right]) -> bool:
        """True where all of them are this person's."""
        return set(rights) <= set(self.may)


def vouched(people: Iterable[Approver], service: Approver, name: str, owner: str) -> frozenset[Right]:
    """What a service may say that this person approves; never more than the person's own listed keys could.

    Args:
        people: everybody listed.
        service: whose key signed.
        name: the person's.
        owner: the user whose job it is about; empty where it is about none.
    """
    allowed = set(service.may) if name in service.vouches_for else set()
    if name and name == owner:
        allowed |= set(service.owner_may)
    own = [set(each.may) for each in people if each.name == name and not each.vouches]
    return frozenset(allowed & set().union(*own) if own else allowed)


def able(people: Iterable[Approver], rights: Iterable[Right], owner: str = "") -> tuple[str, ...]:
    """The different people who may approve all of it, by a key of their own or through a service."""
    listed, wanted = tuple(people), set(rights)
    names = [each.name for each in listed if not each.vouches and each.may_approve(wanted)]
    for service in (each for each in listed if each.vouches):
        through = (*service.vouches_for, owner)
        names += [name for name in through if name and wanted <= vouched(listed, service, name, owner)]
    return tuple(dict.fromkeys(names))


SITE_KEY = "the site key"


def site_approver(key: str) -> Approver:
    """The one approver of a site that lists nobody."""
    return Approver(name="site", key=key, site=True)
