"""Mail, by the standard library's SMTP client in threads of its own: a server that stands still holds up mail alone.

Headers are made by `email.message`, which folds and encodes them and takes no line break; each text is one line without
control characters before (`domain.notices.words`). The HTML part escapes everything.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from typing import NamedTuple

from relight.clients.notices import Frame, NoticeNotAllowedError, NoticeNotSentError, NoticeRefusedError, Receipt, Wire
from relight.config.notify import USER, Tls
from relight.domain.base import short_hash
from relight.domain.notices import words
from relight.domain.notices_channel import Message

_SUBJECT = 200
_SHOWN = 200
_PORTS = {Tls.STARTTLS: 587, Tls.TLS: 465, Tls.NONE: 25}
_OF_USERS = "-_.+"
_PERMANENT = 500
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="mail")


class MailServer(NamedTuple):
    """Which server takes our mail, and as whose."""

    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 0
    user: str = ""
    password: str = ""
    tls: Tls = Tls.STARTTLS
    wire: Wire = Wire()


class MailChannel:
    """Implements `NoticeChannel`."""

    def __init__(self, server: MailServer, frame: Frame, clock: Callable[[], datetime]) -> None:
        """Bind to a server."""
        self._server = server
        self._frame = frame
        self._clock = clock

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Mail it; its Message-ID is the same when it is sent again."""
        to = recipients(self._server.to, message.recipient)
        mail = written(message, self._frame, self._server.sender, to, self._clock(), plain=plain)
        loop = asyncio.get_running_loop()
        try:
            refused = await loop.run_in_executor(_THREADS, self._deliver, mail, to)
        except smtplib.SMTPRecipientsRefused as error:
            raise _judged(error.recipients) from None
        except smtplib.SMTPAuthenticationError as error:
            said = _said(error.smtp_code, error.smtp_error)
            raise NoticeNotAllowedError(f"the mail server does not let us in ({said})") from None
        except smtplib.SMTPNotSupportedError as error:
            text = f"the mail server cannot do what tls and user ask for: {words(error, 120)}"
            raise NoticeNotAllowedError(text) from None
        except smtplib.SMTPSenderRefused as error:
            said = _said(error.smtp_code, error.smtp_error)
            text = f"the mail server does not take mail from {self._server.sender} ({said})"
            later = error.smtp_code < _PERMANENT
            raise (NoticeNotSentError(text) if later else NoticeNotAllowedError(text)) from None
        except smtplib.SMTPDataError as error:
            said = _said(error.smtp_code, error.smtp_error)
            text = f"the mail server does not take the mail ({said})"
            raise (NoticeNotSentError(text) if error.smtp_code < _PERMANENT else NoticeRefusedError(text)) from None
        except (smtplib.SMTPException, OSError) as error:
            named = (getattr(error, name, None) for name in ("verify_message", "strerror"))
            what = next(filter(None, named), None) or words(error, 120) or type(error).__name__
            raise NoticeNotSentError(f"mail server {self._server.host}: {what}") from None
        lost = f"; not to {', '.join(sorted(refused))}" if refused else ""
        return Receipt(f"the mail server took it for {', '.join(to)}{lost}", message.thread or str(mail["Message-ID"]))

    def _deliver(self, mail: EmailMessage, to: Sequence[str]) -> dict[str, tuple[int, bytes]]:
        """Blocks, each step of it at most for the time-out; those who were refused while others were not."""
        at = self._server
        port, within = at.port or _PORTS[at.tls], at.wire.timeout.total_seconds()
        secure = ssl.create_default_context(cafile=at.wire.ca or None)
        connect: Callable[[], smtplib.SMTP] = (
            (lambda: smtplib.SMTP_SSL(at.host, port, timeout=within, context=secure))
            if at.tls is Tls.TLS
            else (lambda: smtplib.SMTP(at.host, port, timeout=within))
        )
        server = connect()
        # Not as a context: at its end it says good-bye, also where nobody listens any more, and waits for an answer.
        with closing(server):
            if at.tls is Tls.STARTTLS:
                server.starttls(context=secure)
            if at.user:
                server.login(at.user, at.password)
            refused = server.send_message(mail, from_addr=at.sender, to_addrs=list(to))
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
            return refused


def _judged(recipients: dict[str, tuple[int, bytes]]) -> NoticeNotSentError | NoticeRefusedError:
    """Where nobody at all gets it."""
    named = "; ".join(f"{who}: {_said(*why)}" for who, why in list(recipients.items())[:3])
    text = f"the mail server takes it for nobody ({named})"
    later = any(code < _PERMANENT for code, _ in recipients.values())
    return NoticeNotSentError(text) if later else NoticeRefusedError(text)


def _said(code: int, text: bytes | str) -> str:
    return words(f"{code} {text.decode(errors='replace') if isinstance(text, bytes) else text}", 200)


def recipients(to: Sequence[str], user: str) -> tuple[str, ...]:
    """Who gets it: addresses with the job's user put in.

    Raises:
        NoticeRefusedError: the user's name cannot stand in a mail address.
    """
    if any(USER in address for address in to) and not (
        user and user.isascii() and all(c.isalnum() or c in _OF_USERS for c in user)
    ):
        raise NoticeRefusedError(f"{words(user, 60)!r} cannot stand in a mail address")
    return tuple(address.replace(USER, user) for address in to)


def written(
    message: Message, frame: Frame, sender: str, to: Sequence[str], now: datetime, *, plain: bool = False
) -> EmailMessage:
    """The mail: text and the same as HTML, threaded by topic."""
    mail = EmailMessage()
    domain = sender.rpartition("@")[2]
    mail["Subject"] = words(f"[{frame.cluster}] {message.title}", _SUBJECT)
    mail["From"] = Address("Relight", addr_spec=sender)
    mail["To"] = ", ".join(to)
    mail["Date"] = format_datetime(now)
    mail["Message-ID"] = _mail_id(message.id, domain)
    if message.thread:
        mail["In-Reply-To"] = message.thread
        mail["References"] = message.thread
    # So that no absence note answers us (RFC 3834, section 5).
    mail["Auto-Submitted"] = "auto-generated"
    if message.severity == "critical":
        mail["Importance"] = "high"
    if plain:
        mail.set_content(f"{message.title}\n")
        return mail
    notice = message.notices[-1]
    link = "" if message.digest else frame.link(notice.incident)
    facts = message.facts[:_SHOWN]
    more = [f"and {len(message.facts) - len(facts)} more"] if len(message.facts) > len(facts) else []
    below = f"Relight on cluster {frame.cluster}, {notice.at:%Y-%m-%d %H:%M:%S} UTC, {message.severity}"
    lines = [message.title, "", *(f"{fact.name}: {fact.text}" for fact in facts), *more]
    mail.set_content("\n".join([*lines, *(["", link] if link else []), "", "-- ", below, ""]))
    rows = "".join(f"<tr><th align=left>{escape(f.name)}</th><td>{escape(f.text)}</td></tr>" for f in facts)
    page = f"<h3>{escape(message.title)}</h3><table cellpadding=4>{rows}</table>"
    page += "".join(f"<p>{escape(each)}</p>" for each in more)
    page += f'<p><a href="{escape(link)}">Open in the console</a></p>' if link else ""
    mail.add_alternative(f"<html><body>{page}<p><small>{escape(below)}</small></p></body></html>", subtype="html")
    return mail


def _mail_id(name: str, domain: str) -> str:
    return f"<{short_hash(name, 40)}@{domain}>"
