"""Whose word counts: never an approval without the quorum of different people that may, whatever is sent, and when."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.domain.approvals import Approval, Request, begun, hear, hear_signed, request_for, unanswerable
from relight.domain.plan import Decision, Mode, Restart
from relight.domain.policy import Policy, Verdict
from relight.domain.rights import OF_NODES, Approver, Right, Weight, site_approver
from relight.domain.signatures import SignedDecision, genuine, signed

NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
UNTIL = NOW + timedelta(minutes=30)
PEOPLE = ("ada", "bob", "carol", "dave", "mallory")
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.ljust(32).encode()) for name in (*PEOPLE, "ada's other")}


def public(key):
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


LISTED = (
    *(Approver(name=name, key=public(KEYS[name])) for name in ("ada", "bob", "carol")),
    Approver(name="ada", key=public(KEYS["ada's other"])),
    Approver(name="dave", key=public(KEYS["dave"]), may=("restart",)),
)
SITE = (site_approver(public(KEYS["ada"])),)


def request(**fields):
    given_ = {
        "subject": "i1",
        "run_id": "run-1",
        "digest": "d" * 64,
        "what": "requeue job 7; drain n2",
        "rights": ("restart", "drain"),
        "needed": 2,
        "approvers": LISTED,
        "owner": "erin",
        "asked_at": NOW,
        "until": UNTIL,
        "execution_expires": timedelta(minutes=10),
    }
    return Request.model_validate(given_ | fields)


def word(by="ada", *, approved=True, claims=None, at=NOW, nonce="1", **fields):
    """A signed decision; `fields` are put into it before it is signed, `forged` afterwards."""
    forged = fields.pop("forged", {})
    digest = fields.pop("digest", "d" * 64)
    said = {"approved": approved, "digest": digest, "by": claims or by, "reason": fields.pop("reason", "")}
    given_ = {"incident": "i1", "run_id": "run-1", "decision": said, "at": at, "nonce": f"{by}-{nonce}"}
    given_ |= {"key": public(KEYS[by]), "signature": ""} | fields
    return signed(SignedDecision.model_validate(given_), KEYS[by]).model_copy(update=forged)


def heard(asked, *words, now=NOW, late=""):
    """The last word's fate after all of them."""
    approval, last = Approval(request=asked), None
    for each in words:
        judge = hear_signed if isinstance(each, SignedDecision) else hear
        last = judge(approval, each, now, late=late)
        approval = last.approval
    return last


# --- quorum ---------------------------------------------------------------------------------------------------------


def test_a_quorum_of_different_people_approves():
    """The first leaves it open, the second decides."""
    first = heard(request(), word("ada"))
    assert (first.counts, first.approval.over, first.answer) == (True, False, "counted: 1 of 2 approvals (ada)")
    second = heard(request(), word("ada"), word("bob"))
    assert (second.answer, second.approval.approved_at) == ("counted: approved", NOW)
    assert second.approval.score == "2 of 2 approvals (ada, bob)"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([word("ada"), word("ada", nonce="2")], "ada has approved it already: 1 of 2 approvals (ada)"),
        ([word("ada"), word("ada's other", claims="ada2")], "ada has approved it already"),
        ([word("ada"), word("ada")], "replayed: this very decision was heard before"),
        ([word("dave")], "dave may not approve: drain"),
        ([word("mallory")], "key of nobody who may approve here"),
        ([word("mallory", key=public(KEYS["ada"]))], "the signature is not of the key SHA256:"),
        ([word("ada", forged={"signature": ""})], "the signature is not of the key"),
        ([word("ada", forged={"signature": "ü" * 128})], "the signature is not of the key"),
        ([word("ada", forged={"nonce": "2"})], "the signature is not of the key"),
        ([word("ada", forged={"at": NOW + timedelta(seconds=1)})], "the signature is not of the key"),
        ([word("ada", incident="i2")], "signed for another incident"),
        ([word("ada", run_id="run-2")], "signed for another incident"),
        ([word("ada", digest="e" * 64)], "is of another plan"),
        ([word("ada", digest="d" * 4)], "is shorter than 8 digits"),
        ([word("ada", at=NOW - timedelta(minutes=11))], "signed at 2026-11-30 09:19:00 UTC: too long ago"),
        ([word("ada", at=NOW + timedelta(minutes=11))], "by a clock that is wrong"),
        ([word("ada", forged={"at": NOW.replace(tzinfo=None)})], "has no zone"),
        ([word("ada", forged={"nonce": ""})], "nonce, name or reason is missing or too long"),
        ([word("ada", reason="x" * 60_000)], "nonce, name or reason is missing or too long"),
        ([Decision(approved=True, digest="d" * 64)], "this site does not take bare signals"),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:40],
)
def test_what_does_not_count(words, problem):
    """Each with its reason, heard and numbered, and without any effect on the votes."""
    last = heard(request(), *words)
    assert not last.counts
    assert problem in last.remark
    assert len(last.approval.votes) == len(words) - 1
    assert last.approval.heard == len(words)
    assert len(last.decision.model_dump_json()) < 5000


