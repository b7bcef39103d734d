"""Signing in by token, sessions, and what keeps strangers and other sites out."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from relight.clients.console_tokens import Tokens, TokensFileError
from relight.config.console import Role
from relight.config.settings import ConfigError, load
from relight.console.errors import Stop
from relight.console.web import api, sign_in
from relight.console.web.api_build import build, server_options
from relight.console.web.decisions_judge import Question, may_not
from relight.console.web.gate import OPEN
from relight.console.web.limits import Limit
from relight.console.web.roles import Identity
from relight.console.web.sign_in import own_place
from relight.workers.cli import main

from .asking import ROOT, Site, empty_ledger, settings_in, site

API = "/api/v1"
NOW = datetime.now(UTC)
POST = f"{API}/incidents/i3fa9c1d2e4/decisions"
WORD = {"approve": True, "digest": "0" * 8, "once": "12345678"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return empty_ledger(tmp_path_factory.mktemp("relight"))


@pytest.fixture
async def there(kept: Path, tmp_path: Path) -> AsyncIterator[Site]:
    console = {"sign_ins_per_minute": 3, "tokens_file": str(tmp_path / "tokens.json")}
    async with site(settings_in(kept, console=console)) as made:
        yield made


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_hash(config: Path, data: Path):
    """The file is its owner's alone, and holds nothing that one could sign in with."""

    def relight(*words: str) -> tuple[int, str]:
        result = CliRunner(env={"COLUMNS": "120"}).invoke(main, ["console", "--config", str(config), *words])
        return result.exit_code, result.output

    status, told = relight("token", "add", "ada", "--role", "approver", "--expires", "30d")
    made = told.splitlines()[0]
    assert (status, re.fullmatch(r"relight_[0-9a-f]{8}_[\w-]{43}", made) is not None) == (0, True)
    file = data / "console-tokens.json"
    assert file.stat().st_mode & 0o077 == 0
    assert made.rpartition("_")[2] not in file.read_text()
    assert "ada" in relight("token", "list")[1]
    assert made.rpartition("_")[2] not in relight("token", "list", "-o", "json")[1]
    assert relight("token", "add", "a b", "--role", "viewer")[0] == 1
    assert relight("token", "add", "ada", "--role", "boss")[0] == 2
    assert relight("token", "revoke", "ada") == (0, f"1 token revoked: {made.split('_')[1]} of ada\n")
    assert relight("token", "revoke", "ada")[0] == 4


