"""The contract with the channels by which people are told.

NoticeError
├── NoticeNotSentError      no answer, an outage, or too much at once. Trying again helps, after `again` where told.
├── NoticeNotAllowedError   the channel knows neither us nor the place: wrong secret, no such channel, archived.
│                           Trying again helps once a person has corrected it.
└── NoticeRefusedError      this message is not taken as it is. Trying again the same does not help; plainer may.
"""

from datetime import timedelta
from typing import NamedTuple, Protocol

from relight.domain.notices_channel import Message


class NoticeError(Exception):
    """Root of all that a channel can raise."""


class NoticeNotSentError(NoticeError):
    """It did not get through, or nobody knows."""

    def __init__(self, text: str, again: timedelta | None = None) -> None:
        super().__init__(text)
        self.again = again
        """How long the channel asks us to wait; None: it does not say."""


class NoticeNotAllowedError(NoticeError):
    """A person must correct something first."""


class NoticeRefusedError(NoticeError):
    """The message is not taken as it is."""


class Receipt(NamedTuple):
    """What a channel answered."""

    text: str
    """In words."""
    ref: str = ""
    """The channel's own name of the message, by which its thread goes on; empty: it has none."""


class Wire(NamedTuple):
    """How a channel's server is reached."""

    ca: str = ""
    """PEM file of certificates to trust instead of the system's; empty: the system's."""
    timeout: timedelta = timedelta(seconds=10)
    """For all of one try."""


class Frame(NamedTuple):
    """What each message says of where it comes from."""

    cluster: str
    console: str = ""
    """The web console's address; empty: no links."""

    def link(self, incident: str) -> str:
        """The incident's page; empty where there is none."""
        return f"{self.console}/incidents/{incident}" if self.console and incident else ""


class NoticeChannel(Protocol):
    """Tells people. Calls are bounded in time, and safe to repeat: what receivers can tell repeats by is in each."""

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Send it; `plain`: as the shortest text that still says what it is about.

        Raises:
            NoticeError: it was not sent, or nobody knows.
        """
