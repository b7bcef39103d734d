"""What is wrong with a settings file is told with file, line, field, what was found, and what is accepted."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.config.reading import ConfigError, parse
from relight.config.settings import Settings, load, read_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    """What this shell has set is not part of the tests."""
    for name in [name for name in os.environ if name.startswith("RELIGHT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def said(tmp_path):
    """The lines that are said of a file with this text, the file's name cut off."""

    def problems(text):
        path = tmp_path / "relight.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as error:
            load(path)
        return [line.removeprefix(f"{path}:") for line in str(error.value).splitlines()]

    return problems


RULES = """policy:
  rules:
    - match: {partition: debug}
      set:
        mode: %s
    - match:
        user: alice
      set: {approval_expires: %s}
"""


def test_lines_and_fields_are_those_of_the_file(said):
    """Within rules too."""
    assert said(RULES % ("full", "10")) == [
        "5: policy.rules[0].set.mode: must be 'off', 'monitor', 'approve' or 'auto' (found 'full')",
        (
            "8: policy.rules[1].set.approval_expires: must be a duration with its unit, like 30s, 30m, 2h, 1h30m, "
            "7d or PT30M (found 10)"
        ),
    ]


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("mode: off", "policy.mode: must be 'monitor', 'approve' or 'auto' (found False: YAML reads a bare on, off"),
        ("modes: {drian: off}", "policy.modes.drian: no such detector or action; accepted: crash, hang"),
        ("modes: {drain: yes}", "policy.modes.drain: must be 'off', 'monitor', 'approve' or 'auto' (found True"),
        ("modes: [drain]", "policy.modes: must be a valid dictionary (found ['drain'])"),
        ("drains_per_hour: 1000000000", "policy.drains_per_hour: must be less than or equal to 100 (found 1000000000)"),
        ("drains_per_hour: -1", "policy.drains_per_hour: must be greater than or equal to 0 (found -1)"),
        ("attempts_without_progress: 0", "policy.attempts_without_progress: must be greater than or equal to 1"),
        ("approval_expires: 60d", "policy.approval_expires: must be from 1s to 30d (found '60d')"),
        ("approval_expires: 0s", "policy.approval_expires: must be from 1s to 30d (found '0s')"),
        ("approval_expires: -5m", "policy.approval_expires: must be a duration with its unit"),
        ("progress_within: 150%", "policy.progress_within: must be a duration with its unit"),
        ("hang: {floor: 0s}", "policy.hang.floor: must be from 1s to 30d (found '0s')"),
        ("hang: {steps: -1}", "policy.hang.steps: must be greater than or equal to 0.1 (found -1)"),
        ("hang: {gaps: .inf}", "policy.hang.gaps: must be a finite number (found inf)"),
        ("rules: [{set: {mode: auto}}]", "policy.rules[0].match: is missing"),
        ("rules: [{match: {}, set: {mode: auto}}]", "policy.rules[0].match: must name at least one of cluster"),
        ("rules: [{match: {user: []}, set: {mode: off}}]", "policy.rules[0].match.user: an empty list matches no job"),
        ("rules: [{match: {user: a}, set: {}}]", "policy.rules[0].set: must set at least one of mode, modes"),
        ("rules: [{match: {usr: a}, set: {mode: off}}]", "policy.rules[0].match.usr: no such key; accepted here: acc"),
        ("rules: [{match: {user: a}, set: {hang: {}}}]", "policy.rules[0].set.hang: no such key; accepted here: appr"),
        ("rules: {match: {user: a}}", "policy.rules: must be a valid tuple"),
        ("mod: auto", "policy.mod: no such key; accepted here: approval_expires"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(said, policy, line):
    """Never taken for something else, nor cut to what would be accepted."""
    found = said(f"# a comment\npolicy:\n  {policy}\n")
    assert any(each.startswith(f"3: {line}") for each in found), found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            RULES % ("auto", "5m") + "  partitions: [gpu]\n",
            "3: policy.rules[0]: can never count: only jobs of policy.p",
        ),
        (
            (
                "policy:\n  rules:\n  - {match: {user: '*'}, set: {mode: auto}}\n"
                "  - {match: {user: a}, set: {mode: monitor}}\n"
            ),
            "4: policy.rules[1]: can never count: an earlier rule (user *) takes all its jobs",
        ),
        ("policy:\n  mode: auto\n  mode: monitor\n", "3: policy.mode: stands twice, first on line 2"),
        ("policy:\n  mode: [\n", "3: is not YAML"),
        ("policy: !python/object:os.system x\n", "1: is not YAML"),
    ],
)
def test_contradictions_are_refused(said, text, line):
    """With the line of what can never count."""
    assert said(text)[0].startswith(line)


def test_a_variable_is_named_where_it_is_to_blame(tmp_path, monkeypatch):
    """Not the file, which may say something else."""
    path = tmp_path / "relight.yaml"
    path.write_text("policy: {mode: auto}\n")
    monkeypatch.setenv("RELIGHT_POLICY__MODE", "full")
    with pytest.raises(ConfigError, match=r"^RELIGHT_POLICY__MODE: policy\.mode: must be"):
        load(path)
    assert read_settings(path, parse(path, path.read_text()), variables=False).policy.mode == "auto"


@pytest.mark.parametrize("text", ["{" * 5000, "[" * 100_000, "a: " + "&a [" * 30, "x: 2020-13-45", "a: *b", "\0"])
def test_a_file_of_rubbish_is_survived(tmp_path, text):
    """In one line."""
    path = tmp_path / "relight.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_huge_file_is_not_read(tmp_path):
    """The worker rereads it while it runs."""
    path = tmp_path / "relight.yaml"
    path.write_text("#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(path)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["auto", "5m", "*"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["match", "set", "mode", "modes", "user", "hang", "drain"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)
POLICIES = st.dictionaries(
    st.sampled_from(["mode", "modes", "rules", "approval_expires", "drains_per_hour", "hang", "partitions", "x"]),
    VALUES | st.lists(st.fixed_dictionaries({"match": VALUES, "set": VALUES}), max_size=2),
    max_size=3,
)


@given(POLICIES)
def test_whatever_is_written_is_a_policy_or_refused_with_its_field(tmp_path_factory, policy):
    """Nothing else comes out of it, and what is accepted keeps its bounds."""
    from relight.config.reading import Document

    try:
        found = read_settings(None, Document({"policy": policy}), variables=False).policy
    except ConfigError as error:
        assert all(line.startswith("settings: policy") for line in str(error).splitlines())  # noqa: PT017
        return
    assert 0 <= found.drains_per_hour <= 100
    assert 1 <= found.approval_expires.total_seconds() <= 30 * 86400


def test_the_shipped_defaults_need_no_file():
    """And are those of the models."""
    assert read_settings(None, parse("none", ""), variables=False).model_dump() == Settings().model_dump()
