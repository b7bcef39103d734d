"""The key that a decision is signed with: which one, whose it is here, and who could sign where one cannot."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import click
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from relight.clients.signing_keys import DEFAULT_KEY, KeyFileError, no_passphrase, public_half, read_key
from relight.config.settings import Settings
from relight.console.context import user_name
from relight.console.errors import RefusedStop
from relight.domain.approvals import Request
from relight.domain.rights import SITE_KEY, Approver, fingerprint


def person() -> str:
    """Who decides: the Unix user, and, behind sudo, who called it."""
    name, caller = user_name(), os.environ.get("SUDO_USER", "")
    return f"{caller} (sudo as {name})" if caller and caller != name else name


class Signer(NamedTuple):
    """Who signs."""

    key: Ed25519PrivateKey
    public: str
    path: Path
    approver: Approver | None
    """As the workflow knows the key; None where it began before it knew any."""

    @property
    def told(self) -> str:
        """For example `ada, with ~/.ssh/id_ed25519 (SHA256:...)`."""
        name = self.approver.name if self.approver and not self.approver.site else f"{person()}, by {SITE_KEY}"
        return f"{name}, with {self.path} ({fingerprint(self.public)})"


def signing_key(settings: Settings, request: Request, path: Path | None) -> Signer:
    """The key to sign with: the one named, else the site's where nobody is listed, else one's own SSH key.

    Raises:
        RefusedStop: no key, a key that cannot sign, or a key that nobody listed has.
    """
    of_site = all(each.site for each in request.approvers)
    named = path.expanduser() if path else settings.approval_key if of_site else DEFAULT_KEY.expanduser()
    ask = _passphrase if sys.stdin.isatty() else no_passphrase
    try:
        key = read_key(named, private_to_owner=named != settings.approval_key, passphrase=ask)
    except KeyFileError as error:
        raise RefusedStop(str(error)) from None
    except OSError as error:
        raise RefusedStop(_unreadable(settings, named, error, of_site=of_site)) from None
    public = public_half(key)
    approver = next((each for each in request.approvers if each.key == public), None)
    if approver is None and request.approvers:
        who = "the site's own key signs here" if of_site else f"these people's keys do: {_listed(request)}"
        raise RefusedStop(
            f"{named} ({fingerprint(public)}) is the key of nobody who may approve here; {who}\n"
            "relight approvers tells more; another key is named with --key.",
        )
    return Signer(key, public, named, approver)


def _passphrase() -> bytes:
    typed: str = click.prompt("Passphrase of the key", hide_input=True, err=True)
    return typed.encode()


def _listed(request: Request) -> str:
    return ", ".join(dict.fromkeys(each.name for each in request.approvers))


def _unreadable(settings: Settings, path: Path, error: OSError, *, of_site: bool) -> str:
    if path != settings.approval_key:
        hint = "Name your key with --key, or make one: ssh-keygen -t ed25519"
        return f"{path}: {error.strerror}\n{hint}"
    if not of_site:
        return f"{path}: {error.strerror}\nHere people sign with their own keys: relight approvers"
    if isinstance(error, FileNotFoundError):
        where = "The controller worker makes one on its first start."
        return f"this site has no approval key: {path} does not exist\n{where}"
    return f"you ({user_name()}) may not approve: {path}: {error.strerror}\n{readers_of(path)}"


def readers_of(path: Path) -> str:
    """Who may sign with the site's key, as far as the file system says."""
    try:
        owner, group, mode = path.owner(), path.group(), path.stat().st_mode
    except (OSError, KeyError):
        return "Only who can read the site's approval key may: ask your administrators."
    more = f" and the members of group {group}" if mode & 0o040 else ""
    return f"Only who can read that key may: user {owner}{more}. For example: sudo -u {owner} relight ..."