def test_the_consoles_key_is_made_and_printed_for_the_list(config: Path, data: Path):
    """Twice the same; as the settings take it."""
    words = ["console", "--config", str(config), "key"]
    first, second = (CliRunner().invoke(main, words) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    listed = re.search(r"- (\{.*\})", first.stderr)
    assert listed is not None
    entry = listed[1].replace("[NAME, ...]", "[ada]")
    config.write_text(f"{config.read_text()}approvals:\n  approvers:\n    - {entry}\n")
    (console,) = load(config).approvals.people
    assert (console.vouches_for, console.owner_may) == (("ada",), ("restart",))
    assert (data / "console.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [lambda t: t[:-1], lambda t: t + "x", lambda t: t[:8] + "0" * 8 + t[16:], lambda _: "", lambda _: "relight__"],
)
async def test_a_forged_token_is_nobodys(there: Site, change):
    """Cut, longer, under another id, or none at all."""
    answer = await there.client(bearer=change(there.token("ada", "admin"))).get(f"{API}/me")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_revoked_token_ends_its_sessions_and_an_expired_one_is_none(there: Site):
    """At once, and without a restart."""
    browser = await there.signed_in("ada", "viewer")
    assert (await browser.get(f"{API}/me")).json()["name"] == "ada"
    there.tokens.remove("ada")
    assert (await browser.get(f"{API}/me")).status_code == 401
    short = there.client(bearer=there.token("bob", "viewer", expires_at=there.clock() + timedelta(hours=1)))
    assert (await short.get(f"{API}/me")).status_code == 200
    there.clock.move(hours=1)
    assert (await short.get(f"{API}/me")).status_code == 401


def test_a_tokens_file_that_others_can_read_is_refused(tmp_path: Path):
    """Whoever can write it could let himself in; damage is said, not taken for nobody."""
    tokens = Tokens(tmp_path / "t.json")
    made = tokens.add("ada", Role.VIEWER, NOW)
    tokens.path.chmod(0o640)
    with pytest.raises(TokensFileError, match="mode 0640 lets others in: chmod 600"):
        Tokens(tokens.path).find(made, NOW)
    tokens.path.chmod(0o600)
    tokens.path.write_text('{"tokens": [{"id": 1}]}')
    with pytest.raises(TokensFileError, match="no file of tokens that Relight wrote"):
        Tokens(tokens.path).all()


# --- sessions -------------------------------------------------------------------------------------------------------


async def test_a_session_is_a_cookie_that_scripts_cannot_read(there: Site):
    """It says nothing but its own name, and goes to this site alone."""
    browser = there.client(accept="text/html")
    answer = await browser.post("/sign-in", data={"token": there.token("ada", "viewer"), "next": "/jobs?user=ada"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?user=ada")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= set(cookie.split("; "))
    me = (await browser.get(f"{API}/me")).json()
    assert (me["name"], me["role"], me["way"]) == ("ada", "viewer", "token")
    assert me["csrf"]
    assert cookie.split("=")[1].split(";")[0] not in str(me)


async def test_a_session_ends_when_nobody_clicks_and_after_its_time_in_any_case(there: Site):
    """What a page asks for by itself is no click."""
    browser = await there.signed_in("ada", "viewer")
    for _ in range(3):
        there.clock.move(minutes=9)
        assert (await browser.get(f"{API}/changes?after=0")).status_code == 200
    there.clock.move(minutes=4)
    assert (await browser.get(f"{API}/me")).status_code == 401

    browser = await there.signed_in("bob", "viewer")
    for _ in range(24):
        there.clock.move(minutes=29)
        assert (await browser.get(f"{API}/me")).status_code == 200
    there.clock.move(minutes=29)
    assert (await browser.get(f"{API}/me")).status_code == 401


async def test_an_open_page_learns_that_its_session_is_over(there: Site):
    """By asking, which does not keep it alive."""
    browser, door = await there.signed_in("ada", "viewer"), there.app.state.desk.door
    who = door.of_cookie(browser.cookies["relight"])
    assert door.still(who)
    there.clock.move(minutes=31)
    assert not door.still(who)


@pytest.mark.parametrize("cookie", ["x", "", "é", "A" * 5000])
async def test_a_tampered_cookie_is_nobodys(there: Site, cookie: str):
    """It has no content to forge: another name names nothing."""
    browser = there.client(cookie=f"relight={cookie}".encode())
    assert (await browser.get(f"{API}/me")).status_code == 401


async def test_signing_out_ends_the_session_and_needs_the_pages_own_form(there: Site):
    """A link from elsewhere signs nobody out."""
    browser = await there.signed_in("ada", "viewer")
    csrf = (await browser.get(f"{API}/me")).json()["csrf"]
    kept = browser.cookies["relight"]
    assert (await browser.get("/sign-out")).status_code == 405
    assert (await browser.post("/sign-out", data={"csrf": "wrong"})).status_code == 403
    answer = await browser.post("/sign-out", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert (await there.client(cookie=f"relight={kept}").get(f"{API}/me")).status_code == 401


# --- strangers and other sites --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 303), ("/incidents?open=true", 303), (f"{API}/me", 401), (f"{API}/openapi.json", 401), ("/nothing", 303)],
)
async def test_nothing_is_open_without_signing_in(there: Site, path: str, status: int):
    """Pages lead to the sign-in and back, programs are told; what does not exist is no exception."""
    answer = await there.client(accept="text/html").get(path)
    assert answer.status_code == status
    if status == 303:
        assert answer.headers["location"] == f"/sign-in?next={quote(path, safe='')}"
    assert (await there.client().get("/healthz")).json() == {"ok": True}


def test_every_route_but_the_sign_in_asks_who_it_is(data: Path):
    """A route that is added later is asked for too: the gate knows no list of closed ones."""
    every = (*build(settings_in(data)).routes, *api.routes.routes, *sign_in.routes.routes)
    paths = {route.path for route in every if hasattr(route, "path")}
    assert len(paths) > 15
    assert {path for path in paths if path.startswith(OPEN)} == {
        "/sign-in", "/sign-in/oidc", "/sign-in/callback", "/healthz",
    }  # fmt: skip


@pytest.mark.parametrize("csrf", [None, "", "x", "é"])
async def test_a_session_changes_nothing_without_its_own_word(there: Site, csrf: str | None):
    """What another site made the browser send lacks it."""
    browser = await there.signed_in("ada", "approver")
    headers = {} if csrf is None else {"x-csrf-token": csrf.encode()}
    answer = await browser.post(POST, json=WORD, headers=headers)
    assert (answer.status_code, "X-CSRF-Token" in answer.json()["detail"]) == (403, True)
    good = (await browser.get(f"{API}/me")).json()["csrf"]
    assert (await browser.post(POST, json=WORD, headers={"x-csrf-token": good})).status_code == 404


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({"origin": ROOT}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
    ],
)
async def test_pages_of_other_sites_change_nothing(there: Site, headers: dict[str, str], good: bool):
    """Neither in a session nor by a sign-in that they begin."""
    token = there.token("ada", "viewer")
    answer = await there.client().post("/sign-in", data={"token": token}, headers=headers)
    assert answer.status_code == (303 if good else 403)


@pytest.mark.parametrize(("origin", "opens"), [(ROOT, True), ("https://evil.example", False), ("", False)])
async def test_a_websocket_is_of_this_site_and_of_somebody(there: Site, origin: str, opens: bool):
    """The gate stands before NiceGUI's too: a page elsewhere must not read along by this browser's cookie."""

    @there.app.websocket("/_nicegui_ws/test")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(socket.scope["state"]["identity"].name)
        await socket.close()

    cookie, _ = there.app.state.desk.door._sessions.begin("ada", Role.VIEWER, "token", there.clock())
    client = TestClient(there.app, base_url=ROOT)
    headers = {"host": "127.0.0.1:8470", "cookie": f"relight={cookie}", **({"origin": origin} if origin else {})}
    if opens:
        with client.websocket_connect("/_nicegui_ws/test", headers=headers) as socket:
            assert socket.receive_text() == "ada"
        del headers["cookie"]
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/_nicegui_ws/test", headers=headers):
        pass


@pytest.mark.parametrize(
    ("host", "good"),
    [("127.0.0.1:8470", True), ("localhost:1", True), ("[::1]:8470", True), ("evil.example", False), ("", False)],
)
async def test_another_name_that_leads_here_is_refused(there: Site, host: str, good: bool):
    """So no page elsewhere reaches a loopback console by a name of its own (DNS rebinding)."""
    answer = await there.client().get("/healthz", headers={"host": host})
    assert answer.status_code == (200 if good else 422)


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("/incidents?open=true#x", "/incidents?open=true#x"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("/sign-out", "/"),
        ("", "/"),
        ("/" + "a" * 3000, "/"),
    ],
)
def test_after_signing_in_one_stays_on_this_site(wanted: str, place: str):
    """Whatever a link says."""
    assert own_place(wanted) == place


async def test_what_the_sign_in_page_repeats_is_escaped(there: Site):
    """The place to go back to is anybody's text."""
    answer = await there.client(accept="text/html").get("/sign-in", params={"next": '/"><script>alert(1)</script>'})
    assert answer.status_code == 200
    assert "<script" not in answer.text


@pytest.mark.parametrize("path", ["/sign-in", f"{API}/me", "/healthz", "/nothing"])
async def test_every_answer_carries_the_security_headers(there: Site, path: str):
    """Errors too; nothing is kept by caches on the way."""
    headers = (await there.client().get(path)).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"]
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert (headers["referrer-policy"], headers["cache-control"]) == ("same-origin", "no-store")
    assert "strict-transport-security" not in headers


async def test_with_tls_cookies_are_secure_and_browsers_told_to_stay_with_it(kept: Path, tmp_path: Path):
    """Under a name that browsers keep for this host alone."""
    console = {"url": "https://relight.example", "tokens_file": str(tmp_path / "tokens.json")}
    async with site(settings_in(kept, console=console)) as made:
        there = {"host": "relight.example"}
        answer = await made.client().post("/sign-in", data={"token": made.token("ada", "viewer")}, headers=there)
    assert answer.headers["set-cookie"].startswith("__Host-relight=")
    assert "Secure" in answer.headers["set-cookie"]
    assert "max-age" in answer.headers["strict-transport-security"]


# --- how often ------------------------------------------------------------------------------------------------------


async def test_who_fails_too_often_waits(there: Site):
    """Also with a good token then; others are not held up; a page's form says so as well."""
    good = there.token("ada", "viewer")
    for _ in range(3):
        assert (await there.client(bearer="relight_00000000_x").get(f"{API}/me")).status_code == 401
    answer = await there.client(bearer=good).get(f"{API}/me")
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (429, True)
    form = await there.client().post("/sign-in", data={"token": good})
    assert (form.status_code, "too many sign-ins" in form.text) == (429, True)


def test_a_limit_fills_again_by_time_and_forgets_the_oldest():
    """Each name has its own."""
    time = 0.0
    limit = Limit(2, lambda: time)
    for _ in range(2):
        assert limit.wait("a") == 0
        limit.use("a")
    assert (limit.wait("a"), limit.wait("b")) == (30, 0)
    time = 30.0
    assert limit.wait("a") == 0
    for number in range(10_001):
        limit.use(str(number))
    assert len(limit._buckets) == 10_000


# --- settings -------------------------------------------------------------------------------------------------------


def test_dev_works_on_loopback_only(data: Path):
    """It lets everybody in."""
    with pytest.raises(Stop, match="works on loopback only"):
        build(settings_in(data, console={"listen": "0.0.0.0:8470", "insecure": True}), dev=True)


async def test_with_dev_everybody_is_admin_and_other_sites_still_change_nothing(kept: Path):
    """A page in the same browser reaches loopback as well."""
    async with site(settings_in(kept), dev=True) as made:
        assert (await made.client().get(f"{API}/me")).json()["role"] == "admin"
        answer = await made.client().post(POST, json=WORD, headers={"origin": "https://evil.example"})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{listen: 10.0.0.1:8470}", "without TLS"),
        ("{listen: here}", "must be host:port"),
        ("{tls_cert: a.pem}", "belong together"),
        ("{proxies: [proxy.example]}", "must be an IP address or a network"),
        ("{oidc: {issuer: https://id.example}}", "issuer needs client_id"),
        ("{oidc: {issuer: https://id.example, client_id: x}}", "nobody could sign in"),
        ("{oidc: {issuer: http://id.example, client_id: x, default_role: user}}", "must be https"),
        ("{oidc: {roles: {hpc: boss}}}", "boss"),
        ("{session_idle: 1s}", "session_idle"),
    ],
)
def test_bad_settings_have_one_clear_line(config: Path, written: str, told: str):
    """Which key, what was found, what is accepted."""
    config.write_text(f"{config.read_text()}console: {written}\n")
    with pytest.raises(ConfigError, match=re.escape(told)) as error:
        load(config)
    assert "console" in str(error.value)


