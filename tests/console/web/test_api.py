"""The HTTP API over a real ledger: who sees what, lists by pages, errors as problems, nothing smuggled by a log."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable

from relight.clients.ledger import LedgerUnavailableError
from relight.clients.ledger_sql import SqlLedger
from relight.console.web import read_feed, read_shelf
from relight.console.web.api_build import build
from relight.domain.ledger import Change, Entry, RowKind

from ..conftest import (  # noqa: TID252
    Night,
    ago,
    no_progress,
    not_confirmed,
    observed,
    recovered,
    waiting,
)
from .asking import Site, empty_ledger, settings_in, site

API = "/api/v1"
OPENED = "i3fa9c1d2e4"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After a bad night: five incidents, of alice, bob, carol, dave and erin. Shared: these tests read."""
    folder = tmp_path_factory.mktemp("relight")
    folder.chmod(0o700)
    opened = SqlLedger.open(f"sqlite:///{folder / 'ledger.sqlite'}", folder / "ledger.key")
    for happen in (recovered, no_progress, observed, not_confirmed, waiting):
        happen(Night(opened))
    opened.close()
    return folder


@pytest.fixture
async def there(data: Path) -> AsyncIterator[Site]:
    async with site(settings_in(data)) as made:
        yield made


async def got(site_: Site, path: str, name: str = "vera", role: str = "viewer", status: int = 200) -> dict:
    answer = await site_.program(name, role).get(API + path)
    assert answer.status_code == status, answer.text
    return answer.json()


# --- what is read ---------------------------------------------------------------------------------------------------


async def test_an_incident_tells_its_whole_story(there: Site):
    """From what happened to what is asked, with what happens when nobody answers."""
    page = await got(there, f"/incidents/{OPENED}")
    assert [step["name"] for step in page["steps"]] == ["happened", "detected", "confirmed", "diagnosed", "planned"]
    assert (page["cause"]["signature"], page["cause"]["nodes"]) == ("CUDA_ECC_UNCORRECTABLE", ["gpu-003"])
    assert (page["root"]["line"], page["echoes"], page["failed_step"]) == (18234, 412, 1840)
    assert page["plan"]["rights"] == ["restart", "drain"]
    approval = page["approval"]
    assert (approval["waiting"], approval["needed"], approval["have"]) == (True, 1, 0)
    assert "No answer means no" in approval["on_timeout"]
    assert approval["command"] == f"relight approve {OPENED} --digest {page['plan']['short_digest']}"
    assert page["temporal_url"].startswith("http://ui.example:8233/namespaces/default/workflows/recover%2Fmain%2F4711")


async def test_what_was_done_and_proven_is_told(there: Site):
    """Of one that recovered: what the guard said, what was written and read back, and the proof."""
    page = await got(there, "/incidents/i07be11ab02")
    first = page["deeds"][0]
    assert (first["intent"], first["effect"]) == ("drain gpu-003", "gpu-003 has the drain flag")
    assert (page["leaves"][0]["granted"], page["verified"]) == (True, ["step 911, past step 910"])
    assert page["steps"][-1]["since_detection"] == "PT48S"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {OPENED, "i0bb5e7ed99", "i5eed0000aa", "i07be11ab02"}),
        ("?everything=true&kind=hang", {"i00c0ffee00"}),
        ("?outcome=not_confirmed", {"i00c0ffee00"}),
        ("?open=true", {OPENED}),
        ("?user=bob", {"i0bb5e7ed99"}),
        ("?job=4650", {"i07be11ab02"}),
        ("?category=USER_CODE", {"i0bb5e7ed99"}),
        ("?node=gpu-003&open=false", {"i07be11ab02"}),
        ("?node=gpu-00", set()),
        ("?text=MIXT", {"i07be11ab02"}),
        ("?text=4711", {OPENED}),
        ("?text=100%25", set()),
        ("?text=_", set()),
    ],
)
async def test_incidents_are_filtered(there: Site, query: str, found: set[str]):
    """By each filter; what a search holds of wildcards is searched for."""
    page = await got(there, f"/incidents{query}")
    names = {line["id"] for line in page["items"]}
    assert names == found or (query == "?text=_" and all("_" in json.dumps(line) for line in page["items"]))


