"""The guard's keys as a person writes them: percentages with their sign, durations with their unit, nothing absurd."""

from pathlib import Path

import pytest

from relight.config.reading import ConfigError
from relight.config.settings import load
from relight.domain.human import Share, share
from relight.domain.policy import Policy
from relight.domain.policy_rules import version_of


def written(tmp_path: Path, policy: str) -> Path:
    path = tmp_path / "relight.yaml"
    path.write_text(f"policy:\n  {policy}\n")
    return path


def test_keys_of_the_guard(tmp_path: Path):
    """Read, and the same after a journey as JSON: policies travel with each decision."""
    policy = load(
        written(tmp_path, "{drain_share: 12.5%, most_unavailable: 20 %, breaker: {jobs: 9, within: 5m}}")
    ).policy
    assert (policy.drain_share, str(policy.drain_share)) == (Share(0.125), "12.5%")
    assert (policy.most_unavailable, policy.breaker.jobs, policy.breaker.nodes) == (Share(0.2), 9, 3)
    travelled = Policy.model_validate_json(policy.model_dump_json())
    assert travelled.drain_share == policy.drain_share
    assert version_of(travelled) == version_of(Policy.model_validate(policy.model_dump()))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("drain_share: 5", ("drain_share", "must be a percentage above 0% and up to 100%, like 5% or 12.5%")),
        ("drain_share: 0.05", ("drain_share", "percentage")),
        ("drain_share: 0%", ("drain_share", "percentage")),
        ("drain_share: -5%", ("drain_share", "percentage")),
        ("most_unavailable: 101%", ("most_unavailable", "percentage")),
        ("most_unavailable: [5%]", ("most_unavailable", "percentage")),
        ("drains_per_domain: 0", ("drains_per_domain", "1")),
        ("cool_down: 6", ("cool_down", "duration with its unit")),
        ("breaker: {nodes: 1}", ("breaker.nodes", "2")),
        ("breaker: {within: 0s}", ("breaker.within", "from 1s to 30d")),
        ("breaker: {job: 3}", ("breaker.job", "no such key")),
    ],
)
def test_what_is_not_accepted(tmp_path: Path, policy: str, words: tuple[str, ...]):
    """One line with the field and what is accepted."""
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, policy))
    for each in words:
        assert each in str(error.value)


def test_the_kill_switch_is_in_the_data_folder_unless_named(tmp_path: Path):
    """It does not depend on the policy."""
    path = tmp_path / "relight.yaml"
    path.write_text(f"data: {tmp_path}/data\n")
    assert load(path).kill_file == tmp_path / "data" / "KILL"
    path.write_text(f"kill_switch: {tmp_path}/stop\n")
    assert load(path).kill_file == tmp_path / "stop"


@pytest.mark.parametrize("text", ["100%", "0.01%", " 15 % "])
def test_percentages_are_printed_as_they_are_written(text: str):
    """And read again the same."""
    assert share(str(share(text))) == share(text)
