"""How a job's outputs are named in a log store: labels with the job's fields in them, and references to such logs.

A site's shipper (Vector, Fluent Bit, Alloy) gives each line labels. Templates such as `{"filename": "{path}"}` or
`{"job_id": "{job_id}"}` say which of them tell one job's output from another's.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from relight.domain.slurm import JobRecord

_FIELD = re.compile(r"\{([^{}]*)\}")
_SCHEME = "store://logs/"
_BESIDE = "beside"
PATH_FIELDS = ("path", "name", "folder")
"""Of an output: its path, the last part of it, and what stands before that."""
JOB_FIELDS = ("cluster", "job_id", "job_name", "user", "account", "partition", "node")
"""Of its job; `node` is where the batch script runs."""
_TELLING = frozenset({"path", "name", "job_id"})
"""One of these is needed: of all others several jobs may have the same."""


class Named(NamedTuple):
    """What a log's name tells."""

    fields: Mapping[str, str]
    since: datetime | None = None
    """Older lines under the same labels are of an earlier job or attempt: a store empties no file."""
    beside: Mapping[str, str] | None = None
    """What tells the job's other output: where that one has lines, this one may well have none."""


def needed(template: str) -> tuple[str, ...]:
    """Names of the fields in a template, in their order."""
    return tuple(_FIELD.findall(template))


def filled(template: str, fields: Mapping[str, str]) -> str:
    """The template with the values of its fields, which are not read as templates again."""
    return _FIELD.sub(lambda found: fields[found[1]], template)


def check_templates(templates: Mapping[str, str]) -> None:
    """Raise ValueError unless these labels can tell one job's output from another's."""
    known = (*PATH_FIELDS, *JOB_FIELDS)
    for label, template in templates.items():
        if not template:
            raise ValueError(f"label {label} has no value: it would select what lacks the label")
        if unknown := set(needed(template)) - set(known):
            raise ValueError(f"label {label}: no field {{{min(unknown)}}}; there are {', '.join(known)}")
    if not any(_TELLING & set(needed(template)) for template in templates.values()):
        raise ValueError("no label says which log: one must contain {path}, {name} or {job_id}")


def reference(since: datetime | None = None, **fields: str) -> str:
    """What stands in the place of a path for a log in a store.

    It looks like a path below one folder whose last part a person knows: those who name a log by its path's last part,
    or tell file systems apart by the first ones, need not know of stores.
    """
    seconds = int(since.timestamp()) if since else 0
    # A path need not be UTF-8; that no store has such a name is found when it is read.
    return f"{_SCHEME}{seconds}/{urlencode(fields, safe='/', errors='surrogatepass')}"


def is_reference(path: str) -> bool:
    """Whether it names a log in a store; else it is a file's path."""
    return path.startswith(_SCHEME)


def named(path: str) -> Named:
    """What a reference, or a path, tells."""
    if not is_reference(path):
        return Named(_of_path(path))
    seconds, _, query = path.removeprefix(_SCHEME).partition("/")
    fields = dict(parse_qsl(query, errors="surrogatepass"))
    other = fields.pop(_BESIDE, "")
    beside = {**fields, **_of_path(other)} if other else None
    since = datetime.fromtimestamp(int(seconds), UTC) if seconds.isdecimal() and int(seconds) else None
    return Named({**(_of_path(fields["path"]) if "path" in fields else {}), **fields}, since, beside)


def references(templates: Mapping[str, str], cluster: str, record: JobRecord) -> tuple[str, ...]:
    """The logs in the store that hold a job's outputs, each once; lines from before the job's start are not its own."""
    wanted = {name for template in templates.values() for name in needed(template)}
    told = {
        "cluster": cluster,
        "job_id": str(record.job_id),
        "job_name": record.name,
        "user": record.user,
        "account": record.account,
        "partition": record.partition,
        "node": record.batch_host or next(iter(record.nodes), ""),
    }
    fields = {name: told[name] for name in JOB_FIELDS if name in wanted and told[name]}
    since = record.start_time or record.submit_time
    if wanted.isdisjoint(PATH_FIELDS):
        return (reference(since, **fields),)
    outputs = list(dict.fromkeys(path for path in (record.stdout, record.stderr) if path))
    others = [{_BESIDE: path} for path in reversed(outputs)] if len(outputs) > 1 else [{}]
    return tuple(reference(since, **fields, **other, path=path) for path, other in zip(outputs, others, strict=False))


def _of_path(path: str) -> dict[str, str]:
    folder, _, name = path.rpartition("/")
    return {"path": path, "name": name, "folder": folder or "/"}
