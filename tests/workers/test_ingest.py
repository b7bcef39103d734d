"""The ingest endpoint over HTTP: who may say what, how much of it, and what a refusal says."""

import io
import json
import ssl
import stat
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import SlurmUnavailableError
from relight.config.settings import IngestSettings
from relight.domain.ledger import RowKind
from relight.domain.reports import MAX_FAULTS, MAX_RELAYED, Receipt, agent_token
from relight.domain.slurm import NodeRecord, NodeState
from relight.workers.cli import main
from relight.workers.endpoint import MAX_BODY, IngestError
from relight.workers.ingest import MAX_BATCH, REPORTS_AT_ONCE, open_key, serving

from .endpoint import AT, Endpoint, fault


async def test_a_report_is_taken(endpoint):
    """Its beat is remembered, its faults are in the ledger, and the receipt says so."""
    status, text, headers = await endpoint.report(faults=[fault(1), fault(2)])
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "application/json")
    assert Receipt.model_validate_json(text).faults == 2
    assert [sight.node for sight in endpoint.ingest.sights()] == ["n1"]
    assert len(await endpoint.ledger.rows(kind=RowKind.FAULT)) == 2


async def test_fields_of_a_newer_agent_are_no_error(endpoint):
    """Values only ever grow."""
    assert (await endpoint.report(mood="good"))[0] == 200


async def test_it_says_that_it_serves(endpoint):
    """To anybody."""
    async with endpoint.session.get(f"{endpoint.url}/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")


@pytest.mark.parametrize("path", ["/v1/report", "/v1/epilog"])
@pytest.mark.parametrize("token", [None, "short", "Z" * 64])
async def test_without_a_token_nothing_is_read(endpoint, path, token):
    """Nor with what cannot be one."""
    status, text, _ = await endpoint.post(path, b"not even JSON", token=token)
    assert (status, text.count("\n")) == (401, 1)
    assert "Bearer" in text


async def test_an_agent_speaks_for_its_own_node_only(endpoint):
    """Neither for another node, nor for slurmctld, nor the hook for a node."""
    for node, owner in (("n1", "n2"), ("n1", "slurmctld")):
        status, text, _ = await endpoint.report(node, token=endpoint.token(owner))
        assert (status, text) == (403, "the token is not that of 'n1'\n")
    assert (await endpoint.post("/v1/epilog", {"job_id": 7}, token=endpoint.token("n1")))[0] == 403
    assert endpoint.ingest.sights() == ()
    assert endpoint.nudges == 0


async def test_another_sites_key_makes_no_token(endpoint):
    """Tokens hang on the key."""
    assert (await endpoint.report(token=agent_token(b"another key", "n1")))[0] == 403


@pytest.mark.parametrize("node", ["n9", "slurmctld"])
async def test_strange_nodes_are_refused(endpoint, node):
    """Although the token is theirs: a node that has left the cluster, and one that has the hook's name."""
    endpoint.slurm.node_records["slurmctld"] = NodeRecord(name="slurmctld", state=NodeState.IDLE)
    status, text, _ = await endpoint.report(node)
    assert (status, text) == (403, f"Slurm has no node '{node}'\n")


async def test_before_slurm_has_told_its_nodes_reports_wait(endpoint):
    """Trying again helps."""
    endpoint.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    status, text, headers = await endpoint.report()
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "timed out" in text
    assert (await endpoint.report())[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 422, "not a JSON object"),
        (b"{}", 422, "a report names its node"),
        (b'{"node": 7}', 422, "a report names its node"),
    ],
)
async def test_what_is_no_report_is_refused(endpoint, body, status, says):
    """In one line that says why."""
    answered, text, _ = await endpoint.post("/v1/report", body, token=endpoint.token("n1"))
    assert (answered, text) == (status, f"{says}\n")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"boot": None}, "boot: "),
        ({"faults": [fault(kind="mood")]}, "faults.0.kind: "),
        ({"faults": [fault(number) for number in range(MAX_FAULTS + 1)]}, "faults: "),
        ({"faults": [fault(at="2026-11-30T09:00:00")]}, "a time has no zone"),
        ({"faults": [fault(after="2026-11-30T09:00:00")]}, "a time has no zone"),
        ({"beat": {"at": "2026-11-30T09:00:00"}}, "a time has no zone"),
    ],
)
async def test_an_unacceptable_report_says_which_field(endpoint, fields, says):
    """Nothing of it is kept."""
    status, text, _ = await endpoint.report(**fields)
    assert status == 422
    assert text.startswith(says)
    assert text.count("\n") == 1
    assert await endpoint.ledger.rows() == ()
    assert endpoint.ingest.sights() == ()


