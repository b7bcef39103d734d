"""Who may approve, as written in the file: people's own SSH public keys."""

import pytest

from relight.config.origins import notes
from relight.config.settings import ConfigError, Settings, load
from relight.domain.rights import Right

KEYS = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOOpHHRjjPzerSRq6uUgnLAwE2FMV/MCd0VwGky6dQWo",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG1hbGxvcnkgICAgICAgICAgICAgICAgICAgICAgICAg",
]


def written(tmp_path, text):
    path = tmp_path / "relight.yaml"
    path.write_text(text)
    return load(path, environment={})


def test_people_with_their_keys(tmp_path):
    """One person may have several; what is left out is allowed."""
    people = written(
        tmp_path,
        f"""
approvals:
  approvers:
    - {{name: ada, key: "{KEYS[0]} ada@laptop"}}
    - {{name: ada, key: "{KEYS[1]}", may: [restart, stop]}}
""",
    ).approvals.people
    assert [(p.name, p.key, len(p.may)) for p in people] == [("ada", KEYS[0], len(Right)), ("ada", KEYS[1], 2)]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "{name: ada, key: ssh-rsa AAAA}",
            "approvals.approvers[0].key: a key of type 'ssh-rsa'; accepted: ssh-ed25519",
        ),
        ("{name: ada, key: garbage}", "approvals.approvers[0].key: "),
        ("{name: ada}", "approvals.approvers[0].key: "),
        ("{name: -rf, key: KEY}", "approvals.approvers[0].name: "),
        ("{name: ada, key: KEY, may: []}", "an empty list allows nothing; leave the key out to allow everything"),
        ("{name: ada, key: KEY, may: [rm]}", "approvals.approvers[0].may[0]: "),
        ("{name: ada, key: KEY, right: all}", "approvals.approvers[0].right: no such key"),
        ("{name: ada, key: KEY}\n    - {name: bob, key: KEY}", "is listed more than once (ada, bob)"),
    ],
)
def test_what_is_not_accepted_is_said_with_its_place(tmp_path, entry, said):
    """File, line and field."""
    text = f"approvals:\n  approvers:\n    - {entry.replace('KEY', KEYS[0])}\n"
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, text)
    assert said in str(refused.value)
    assert "relight.yaml:" in str(refused.value)


@pytest.mark.parametrize("count", ["0", "-1", "11", "many"])
def test_numbers_of_approvers_are_sane(tmp_path, count):
    """None would be no approval, and there is a mode for that."""
    with pytest.raises(ConfigError, match=r"policy\.approvers\.drain: "):
        written(tmp_path, f"policy: {{approvers: {{drain: {count}}}}}\n")


def test_a_rule_may_ask_for_more_and_leaves_the_rest_as_it_is(tmp_path):
    """Action by action."""
    from relight.domain.policy_rules import in_force
    from relight.domain.slurm import JobRecord, JobState

    settings = written(
        tmp_path,
        "policy: {approvers: {restart: 2}, rules: [{match: {partition: big}, set: {approvers: {drain: 3}}}]}\n",
    )
    at = "2026-11-30T09:00:00Z"
    for partition, wanted in (("big", (2, 3)), ("small", (2, 1))):
        job = JobRecord(job_id=7, state=JobState.RUNNING, submit_time=at, partition=partition)
        policy = in_force(settings.policy, "main", job).policy
        assert (policy.approvers_needed(["restart"]), policy.approvers_needed(["drain"])) == wanted


def test_what_too_few_people_may_approve_is_warned_of():
    """Not where nobody is listed and nothing was said of it: two for a reboot is the default."""
    assert list(notes(Settings())) == []
    alone = Settings(approvals={"approvers": [{"name": "ada", "key": KEYS[0]}]})
    assert {note.place[-1] for note in notes(alone)} == {"down", "reboot", "replace", "rollback"}
    (note,) = notes(Settings(policy={"approvers": {"drain": 2}}))
    assert (note.place, "2 people must approve, and only 1 may" in note.text) == (
        ("policy", "approvers", "drain"),
        True,
    )
