"""Channels in the settings: bad input gets one line that says what is accepted, and secrets stand nowhere."""

import pytest
from pydantic import ValidationError

from relight.config.notify import ChannelSettings
from relight.config.reading import ConfigError
from relight.config.settings import load
from relight.domain.notices import Severity

SLACK = {"kind": "slack", "secret_file": "/etc/relight/slack"}
MAIL = {"kind": "email", "host": "mail.example.org", "sender": "relight@example.org", "to": ["ops@example.org"]}
HOOK = {"kind": "webhook", "secret_env": "HOOK_KEY", "url": "https://ops.example.org/relight"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "slack"}, "kind slack needs secret_file or secret_env"),
        ({**SLACK, "secret_env": "X"}, "give one of them"),
        ({**SLACK, "host": "x"}, "host is not for kind slack; it takes channel, url"),
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
