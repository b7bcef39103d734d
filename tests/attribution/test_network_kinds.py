"""Kinds of network, rendezvous and launch with their echoes: what is the cause, and what a healthy log may say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from relight.attribution.catalogue import Role, load
from relight.attribution.catalogue_check import recognised
from relight.attribution.scanner import Scanner

DATA = yaml.safe_load((Path(__file__).parent / "network_kinds.yaml").read_text("utf-8"))


def lines_of(log: str) -> Iterator[str]:
    """The lines of a log, with the blocks that stand for several put in."""
    for line in log.splitlines():
        yield from lines_of(DATA["blocks"][line[1:]]) if line.startswith("+") else [line]


@pytest.mark.parametrize("kind", DATA["kinds"])
def test_kind_with_its_echoes(verdict_of, kind):
    """The cause is found among what comes with it: category and first action."""
    verdict = verdict_of(*lines_of(DATA["kinds"][kind]["log"]))
    assert f"{verdict.category} {verdict.action}" == DATA["kinds"][kind]["means"], verdict.signature


def test_healthy_starts_and_ends_show_no_cause():
    """Retries, fallbacks and notices of healthy runs are nobody's failure."""
    known = load()
    causes = {one.id for one in known.signatures.values() if one.role is not Role.CONTEXT}
    scanner = Scanner(known)
    said = {line: found for line in DATA["healthy"].splitlines() if (found := causes & recognised(scanner, line))}
    assert said == {}


def test_peer_that_refuses_is_named(verdict_of):
    """The address that could not be reached is the suspect, not the node that says so."""
    refused = "n1:10:12 [0] NCCL WARN socketStartConnect: Connect to n9<4000> failed : Connection refused"
    verdict = verdict_of(*lines_of(f"+steps\n{refused}\n+system\n+watchdog"))
    assert verdict.implicated.nodes == ("n9",)


def test_agent_without_heartbeat_is_named(verdict_of):
    """torchelastic names the node whose agent fell silent."""
    lost = "As part of the sync operation the node(s) 'n7_1042_0' have been removed from the rendezvous '7' since"
    verdict = verdict_of(*lines_of(f"+steps\n{lost} they had no heartbeat.\n+elastic"))
    assert (verdict.signature, verdict.implicated.nodes) == ("AGENT_LOST", ("n7",))
