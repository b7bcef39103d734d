"""No cause is seen in a healthy log."""

import pytest

from relight.attribution.catalogue import Role, load
from relight.attribution.catalogue_check import healthy_lines, recognised
from relight.attribution.scanner import Scanner


@pytest.mark.parametrize("fast", [True, False], ids=["hyperscan", "re"])
def test_healthy_lines_show_no_cause(fast):
    """Lines of healthy logs with frightening words: no root, no wrapper and no cascade recognises one."""
    known = load()
    causes = {one.id for one in known.signatures.values() if one.role is not Role.CONTEXT}
    scanner = Scanner(known, fast=fast)
    said = {line: found for line in healthy_lines() if (found := causes & recognised(scanner, line))}
    assert said == {}
    assert len(healthy_lines()) > 70
