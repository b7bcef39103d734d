"""The agent's small state file: what was told, what waits to be told, and how far the kernel's messages were read."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("relight.agent")

_LARGEST = 4 << 20


def state_path(given: str, environment: Mapping[str, str]) -> Path:
    """Where it is: as given, in systemd's StateDirectory, or in /var/lib/relight-agent."""
    folder = environment.get("STATE_DIRECTORY", "").partition(":")[0] or "/var/lib/relight-agent"
    return Path(given) if given else Path(folder, "agent.json")


def read_state(path: Path) -> dict[str, Any]:
    """Read it; empty at first, and where it cannot be used, which is said."""
    try:
        with path.open(encoding="utf-8") as file:
            content = json.loads(file.read(_LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be used and is begun anew: %s", path, error)
        return {}
    return content if isinstance(content, dict) else {}


def write_state(path: Path, content: Mapping[str, Any]) -> bool:
    """Replace it as a whole; False where that fails, which is said once."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(content, file)
        fresh.replace(path)
    except OSError as error:
        if str(path) not in _said:
            _said.add(str(path))
            log.warning("%s cannot be written (%s): after a restart, faults not yet told are forgotten", path, error)
        return False
    return True


_said: set[str] = set()
