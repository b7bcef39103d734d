"""Channels as the settings have them. Each message opens its channel anew.

So a secret that is renewed counts at once, and one that cannot be read holds up its channel and nothing else: no
controller stands still because of who should be told. A message takes a connection of its own anyway.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from relight.clients.notices import Frame, NoticeChannel, NoticeNotAllowedError, Receipt, Wire
from relight.clients.notices_mail import MailChannel, MailServer
from relight.config.notify import ChannelKind, ChannelSettings
from relight.config.reading import ConfigError
from relight.domain.notices_channel import Message


def _now() -> datetime:
    return datetime.now(UTC)


class SetChannel:
    """Implements `NoticeChannel` by what the settings say.

    Args:
        settings: of one channel.
        frame: what each message says of where it comes from.
        environment: where a secret may stand; None: this process's own.
        clock: dates mails and signatures.
    """

    def __init__(
        self,
        settings: ChannelSettings,
        frame: Frame,
        *,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._settings = settings
        self._frame = frame
        self._environment = environment
        self._clock = clock

    async def send(self, message: Message, *, plain: bool = False) -> Receipt:
        """Send it with the secret as it is now."""
        try:
            channel = await asyncio.to_thread(self.open)
        except ConfigError as error:
            raise NoticeNotAllowedError(str(error)) from error
        return await channel.send(message, plain=plain)

    def open(self) -> NoticeChannel:
        """The channel with its secret. Blocks.

        Raises:
            ConfigError: its secret cannot be read or cannot be right, or a package is missing.
        """
        at = self._settings
        secret = at.secret(self._environment)
        wire = Wire(at.ca, at.timeout)
        if at.kind is ChannelKind.EMAIL:
            fields = at.model_dump(include={"host", "sender", "to", "port", "user", "tls"})
            return MailChannel(MailServer(**fields, password=secret, wire=wire), self._frame, self._clock)
        try:
            return self._by_http(secret, wire)
        except ModuleNotFoundError as error:
            raise ConfigError(f"kind {at.kind} needs {error.name}: pip install 'relight[http]'") from error

    def _by_http(self, secret: str, wire: Wire) -> NoticeChannel:
        from relight.clients import notices_pagerduty as pagerduty  # noqa: PLC0415 - aiohttp is an extra
        from relight.clients import notices_slack as slack  # noqa: PLC0415
        from relight.clients import notices_webhook as webhook  # noqa: PLC0415

        at = self._settings
        if at.kind is ChannelKind.SLACK:
            if not at.channel and not secret.startswith(("https://", "http://")):
                raise ConfigError("the secret must be an incoming webhook's address, or give channel for a bot's token")
            return slack.SlackChannel(slack.Target(secret, at.channel, at.root, wire, at.buttons), self._frame)
        if at.kind is ChannelKind.PAGERDUTY:
            return pagerduty.PagerDutyChannel(pagerduty.Service(secret, at.root, wire), self._frame)
        return webhook.WebhookChannel(webhook.Receiver(at.root, secret, wire), self._frame, self._clock)