@pytest.mark.parametrize("change", [{"approved": False}, {"digest": "e" * 64}, {"by": "eve"}, {"reason": "x"}])
def test_nothing_said_can_be_exchanged_under_its_signature(change):
    """All of it is signed."""
    said = word("ada")
    changed = said.model_copy(update={"decision": said.decision.model_copy(update=change)})
    assert genuine(said, said.key)
    assert not genuine(changed, said.key)


def test_a_signature_survives_the_wire():
    """JSON and back, in another notation of the same moment."""
    said = word("ada", reason="naïve \u2028 \U0001f525")
    again = SignedDecision.model_validate_json(said.model_dump_json().replace("09:30:00Z", "10:30:00+01:00"))
    assert again.at.utcoffset() == timedelta(hours=1)
    assert genuine(again, said.key)


def test_one_rejection_wins_and_needs_no_right():
    """Whoever is listed may say no, the requester too; afterwards nobody's yes counts."""
    asked = request(requested_by="dave")
    last = heard(asked, word("ada"), word("dave", approved=False, reason="no"))
    assert (last.answer, last.approval.rejection.reason) == ("counted: rejected", "no")
    after = heard(asked, word("dave", approved=False), word("ada"), word("bob"))
    assert (after.counts, after.remark, after.approval.approved_at) == (False, "too late: it was rejected", None)


def test_the_requester_does_not_approve():
    """Four eyes."""
    asked = request(needed=1, requested_by="ada")
    for name in ("ada", "ada's other"):
        assert heard(asked, word(name)).remark == "ada asked for it, so somebody else must approve it"
    assert heard(asked, word("bob")).approval.over


def test_a_listed_user_with_the_right_may_approve_what_is_done_to_the_own_jobs_nodes():
    """The site has said so by listing the person."""
    assert heard(request(needed=1, owner="ada"), word("ada")).approval.over


# --- the site's key ---------------------------------------------------------------------------------------------------


def test_the_sites_key_is_one_person_whatever_it_claims():
    """Who reads the file can write any name."""
    asked = request(approvers=SITE)
    last = heard(asked, word("ada", claims="ada"), word("ada", claims="bob", nonce="2"))
    assert last.remark == "the site key has approved it already: 1 of 2 approvals (ada (by the site key))"
    assert last.decision.by == "bob (by the site key)"
    assert "2 people must approve" in unanswerable(asked)


@pytest.mark.parametrize("right", sorted(OF_NODES))
@pytest.mark.parametrize("claims", ["erin", "erin (sudo as relight)"])
def test_a_jobs_user_does_not_take_nodes_from_others_by_the_sites_key(right, claims):
    """Nodes are everybody's; the job itself is the user's own."""
    asked = request(approvers=SITE, needed=1, rights=(right,))
    assert "the job is erin's own" in heard(asked, word("ada", claims=claims)).remark
    assert heard(request(approvers=SITE, needed=1, rights=("restart",)), word("ada", claims=claims)).approval.over


