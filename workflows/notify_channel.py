"""NotifyChannel: one channel by which people are told. No other workflow waits for it, or knows of it."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain.base import Value
    from relight.workflows.markdown import plain
    from relight.workflows.options import do

MESSAGES_PER_RUN = 100
"""About six events of history each; then the workflow continues as new."""


class NotifyStatus(Value):
    """What one channel's workflow knows: the answer to the query `status`. Where it stands, the ledger says."""

    cluster: str
    channel: str
    messages: int
    """Sent by all its runs."""
    sending: str = ""
    """Title of what is on its way; empty: it waits for something to tell."""
    last: str = ""
    """What the channel answered last."""


@workflow.defn(name=c.NOTIFY_WORKFLOW)
class NotifyChannel:
    """Waits for something to tell, sends it, again and again: time-outs and further tries are Temporal's.

    One for each channel, so that one that is down holds up no other. Where it stands is kept in the ledger: ending this
    workflow loses nothing.
    """

    @workflow.init
    def __init__(self, arg: c.NotifyInput) -> None:
        """Go on counting where the run before stopped."""
        self._arg = arg
        self._messages = arg.messages
        self._sending = ""
        self._last = ""

    @workflow.run
    async def run(self, _arg: c.NotifyInput) -> None:
        """Until the settings have no such channel any more."""
        for _ in range(MESSAGES_PER_RUN):
            self._show()
            found = await do(c.GATHER_NOTICES, self._arg, "wait for something to tell")
            if found.gone:
                workflow.set_current_details(f"Channel **{self._arg.channel}** is not in the settings any more.")
                return
            if found.title:
                self._sending = found.title
                self._show()
                sent = await do(c.SEND_NOTICE, self._arg, f"send: {found.title}")
                self._sending, self._last = "", sent.text
                self._messages += 1
            if workflow.info().is_continue_as_new_suggested():
                break
        workflow.continue_as_new(self._arg.model_copy(update={"messages": self._messages}))

    @workflow.query(description="How many messages went out, what is on its way, and what the channel answered last.")
    def status(self) -> NotifyStatus:
        """What this workflow knows."""
        return NotifyStatus(
            cluster=self._arg.cluster,
            channel=self._arg.channel,
            messages=self._messages,
            sending=self._sending,
            last=self._last,
        )

    def _show(self) -> None:
        now = f"sending: {plain(self._sending)}" if self._sending else "waiting for something to tell"
        last = f"\n\nLast answer: {plain(self._last)}" if self._last else ""
        workflow.set_current_details(f"Channel **{self._arg.channel}**: {now}. {self._messages} sent.{last}")
