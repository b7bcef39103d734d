"""A relay between real agents and the real ingest endpoint: together to the controller, each with its own answer."""

import asyncio
import json
import re
import ssl
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from click.testing import CliRunner

from relight.clients.ledger import LedgerUnavailableError
from relight.config.settings import ConfigError, IngestSettings
from relight.domain.ledger import RowKind
from relight.domain.reports import MAX_RELAYED, ProbeKind, ProbeRequest, Receipt, agent_token
from relight.lab.ports import claimed_ports
from relight.workers import relay_batch
from relight.workers.cli import main
from relight.workers.endpoint import MAX_BODY, Names, listening
from relight.workers.ingest import MAX_BATCH
from relight.workers.relay import Options
from relight.workers.relay_batch import Answer, Batches, UnreachableError
from relight.workers.relay_server import relaying

from .agents import OFF_THE_BUS, PATIENCE
from .endpoint import AT, Endpoint, fault


async def until(condition):
    """Look again and again, while other processes work."""
    async with asyncio.timeout(PATIENCE):
        while not (found := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


@pytest.fixture
def token_file(endpoint, tmp_path):
    """The relay's own token."""
    path = tmp_path / "relay.token"
    path.write_text(endpoint.token("relay"))
    path.chmod(0o600)
    return path


@pytest.fixture
async def relay(endpoint, token_file):
    """Opens relays before the endpoint; a client of one is an `Endpoint` with another address."""
    async with AsyncExitStack() as stack:

        async def open_one(**options):
            given = {"listen": "127.0.0.1:0", "controller": endpoint.url, "token_file": str(token_file)}
            host, port = await stack.enter_async_context(relaying(Options(**{**given, **options})))
            client = Endpoint(endpoint.key_file.parent, endpoint.session)
            client.ledger.close()
            client.url = f"{'https' if options.get('tls_cert') else 'http'}://{host}:{port}"
            return client

        yield open_one


# With a real agent, and the relay as a process.


@pytest.fixture
def relay_process(endpoint, token_file, tmp_path):
    """A real `relight relay` before the endpoint; its address."""
    with claimed_ports(1) as port, (tmp_path / "relay.log").open("w") as log:
        options = ["--listen", f"127.0.0.1:{port}", "--controller", endpoint.url, "--token-file", str(token_file)]
        program = Path(sys.executable).with_name("relight")
        process = subprocess.Popen([program, "relay", *options], stdout=log, stderr=log)
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", log=tmp_path / "relay.log")
    process.terminate()
    assert process.wait(PATIENCE) == 0


async def test_an_agent_works_through_a_relay(endpoint, relay_process, agent):
    """As it does with the controller itself: beats, faults, questions, and nothing lost while the ledger is down."""
    # The token file's key is the endpoint's here.
    agent.token.write_text(endpoint.token("n1"))
    agent.start(relay_process.url)
    await until(lambda: endpoint.ingest.sight("n1"))
    question = ProbeRequest(id="q1", kind=ProbeKind.STACKS, job_id=7)
    answer = await endpoint.ingest.ask("n1", question, timedelta(seconds=PATIENCE))
    assert "no Python process" in answer.problem
    agent.kernel(OFF_THE_BUS)
    await until(lambda: agent.saved["faults"]["seen"] and not agent.saved["faults"]["pending"])
    (row,) = await endpoint.ledger.rows(kind=RowKind.FAULT)
    assert (row.node, row.body["fault"]["xid"]) == ("n1", 79)


async def test_an_agent_keeps_its_faults_while_the_relay_reaches_nobody(tmp_path, endpoint, token_file, agent):
    """It is told so, and tells them when the controller is there again: once."""
    agent.token.write_text(endpoint.token("n1"))
    with claimed_ports(1) as port:
        options = Options("127.0.0.1:0", f"http://127.0.0.1:{port}", str(token_file))
        async with relaying(options) as (host, relay_port):
            agent.start(f"http://{host}:{relay_port}")
            await until(lambda: "the relay does not reach the controller" in agent.log)
            agent.kernel(OFF_THE_BUS)
            await until(lambda: agent.saved["faults"]["pending"])
            async with endpoint.open(listen=f"127.0.0.1:{port}"):
                await until(lambda: not agent.saved["faults"]["pending"])
    assert [row.body["fault"]["xid"] for row in await endpoint.ledger.rows(kind=RowKind.FAULT)] == [79]


# What it does with reports.


async def test_each_report_has_its_own_answer(endpoint, relay):
    """A wrong token, or a node that Slurm does not have, spoils no other's."""
    rack = await relay()
    answers = await asyncio.gather(
        rack.report("n1", faults=[fault(1), fault(2)]),
        rack.report("n2", token=endpoint.token("n1")),
        rack.report("n9"),
        rack.report("n3", boot=None),
        rack.report("n4"),
    )
    assert [status for status, _, _ in answers] == [200, 403, 403, 422, 200]
    assert [Receipt.model_validate_json(answers[number][1]).faults for number in (0, 4)] == [2, 0]
    assert answers[1][1] == "the token is not that of 'n2'\n"
    assert {sight.node for sight in endpoint.ingest.sights()} == {"n1", "n4"}


async def test_faults_that_are_not_kept_are_not_acknowledged(endpoint, relay, monkeypatch):
    """The controller's ledger is down."""

    async def down(*_):
        raise LedgerUnavailableError("the database does not answer")

    monkeypatch.setattr(endpoint.ledger, "has", down)
    status, text, _ = await (await relay()).report(faults=[fault(1)])
    assert (status, Receipt.model_validate_json(text).faults) == (200, 0)


async def test_a_report_may_have_lines(relay, endpoint):
    """JSON is JSON."""
    body = json.dumps({"node": "n1", "boot": "b1", "beat": {"at": AT}}, indent=1).replace("\n", "\r\n").encode()
    status, _, _ = await (await relay()).post("/v1/report", body, token=endpoint.token("n1"))
    assert status == 200


@pytest.mark.parametrize(
    ("body", "status"), [(b"not JSON", 400), (b"\xff", 400), (b"[]", 422), (b"{}", 422), (b" " * (MAX_BODY + 1), 413)]
)
async def test_what_is_no_report_is_refused_by_the_relay(relay, endpoint, body, status):
    """And goes no further."""
    rack = await relay()
    assert (await rack.post("/v1/report", body, token=endpoint.token("n1")))[0] == status
    assert (await rack.post("/v1/report", b"{}"))[0] == 401


async def test_a_relay_with_a_wrong_token_says_so_to_agents(endpoint, relay, token_file):
    """They keep what they have; a new token needs no restart."""
    rack = await relay()
    right = token_file.read_text()
    token_file.write_text(agent_token(b"another key", "relay"))
    status, text, headers = await rack.report()
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "the token is not that of 'relay'" in text
    token_file.write_text(right)
    assert (await rack.report())[0] == 200


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (web.Response(status=404), "it answers 404"),
        (web.Response(text="<html>"), "its answer is none"),
        (web.json_response({"answers": []}), "0 answers to 1 reports"),
        (web.json_response({"answers": [{"status": 403}]}), "its answer is none"),
    ],
)
async def test_a_controller_that_is_none_is_said(relay, answer, says):
    """Also one of an older version."""

    async def reports(_request: web.Request) -> web.Response:
        return answer

    application = web.Application()
    application.add_routes([web.post("/v1/reports", reports)])
    settings = IngestSettings(listen="127.0.0.1:0")
    async with listening(application, settings, Names("", "")) as (host, port):
        status, text, _ = await (await relay(controller=f"http://{host}:{port}")).report()
    assert status == 503
    assert says in text


