"""Fresh jobs through the program `relight-submit` (see `relight_submit.py`), run as the job's user by sudo or SSH."""

import json
import re
from datetime import timedelta

from relight.clients.slurm import (
    AmbiguousWriteError,
    NotPermittedError,
    RefusedError,
    SlurmError,
    SlurmUnavailableError,
)
from relight.clients.slurm_parse_errors import write_error
from relight.clients.slurm_process import Done, LocalRunner, NotFinishedError, NotStartedError, Runner
from relight.domain.resubmission import Submission

USER = "{user}"
DEFAULT_TIMEOUT = timedelta(seconds=35)
"""More than the program's own limit (three times its 10 s): what runs under sudo cannot be ended by us."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
SSH_FAILED = 255
SAID_NO = 4
_STATUS: dict[int, type[SlurmError]] = {
    1: SlurmUnavailableError,
    2: RefusedError,
    3: RefusedError,
    5: AmbiguousWriteError,
    126: NotPermittedError,
    127: NotPermittedError,
    SSH_FAILED: AmbiguousWriteError,
}


class SubmitWrapper:
    """The contract `Submitter`.

    Args:
        command: the program behind what makes us the user, `{user}` standing for the name.
        runner: where it runs; None: on this machine.
        timeout: for each call; a call that is late is ambiguous.
    """

    def __init__(
        self, command: tuple[str, ...], *, runner: Runner | None = None, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> None:
        self._command = command
        self._runner = runner or LocalRunner()
        self._timeout = timeout

    async def submit_anew(self, sent: Submission) -> int:
        """Submit it as its user, held. Returns the job's id."""
        if not _NAME.fullmatch(sent.user):
            raise RefusedError(f"not a user's name: {sent.user[:64]!r}")
        if sent.started is None:
            raise RefusedError("when the attempt started is not known")
        body = sent.model_dump(mode="json", exclude={"user", "started"})
        text = json.dumps({**body, "started": int(sent.started.timestamp())})
        command = tuple(sent.user if word == USER else word for word in self._command)
        try:
            done = await self._runner.run(command, self._timeout, stdin=text)
        except NotStartedError as error:
            raise SlurmUnavailableError(str(error)) from error
        except NotFinishedError as error:
            raise AmbiguousWriteError(str(error)) from error
        if done.code != 0:
            raise _error(done)
        if not done.out.strip().isdecimal():
            raise AmbiguousWriteError(f"`relight-submit` did not print a job id: {done.out[:200]!r}")
        return int(done.out)


def _error(done: Done) -> SlurmError:
    text = " ".join((done.err or done.out).split())[:500] or f"relight-submit ended with {done.code}"
    # sudo's own refusals end with 1, as the program's failures do.
    if re.match(r"sudo: |Sorry, user ", text):
        return NotPermittedError(text)
    if done.code == SAID_NO:
        return write_error(text)
    return _STATUS.get(done.code, AmbiguousWriteError)(text)
