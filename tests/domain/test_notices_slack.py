"""A click in Slack: the proof is Slack's own published one, and the blocks keep to Block Kit's limits."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from relight.domain.notices_slack import MOST_REASON, Interaction, buttons, click_of, reason_field, settled, signature
from relight.domain.notices_slack import unproven as why

# The example of docs.slack.dev, "Verifying requests from Slack".
SECRET, AT = "8f742231b10e8888abcd99yyyzzz85a5", "1531420618"
BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F"
    b"hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015"
    b".47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SIGNED = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
NOW = datetime.fromtimestamp(int(AT), UTC)


def test_the_proof_is_slacks_own():
    """As in its documentation."""
    assert signature(SECRET, AT, BODY) == SIGNED
    assert why(SECRET, AT, SIGNED, BODY, NOW + timedelta(minutes=5)) == ""


@pytest.mark.parametrize(
    ("at", "said", "late"),
    [(AT, SIGNED, 301), (AT, SIGNED, -301), (AT, SIGNED.upper(), 0), ("", SIGNED, 0), (AT, "", 0), ("é", "é", 0)],
)
def test_what_is_not_proven_has_a_reason(at, said, late):
    """Whatever was sent; also headers that are no ASCII."""
    assert why(SECRET, at, said, BODY, NOW + timedelta(seconds=late))


def test_a_time_that_is_none_is_late():
    """However well it is signed."""
    for at in ("1531420618.0", "-1", "9" * 40):
        assert why(SECRET, at, signature(SECRET, at, BODY), BODY, NOW)


def test_blocks_keep_to_block_kits_limits():
    """Of buttons (75, 255, 2000), confirmations (100, 300, 30), inputs (2000, 3000), whatever the plan is called."""
    for button in buttons("i" * 200, "a" * 64, "requeue " * 200):
        assert len(button["text"]["text"]) <= 75
        assert (len(button["action_id"]) <= 255, len(button["value"]) <= 2000) == (True, True)
        asks = button["confirm"]
        assert [len(asks[key]["text"]) <= most for key, most in (("title", 100), ("text", 300), ("deny", 30))] == [
            True
        ] * 3
        assert asks["text"]["text"].endswith("(plan aaaaaaaa)")
    assert len(reason_field()["block_id"]) <= 255
    assert reason_field()["element"]["max_length"] <= 3000


def test_a_click_says_which_plan_and_a_reason_of_one_bounded_line():
    """A double click is the same word; another reason, plan or person is another."""
    button = buttons("i0123456789", "b" * 64, "requeue")[1]
    said = {"type": "block_actions", "user": {"id": "U1"}, "actions": [button]}
    field = {"relight_reason": {"relight_reason": {"type": "plain_text_input", "value": "a\nb\x1b" * 400}}}
    click = click_of(Interaction.model_validate({**said, "state": {"values": field}}))
    assert click is not None
    assert (click.account, click.approve, click.subject, click.digest) == ("U1", False, "i0123456789", "b" * 64)
    assert (click.reason[:3], len(click.reason)) == ("a b", MOST_REASON)
    again = click_of(Interaction.model_validate({**said, "state": {"values": field}}))
    others = [click._replace(**change) for change in ({"account": "U2"}, {"reason": ""}, {"digest": "c" * 64})]
    assert (again.once == click.once, len({click.once, *(each.once for each in others)})) == (True, 4)


@pytest.mark.parametrize(
    "change",
    [{"actions": []}, {"user": None}, {"actions": [{"action_id": "relight_open", "value": "x"}]},
     {"actions": [{"action_id": "relight_approve", "value": "i1 " + "g" * 64}]},
     {"actions": [{"action_id": "relight_reject", "value": "node/n1 " + "a" * 64}]}],
)  # fmt: skip
def test_what_decides_nothing_is_no_click(change):
    """A link, another app's button, a value that is none of ours."""
    given = {"type": "block_actions", "user": {"id": "U1"}, "actions": buttons("i1", "a" * 64, "x")[:1]}
    assert click_of(Interaction.model_validate(given)) is not None
    assert click_of(Interaction.model_validate({**given, **change})) is None


def test_a_settled_message_keeps_what_it_told_and_its_link():
    """Nothing that decides is left, and it is no longer than Slack takes."""
    link = {"type": "button", "url": "https://r.example/incidents/i1", "action_id": "relight_open"}
    blocks = [
        {"type": "header"},
        reason_field(),
        {"type": "actions", "elements": [*buttons("i1", "a" * 64, "x"), link]},
    ]
    message = Interaction.model_validate({"type": "x", "message": {"text": "t", "blocks": blocks * 60}}).message
    told = settled(message, "Approved by ada")
    assert len(told["blocks"]) == 50
    assert told["blocks"][:2] == [{"type": "header"}, {"type": "actions", "elements": [link]}]
    assert "relight_approve" not in json.dumps(told)