async def test_tls_on_both_sides(endpoint, relay, certificate, token_file):
    """Who trusts the relay's certificate can report; the relay trusts the controller's."""
    cert, key = (str(path) for path in certificate)
    context = ssl.create_default_context(cafile=cert)
    async with endpoint.open(tls_cert=cert, tls_key=key):
        there = {"controller": endpoint.url, "tls_cert": cert, "tls_key": key}
        rack = await relay(ca=cert, **there)
        body = {"node": "n1", "boot": "b1", "beat": {"at": AT}}
        assert (await rack.post("/v1/report", body, token=endpoint.token("n1"), ssl=context))[0] == 200
        doubter = await relay(**there)
        status, text, _ = await doubter.post("/v1/report", body, token=endpoint.token("n1"), ssl=context)
    assert status == 503
    assert "certificate" in text.lower()


# Batches.


class Controller:
    """Takes batches, and answers when it is let."""

    def __init__(self) -> None:
        self.batches = []
        self.busy = self.busiest = 0
        self.let = asyncio.Event()
        self.let.set()
        self.fail = None

    async def forward(self, lines):
        self.batches.append([json.loads(line) for line in lines.split(b"\n")])
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            await self.let.wait()
        finally:
            self.busy -= 1
        if self.fail:
            raise self.fail
        return [Answer(200, each["report"]["node"].encode()) for each in self.batches[-1]]


@pytest.fixture
def controller():
    return Controller()


@pytest.fixture
def batches(controller):
    return Batches(controller.forward)


@pytest.fixture
def patient(monkeypatch):
    """Nothing is forwarded for being late."""
    monkeypatch.setattr(relay_batch, "BATCHED_WITHIN", 3600.0)
    monkeypatch.setattr(relay_batch, "ANSWER_WITHIN", 3600.0)


def reporting(batches, node="n1", token="t", **fields):  # noqa: S107
    return asyncio.ensure_future(batches.report(token, json.dumps({"node": node, **fields}).encode()))


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_beats_of_a_while_go_together(monkeypatch, controller, batches):
    """In one request, and each is answered."""
    monkeypatch.setattr(relay_batch, "BATCHED_WITHIN", 0.05)
    answers = await asyncio.gather(*(reporting(batches, f"n{number}") for number in range(20)))
    assert [answer.body for answer in answers] == [b"n%d" % number for number in range(20)]
    assert [len(batch) for batch in controller.batches] == [20]