# --- bare signals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, ""),
        ({"trust_bare": False}, "does not take bare signals"),
        ({"rights": ("restart", "drain")}, "draining a node or cancelling a job needs a signed decision"),
        ({"rights": ("stop",)}, "needs a signed decision"),
        ({"needed": 2}, "2 people must approve, and a bare signal proves nobody"),
    ],
)
def test_a_bare_signal_is_at_most_the_one_approval_of_what_is_light(fields, problem):
    """Where the site trusts it; by the first digits of the digest."""
    asked = request(**({"rights": ("restart",), "needed": 1, "trust_bare": True} | fields))
    last = heard(asked, Decision(approved=True, digest="DDDDDDDD", by="root", verified=True))
    assert problem in last.remark
    assert last.counts is not bool(problem)
    assert (last.decision.by, last.decision.verified) == ("", False)
    assert asked.takes_bare is last.counts


def test_a_bare_no_always_counts():
    """It only keeps Relight from acting."""
    assert heard(request(), Decision(approved=False, digest="")).answer == "counted: rejected"


# --- the clocks -------------------------------------------------------------------------------------------------------


def test_words_after_the_end_are_late():
    """To the second; also for what the workflow knows."""
    at = UNTIL
    assert heard(request(), word("ada", at=at), now=at).remark == "too late: it expired at 10:00:00 UTC"
    assert heard(request(), word("ada"), late="too late, it crashed").remark == "too late, it crashed"


def test_an_approval_is_used_once_and_in_time():
    """The second clock begins with the quorum."""
    open_ = Approval(request=request(needed=1))
    assert begun(open_, NOW)[1] == "it is not approved"
    approved = heard(request(needed=1), word("ada")).approval
    assert approved.act_until == NOW + timedelta(minutes=10)
    used, wrong = begun(approved, approved.act_until)
    assert (wrong, used.lapsed(approved.act_until)) == ("", "")
    assert begun(used, NOW)[1] == "the approval was used already"
    late = approved.act_until + timedelta(seconds=1)
    assert begun(approved, late)[1] == "the approval held until 09:40:00 UTC, and nothing had begun by then"
    assert begun(approved, late)[0].used_at is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"needed": 3}, ""),
        ({"needed": 4}, "4 people must approve (restart, drain), and only ada, bob, carol may"),
        ({"needed": 3, "requested_by": "bob"}, "only ada, carol may"),
        ({"approvers": (), "needed": 1}, "one person must approve (restart, drain), and nobody may"),
        ({"approvers": (), "needed": 1, "trust_bare": True, "rights": ("restart",)}, ""),
        ({"deadline": NOW + timedelta(seconds=59)}, "for 59 s only, too little for a person to decide"),
        ({"deadline": NOW - timedelta(hours=1)}, "for 0 s only"),
        ({"deadline": NOW + timedelta(seconds=60)}, ""),
    ],
)
def test_where_asking_is_no_use_it_is_said_at_once(fields, said):
    """Nobody waits half an hour for people who do not exist."""
    found = unanswerable(request(**fields))
    assert bool(found) is bool(said)
    assert said in found


# --- from a verdict ---------------------------------------------------------------------------------------------------


def test_the_most_demanding_action_of_the_plan_counts(attempt):
    """And the time is fitted to what Slurm remembers."""
    from relight.domain.plan import Plan

    plan = Plan(
        attempt=attempt().key, restart=Restart.REQUEUE, cancel=True, drain=("n2",), reason="x", requeue_until=UNTIL
    )
    policy = Policy(mode=Mode.APPROVE, approvers={"drain": 3}, approval_expires=timedelta(hours=1))
    verdict = Verdict(plan=plan, mode=Mode.APPROVE, mode_reason="", policy=policy, approvers=LISTED)
    asked = request_for(verdict, "i1", "run-1", owner="erin", now=NOW)
    assert (asked.rights, asked.needed, asked.weight) == (("restart", "stop", "drain"), 3, Weight.MIDDLE)
    assert (asked.until, asked.deadline, asked.digest) == (UNTIL, UNTIL, plan.digest)
    assert Policy().approvers_needed([Right.DOWN, Right.RESTART]) == 2
    assert Policy(approvers={}).approvers_needed([Right.REBOOT]) == 2