async def test_a_report_that_is_too_long_is_refused(endpoint):
    """Whether or not its length is told beforehand."""

    async def dripping():
        for _ in range(MAX_BODY // 1000 + 1):
            yield b" " * 1000

    headers = {"Authorization": f"Bearer {endpoint.token('n1')}"}
    for data in (b" " * (MAX_BODY + 1), dripping()):
        async with endpoint.session.post(f"{endpoint.url}/v1/report", data=data, headers=headers) as answer:
            assert (answer.status, await answer.text()) == (413, f"more than {MAX_BODY} bytes\n")


async def test_a_node_that_reports_too_often_is_slowed_down(endpoint):
    """It alone."""
    answers = [await endpoint.report() for _ in range(REPORTS_AT_ONCE + 20)]
    assert [status for status, _, _ in answers[:REPORTS_AT_ONCE]] == [200] * REPORTS_AT_ONCE
    refused = [headers["Retry-After"] for status, _, headers in answers if status == 429]
    assert refused
    assert set(refused) == {"1"}
    assert (await endpoint.report("n2"))[0] == 200


# What relays forward.


async def relayed(endpoint, *lines, token=None):
    """Send a batch; what is answered to each."""
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    status, text, _ = await endpoint.post("/v1/reports", body, token=token or endpoint.token("relay"))
    return (status, json.loads(text)["answers"]) if status == 200 else (status, text)


def line(endpoint, node="n1", *, token=None, **fields):
    return {
        "token": token or endpoint.token(node),
        "report": {"node": node, "boot": "b1", "beat": {"at": AT}, **fields},
    }


async def test_what_a_relay_forwards_is_taken_as_if_it_had_come_here(endpoint):
    """Each report with its own receipt; the faults of all are kept together."""
    status, answers = await relayed(
        endpoint,
        line(endpoint, "n1", faults=[fault(1), fault(2)]),
        line(endpoint, "n2"),
        line(endpoint, "n3", faults=[fault(3)]),
    )
    assert status == 200
    assert [(each["status"], each["receipt"]["faults"]) for each in answers] == [(200, 2), (200, 0), (200, 1)]
    assert {sight.node for sight in endpoint.ingest.sights()} == {"n1", "n2", "n3"}
    assert [row.node for row in await endpoint.ledger.rows(kind=RowKind.FAULT)] == ["n1", "n1", "n3"]


async def test_one_that_is_refused_refuses_no_other(endpoint):
    """And each is told why."""
    status, answers = await relayed(
        endpoint,
        line(endpoint, "n1", token=endpoint.token("n2")),
        line(endpoint, "n9"),
        line(endpoint, "relay"),
        line(endpoint, "n1", boot=None),
        line(endpoint, "n1", beat={"at": "2026-11-30T09:00:00"}),
        line(endpoint, "n1", token="short"),
        b"not JSON",
        b"",
        line(endpoint, "n2", faults=[fault(1)]),
    )
    assert status == 200
    assert [each["status"] for each in answers] == [403, 403, 403, 422, 422, 422, 422, 422, 200]
    assert answers[0]["text"] == "the token is not that of 'n1'\n"
    assert answers[3]["text"].startswith("report.boot: ")
    assert [sight.node for sight in endpoint.ingest.sights()] == ["n2"]
    assert len(await endpoint.ledger.rows(kind=RowKind.FAULT)) == 1


async def test_a_relay_has_a_token_of_its_own_that_speaks_for_no_node(endpoint):
    """Who has none cannot make the controller read long batches; an agent's or the hook's is none."""
    for owner in ("n1", "slurmctld"):
        assert (await relayed(endpoint, line(endpoint), token=endpoint.token(owner)))[0] == 403
    assert (await endpoint.post("/v1/reports", b"[]"))[0] == 401
    assert (await endpoint.report("n1", token=endpoint.token("relay")))[0] == 403
    assert (await endpoint.report("relay"))[0] == 403


async def test_a_batch_is_bounded(endpoint):
    """In reports, and in bytes."""
    status, text = await relayed(endpoint, *[b"{}"] * (MAX_RELAYED + 1))
    assert (status, text) == (422, f"more than {MAX_RELAYED} reports\n")
    headers = {"Authorization": f"Bearer {endpoint.token('relay')}"}
    long = io.BytesIO(b" " * (MAX_BATCH + 1))
    async with endpoint.session.post(f"{endpoint.url}/v1/reports", data=long, headers=headers) as answer:
        assert answer.status == 413


async def test_a_node_that_reports_too_often_through_a_relay_is_slowed_down(endpoint):
    """It alone, and it is told when to come again."""
    _, answers = await relayed(endpoint, *[line(endpoint)] * (REPORTS_AT_ONCE + 1), line(endpoint, "n2"))
    assert [each["status"] for each in answers] == [*[200] * REPORTS_AT_ONCE, 429, 200]
    assert answers[REPORTS_AT_ONCE]["retry_after"] == 1


async def test_without_the_ledger_no_fault_of_a_batch_is_kept(endpoint, monkeypatch):
    """Their agents tell them again; beats count."""

    async def down(*_):
        raise LedgerUnavailableError("the database does not answer")

    monkeypatch.setattr(endpoint.ledger, "has", down)
    _, answers = await relayed(endpoint, line(endpoint, "n1", faults=[fault(1)]), line(endpoint, "n2"))
    assert [(each["status"], each["receipt"]["faults"]) for each in answers] == [(200, 0), (200, 0)]
    assert len(endpoint.ingest.sights()) == 2


# The hook.


async def test_the_hook_makes_the_watcher_look(endpoint):
    """At each word; how often it then looks is its own affair."""
    for _ in range(REPORTS_AT_ONCE + 20):
        status, _, _ = await endpoint.post("/v1/epilog", {"job_id": 7}, token=endpoint.token("slurmctld"))
        assert status == 202
    assert endpoint.nudges == REPORTS_AT_ONCE + 20
    assert await endpoint.ledger.rows() == ()


@pytest.mark.parametrize("job_id", [None, "7", True, 0, -7, 7.0])
async def test_the_hook_must_name_a_job(endpoint, job_id):
    """As slurmctld numbers them."""
    status, text, _ = await endpoint.post("/v1/epilog", {"job_id": job_id}, token=endpoint.token("slurmctld"))
    assert (status, text) == (422, "job_id must be a positive number\n")
    assert endpoint.nudges == 0


# The key, the address, TLS.


def test_the_key_is_made_at_the_first_start(tmp_path):
    """For its owner alone, and stays the same."""
    path = tmp_path / "data" / "ingest.key"
    key = open_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(key) == 32
    assert open_key(path) == key


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [("ab" * 32, 0o640, "open to others"), ("ab" * 31, 0o600, "no key"), ("x", 0o600, "no key")],
)
def test_a_bad_key_file_is_refused(tmp_path, text, mode, says):
    """Others could speak for every node."""
    path = tmp_path / "ingest.key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(IngestError, match=says):
        open_key(path)


