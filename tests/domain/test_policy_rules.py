"""Rules of policy: which jobs they fit, what counts where several do, and which can never count."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relight.domain.evidence import Interruption
from relight.domain.permits import WHAT, Act, Permit, Policy
from relight.domain.plan import Mode
from relight.domain.policy_rules import Match, Rule, SitePolicy, contradictions, in_force, version_of


def policy(*rules, **fields):
    """A site's policy; rules as (match, set)."""
    return SitePolicy(rules=[{"match": match, "set": what} for match, what in rules], **fields)


def permit(found, what):
    """How far it goes with one action, such as `hang.restart`."""
    kind, act = what.split(".")
    return str(found.permit(Interruption(kind), Act(act)))


@pytest.fixture(scope="session")
def held(record):
    """The policy in force for a job of the partition gpu, or of other fields."""
    return lambda site, **fields: in_force(site, "main", record(**{"account": "ml", **fields}))


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({"partition": "gpu"}, True),
        ({"partition": "g*"}, True),
        ({"partition": ["cpu", "gp?"]}, True),
        ({"partition": "GPU"}, False),
        ({"partition": "gp"}, False),
        ({"cluster": "main", "partition": "gpu", "account": "ml", "user": "alice", "name": "train"}, True),
        ({"cluster": "main", "user": "bob"}, False),
        ({"cluster": "east*"}, False),
        ({"name": "[st]rain"}, True),
    ],
)
def test_a_rule_fits_the_jobs_that_fit_all_its_keys(record, match, fits):
    """Names or shell patterns, one or a list."""
    assert Match(**match).fits("main", record(account="ml")) is fits


def test_the_first_rule_that_says_something_counts_key_by_key(held):
    """What it leaves out the next says, and last the flat keys."""
    site = policy(
        ({"user": "alice"}, {"approval_expires": "5m"}),
        ({"partition": "gpu"}, {"approval_expires": "6m", "attempts_without_progress": 7}),
        ({"partition": "cpu"}, {"progress_within": "1m"}),
        mode="auto",
    )
    found = held(site)
    assert found.policy.approval_expires == timedelta(minutes=5)
    assert found.policy.attempts_without_progress == 7
    assert found.policy.progress_within == Policy().progress_within
    assert found.policy.mode is Mode.AUTO
    assert found.rules == ("user alice", "partition gpu")


@pytest.mark.parametrize(
    ("modes", "what", "expected"),
    [
        ({}, "hang.restart", "auto"),
        ({"hang": "approve"}, "hang.restart", "approve"),
        ({"hang": "approve"}, "crash.restart", "auto"),
        ({"restart": "monitor"}, "hang.restart", "monitor"),
        ({"hang": "approve", "restart": "monitor"}, "hang.restart", "monitor"),
        ({"hang": "off", "hang.restart": "auto"}, "hang.restart", "auto"),
        ({"hang": "off", "hang.restart": "auto"}, "hang.drain", "off"),
    ],
)
def test_the_most_exact_entry_counts(modes, what, expected):
    """Detector and action together, then the lower of both, then the mode."""
    assert permit(Policy(mode=Mode.AUTO, modes=modes), what) == expected


def test_a_rules_mode_hides_what_later_layers_allow(held):
    """Who sets a partition to monitor need not know what else is auto for everybody."""
    site = policy(({"partition": "gpu"}, {"mode": "monitor"}), mode="approve", modes={"crash.restart": "auto"})
    assert permit(held(site).policy, "crash.restart") == "monitor"
    assert permit(held(site, partition="cpu").policy, "crash.restart") == "auto"


def test_a_rules_own_entries_count_before_its_mode(held):
    """And what it does not name is as its mode says."""
    site = policy(({"partition": "gpu"}, {"mode": "off", "modes": {"crash": "auto"}}), mode="approve")
    found = held(site).policy
    assert [permit(found, f"{kind}.restart") for kind in ("crash", "hang")] == ["auto", "off"]
    assert found.mode is Mode.MONITOR


def test_a_policy_without_rules_is_in_force_as_it_is(held):
    """Flat keys alone, as ever."""
    assert held(Policy(mode=Mode.AUTO)).policy == Policy(mode=Mode.AUTO)


def test_the_version_names_what_is_said():
    """Not how it is written; and every difference has another."""
    site = policy(({"partition": "gpu"}, {"approval_expires": "1h"}))
    assert version_of(site) == version_of(policy(({"partition": ["gpu"]}, {"approval_expires": "PT60M"})))
    others = [policy(), policy(({"partition": "gpu"}, {"approval_expires": "2h"})), policy(modes={"drain": "off"})]
    assert len({version_of(each) for each in (site, *others)}) == 4


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        ([({"partition": "*"}, {"mode": "auto"}), ({"partition": "gpu"}, {"mode": "monitor"})], [1]),
        ([({"user": "a*"}, {"mode": "auto"}), ({"user": ["alice", "ada*"]}, {"mode": "off"})], [1]),
        ([({"user": "a*"}, {"mode": "auto"}), ({"user": "alice"}, {"modes": {"drain": "off"}})], [1]),
        ([({"user": "a*"}, {"modes": {"drain": "off"}}), ({"user": "alice"}, {"mode": "auto"})], []),
        ([({"user": "a*"}, {"mode": "auto"}), ({"user": "alice"}, {"mode": "off", "progress_within": "1h"})], []),
        ([({"user": "a*"}, {"mode": "auto"}), ({"user": ["alice", "bob"]}, {"mode": "off"})], []),
        ([({"user": "a*", "partition": "x"}, {"mode": "auto"}), ({"user": "alice"}, {"mode": "off"})], []),
        ([({"user": "a*b"}, {"mode": "auto"}), ({"user": "a*"}, {"mode": "off"})], []),
        (
            [
                ({"user": "*"}, {"mode": "auto"}),
                ({"account": "*"}, {"approval_expires": "1h"}),
                ({"user": "bob", "account": "ml"}, {"mode": "off", "approval_expires": "2h"}),
            ],
            [2],
        ),
    ],
)
def test_a_rule_whose_jobs_are_all_taken_is_found(rules, wrong):
    """Where earlier rules fit all its jobs and say all that it says; not where that is uncertain."""
    assert [found.rule for found in contradictions(policy(*rules))] == wrong