# --- any sequence ----------------------------------------------------------------------------------------------------

FORGERIES = [
    {"signature": "00" * 64},
    {"nonce": "x"},
    {"key": public(KEYS["bob"])},
    {"incident": "i2"},
    {"run_id": "run-2"},
    {"at": NOW.replace(tzinfo=None)},
    {"at": NOW - timedelta(days=1)},
]
TIMES = st.sampled_from([NOW, NOW, NOW, NOW, UNTIL - timedelta(seconds=1), UNTIL, UNTIL + timedelta(minutes=10)])


@st.composite
def told(draw, no=True):
    """When a word is heard, and the word: mostly a good one, made just then."""
    now = draw(TIMES)
    if draw(st.integers(0, 9)) == 0:
        return now, Decision(approved=True, digest=draw(st.sampled_from(["d" * 8, "e" * 8])), by="ada")
    fields = {"at": now, "nonce": draw(st.sampled_from("12")), "approved": not no or draw(st.integers(0, 9)) > 0}
    wrong = draw(st.sampled_from(["", "", "", "", "plan", "incident", "run_id", "forged"]))
    fields |= {
        "": {},
        "plan": {"digest": draw(st.sampled_from(["e" * 64, ""]))},
        "incident": {"incident": "i2"},
        "run_id": {"run_id": "run-2"},
        "forged": {"forged": draw(st.sampled_from(FORGERIES))},
    }[wrong]
    return now, word(draw(st.sampled_from(["ada", "ada", *sorted(KEYS)])), **fields)


def words(**fields):
    """Some, in the order of time."""
    return st.lists(told(**fields), min_size=2, max_size=10).map(lambda some: sorted(some, key=lambda pair: pair[0]))


REQUESTS = st.builds(
    request,
    needed=st.sampled_from([1, 2, 2, 3]),
    rights=st.sampled_from([("restart",), ("restart", "drain"), ("down",)]),
    requested_by=st.sampled_from(["", "", "ada", "bob"]),
    trust_bare=st.booleans(),
    approvers=st.sampled_from([LISTED, LISTED, LISTED, SITE, ()]),
)


def truly(asked, each, now):
    """Who really approved with this word, by an independent reading of the rules; None where nobody did."""
    if isinstance(each, Decision):
        good = asked.trust_bare and asked.rights == ("restart",) and asked.needed == 1 and each.digest[0] == "d"
        return "bare" if good and each.approved else None
    by = next((name for name, key in KEYS.items() if genuine(each, public(key))), None)
    listed = next((a for a in asked.approvers if by and a.key == public(KEYS[by]) == each.key), None)
    fits = (each.incident, each.run_id, each.decision.digest) == ("i1", "run-1", "d" * 64)
    if listed is None or not fits or not each.decision.approved or abs(now - each.at) > timedelta(minutes=10):
        return None
    may = (
        set(asked.rights) <= set(listed.may)
        and (each.decision.by if listed.site else listed.name) != asked.requested_by
    )
    return listed.name if may else None


@settings(max_examples=300)
@given(REQUESTS, words())
def test_never_approved_without_a_quorum_of_different_people_who_may(asked, some):
    """Whatever is sent in whatever order: replays, forgeries, other plans, the requester, after the end."""
    approval, really, nonces = Approval(request=asked), set(), set()
    for now, each in some:
        before = approval
        judged = (hear_signed if isinstance(each, SignedDecision) else hear)(approval, each, now)
        approval = judged.approval
        by = truly(asked, each, now) if now < asked.until else None
        really |= {by} - {None}
        if judged.counts:
            assert not before.over
            assert by or not each.approved if isinstance(each, Decision) else by or not each.decision.approved
            if isinstance(each, SignedDecision):
                assert each.nonce not in nonces
                nonces.add(each.nonce)
        else:
            assert judged.remark
            assert (approval.votes, approval.rejection) == (before.votes, before.rejection)
    people = [vote.person for vote in approval.votes]
    assert len(people) == len(set(people)) <= len(really)
    assert bool(approval.approved_at) is (len(people) == asked.needed)
    assert not (approval.approved_at and approval.rejection)
    assert asked.requested_by == "" or asked.requested_by not in people


