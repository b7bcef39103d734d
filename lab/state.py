"""What is remembered of a running cluster: one JSON file in its folder, enough for another process to end it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from relight.lab.processes import Process
from relight.lab.spec import ClusterSpec

FILE = "cluster.json"


class ClusterNotFoundError(Exception):
    """The folder holds no lab cluster."""


class State(BaseModel):
    """A cluster as it was started, and its processes."""

    model_config = ConfigDict(frozen=True)

    spec: ClusterSpec
    port: int = 0
    slurm_version: tuple[int, int] = (0, 0)
    pid_namespaces: bool = True
    processes: dict[str, Process] = {}
    """By daemon (`munged`, `slurmctld`, ...) or node name."""

    def with_process(self, name: str, process: Process | None) -> "State":
        """Return a copy in which `name` is that process, or none."""
        others = {key: value for key, value in self.processes.items() if key != name}
        return self.model_copy(update={"processes": others | ({name: process} if process else {})})


def read(folder: Path) -> State:
    """Return the state of the cluster in `folder`; raise `ClusterNotFoundError` when there is none."""
    try:
        return State.model_validate_json((folder / FILE).read_text())
    except FileNotFoundError:
        raise ClusterNotFoundError(f"no lab cluster in {folder} (no {FILE} there)") from None


def write(state: State) -> None:
    """Replace the state file atomically."""
    file = state.spec.folder / FILE
    fresh = file.with_suffix(".new")
    fresh.write_text(state.model_dump_json(indent=2) + "\n")
    fresh.rename(file)


def remember(folder: Path, name: str, process: Process | None) -> None:
    """Set one process in the state file; safe against other threads and processes doing the same."""
    with _locked(folder):
        write(read(folder).with_process(name, process))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