def test_the_server_gets_tls_and_believes_listed_proxies_alone(data: Path):
    """And tells neither its name nor addresses, which carry what a provider sends people back with."""
    console = {"listen": "[::]:443", "tls_cert": "c", "tls_key": "k", "proxies": ["10.0.0.0/8"]}
    made = server_options(settings_in(data, console=console))
    assert (made["host"], made["port"], made["ssl_certfile"]) == ("::", 443, "c")
    assert made["forwarded_allow_ips"] == ["10.0.0.0/8"]
    assert (made["access_log"], made["server_header"]) == (False, False)
    assert server_options(settings_in(data))["proxy_headers"] is False


# --- roles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "approve", "rights", "owner", "may"),
    [
        ("user", True, ("restart",), "ada", True),
        ("user", False, ("restart",), "ada", True),
        ("user", True, ("restart", "drain"), "ada", False),
        ("user", True, ("restart",), "bob", False),
        ("user", True, ("restart",), "", False),
        ("viewer", True, ("restart",), "ada", True),
        ("viewer", False, ("drain",), "bob", False),
        ("operator", False, ("drain",), "bob", True),
        ("operator", True, ("restart",), "bob", False),
        ("approver", True, ("drain",), "bob", True),
        ("admin", True, ("down",), "", True),
    ],
)
def test_what_each_role_may_decide(role: str, approve: bool, rights: tuple[str, ...], owner: str, may: bool):
    """Users on restarts of their own jobs, operators may stop Relight, approvers let it act."""
    who = Identity(name="ada", role=role, way="bearer")
    assert (may_not(who, Question(rights, owner, ()), approve=approve) == "") is may