@pytest.mark.parametrize("path", ["/incidents?everything=true&", "/jobs?", "/audit?"])
async def test_a_list_is_whole_by_pages(there: Site, path: str):
    """Each line once, in one order, whatever the pages are cut to."""
    whole = (await got(there, f"{path}limit=200"))["items"]
    assert len(whole) >= 5
    seen, following = [], ""
    while True:
        page = await got(there, f"{path}limit=2&cursor={following}")
        seen += page["items"]
        following = page["next"]
        if not following:
            break
    assert seen == whole


async def test_a_job_tells_its_attempts_and_its_budget(there: Site):
    """Both attempts of the job that came back, and where its steps stood."""
    page = await got(there, "/jobs/4650")
    assert [attempt["last_step"] for attempt in page["attempts"]] == [910, 2200]
    assert page["attempts"][0]["incidents"][0]["outcome"] == "recovered"
    assert page["curve"][-1]["step"] == 910  # of the second no time is known
    assert page["line"]["lineage"] == "j000000beef"
    assert await got(there, "/jobs/j000000beef") == page
    assert (await got(there, "/jobs/4666_2"))["line"]["job"] == "4666_2"


async def test_nodes_are_listed_by_where_their_quarantine_stands(tmp_path: Path):
    """Those in care first; what is written while the console runs moves them, and a page is cut by place."""

    async def told(made: Site, node: str, step: str, **body: object) -> None:
        care = {"step": step, "phase": step, "text": f"{node} {step}", "cls": "CUDA_ECC", "incident": "i1", **body}
        row = Entry(
            id=f"{node}/{step}", kind=RowKind.CARE, at=ago(), cluster="main", incident=f"c-{node}", node=node, body=care
        )
        await made.app.state.desk.reading.ledger.commit(Change(entries=(row,)))

    async with site(settings_in(empty_ledger(tmp_path))) as made:
        for node in ("n1", "n2", "n3"):
            await told(made, node, "drained")
        await told(made, "n1", "ended", outcome="returned")
        made.clock.move(seconds=2)
        first = await got(made, "/nodes?limit=2")
        assert ([line["node"] for line in first["items"]], first["total"]) == (["n2", "n3"], 3)
        rest = await got(made, f"/nodes?limit=2&cursor={first['next']}")
        assert [(line["node"], line["outcome"]) for line in rest["items"]] == [("n1", "returned")]
        await told(made, "n2", "ended", outcome="returned")
        made.clock.move(seconds=2)
        assert [line["node"] for line in (await got(made, "/nodes?state=in_care"))["items"]] == ["n3"]
        page = await got(made, "/nodes/n2")
        assert [row["text"] for row in page["story"]] == ["n2 drained", "n2 ended"]


async def test_the_cluster_says_that_nobody_watches(there: Site):
    """No worker has ever written to this ledger: that is not well, and is said."""
    page = await got(there, "/now")
    assert (page["well"], [line["id"] for line in page["waiting"]]) == (False, [OPENED])
    assert "Nobody watches" in page["problem"]
    assert page["open"] == 1


async def test_what_is_new_is_told_from_a_cursor(there: Site):
    """An incident that opens is named, and nothing is named twice."""
    begin = (await got(there, "/audit?limit=1"))["items"][0]["seq"]
    assert await got(there, f"/changes?after={begin}") == {
        "cursor": begin, "incidents": [], "jobs": [], "nodes": [], "kinds": [], "guard": False, "more": False,
    }  # fmt: skip
    row = Entry(id="x", kind=RowKind.OPENED, at=ago(), cluster="main", incident="i9", lineage="j9", node="n9")
    await there.app.state.desk.reading.ledger.commit(Change(entries=(row,)))
    new = await got(there, f"/changes?after={begin}")
    assert (new["incidents"], new["jobs"], new["nodes"], new["kinds"]) == (["i9"], ["j9"], ["n9"], ["opened"])
    assert (await got(there, f"/changes?after={new['cursor']}"))["kinds"] == []
    assert (await got(there, "/changes?after=0&limit=2"))["more"] is True
    assert (await got(there, f"/changes?after={begin}", "alice", "user"))["incidents"] == []


