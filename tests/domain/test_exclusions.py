"""Exclusions: whose they are, how long they last, and which go first where too few nodes are left."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relight.domain.diagnosis import Action
from relight.domain.exclusions import Exclusion, Look, Proof, by_proof, choose, in_the_way, ours, shown, standing
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Policy, decide
from relight.domain.slurm import NodeFlag

AUTO = Policy(mode=Mode.AUTO)
DAY = timedelta(days=1)
NAMES = [f"n{number}" for number in range(1, 7)]
SETS = st.frozensets(st.sampled_from(NAMES))


@pytest.fixture(scope="session")
def excluded(now):
    """An exclusion of a node, made so many hours before the situation's now, for a day where not said."""

    def make(node, hours=1, proof=Proof.JOB, lasts=DAY, incident="i0"):
        since = now + timedelta(minutes=10) - timedelta(hours=hours)
        return Exclusion(node=node, incident=incident, since=since, until=since + lasts, proof=proof)

    return make


class Record:
    """A job's list in Slurm, what Relight writes down when it changes it or sees an attempt; people leave nothing."""

    def __init__(self, key, now, first, cluster="main"):
        self.key, self.now, self.cluster = key, now, cluster
        self.listed = set(first)
        self.rows = []
        self.looks = []
        self.run()

    def run(self):
        """An attempt turns RUNNING."""
        self.now += timedelta(minutes=1)
        self.looks.append(Look(self.now, self.key.job_id, frozenset(self.listed)))

    def ours(self, cluster="main"):
        """What Relight takes for its own."""
        return ours(self.rows, cluster, self.looks)

    def write(self, verb, nodes, *, until=None, effect=True):
        """Relight adds nodes or takes them out."""
        wanted = self.listed | nodes if verb == "exclude" else self.listed - nodes
        changed, self.listed = wanted ^ self.listed, wanted
        step = f"w/r/{len(self.rows)}"
        if changed:
            body = {"what": verb, "nodes": sorted(changed)}
            self._row(f"{step}/intent", RowKind.INTENT, body | ({"until": until} if until else {}))
        if effect:
            self._row(f"{step}/effect", RowKind.EFFECT, {"done": {"text": shown(self.listed)}})

    def _row(self, name, kind, body):
        seq = len(self.rows) + 1
        self.now += timedelta(minutes=1)
        given = {"cluster": self.cluster, "incident": "i0", "attempt": str(self.key), "prev_hash": "", "hash": ""}
        self.rows.append(Row(id=name, kind=kind, at=self.now, body=body, seq=seq, **given))


@pytest.fixture(scope="session")
def listing(attempt, now):
    """A job whose first attempt excluded these."""
    return lambda *first, **fields: Record(attempt().key, now, first, **fields)


# --- whose they are ---

DEEDS = st.lists(st.tuples(st.sampled_from(["exclude", "allow", "user adds", "user takes", "runs"]), SETS), max_size=20)


ONE, TWO = frozenset({"n1"}), frozenset({"n2"})


@given(first=SETS, deeds=DEEDS)
@example(first=ONE, deeds=[("exclude", ONE | TWO), ("allow", ONE | TWO)])
@example(first=TWO, deeds=[("exclude", ONE), ("user takes", ONE), ("exclude", TWO), ("user adds", ONE), ("allow", ONE)])
@example(first=TWO, deeds=[("exclude", ONE), ("user takes", ONE), ("runs", ONE), ("user adds", ONE), ("allow", ONE)])
def test_a_users_own_node_is_never_taken_back(listing, first, deeds):
    """Whatever people and Relight do in turn: ours is what we added to a list that lacked it, and nobody took out.

    What a person does and undoes between two of Relight's looks is no change to anybody.
    """
    job, mine = listing(*first), set()
    for deed, nodes in deeds:
        users = job.listed - mine
        if deed == "exclude":
            mine = (mine & job.listed) | (nodes - job.listed - first)
            job.write("exclude", set(nodes))
        elif deed == "allow":
            job.write("allow", set(nodes) & set(job.ours()))
            mine &= job.listed
            assert users <= job.listed
        elif deed == "user adds":
            job.listed |= nodes
        elif deed == "user takes":
            job.listed -= nodes
        else:
            job.run()
            mine &= job.listed
        known = standing(job.ours(), (), job.listed, 7, DAY)
        assert {e.node for e in known} == mine & job.listed