async def test_nothing_listens_unasked(endpoint, tmp_path):
    """By default; and no key is made then."""
    async with serving(IngestSettings(), tmp_path / "other.key", endpoint.ingest) as bound:
        assert bound is None
    assert not (tmp_path / "other.key").exists()


async def test_a_taken_address_is_said(endpoint):
    """With the setting's name."""
    taken = endpoint.url.removeprefix("http://")
    with pytest.raises(IngestError, match=f"ingest.listen {taken}"):
        async with serving(IngestSettings(listen=taken), endpoint.key_file, endpoint.ingest):
            pass


async def test_tls(tmp_path, certificate):
    """Who trusts the certificate can report."""
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    async with aiohttp.ClientSession() as session:
        made = Endpoint(tmp_path, session)
        async with made.open(tls_cert=str(cert), tls_key=str(key)):
            answer = await made.post("/v1/epilog", {"job_id": 7}, token=made.token("slurmctld"), ssl=context)
            assert answer[0] == 202
        made.ledger.close()


async def test_a_certificate_that_cannot_be_used_is_said(endpoint, certificate):
    """At the start, with the setting's name."""
    cert, _ = certificate
    settings = IngestSettings(listen="127.0.0.1:0", tls_cert=str(cert), tls_key=str(cert))
    with pytest.raises(IngestError, match=r"ingest\.tls_cert"):
        async with serving(settings, endpoint.key_file, endpoint.ingest):
            pass


def test_tokens_are_printed_for_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the endpoint takes, from the key that it makes; a key that others can read is refused plainly."""
    monkeypatch.setenv("RELIGHT_DATA", str(tmp_path))
    told = CliRunner().invoke(main, ["agent-token", "n1"])
    key = tmp_path / "ingest.key"
    assert told.output.strip() == agent_token(open_key(key), "n1")
    key.chmod(0o644)
    refused = CliRunner().invoke(main, ["agent-token", "n1"])
    assert (refused.exit_code, "chmod 600" in refused.output) == (1, True)
