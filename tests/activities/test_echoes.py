"""A failure that every rank prints about: what becomes of it is one finding, whatever the length of its echo."""

from datetime import timedelta

from relight.activities import contracts as c
from relight.activities.deliver import Deliver
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind

RANKS = 2048
LINES = 100_000
ECHO = (
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2047, remote process "
    "exited or there was a network error, NCCL version 2.21.5"
)


class Temporal:
    """Takes what is started."""

    def __init__(self):
        self.told = []

    async def start_workflow(self, _name, _arg, *, start_signal_args, **_options):
        self.told += start_signal_args


async def test_a_hundred_thousand_echo_lines_are_one_interruption(world):
    """Followed while they are written, in bursts; then the attempt ends, and one crash is told of it."""
    output = world.folder / "train.out"
    output.write_text("".join(f"step {step} loss 2.1 step time 0.500 s\n" for step in range(1, 60)))
    attempt = await world.train(nodes=4)
    burst = "".join(ECHO.format(rank=number % RANKS) + "\n" for number in range(LINES // 10))

    def echo():
        with output.open("a") as file:
            file.write(burst)

    for second in range(10):
        world.after(1 + second, echo)
    await world.run(world.follow.follow_logs, c.WatchInput(cluster="test", run_for=timedelta(seconds=20)))
    world.slurm.fail(attempt.key.job_id)
    await world.look()
    await world.run(world.follow.follow_logs, c.WatchInput(cluster="test", run_for=timedelta(seconds=5)))
    position = (await world.site.progress(attempt.key)).files[str(output)]
    assert position.offset == output.stat().st_size > 10_000_000
    temporal = Temporal()
    deliver = Deliver(world.site, temporal, "q")
    await world.run(deliver.deliver, c.WatchInput(cluster="test", run_for=timedelta(seconds=10)))
    assert [found.kind for found in temporal.told] == [Interruption.CRASH]
    assert len(await world.rows(RowKind.DETECTED)) == 1
    assert len(await world.rows()) < 10