@given(REQUESTS, words(no=False), st.randoms())
def test_the_order_of_approvals_does_not_change_what_they_come_to(asked, some, shuffle: random.Random):
    """Without a rejection, and each nonce used once: approved or still open all the same, by as many people."""
    yes = list({each.nonce: each for now, each in some if now == NOW and isinstance(each, SignedDecision)}.values())
    other = list(yes)
    shuffle.shuffle(other)
    first, second = (heard(asked, *order).approval if order else Approval(request=asked) for order in (yes, other))
    assert bool(first.approved_at) is bool(second.approved_at)
    assert len(first.votes) == len(second.votes)


@given(REQUESTS.filter(lambda asked: asked.approvers), words(no=False), words(no=False))
def test_a_rejection_before_the_quorum_ends_it_wherever_it_comes(asked, before, after):
    """No later word brings it back."""
    told_before = [each for now, each in before if now == NOW]
    approval = heard(asked, *told_before).approval if told_before else Approval(request=asked)
    last = heard(asked, *told_before, word("ada", approved=False, nonce="no"), *(each for _, each in after))
    assert bool(last.approval.rejection) is not approval.over
    assert bool(last.approval.approved_at) is approval.over


# --- a service that vouches ------------------------------------------------------------------------------------------

CONSOLE = Approver(
    name="console",
    key=public(KEYS["mallory"]),
    may=("restart", "drain"),
    vouches_for=("ada", "dave", "olga"),
    owner_may=("restart",),
)
VOUCHED = (*LISTED, CONSOLE)


def through(name, **fields):
    """A word that the console signs for this person."""
    return word("mallory", claims=name, nonce=fields.pop("nonce", name), **fields)


def test_a_service_vouches_for_whom_it_is_listed_for_and_the_ledger_says_so():
    """Olga has no key of her own: the console's signature stands for her."""
    asked = request(needed=1, approvers=VOUCHED)
    end = heard(asked, through("olga"))
    assert (end.counts, end.decision.by, end.approval.votes[0].person) == (True, "olga (signed by console)", "olga")
    assert set(asked.able) == {"ada", "bob", "carol", "olga"}


def test_a_person_counts_once_by_the_own_key_and_through_the_service():
    """Ada with her key, and ada through the console, are one person."""
    end = heard(request(approvers=VOUCHED), word("ada"), through("ada"))
    assert (end.counts, end.approval.over) == (False, False)
    assert "ada has approved it already" in end.remark


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (through("bob"), "the key of console does not stand for bob"),
        (through("bob", approved=False), "the key of console does not stand for bob"),
        (through("dave"), "dave may not approve through console: drain"),
        (through("erin"), "erin may not approve through console: drain"),
    ],
)
def test_what_a_service_may_not_vouch_for(words, problem):
    """Strangers, more than a person's own key could, and more than a job's user may say of the own job."""
    end = heard(request(approvers=VOUCHED, needed=1), words)
    assert not end.counts
    assert problem in end.remark


@pytest.mark.parametrize(("owner", "counts"), [("erin", True), ("frank", False), ("", False)])
def test_a_jobs_user_approves_the_restart_of_the_own_job_only(owner, counts):
    """By the service's key, where the site allows it; nobody is the user of what has none."""
    asked = request(approvers=VOUCHED, needed=1, rights=("restart",), owner=owner)
    assert heard(asked, through("erin")).counts is counts
    assert ("erin" in asked.able) is counts
