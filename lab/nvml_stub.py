"""Builds and drives the stand-in for libnvidia-ml.so.1 (nvml_stub.c), so that the real pynvml runs without a GPU."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from relight.lab.xids import PCI_ADDRESSES

LIBRARY = "libnvidia-ml.so.1"
FOLDER = "RELIGHT_NVML_STUB"
"""Environment variable: the folder whose files the stand-in repeats."""

XID_EVENT = 0x8
DOUBLE_BIT_EVENT = 0x2
ALL_EVENTS = 0xFC0A
"""The event types that a data-centre GPU supports, among those that tell of faults (nvml.h, nvmlEventType*)."""

HEALTHY: Mapping[str, int] = {
    "power_mw": 612_000,
    "utilisation": 100,
    "temperature": 54,
    "sm_clock": 1980,
    "throttle": 0,
    "events": ALL_EVENTS,
    "field:4": 0,  # ECC_DBE_VOL_TOTAL
    "field:6": 0,  # ECC_DBE_AGG_TOTAL
    "field:38": 0,  # NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    "field:45": 0,  # NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    "field:52": 0,  # NVLINK_REPLAY_ERROR_COUNT_TOTAL
    "field:59": 0,  # NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    "field:144": 0,  # REMAPPED_PENDING
    "field:145": 0,  # REMAPPED_FAILURE
    "field:230": 0,  # GET_GPU_RECOVERY_ACTION
}
"""A busy H100 on which nothing is wrong."""


class NoCompilerError(Exception):
    """There is no C compiler here, or it failed; the message says which."""


def build(folder: Path) -> Path:
    """Compile the stand-in into `folder`, and return the library's path.

    Raises:
        NoCompilerError: with the reason.
    """
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompilerError("no C compiler here (cc, gcc or clang)")
    library = folder / LIBRARY
    with resources.as_file(resources.files("relight.lab").joinpath("nvml_stub.c")) as source:
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}", "-pthread"]
        done = subprocess.run(
            [compiler, *options, "-o", str(library), str(source)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise NoCompilerError(f"{compiler} cannot build the stand-in: {done.stderr.strip()[-500:]}")
    return library


@cache
def load(library: Path) -> ctypes.CDLL:
    """Load the stand-in into this process: pynvml, which asks for it by its name, then gets this one."""
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class NvmlStub:
    """One pretended node.

    Args:
        folder: holds the files that the stand-in repeats.
        library: what `build` returned.
        gpus: how many healthy GPUs there are.
    """

    def __init__(self, folder: Path, library: Path, gpus: int = 8) -> None:
        """Write the healthy state."""
        self.folder = folder
        self._library = library
        self._gpus: list[dict[str, int | str | None]] = [
            {
                "bus": PCI_ADDRESSES[i],
                "uuid": f"GPU-pretended-{i}",
                "serial": f"165000000000{i}",
                "model": "H100",
                **HEALTHY,
            }
            for i in range(gpus)
        ]
        self._pids: dict[int, tuple[int, ...]] = {}
        self._lines: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events").touch()
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a program gets the stand-in."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), FOLDER: str(self.folder)}

    def set(self, gpu: int, **values: int | None) -> None:
        """Change values of a GPU, named as in nvml_stub.c (`field_230` for `field:230`); None: not supported."""
        for key, value in values.items():
            self._gpus[gpu][key.replace("field_", "field:")] = value
        self._write()

    def pids(self, gpu: int, *pids: int) -> None:
        """The compute processes of a GPU."""
        self._pids[gpu] = pids
        self._write()

    def hang(self, call: str, *, hangs: bool = True) -> None:
        """Let a function of NVML block, or go on."""
        self._line(f"hang {call}", there=hangs)

    def error(self, call: str, code: int, *, fails: bool = True) -> None:
        """Let a function of NVML fail with a code, or not any more."""
        self._line(f"error {call} {code}", there=fails)

    def driver(self, *, loaded: bool) -> None:
        """Take the driver away, or load it."""
        self._line("driver missing", there=not loaded)

    def event(self, gpu: int, kind: int, data: int = 0) -> None:
        """Let an event happen."""
        with (self.folder / "events").open("a") as file:
            file.write(f"{gpu} {kind} {data}\n")

    def xid(self, gpu: int, xid: int) -> None:
        """Let an Xid happen."""
        self.event(gpu, XID_EVENT, xid)

    def _line(self, line: str, *, there: bool) -> None:
        (self._lines.add if there else self._lines.discard)(line)
        self._write()

    def _write(self) -> None:
        lines = sorted(self._lines)
        for index, values in enumerate(self._gpus):
            lines += [f"gpu {index} {key} {value}" for key, value in values.items() if value is not None]
            lines += [f"gpu {index} pid {pid}" for pid in self._pids.get(index, ())]
        fresh = self.folder / f"state.{os.getpid()}"
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self.folder / "state")
