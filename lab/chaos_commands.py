"""Slurm's commands as worker and node wrapper find them in the chaos harness: slow, hanging and lying at will."""

import json
from pathlib import Path
from typing import NamedTuple

from relight.lab import chaos_liar
from relight.lab.chaos_draw import How, Script

NAMES = ("squeue", "sinfo", "sacct", "scontrol", "scancel", "sstat")
CALLS = {
    "requeue": r"^scontrol requeue {job}$",
    "exclude": r"^scontrol update JobId={job} ExcNodeList=",
    "start": r"^scontrol update JobId={job} StartTime=now",
    "drain": r"^scontrol update NodeName=\S+ State=DRAIN",
    "squeue": r"^squeue .*--json",
    "sinfo": r"^sinfo ",
    "sacct": r"^sacct ",
}
"""Which calls a trouble is for, by the name in a script."""

_WRAPPER = """\
#!/bin/sh
for trouble in {troubles}/*; do
  [ -e "$trouble" ] && exec /usr/bin/python3 -IS {liar} {troubles} {name} "$@"
  break
done
exec /usr/bin/{name} "$@"
"""


class Trouble(NamedTuple):
    """What one call of a command will meet, as `chaos_liar` reads it."""

    call: str
    """A regular expression for name and arguments, joined by blanks."""
    how: How
    for_s: float


class Commands:
    """The folder for `slurm.bin`."""

    def __init__(self, folder: Path) -> None:
        """Install the commands below the folder; nothing is wrong with them yet."""
        self.bin, self._troubles, self._number = folder / "bin", folder / "troubles", 0
        self.bin.mkdir(parents=True, exist_ok=True)
        self._troubles.mkdir(exist_ok=True)
        # Whoever runs a command uses its trouble up.
        self._troubles.chmod(0o777)
        liar = folder / "liar.py"
        liar.write_text(Path(chaos_liar.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        for name in NAMES:
            program = self.bin / name
            program.write_text(_WRAPPER.format(troubles=self._troubles, liar=liar, name=name))
            program.chmod(0o755)

    def arm(self, script: Script, job: int) -> list[Path]:
        """Have the next calls go wrong; a call that has met its trouble has removed its file."""
        trouble = Trouble(CALLS[script.command].format(job=job), script.how, script.for_s)
        return [self._write(trouble) for _ in range(script.times)]

    def _write(self, trouble: Trouble) -> Path:
        self._number += 1
        path = self._troubles / f"{self._number:06}.json"
        fresh = self._troubles.parent / path.name
        fresh.write_text(json.dumps(trouble._asdict()))
        fresh.rename(path)
        return path
