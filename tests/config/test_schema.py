"""The published JSON schema: what it marks in an editor is what is refused, as far as a schema can tell."""

import re

import pytest

from relight.config.settings import Settings

SCHEMA = Settings.model_json_schema()
PARTS = SCHEMA["$defs"]
POLICY = PARTS["PolicySettings"]["properties"]


def test_every_section_refuses_what_it_does_not_know():
    """A misspelt key is marked."""
    assert SCHEMA["additionalProperties"] is False
    sections = [part for part in PARTS.values() if part["type"] == "object"]
    assert len(sections) > 10
    assert all(section["additionalProperties"] is False for section in sections)


def test_every_setting_is_in_it():
    """With nothing that must be there: all have defaults; but a rule needs both its parts."""
    assert set(SCHEMA["properties"]) == set(Settings.model_fields)
    assert "required" not in SCHEMA
    assert PARTS["Rule"]["required"] == ["match", "set"]


@pytest.mark.parametrize(
    ("text", "good"), [("30m", True), ("1h30m", True), ("PT30M", True), ("30", False), ("x", False)]
)
def test_durations_are_text_with_a_unit(text, good):
    """As the check has it."""
    wait = POLICY["approval_expires"]
    assert wait["type"] == "string"
    assert bool(re.search(wait["pattern"], text)) is good


def test_modes_name_detectors_and_actions():
    """Each of them, and both together; `off` also as YAML 1.1 reads it."""
    names = POLICY["modes"]["propertyNames"]["enum"]
    assert {"hang", "drain", "hang.restart", "numerics.stop"} <= set(names)
    assert len(names) == len(set(names)) == 6 + 4 + 24 + 4
    assert POLICY["modes"]["additionalProperties"]["enum"] == ["off", "monitor", "approve", "auto", False]
