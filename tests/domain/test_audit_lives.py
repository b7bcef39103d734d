"""Life cycles in the audit trail: each rule with a case in which it is broken, and none where nothing is."""

from collections.abc import Iterable
from datetime import timedelta

import pytest

from relight.clients.ledger_rows import Work
from relight.domain.approvals import Approval, hear_signed
from relight.domain.audit import Finding, Rule
from relight.domain.audit_lives import LOOKED_AT, Lives, Written
from relight.domain.care import care_mark
from relight.domain.care_digest import care_request
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.plan import Decision, Mode
from relight.domain.rights import Right
from relight.domain.signatures import SignedDecision, signed
from relight.lab.audit_story import KEYS, LISTED, Story


def found(entries: Iterable[Entry], lives: Lives | None = None) -> list[Finding]:
    """What is wrong with rows in this order."""
    lives, wrong = lives or Lives(), []
    for seq, entry in enumerate(entries, 1):
        row = Work(Change(entries=(entry,))).entries[entry.id]
        if row["kind"] in LOOKED_AT:
            names = [name for name in Written._fields if name != "seq"]
            wrong += lives.see(Written(seq=seq, **{name: row[name] for name in names}))
    return wrong


def body(entry: Entry, **update: object) -> Entry:
    return entry.model_copy(update={"body": {**entry.body, **update}})


def rules(entries: Iterable[Entry]) -> list[Rule]:
    return [each.rule for each in found(entries)]


AUTO, ASKED, TWO = Story(1), Story(2, Mode.APPROVE), Story(3, Mode.APPROVE, needed=2)


@pytest.mark.parametrize("story", [AUTO, ASKED, TWO])
def test_a_whole_incident_is_fine(story):
    """Unasked, with one approval, with two."""
    assert found(story.rows()) == []


def test_incidents_beside_each_other_are_told_apart():
    """Their rows come in any mixture."""
    mixed = [each for rows in zip(*(Story(n).rows() for n in range(5)), strict=True) for each in rows]
    assert found(mixed) == []


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ([], "0 of 2 approvals"),
        (TWO.decisions("ada"), "1 of 2 approvals (ada)"),
        (TWO.decisions("ada", approved=False), "a rejection"),
    ],
)
def test_nothing_is_done_without_the_approvals_it_needs(decisions, says):
    """Every intent of such an incident is told."""
    wrong = found([*TWO.before(), *decisions, *TWO.after()])
    assert [each.rule for each in wrong] == [Rule.APPROVAL] * 4
    assert {each.found for each in wrong} == {says}


def test_a_late_intent_is_found():
    """What begins must begin while the approval holds; what belongs to a restart that has begun may be later."""
    begun = [body(each) for each in ASKED.after()]
    late = [each.model_copy(update={"at": each.at + timedelta(minutes=12)}) for each in begun]
    asked = [*ASKED.before(), *ASKED.decisions("ada")]
    wrong = found([*asked, *late])
    assert [(each.rule, each.expected.split()[0]) for each in wrong] == [
        (Rule.APPROVAL, "requeue"),
        (Rule.APPROVAL, "drain"),
    ]
    only_start = [late[n] if each.id.split("/")[-2] == "start" else each for n, each in enumerate(begun)]
    assert found([*asked, *only_start]) == []


