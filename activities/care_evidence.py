"""Keeps what is known of a node in quarantine in one folder: small, bounded, readable without Relight."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temporalio import activity

from relight.activities import care_contracts as k
from relight.activities.care import entry_of
from relight.activities.site import Site
from relight.clients.logs import LogError
from relight.clients.slurm import SlurmError
from relight.domain.ledger import Change, RowKind

MOST_FAULTS = 200
KERNEL_BYTES = 256 << 10
FILE_BYTES = 1 << 20
"""Of any one file; what is longer loses its beginning."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class KeepEvidence:
    """Keeps evidence of nodes of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster and its data folder."""
        self._site = site

    @activity.defn(name=k.KEEP_EVIDENCE.name)
    async def keep(self, arg: k.KeepEvidenceInput) -> k.Kept:
        """Write the bundle; what cannot be had is said, and holds nothing up."""
        care, node = arg.care, arg.care.node
        folder = folder_of(self._site, care)
        files: dict[str, bytes] = {"why.json": _json(_why(arg))}
        lost = []
        rows = await self._site.ledger.rows(node=node, kind=RowKind.FAULT, limit=5000)
        files["faults.json"] = _json([row.body | {"at": row.at.isoformat()} for row in rows[-MOST_FAULTS:]])
        incident = await self._site.ledger.incident(care.incident)
        if incident:
            files["incident.json"] = _json(incident.model_dump(mode="json"))
        try:
            files["slurm.json"] = _json((await self._site.slurm.node(node)).model_dump(mode="json"))
        except SlurmError as error:
            lost.append(f"slurm.json: {error}")
        try:
            kernel = await self._site.kernel_logs.tail(node)
            if kernel is not None:
                files["kernel.log"] = kernel[-KERNEL_BYTES:]
        except LogError as error:
            lost.append(f"kernel.log: {error}")
        try:
            await asyncio.to_thread(write_files, folder, files)
        except OSError as error:
            lost, files = [f"{folder}: {error.strerror}"], {}
        kept = k.Kept(folder=str(folder) if files else "", files=tuple(files), lost=tuple(lost))
        text = f"{len(files)} files in {folder}" + (f"; not kept: {'; '.join(lost)}" if lost else "")
        body = {"step": "evidence", "phase": "checking", "text": text, "incident": care.incident, "files": list(files)}
        entry = entry_of(self._site, care, "care-evidence", RowKind.CARE, body)
        await self._site.ledger.commit(Change(entries=(entry,)))
        return kept


def folder_of(site: Site, care: k.CareRef) -> Path:
    """Where a quarantine's evidence is kept, below the folder of kept outputs.

    Raises:
        ValueError: for a node name that is no plain one; it could lead anywhere.
    """
    if not _PLAIN.fullmatch(care.node):
        raise ValueError(f"not a plain node name: {care.node!r}")
    return site.kept / "nodes" / care.node / care.id


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files, each as a whole: readers see the old one or the new one; blocks."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    for name, content in files.items():
        fresh = folder / f".{name}.new"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640), "wb") as file:
            file.write(content[-FILE_BYTES:])
        fresh.replace(folder / name)


def _why(arg: k.KeepEvidenceInput) -> dict[str, Any]:
    given = arg.arg
    return {
        "care": arg.care.id,
        "incident": arg.care.incident,
        "attempt": str(arg.care.attempt),
        "class": given.cls,
        "summary": given.summary,
        "evidence": [evidence.model_dump(mode="json") for evidence in given.evidence],
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=True).encode()
