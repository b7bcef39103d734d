"""Channels in the settings: bad input gets one line that says what is accepted, and secrets stand nowhere."""

import pytest
from pydantic import ValidationError

from relight.config.notify import ChannelSettings, NotifySettings
from relight.config.reading import ConfigError
from relight.config.settings import load
from relight.domain.notices import Severity
from relight.domain.rights import Right

SLACK = {"kind": "slack", "secret_file": "/etc/relight/slack"}
MAIL = {"kind": "email", "host": "mail.example.org", "sender": "relight@example.org", "to": ["ops@example.org"]}
HOOK = {"kind": "webhook", "secret_env": "HOOK_KEY", "url": "https://ops.example.org/relight"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "slack"}, "kind slack needs secret_file or secret_env"),
        ({**SLACK, "secret_env": "X"}, "give one of them"),
        ({**SLACK, "host": "x"}, "host is not for kind slack; it takes buttons, channel, url"),
        ({**SLACK, "secret_file": "", "secret_env": "RELIGHT_X"}, "must not begin with RELIGHT_"),
        ({**SLACK, "about": []}, "at least 1 item"),
        ({**HOOK, "url": ""}, "kind webhook needs url"),
        ({**HOOK, "url": "http://ops.example.org"}, "url must be https"),
        ({**MAIL, "to": []}, "kind email needs to"),
        ({**MAIL, "to": ["a@x.org, b@x.org"]}, "one mail address"),
        ({**MAIL, "sender": "Relight <r@x.org>"}, "one mail address"),
        ({**MAIL, "user": "relight"}, "belong together"),
        ({**MAIL, "tls": "none"}, "tls: none only to this machine"),
        ({**MAIL, "to": ["{user}@example.org"]}, "is for about: [users] alone"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_is_accepted(fields, says):
    """One rule each."""
    with pytest.raises(ValidationError) as refused:
        ChannelSettings(**fields)
    assert says in str(refused.value)


APP = {"signing_secret_file": "/etc/relight/signing", "people": {"U012ABC": "ada"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"slack": {"people": {"U012ABC": "ada"}}}, "people and signing_secret_file"),
        ({"slack": {**APP, "people": {}}}, "people and signing_secret_file"),
        ({"slack": {**APP, "signing_secret_env": "X"}}, "give one of them"),
        ({"slack": {**APP, "people": {"ada": "ada"}}}, "should match pattern"),
        ({"slack": {**APP, "people": {"U012ABC": "ada lovelace"}}}, "should match pattern"),
        ({"slack": {**APP, "may": ["everything"]}}, "'restart', 'stop'"),
        ({"slack": {**APP, "hooks": "http://hooks.example.org"}}, "must be https"),
        ({"channels": {"ops": {**SLACK, "buttons": True}}}, "channels.ops.buttons needs slack: signing_secret_file"),
        ({"channels": {"ops": {**HOOK, "buttons": True}}}, "buttons is not for kind webhook"),
    ],
)
def test_who_may_click_is_written_whole_or_not_at_all(fields, says):
    """An account is named by its id, which nobody chooses; a person by the name on the cluster."""
    with pytest.raises(ValidationError) as refused:
        NotifySettings(**fields)
    assert says in str(refused.value)


def test_a_click_is_trusted_with_restarts_alone_where_nothing_else_is_said():
    """A person in short is an approver; a role can be given."""
    people = {"U012ABC": "ada", "W1XYZ": {"name": "bob", "role": "operator"}}
    app = NotifySettings(slack={**APP, "people": people}, channels={"ops": {**SLACK, "buttons": True}}).slack
    assert (app.may, app.hooks) == ((Right.RESTART,), "https://hooks.slack.com")
    assert [(each.name, each.role) for each in app.people.values()] == [("ada", "approver"), ("bob", "operator")]


def test_a_pager_hears_of_what_matters():
    """Others of everything, where nothing else is said."""
    pager = ChannelSettings(kind="pagerduty", secret_file="x").wishes
    assert (pager.least, pager.alerts) == (Severity.WARNING, True)
    assert ChannelSettings(**SLACK).wishes.least is Severity.INFO


def test_a_misspelt_key_is_told_with_its_file_and_line(tmp_path):
    """And with the nearest there is."""
    file = tmp_path / "relight.yaml"
    file.write_text("notify:\n  channels:\n    ops:\n      kind: slack\n      secret_fil: /etc/x\n")
    with pytest.raises(ConfigError) as refused:
        load(file, environment={})
    first = str(refused.value).splitlines()[0]
    assert first.startswith(f"{file}:5: notify.channels.ops.secret_fil: no such key")
    assert "did you mean secret_file?" in first


@pytest.mark.parametrize("text", ["", "  \n", "two\nlines", "\x00"])
def test_a_secret_that_can_be_none_is_refused(tmp_path, text):
    """Where it should be is said; itself never."""
    file = tmp_path / "secret"
    file.write_text(text)
    with pytest.raises(ConfigError, match="secret_file"):
        ChannelSettings(**{**SLACK, "secret_file": str(file)}).secret()
    with pytest.raises(ConfigError, match="variable HOOK_KEY"):
        ChannelSettings(**HOOK).secret({"HOOK_KEY": text})


def test_a_secret_is_read_as_it_is_now(tmp_path):
    """Renewed without a restart; a missing file is said."""
    file = tmp_path / "secret"
    channel = ChannelSettings(**{**SLACK, "secret_file": str(file)})
    with pytest.raises(ConfigError, match="No such file"):
        channel.secret()
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert channel.secret() == text
    assert ChannelSettings(**HOOK).secret({"HOOK_KEY": "k"}) == "k"
