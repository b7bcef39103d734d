"""The examples that people copy."""

from pathlib import Path

from relight.config.settings import load
from relight.domain.plan import Mode
from relight.domain.wishes import wishes

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_settings_load_and_only_watch():
    """Whoever copies the example starts in monitor mode."""
    settings = load(EXAMPLES / "relight.yaml", environment={})
    assert settings.policy.mode is Mode.MONITOR
    assert settings.policy.partitions == ("train",)


def test_the_comment_of_the_example_job_is_understood():
    """It lowers the job's mode, as the example says."""
    lines = (EXAMPLES / "train.sbatch").read_text().splitlines()
    comment = next(line.partition("--comment=")[2] for line in lines if "--comment=" in line)
    assert wishes(comment).mode is Mode.APPROVE
