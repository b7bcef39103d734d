"""The two ways to train the same small network: PyTorch DDP, or numpy with collectives of our own."""

import importlib.util
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from relight.lab.rendezvous import Place

FEATURES, HIDDEN, BATCH = 32, 64, 256
"""A perceptron with one hidden layer, and samples per rank and step."""
LEARNING_RATE = 0.02
SEED = 20_260


class Model(Protocol):
    """One rank's part of a data-parallel training."""

    suffix: str
    """Of its checkpoint files."""

    def step(self, number: int) -> float:
        """Train on this rank's share of step `number`, with gradients averaged over ranks; return the mean loss.

        RuntimeError when another rank is lost.
        """

    def poison(self) -> None:
        """Make every loss from now on NaN."""

    def dump(self) -> bytes:
        """Return the model as the content of a checkpoint."""

    def load(self, file: Path) -> None:
        """Continue from a checkpoint."""

    def share(self, text: str) -> str:
        """Return rank 0's text on every rank."""

    def gather(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""

    def close(self) -> None:
        """Leave the group of ranks."""


def torch_is_installed() -> bool:
    """Return whether PyTorch can be imported, without importing it (that takes seconds)."""
    return importlib.util.find_spec("torch") is not None


def join(engine: str, place: Place, run: Path, timeout: timedelta) -> Model:
    """Meet the other ranks and return this rank's model; `engine` is torch, numpy or auto."""
    if engine == "torch" or (engine == "auto" and torch_is_installed()):
        from relight.lab.torch_engine import TorchModel  # noqa: PLC0415 -- PyTorch may be missing, and takes seconds

        return TorchModel(place, run, timeout)
    from relight.lab.numpy_engine import NumpyModel  # noqa: PLC0415 -- the pair of the above

    return NumpyModel(place, run, timeout)