def test_what_we_take_back_leaves_the_users_own(listing):
    """The first attempt's list, and what the user had added before we asked for the same node."""
    job = listing("n1")
    job.listed |= {"n2"}
    job.write("exclude", {"n1", "n2", "n3"})
    assert set(job.ours()) == {"n3"}


def test_what_was_meant_and_not_read_back_is_not_claimed(listing):
    """Somebody else may have put it there."""
    job = listing()
    job.write("exclude", {"n1"}, effect=False)
    assert job.ours() == {}


def test_an_exclusion_of_another_cluster_says_nothing_here(listing):
    """A node of the same name is another node."""
    job = listing(cluster="east")
    job.write("exclude", {"n1"})
    assert job.ours() == {}
    assert set(job.ours("east")) == {"n1"}


def test_what_a_person_took_out_stays_out(listing):
    """Slurm keeps the list over requeues: what is gone was taken out; under another job id of the work it is new."""
    job = listing()
    job.write("exclude", {"n1", "n2"})
    marked = job.ours()
    assert {e.node for e in standing(marked, (), {"n2"}, 7, DAY)} == {"n2"}
    assert {e.node for e in standing(marked, (), (), 8, DAY)} == {"n1", "n2"}


def test_an_exclusion_says_itself_when_it_ends(listing, now):
    """What an older version wrote lasts as long as the policy says now."""
    job = listing()
    job.write("exclude", {"n1"}, until={"n1": (now + timedelta(hours=3)).isoformat()})
    job.write("exclude", {"n2"})
    known = {e.node: e for e in standing(job.ours(), (), job.listed, 7, DAY)}
    assert known["n1"].until == now + timedelta(hours=3)
    assert known["n2"].until == known["n2"].since + DAY


def test_what_speaks_against_a_node_is_found_in_the_jobs_incidents(listing, incident, diagnosis):
    """A platform witness, more than one incident, or one alone."""
    job = listing()
    job.write("exclude", {"n1", "n2", "n3"})
    own = incident(id="i0", diagnosis=diagnosis(nodes=("n1", "n2", "n3"), drain_nodes=("n1",)))
    other = incident(id="i1", diagnosis=diagnosis(nodes=("n2",)))
    known = standing(job.ours(), (other, own), job.listed, 7, DAY)
    assert [(e.node, e.proof) for e in known] == [("n1", Proof.PLATFORM), ("n2", Proof.REPEATED), ("n3", Proof.JOB)]


# --- order ---


def test_the_least_proven_and_oldest_come_last(excluded):
    """From the end they are taken back; among equals the worse node by its history stays longer."""
    given = [
        excluded("n1", 9),
        excluded("n2", 2),
        excluded("n3", 30, Proof.PLATFORM),
        excluded("n4", 20, Proof.REPEATED),
    ]
    assert [e.node for e in by_proof(given)] == ["n3", "n4", "n2", "n1"]
    assert [e.node for e in by_proof(given, {"n1": 4.0})] == ["n3", "n4", "n1", "n2"]


# --- what to do about it ---

EXCLUSIONS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 60), st.sampled_from(list(Proof))), unique_by=lambda e: e[0]
)


@given(proposed=EXCLUSIONS, known=EXCLUSIONS, usable=SETS, needed=st.integers(0, 6))
def test_enough_nodes_are_left_and_expired_ones_go(excluded, situation, proposed, *, known, usable, needed):
    """Whatever is proposed and known: an expired one is taken back unless it is proposed anew, and none of the user's.

    Nothing better proven is given up before something worse.
    """
    now = situation().now
    new = [excluded(node, 0, proof, incident="") for node, _, proof in proposed]
    old = [excluded(node, hours, proof) for node, hours, proof in known]
    found = choose(new, old, now, usable=usable, needed=needed)
    kept = [e.node for e in found.exclude]
    valid = [e for e in old if e.until > now]
    assert set(found.allow) == {e.node for e in old} - set(kept)
    assert {e.node for e in old if e.until <= now} - {e.node for e in new} <= set(found.allow)
    if len(usable) < needed:
        assert set(kept) == {e.node for e in valid}, "it waits for other nodes: what holds stays, and nothing is added"
        return
    assert len(set(usable) - set(kept)) >= needed
    strength = list(Proof).index
    best = {e.node: min(strength(o.proof) for o in (*new, *valid) if o.node == e.node) for e in (*new, *valid)}
    dropped = [rank for node, rank in best.items() if node not in kept]
    assert all(best[node] <= min(dropped, default=9) for node in kept)
    assert bool(found.remark) is bool(dropped or found.allow)


