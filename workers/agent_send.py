"""Sends reports to the controller, in a thread of its own: a slow or dead controller holds up nothing else.

The standard library's client, for its memory: aiohttp takes 17 MiB more (measured, CPython 3.11).
"""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from relight.workers.agent_settings import AgentSettingsError, Controller, read_token
from relight.workers.agent_watch import Post

TIMEOUT = 5.0
"""Seconds for each step of an exchange; for the whole of it, whoever waits gives up by `abort`."""
LONGEST = 256 << 10
"""Bytes of an answer that are read."""

UNREACHABLE = 0
OK = 200
LAST_OK = 299


class Outcome(NamedTuple):
    """How sending a report ended."""

    status: int
    """HTTP's, or `UNREACHABLE`."""
    body: bytes
    problem: str = ""
    """Why there is no answer, in words for the log."""
    retry_after: float = 0.0
    """Seconds that the controller asks to wait."""


class Sender:
    """One connection to the controller, kept open between reports.

    Args:
        controller: where to.
        token_file: read anew for every connection, so that a new token needs no restart.
        post: gets each `Outcome`.
        ca: file of certificates that are trusted; None: those of the system.

    Raises:
        AgentSettingsError: when `ca` cannot be used.
    """

    def __init__(self, controller: Controller, token_file: str, post: Post, ca: str | None = None) -> None:
        """Connect to nothing yet."""
        self._controller = controller
        self._token_file = token_file
        self._post = post
        self._trust = _trust(ca) if controller.tls else None
        self._bodies: SimpleQueue[bytes] = SimpleQueue()
        self._connection: http.client.HTTPConnection | None = None
        self._token = ""

    def start(self) -> None:
        """Begin; the thread ends with the process."""
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    def send(self, body: bytes) -> None:
        """Send a report; one at a time."""
        self._bodies.put(body)

    def abort(self) -> None:
        """Give up the exchange that is under way; its outcome follows."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while True:
            body = self._bodies.get()
            outcome = self._exchange(body)
            if not OK <= outcome.status <= LAST_OK:
                self._close()
            self._post(outcome)

    def _exchange(self, body: bytes) -> Outcome:
        kept = self._connection is not None
        try:
            return self._once(body)
        except (http.client.RemoteDisconnected, ConnectionError, BrokenPipeError) as error:
            self._close()
            # A connection that was kept open may have been closed meanwhile; a report sent twice does no harm.
            return self._again(body) if kept else Outcome(UNREACHABLE, b"", _why(error))
        except Exception as error:  # noqa: BLE001 - without an outcome, nothing would be sent any more
            return Outcome(UNREACHABLE, b"", _why(error))

    def _again(self, body: bytes) -> Outcome:
        try:
            return self._once(body)
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(UNREACHABLE, b"", _why(error))

    def _once(self, body: bytes) -> Outcome:
        connection = self._connection or self._connect()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection.request("POST", self._controller.path, body, headers)
        with connection.getresponse() as answer:
            text = answer.read(LONGEST + 1)
            if answer.will_close or len(text) > LONGEST:
                self._close()
            after = answer.headers.get("Retry-After", "")
        if len(text) > LONGEST:
            return Outcome(UNREACHABLE, b"", f"its answer is longer than {LONGEST} bytes: is it Relight's controller?")
        return Outcome(answer.status, text, retry_after=float(after) if after.isascii() and after.isdigit() else 0.0)

    def _connect(self) -> http.client.HTTPConnection:
        self._token = read_token(self._token_file)
        host, port = self._controller.host, self._controller.port
        if self._trust is not None:
            self._connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=self._trust)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _trust(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise AgentSettingsError(f"--ca {ca}: {error.strerror or error}") from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): give the one that signed it with --ca"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it ({error.reason or error}): is the address right?"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    return str(error) or type(error).__name__