@pytest.mark.parametrize("what", ["faults", "answers"])
async def test_faults_and_answers_go_at_once(patient, controller, batches, what):
    """With the beats that are there."""
    beat = reporting(batches, "n1")
    assert (await reporting(batches, "n2", **{what: [1]})).body == b"n2"
    assert (await beat).body == b"n1"
    assert len(controller.batches) == 1


async def test_only_the_newest_beat_of_a_node_counts(patient, controller, batches):
    """Who speaks with another token is another one: nobody takes a node's beat away."""
    old = reporting(batches, sequence=1)
    await settle()
    new = reporting(batches, sequence=2)
    stranger = reporting(batches, sequence=3, token="x")
    await settle()
    assert (await old).status == 429
    await reporting(batches, "n2", faults=[1])
    assert (await new).status == (await stranger).status == 200
    told = [(each["token"], each["report"].get("sequence")) for each in controller.batches[0]]
    assert told == [("t", 2), ("x", 3), ("t", None)]


async def test_faults_are_not_dropped_for_newer_ones(patient, controller, batches):
    """Each report with faults is forwarded, in order."""
    await asyncio.gather(*(reporting(batches, sequence=number, faults=[1]) for number in range(5)))
    assert [each["report"]["sequence"] for batch in controller.batches for each in batch] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("limit", "value", "expected"), [("MAX_RELAYED", 3, [3, 3]), ("BATCH_BYTES", 28, [2, 2, 2])])
@pytest.mark.usefixtures("patient")
async def test_batches_are_bounded(monkeypatch, controller, limit, value, expected):
    """In reports, and in bytes: here of 14 each."""
    monkeypatch.setattr(relay_batch, limit, value)
    batches = Batches(controller.forward)
    await asyncio.gather(*(reporting(batches, f"n{number}") for number in range(6)))
    assert [len(batch) for batch in controller.batches] == expected


def test_the_controller_takes_the_longest_batch():
    """One more report than was enough, and all tokens."""
    assert relay_batch.BATCH_BYTES + MAX_BODY + MAX_RELAYED * 100 < MAX_BATCH


async def test_what_waits_is_bounded(monkeypatch, patient, controller, batches):
    """More is refused at once; when it is answered there is room again."""
    monkeypatch.setattr(relay_batch, "MOST_BYTES", 100)
    first = reporting(batches, "n1", pad="x" * 60)
    await settle()
    assert (await reporting(batches, "n2", faults=["x" * 60])).status == 503
    first.cancel()
    await settle()
    assert (await reporting(batches, "n2", faults=[1])).status == 200


async def test_without_an_answer_agents_are_told_to_come_again(monkeypatch, controller, batches):
    """In time: they wait for 5 s. Others are not held up for longer either."""
    monkeypatch.setattr(relay_batch, "ANSWER_WITHIN", 0.1)
    controller.let.clear()
    many = [reporting(batches, f"n{number}", faults=[1]) for number in range(2 * relay_batch.AT_ONCE)]
    answers = await asyncio.gather(*many)
    assert {(answer.status, answer.retry_after) for answer in answers} == {(503, 5)}
    assert controller.busiest == relay_batch.AT_ONCE
    controller.let.set()
    assert (await reporting(batches, faults=[1])).status == 200


async def test_an_unreachable_controller_is_named(controller, batches):
    """In the words that the agent logs."""
    controller.fail = UnreachableError("Connection refused")
    answer = await reporting(batches, faults=[1])
    assert (answer.status, answer.body) == (503, b"the relay does not reach the controller: Connection refused\n")


async def test_at_the_end_what_waits_is_forwarded(patient, controller, batches):
    """And answered."""
    beat = reporting(batches)
    await settle()
    await batches.close()
    assert (await beat).status == 200


# What it is told at the start.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"listen": ""}, "--listen"),
        ({"listen": "0.0.0.0:8643"}, "set --tls-cert and --tls-key, or --insecure"),
        ({"tls_cert": "/does/not/exist"}, "--tls-cert and --tls-key belong together"),
        ({"tls_cert": "/does/not/exist", "tls_key": "/x"}, "--tls-cert /does/not/exist"),
        ({"controller": "http://10.0.0.1:8642"}, "use https, or set --insecure"),
        ({"controller": "controller:8642"}, "is no address such as https://"),
        ({"ca": "/does/not/exist"}, "--ca /does/not/exist"),
        ({"token_file": "/does/not/exist"}, "token file /does/not/exist"),
    ],
)
async def test_options_that_cannot_be_are_said(endpoint, token_file, options, says):
    """In one line, with the option's name."""
    given = {"listen": "127.0.0.1:0", "controller": endpoint.url, "token_file": str(token_file)}
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        async with relaying(Options(**{**given, **options})):
            pass
    assert "\n" not in str(caught.value)


def test_the_command_says_it_in_one_line(tmp_path):
    """And ends with 1."""
    options = ["--listen", "127.0.0.1:0", "--controller", "http://127.0.0.1:1", "--token-file", str(tmp_path / "no")]
    told = CliRunner().invoke(main, ["relay", *options])
    assert (told.exit_code, told.output.count("\n")) == (1, 1)
    assert told.output.startswith("relight: token file")