async def test_all_listeners_are_told_by_one_poll(there: Site, monkeypatch: pytest.MonkeyPatch):
    """Who is slow is told that there was more; nobody holds up the others."""
    reading = there.app.state.desk.reading
    monkeypatch.setattr(reading.feed, "_every", 0.01)
    first, second = reading.feed.subscribe(), reading.feed.subscribe()
    waits = [asyncio.ensure_future(anext(each)) for each in (first, second)]
    await asyncio.sleep(0)
    polls = [task for task in asyncio.all_tasks() if task.get_name() == "ledger feed"]
    assert len(polls) == 1
    while not all(task.done() for task in waits):
        row = Entry(
            id=f"y{asyncio.get_running_loop().time()}", kind=RowKind.OPENED, at=ago(), cluster="main", incident="i8"
        )
        await there.app.state.desk.reading.ledger.commit(Change(entries=(row,)))
        await asyncio.sleep(0.02)
    assert [task.result().incidents[:1] for task in waits] == [("i8",), ("i8",)]
    await first.aclose()
    await second.aclose()
    assert read_feed.EVERY.total_seconds() <= 0.5


# --- who sees what --------------------------------------------------------------------------------------------------


async def test_a_user_sees_the_own_jobs_alone(there: Site):
    """In every list, and by every name that one could try."""
    for path in ("/incidents?everything=true", "/jobs"):
        assert [line["user"] for line in (await got(there, path, "alice", "user"))["items"]] == ["alice"]
    assert (await got(there, "/incidents?user=bob", "alice", "user"))["items"] == []
    now = await got(there, "/now", "alice", "user")
    assert ([line["user"] for line in now["opened"] + now["recent"]], now["guard"], now["detectors"]) == (
        ["alice"],
        None,
        [],
    )
    for path in ("/incidents/i0bb5e7ed99", "/incidents/i0bb5e7ed99/trying", "/jobs/4720", "/incidents/nothing"):
        told = await got(there, path, "alice", "user", 404)
        assert "bob" not in json.dumps(told)
    assert (await got(there, f"/incidents/{OPENED}", "alice", "user"))["temporal_url"] == ""


@pytest.mark.parametrize("path", ["/nodes", "/nodes/gpu-003", "/audit", "/settings"])
async def test_what_is_not_for_users_is_refused(there: Site, path: str):
    """With words that say which role one has."""
    told = await got(there, path, "alice", "user", 403)
    assert (told["status"], told["title"]) == (403, "Not allowed")
    assert "alice is user here" in told["detail"]


async def test_settings_are_for_admins_and_hide_passwords(data: Path):
    """Each with where it comes from."""
    shown = {"url": f"sqlite:///{data / 'ledger.sqlite'}"}
    async with site(settings_in(data, ledger=shown)) as made:
        assert await got(made, "/settings", "olga", "approver", 403)
        page = await got(made, "/settings", "root", "admin")
    rows = {row["key"]: row["value"] for row in page["rows"]}
    assert {"cluster", "policy.mode", "console.listen"} <= rows.keys()
    assert (page["approvers"], page["needed"]["drain"], page["needed"]["down"]) == ([], 1, 2)


# --- bad input ------------------------------------------------------------------------------------------------------


async def test_what_logs_hold_comes_out_as_plain_ascii(there: Site):
    """No script, control character or direction mark is in the bytes; read as JSON it is what was written."""
    answer = await there.program("vera", "viewer").get(f"{API}/incidents/{OPENED}")
    assert answer.content.isascii()
    assert not any(byte < 0x20 or byte in b"<>&\x7f" for byte in answer.content)
    assert "\u202eECC\x9b31m" in answer.json()["cause"]["evidence"][0]["text"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/incidents?limit=0", 422, "query.limit"),
        ("/incidents?usr=bob", 422, "query.usr"),
        ("/incidents?cursor=eyJ9", 422, "cursor: not one"),
        ("/audit?cursor=-1", 422, "cursor: not one"),
        ("/audit?since=yesterday", 422, "query.since"),
        ("/incidents?since=2026-11-30T00:00:00", 422, "query.since"),
        ("/incidents/nothing", 404, "no incident nothing"),
        ("/jobs/4711;drop", 404, "no job"),
        ("/jobs/99999999999999999", 404, "no job"),
        ("/nodes/%1b%5b31mx", 404, "knows nothing of a node"),
        ("/nowhere", 404, "Not Found"),
    ],
)
async def test_bad_questions_have_clear_answers(there: Site, path: str, status: int, told: str):
    """As RFC 9457 has it; what was sent is not sent back."""
    answer = await there.program("root", "admin").get(API + path)
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert (body["status"], told in body["detail"], "\x1b" in body["detail"]) == (status, True, False)