def test_a_rule_for_what_is_not_looked_after_is_found():
    """Of another partition than those in `partitions`."""
    rules = [({"partition": "cpu*"}, {"mode": "auto"}), ({"partition": "g*"}, {"mode": "auto"})]
    (found,) = contradictions(policy(*rules, partitions=["gpu"]))
    assert found.rule == 0
    assert "policy.partitions (gpu)" in found.text


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        ({"match": {}, "set": {"mode": "auto"}}, ("match",)),
        ({"match": {"partition": []}, "set": {"mode": "auto"}}, ("match", "partition")),
        ({"match": {"partition": ""}, "set": {"mode": "auto"}}, ("match", "partition")),
        ({"match": {"partition": "a\nb"}, "set": {"mode": "auto"}}, ("match", "partition")),
        ({"match": {"partition": ["x"] * 101}, "set": {"mode": "auto"}}, ("match", "partition")),
        ({"match": {"partition": 3}, "set": {"mode": "auto"}}, ("match", "partition")),
        ({"match": {"node": "n1"}, "set": {"mode": "auto"}}, ("match", "node")),
        ({"match": {"partition": "x"}, "set": {}}, ("set",)),
        ({"match": {"partition": "x"}}, ("set",)),
        ({"match": {"partition": "x"}, "set": {"drains_per_hour": 5}}, ("set", "drains_per_hour")),
        ({"match": {"partition": "x"}, "set": {"mode": "full"}}, ("set", "mode")),
        ({"match": {"partition": "x"}, "set": {"mode": True}}, ("set", "mode")),
        ({"match": {"partition": "x"}, "set": {"modes": {"hnag": "off"}}}, ("set", "modes", "hnag", "[key]")),
        ({"match": {"partition": "x"}, "set": {"modes": {"hang": "full"}}}, ("set", "modes", "hang")),
        ({"match": {"partition": "x"}, "set": {"approval_expires": "-5m"}}, ("set", "approval_expires")),
        ({"match": {"partition": "x"}, "set": {"approval_expires": 10**9}}, ("set", "approval_expires")),
        ({"match": {"partition": "x"}, "set": {"attempts_without_progress": -1}}, ("set", "attempts_without_progress")),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_field(rule, where):
    """No rule is ever taken for "all jobs" or for nothing."""
    with pytest.raises(ValidationError) as refused:
        Rule(**rule)
    assert [error["loc"] for error in refused.value.errors()] == [where]


PERMITS = st.sampled_from(list(Permit))
MODES = st.dictionaries(st.sampled_from(WHAT), PERMITS, max_size=4)
MATCHES = st.dictionaries(
    st.sampled_from(["cluster", "partition", "account", "user", "name"]),
    st.sampled_from(["*", "main", "gpu", "g*", "alice", "al*", "bob", "ml"]),
    min_size=1,
    max_size=3,
)
CHANGES = st.fixed_dictionaries({}, optional={"mode": PERMITS, "modes": MODES}).filter(lambda c: any(c.values()))
SITES = st.builds(
    lambda rules, mode, modes: policy(*rules, mode=mode, modes=modes),
    st.lists(st.tuples(MATCHES, CHANGES), max_size=5),
    st.sampled_from(list(Mode)),
    MODES,
)
JOBS = st.fixed_dictionaries(
    {
        "partition": st.sampled_from(["gpu", "cpu", ""]),
        "user": st.sampled_from(["alice", "bob"]),
        "account": st.sampled_from(["ml", ""]),
    }
)


@given(SITES, JOBS)
def test_a_job_is_allowed_no_more_than_somebody_wrote(record, site, job):
    """For each detector and action: what one rule that fits, or the flat keys, say; never above the ceiling."""
    found = in_force(site, "main", record(**job))
    written = {Permit(site.mode), *site.modes.values()}
    for rule in site.rules:
        if rule.match.fits("main", record(**job)):
            written |= {rule.set.mode, *rule.set.modes.values()} - {None}
    permits = {found.policy.permit(kind, act) for kind in Interruption for act in Act}
    assert permits <= written
    power = list(Permit)
    assert all(power.index(each) <= power.index(Permit(site.ceiling)) for each in permits - {Permit.OFF})


@given(SITES, JOBS)
def test_a_rule_that_can_never_count_changes_nothing(record, site, job):
    """What is called a contradiction is one."""
    wrong = {found.rule for found in contradictions(site)}
    rules = tuple(rule for number, rule in enumerate(site.rules) if number not in wrong)
    without = site.model_copy(update={"rules": rules})
    one, other = (in_force(each, "main", record(**job)).policy for each in (site, without))
    assert one == other
