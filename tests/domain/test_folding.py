"""Many findings made into one signal: small, deterministic, and with what matters most kept."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey
from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL, Detection, Evidence, Interruption, Source, Trust
from relight.domain.folding import MAX_SIGNAL_BYTES, fold

from .conftest import NOW

KEY = AttemptKey(cluster="main", job_id=7, submit_time=NOW)


def found(number=0, *evidence):
    return Detection(
        id=f"d{number}",
        attempt=KEY,
        kind=Interruption.GPU_FAULT,
        detected_at=NOW + timedelta(seconds=number),
        evidence=evidence,
    )


def xid(node, text="Xid 79", source=Source.NVML):
    return Evidence(source=source, text=text, node=node, signature="XID_79")


def test_one_that_fits_is_left_as_it_is():
    """What starts an incident is the finding itself, in its own order."""
    one = found(0, xid("n1", source=Source.JOB_LOG), xid("n1"), xid("n1"))
    assert fold([one]) is one


def test_the_newest_stands_for_all():
    """Its id and times: what the workflow's watermark and deduplication go by."""
    many = [found(i, xid(f"n{i}")) for i in range(2048)]
    folded = fold(many)
    assert (folded.id, folded.detected_at, folded.folded) == ("d2047", many[-1].detected_at, 2047)
    assert [piece.node for piece in folded.evidence] == [f"n{i}" for i in range(MAX_EVIDENCE_PER_SIGNAL)]


def test_the_platforms_word_is_kept_before_the_jobs():
    """A thousand lines that a program printed do not crowd out the one witness of its node."""
    many = [found(i, xid("n1", f"rank {i} says so", Source.JOB_LOG)) for i in range(100)]
    folded = fold([*many, found(100, xid("n2"))])
    assert folded.evidence[0] == xid("n2")
    assert len(folded.evidence) == MAX_EVIDENCE_PER_SIGNAL


def test_the_same_is_said_once():
    """From wherever it was told."""
    assert fold([found(i, xid("n1")) for i in range(50)]).evidence == (xid("n1"),)


pieces = st.builds(
    Evidence,
    source=st.sampled_from(Source),
    text=st.text(max_size=600),
    node=st.none() | st.text(max_size=64),
    file=st.none() | st.text(max_size=4000),
)
findings = st.lists(st.lists(pieces, max_size=MAX_EVIDENCE_PER_SIGNAL), min_size=1, max_size=6)


@given(parts=findings)
def test_a_signal_is_never_larger_than_its_bound(parts):
    """In bytes, whatever script the text is in; and what it keeps, it was given."""
    many = [found(i, *part) for i, part in enumerate(parts)]
    folded = fold(many)
    assert len(folded.model_dump_json().encode()) <= MAX_SIGNAL_BYTES
    given_ones = [piece for part in parts for piece in part]
    assert all(piece in given_ones for piece in folded.evidence)
    assert folded.folded == len(many) - 1
    if len(many) > 1:
        trusts = [piece.trust is Trust.PLATFORM for piece in folded.evidence]
        assert trusts == sorted(trusts, reverse=True)