def test_what_still_holds_is_not_written_again(situation, diagnosis, record, attempt, excluded):
    """Slurm keeps it over the requeue: the plan adds only what is new, and says what stays."""
    own = attempt(excluded_nodes=("n3",))
    suspect = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",))
    nodes = situation().nodes + tuple(n.model_copy(update={"name": f"m{n.name}"}) for n in situation().nodes)
    here = situation(attempt=own, exclusions=(excluded("n3"),), nodes=nodes)
    verdict = decide(here, suspect, AUTO)
    assert verdict.plan.exclude == ("n2",)
    assert [e.node for e in verdict.exclusions] == ["n2", "n3"]
    assert verdict.exclusions[0].until == here.now + AUTO.exclusions_expire
    assert (verdict.allow, "n3 stays excluded" in verdict.plan.reason) == ((), True)


def test_an_expired_one_is_taken_back_at_the_next_restart(situation, diagnosis, attempt, excluded):
    """Also where nothing new is excluded; where there is no restart, nothing is changed."""
    own = attempt(excluded_nodes=("n3", "n4"))
    here = situation(attempt=own, exclusions=(excluded("n3", hours=25),))
    verdict = decide(here, diagnosis(), AUTO)
    assert (verdict.allow, verdict.plan.exclude, verdict.exclusions) == (("n3",), (), ())
    assert "n3 allowed again: the exclusion has expired" in verdict.plan.reason
    assert decide(here, diagnosis(action=Action.STOP), AUTO).allow == ()


def test_an_older_one_goes_before_a_proven_one(situation, diagnosis, attempt, excluded):
    """Three nodes are left for two: the kernel's word keeps n2 out, and n3 is allowed again."""
    own = attempt(excluded_nodes=("n3", "n4"))
    broken = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",), drain_nodes=("n2",))
    verdict = decide(situation(attempt=own, exclusions=(excluded("n3"),)), broken, AUTO)
    assert (verdict.plan.exclude, verdict.allow) == (("n2",), ("n3",))
    assert "n3 allowed again: too few nodes would be left" in verdict.plan.reason


def test_an_exclusion_made_for_the_same_work_under_another_id_is_written_again(situation, diagnosis, excluded):
    """The job's list does not hold it."""
    verdict = decide(situation(exclusions=(excluded("n3"),)), diagnosis(), AUTO)
    assert verdict.plan.exclude == ("n3",)


def test_where_exclusions_are_off_nothing_is_added_and_expired_ones_still_go(situation, diagnosis, attempt, excluded):
    """To undo one's own is always allowed."""
    own = attempt(excluded_nodes=("n3",))
    suspect = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",))
    off = Policy(mode=Mode.AUTO, modes={"exclude": "off"})
    verdict = decide(situation(attempt=own, exclusions=(excluded("n3", hours=25),)), suspect, off)
    assert (verdict.plan.exclude, verdict.exclusions, verdict.allow) == ((), (), ("n3",))


# --- a job that waits ---


@pytest.mark.parametrize(
    ("others", "needed", "ours", "blame"),
    [
        ({}, 2, ("n2",), False),  # n1, n3 and n4 are enough
        ({"flags": {NodeFlag.RESERVED}}, 2, ("n2",), True),
        ({"flags": {NodeFlag.DRAIN}}, 2, ("n2",), True),
        ({"flags": {NodeFlag.RESERVED}}, 1, ("n2",), False),
        ({"flags": {NodeFlag.RESERVED}}, 2, (), False),  # the user's own
        ({"partitions": ("cpu",)}, 2, ("n2",), True),
    ],
)
def test_our_exclusion_is_to_blame_only_where_it_makes_the_difference(record, node, *, others, needed, ours, blame):
    """Nodes n3 and n4 are as said; n2 is in the job's list, and in order."""
    here = {"partitions": ("gpu",)}
    nodes = [node("n1", **here), node("n2", **here), node("n3", **{**here, **others}), node("n4", **{**here, **others})]
    assert in_the_way(record(excluded_nodes=("n2",)), nodes, ours, needed) is blame


def test_taking_back_a_node_that_is_out_itself_would_not_help(record, node):
    """It is drained: the job waits for something else."""
    nodes = [node("n1"), node("n2", flags={NodeFlag.DRAIN})]
    assert not in_the_way(record(excluded_nodes=("n2",), partition=""), nodes, ("n2",), 2)
