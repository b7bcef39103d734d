"""The training in PyTorch: DistributedDataParallel over gloo. Imported only where PyTorch is wanted."""

import io
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from relight.lab import rendezvous
from relight.lab.engines import BATCH, FEATURES, HIDDEN, LEARNING_RATE, SEED
from relight.lab.rendezvous import Place


class TorchModel:
    """One rank's model; see `engines.Model`."""

    suffix = ".pt"

    def __init__(self, place: Place, run: Path, timeout: timedelta) -> None:
        """Meet the other ranks and start from the same random weights as they do."""
        torch.set_num_threads(1)
        _meet(place, run, timeout)
        self._place = place
        self._target = torch.randn(FEATURES, generator=_seeded(SEED))
        torch.manual_seed(SEED + 1)
        self._network = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
        self._parallel = DistributedDataParallel(self._network)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def step(self, number: int) -> float:
        """Train one step; see `engines.Model`."""
        inputs, wanted = self._batch(number)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._parallel(inputs), wanted)
        torch.autograd.backward(loss)
        self._optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        return float(mean) / self._place.world

    def poison(self) -> None:
        """Make every loss from now on NaN."""
        with torch.no_grad():
            next(self._network.parameters()).fill_(float("nan"))

    def dump(self) -> bytes:
        """Return weights and the optimizer's state."""
        stream = io.BytesIO()
        torch.save({"network": self._network.state_dict(), "optimizer": self._optimizer.state_dict()}, stream)
        return stream.getvalue()

    def load(self, file: Path) -> None:
        """Continue from a checkpoint."""
        stored = torch.load(file, weights_only=True)
        self._network.load_state_dict(stored["network"])
        self._optimizer.load_state_dict(stored["optimizer"])

    def share(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        box: list[Any] = [text]
        dist.broadcast_object_list(box, src=0)
        return str(box[0])

    def gather(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""
        boxes: list[Any] = [None] * self._place.world
        dist.all_gather_object(boxes, text)
        return [str(box) for box in boxes]

    def close(self) -> None:
        """Leave the group of ranks."""
        dist.destroy_process_group()

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(BATCH, FEATURES, generator=_seeded(hash((SEED, number, self._place.rank))))
        return inputs, torch.tanh(inputs @ self._target)[:, None]


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


def _meet(place: Place, run: Path, timeout: timedelta) -> None:
    # All nodes are on loopback; gloo would resolve the machine's host name, which need not work.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if place.rank == 0:
        store = TCPStore(place.address, 0, place.world, is_master=True, wait_for_workers=False)
        rendezvous.publish(run, place, store.port)
    else:
        store = TCPStore(*rendezvous.look_up(run, place), place.world, is_master=False)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world, timeout=timeout)
