"""The training in numpy: the perceptron by hand, gradients summed over TCP."""

import functools
import io
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import numpy as np

from relight.lab import collectives, rendezvous
from relight.lab.collectives import Star, Vector
from relight.lab.engines import BATCH, FEATURES, HIDDEN, LEARNING_RATE, SEED
from relight.lab.rendezvous import Place

SHAPES = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
MOMENTUM = 0.9


class NumpyModel:
    """One rank's model; see `engines.Model`."""

    suffix = ".npz"

    def __init__(self, place: Place, run: Path, timeout: timedelta) -> None:
        """Meet the other ranks and start from the same random weights as they do."""
        self._place = place
        sys.excepthook = functools.partial(print_exception, place.rank)
        self._star = _meet(place, run, timeout)
        self._target = np.random.default_rng(SEED).normal(size=FEATURES)
        weights = np.random.default_rng(SEED + 1)
        self._weights = [weights.normal(size=shape) / np.sqrt(shape[0]) for shape in SHAPES]
        self._velocity = [np.zeros(shape) for shape in SHAPES]

    def step(self, number: int) -> float:
        """Train one step; see `engines.Model`."""
        inputs, wanted = self._batch(number)
        loss, gradients = self._gradients(inputs, wanted)
        flat = np.concatenate([np.array([loss]), *(gradient.ravel() for gradient in gradients)])
        mean = self._star.sum(flat) / self._place.world
        self._descend(mean[1:])
        return float(mean[0])

    def poison(self) -> None:
        """Make every loss from now on NaN."""
        self._weights[0][:] = np.nan

    def dump(self) -> bytes:
        """Return weights and momentum."""
        stream = io.BytesIO()
        names = [f"{kind}{index}" for kind in ("weight", "velocity") for index in range(len(SHAPES))]
        np.savez(stream, **dict(zip(names, [*self._weights, *self._velocity], strict=True)))
        return stream.getvalue()

    def load(self, file: Path) -> None:
        """Continue from a checkpoint."""
        with np.load(file) as stored:
            self._weights = [stored[f"weight{index}"] for index in range(len(SHAPES))]
            self._velocity = [stored[f"velocity{index}"] for index in range(len(SHAPES))]

    def share(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        return self._star.share(text)

    def gather(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""
        return self._star.gather(text)

    def close(self) -> None:
        """Leave the group of ranks."""
        self._star.close()

    def _batch(self, number: int) -> tuple[Vector, Vector]:
        samples = np.random.default_rng((SEED, number, self._place.rank))
        inputs = samples.normal(size=(BATCH, FEATURES))
        return inputs, np.tanh(inputs @ self._target)[:, None]

    def _gradients(self, inputs: Vector, wanted: Vector) -> tuple[float, list[Vector]]:
        first, first_bias, second, second_bias = self._weights
        hidden = np.tanh(inputs @ first + first_bias)
        error = hidden @ second + second_bias - wanted
        slope = 2 * error / len(inputs)
        back = (slope @ second.T) * (1 - hidden**2)
        return float(np.mean(error**2)), [inputs.T @ back, back.sum(0), hidden.T @ slope, slope.sum(0)]

    def _descend(self, gradient: Vector) -> None:
        start = 0
        for weight, velocity in zip(self._weights, self._velocity, strict=True):
            part = gradient[start : start + weight.size].reshape(weight.shape)
            start += weight.size
            velocity[...] = MOMENTUM * velocity - LEARNING_RATE * part
            weight[...] += velocity


def print_exception(rank: int, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as PyTorch does: `[rank3]: ` before each line, and all of it in one go."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write("".join(f"[rank{rank}]: {line}\n" for line in text.splitlines()))


def _meet(place: Place, run: Path, timeout: timedelta) -> Star:
    if place.rank != 0:
        return collectives.connect(place.rank, place.address, rendezvous.look_up(run, place), timeout)
    server = collectives.listen(place.address)
    rendezvous.publish(run, place, server.getsockname()[1])
    return collectives.accept(server, place.world, timeout)