async def test_a_database_that_is_away_is_said_with_when_to_try_again(there: Site, monkeypatch: pytest.MonkeyPatch):
    """503 with Retry-After; the process is healthy all the same, and answers again afterwards."""

    async def away(*_args: object, **_named: object) -> None:
        raise LedgerUnavailableError("the ledger does not answer: connection refused at db.internal:5432")

    program = there.program("vera", "viewer")
    with monkeypatch.context() as patched:
        patched.setattr(SqlLedger, "_run", away)
        answer = await program.get(f"{API}/incidents")
        assert (answer.status_code, answer.headers["retry-after"], answer.json()["retry_after"]) == (503, "5", 5)
        assert "db.internal" not in answer.text
        assert (await program.get("/healthz")).json() == {"ok": True}
    assert (await program.get(f"{API}/incidents")).status_code == 200


async def test_a_ledger_that_is_not_there_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The console may be started first."""
    monkeypatch.setattr(read_shelf, "_EVERY_S", 0.01)
    async with site(settings_in(tmp_path)) as made:
        told = await got(made, "/incidents", status=503)
        assert "no ledger here yet" in told["detail"]
        opening = made.app.state.desk.reading._shelf._opening
        SqlLedger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", tmp_path / "ledger.key").close()
        await opening
        assert (await got(made, "/incidents"))["items"] == []


async def test_a_fault_of_ours_tells_nothing_of_itself(there: Site, monkeypatch: pytest.MonkeyPatch):
    """500 as a problem; what it was stands in the log."""

    async def broken(*_args: object) -> None:
        raise RuntimeError("secret path /var/lib")

    monkeypatch.setattr(type(there.app.state.desk.reading), "waiting", broken)
    told = await got(there, "/waiting", status=500)
    assert "secret" not in json.dumps(told)


@pytest.mark.parametrize("length", ["70000", "x", "9" * 400])
async def test_a_body_is_small(there: Site, length: str):
    """Refused before it is read, or cut off while it is."""
    program = there.program("vera", "approver")
    answer = await program.post(
        f"{API}/incidents/{OPENED}/decisions", headers={"content-length": length}, content=b"{}"
    )
    assert answer.status_code == 422
    assert "accepted: at most 65536" in answer.json()["detail"]


# --- the OpenAPI document -------------------------------------------------------------------------------------------


async def test_the_document_describes_every_call(there: Site):
    """Typed answers, and problems for all that can go wrong; it needs a sign-in as all else does."""
    document = await got(there, "/openapi.json")
    for path, calls in document["paths"].items():
        for call in calls.values():
            assert call["responses"]["200"]["content"]["application/json"]["schema"], path
            assert "application/problem+json" in call["responses"]["401"]["content"]
    assert (await there.client().get(f"{API}/openapi.json")).status_code == 401


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_call_fails(data: Path, mode: schemathesis.GenerationMode):
    """Schemathesis asks what the document allows, and what it does not: no answer is a 5xx but an honest 503."""
    app = build(settings_in(data), dev=True)
    asked = []

    def ask(case: schemathesis.Case) -> None:
        answer = case.call(base_url="http://127.0.0.1:8470")
        asked.append(answer.status_code)
        # Decisions and `trying` ask Temporal, which nobody runs here.
        allowed = {503} if case.path.endswith(("/decisions", "/trying")) else set()
        assert answer.status_code < 500 or answer.status_code in allowed, (case.as_curl_command(), answer.text)

    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app  # it starts and ends the app itself, for each call
    limits = hypothesis_settings(
        max_examples=6, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    for found in schema.get_all_operations():
        # What takes no parameter cannot be asked wrongly.
        with suppress(Unsatisfiable):
            limits(given(case=found.ok().as_strategy(generation_mode=mode))(ask))()
    assert len(asked) > 50
    assert 200 in asked or mode is schemathesis.GenerationMode.NEGATIVE