def _tampered(part, value):
    (row,) = ASKED.decisions("ada")
    proof = {**row.body["proof"]}
    proof[part] = {**proof[part], **value} if isinstance(value, dict) else value
    return [*ASKED.before(), body(row, proof=proof), *ASKED.after()]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (_tampered("signed", {"signature": "00" * 64}), "the signature is not of the key"),
        (_tampered("signed", {"at": "2026-11-30T09:20:00Z"}), "the signature is not of the key"),
        (_tampered("signed", {"key": Story(9).verdict.approvers[1].key}), "the signature is not of the key"),
        (_tampered("signed", {"incident": "i0123456789"}), "signed for another incident"),
        (_tampered("at", "2026-11-30T12:00:00Z"), "signed at"),
        (_tampered("request", {"needed": 1, "approvers": []}), "decision by ada"),
        (_tampered("request", {"execution_expires": "PT10H"}), "decision by ada"),
        (_tampered("signed", None), "bare"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_decision_is_judged_again(entries, says):
    """A forged signature, another time, key, incident or request: it does not count, and nor does what rests on it."""
    wrong = found(entries)
    assert [each.rule for each in wrong] == [Rule.APPROVAL] * 5
    assert wrong[0].seq == 5
    assert says in wrong[0].found


def test_a_name_that_the_signature_does_not_prove_is_found():
    """Who said it stands in the row, and must be whose key it was."""
    (row,) = ASKED.decisions("ada")
    forged = body(row, decision={**row.body["decision"], "by": "bob"})
    assert "signed: ada" in found([*ASKED.before(), forged, *ASKED.after()])[0].found


def test_decisions_without_proof_are_believed_and_counted():
    """Version 0.1 kept no signatures; what it wrote is not called wrong, and the report says how many there are."""
    lives = Lives()
    (row,) = ASKED.decisions("ada")
    bare = row.model_copy(update={"body": {key: value for key, value in row.body.items() if key != "proof"}})
    assert found([*ASKED.before(), bare, *ASKED.after()], lives) == []
    assert lives.unproven == 1
    assert rules([*TWO.before(), *ASKED.before(), bare, *TWO.after()]) == [Rule.APPROVAL] * 4


def test_nothing_is_done_without_a_plan_or_in_monitor():
    """Neither by a plan that is not there, nor by one that says only to look."""
    assert rules(AUTO.after()) == [Rule.PLAN] * 4
    watched = Story(4, Mode.MONITOR)
    assert rules([*watched.before(), *watched.after()]) == [Rule.PLAN] * 4


def test_no_attempt_is_restarted_twice():
    """Two incidents of one attempt, each of which has queued it again; one that only meant to is none."""
    again = [each.model_copy(update={"id": f"x{each.id}", "incident": "i99"}) for each in AUTO.rows()]
    wrong = found([*AUTO.rows(), *again])
    assert [each.rule for each in wrong] == [Rule.DOUBLE]
    assert AUTO.incident in wrong[0].expected
    done = again[6].body["done"]
    again[6] = body(again[6], done={**done, "outcome": "overridden"})
    assert found([*AUTO.rows(), *again]) == []


@pytest.mark.parametrize("says", [True, False])
def test_no_effect_without_intent(says):
    """Also in rows of version 0.1, which do not say whether anything was meant."""
    rows = [each for each in AUTO.rows() if not each.id.endswith("requeue/intent")]
    if not says:
        rows = [e.model_copy(update={"body": {k: v for k, v in e.body.items() if k != "meant"}}) for e in rows]
    assert rules(rows) == [Rule.INTENT]


def test_one_end():
    """A second end is told with the row of the first."""
    end = AUTO.rows()[-1]
    wrong = found([*AUTO.rows(), body(end.model_copy(update={"id": "other"}), outcome="failed")])
    assert [(each.rule, each.expected) for each in wrong] == [(Rule.END, "one end (row 16)")]


@pytest.mark.parametrize("text", ["[]", "{}", '{"plan": 1}', "nonsense"])
def test_a_row_that_does_not_hold_what_its_kind_says_is_told(text):
    """It stops nothing: the rows after it are looked at."""
    lives = Lives()
    row = Written(7, "a/b/plan/done", "planned", "2026-11-30T09:00:00+00:00", "main", "i1", "a", "", text)
    assert [each.rule for each in lives.see(row)] == [Rule.READABLE]
    assert found(AUTO.rows(), lives) == []


# --- nodes in care ---


def _care(right: Right, *, approved: bool) -> list[Entry]:
    """Rows of a node that is given back, or that its platform is asked to repair."""
    what = {Right.RETURN: "undrain", Right.REBOOT: "reboot"}[right]
    mark, at = care_mark(AUTO.incident), AUTO.at(600)
    request = care_request(
        right,
        cluster="main",
        node="n1",
        mark=mark,
        run_id="r",
        why="checked",
        needed=1,
        approvers=LISTED,
        trust_bare=False,
        now=at,
        expires=timedelta(minutes=30),
        execution_expires=timedelta(minutes=10),
    )
    said = Decision(approved=True, digest=request.digest, by="ada", reason="repaired")
    word = SignedDecision(
        incident="node/n1", run_id="r", decision=said, at=at, nonce="1", key=LISTED[0].key, signature=""
    )
    heard = hear_signed(Approval(request=request), signed(word, KEYS["ada"]), at)
    assert heard.proof

    def entry(step: str, kind: RowKind, body: dict[str, object]) -> Entry:
        return Entry(id=f"node/r/{step}", kind=kind, at=at, cluster="main", incident="n77", node="n1", body=body)

    told = {"counts": True, "plan": request.digest, "decision": heard.decision.model_dump(mode="json")}
    decision = entry("decision/done", RowKind.DECISION, {**told, "proof": heard.proof.model_dump(mode="json")})
    meant = {"what": what, "approved_until": (at + timedelta(minutes=10)).isoformat()}
    if right is Right.REBOOT:
        del meant["approved_until"]  # is never done unasked, whatever the row says
    return [
        entry("care-begun/done", RowKind.CARE, {"incident": AUTO.incident, "step": "begun"}),
        *([decision] if approved else []),
        entry(f"{what}-n1-1/intent", RowKind.INTENT, meant),
    ]


@pytest.mark.parametrize("right", [Right.RETURN, Right.REBOOT])
def test_what_is_done_to_a_node_rests_on_its_own_approval(right):
    """The digest is of this action on this node under this mark."""
    assert found(_care(right, approved=True)) == []
    assert rules(_care(right, approved=False)) == [Rule.APPROVAL]
    other = Right.REBOOT if right is Right.RETURN else Right.RETURN
    swapped = [*_care(other, approved=True)[:2], _care(right, approved=True)[2]]
    assert rules(swapped) == [Rule.APPROVAL]
