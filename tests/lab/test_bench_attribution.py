"""The attribution benchmark: what it refuses, what a label names, how verdicts are scored, and a small corpus whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from relight.attribution.sources import Context, Seat
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.lab.bench_attribution import Naming, Scored, score, summary
from relight.lab.bench_attribution_labels import Case, Places, Truth, read_corpus, read_places
from relight.lab.cli import lab

HEAD = "file\tcategory\taction\taction_if_it_repeats\timplicated_rank_or_node\tsignature_id\n"
EXCLUDE = Action.RESTART_EXCLUDING_NODE


def bench(folder: Path, *arguments: str, width: int = 80) -> Result:
    """Run the command in this process, on a terminal of that width."""
    asked = ["bench", "attribution", "--corpus", str(folder), *arguments]
    return CliRunner().invoke(lab, asked, env={"COLUMNS": str(width)})


def corpus(folder: Path, labels: str, **files: str) -> Path:
    """A corpus: labels and files, `a_log` for a.log."""
    (folder / "labels.tsv").write_text(labels)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


# Bad input


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("", "no column 'file'; found nothing, needed are file, category, action"),
        ("file\tkind\na.log\tGPU\n", "no column 'category'; found file, kind"),
        (HEAD, "found no row"),
        (HEAD + "a.log\tGPUS\tSTOP\n", "line 2: category: found 'GPUS', accepted are GPU, NODE, NETWORK"),
        (HEAD + "a.log\tGPU\n", "line 2: action: found '', accepted are RESTART, RESTART_EXCLUDING_NODE"),
        (HEAD + "a.log\tGPU\tSTOP\tMAYBE\n", "line 2: action_if_it_repeats: found 'MAYBE'"),
        (HEAD + "b.log\tGPU\tSTOP\n", "line 2: file: found 'b.log', which is not in"),
        (HEAD + "\tGPU\tSTOP\n", "line 2: file: found ''"),
        (HEAD + "a.log\tGPU\tSTOP\n" * 2, "line 3: file: found 'a.log' a second time"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_told_in_a_line(tmp_path: Path, labels: str, told: str) -> None:
    """Which file and line, what was found, what is accepted."""
    done = bench(corpus(tmp_path, labels, a_log="step 1\n"))
    assert done.exit_code == 1
    assert f"Error: {tmp_path}/labels.tsv: " in done.output
    assert told in done.output
    assert len(done.output.splitlines()) == 1


def test_a_folder_without_labels_is_told(tmp_path: Path) -> None:
    """It is no corpus."""
    done = bench(tmp_path)
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert "labels.tsv: no such file; a corpus is a folder with logs and labels.tsv" in done.output


def test_a_broken_context_is_told(tmp_path: Path) -> None:
    """With its file and field."""
    folder = corpus(tmp_path, HEAD + "a.log\tGPU\tSTOP\n", a_log="x\n", a_context_json='{"state": "BROKEN"}')
    done = bench(folder)
    assert done.exit_code == 1
    assert "a.context.json: state: found 'BROKEN', accepted: 'PENDING'" in done.output


# Labels


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("rank 3", Places(ranks=frozenset({3}))),
        ("ranks 4,5, 6 and 8-9 (the second node)", Places(ranks=frozenset({4, 5, 6, 8, 9}))),
        ("rank 5 on node n2", Places(ranks=frozenset({5}), nodes=frozenset({"n2"}))),
        ("node01 task 4", Places(ranks=frozenset({4}), nodes=frozenset({"node01"}))),
        ("nodes gpu-a1, gpu-a2", Places(nodes=frozenset({"gpu-a1", "gpu-a2"}))),
        ("local_rank 1 (exit 1)", Places(local_ranks=frozenset({1}))),
        ("GPU DC:00 of one node; others follow", Places(gpus=frozenset({"dc:00"}))),
        ("node01 GPU 0000:03:00.0", Places(nodes=frozenset({"node01"}), gpus=frozenset({"03:00"}))),
        ("none (8 nodes alike)", Places()),
        ("one node, not established", None),
        ("the rank that segfaulted, not rank 9", None),
        ("4 of 8 ranks (5 and 7 arrived)", None),
        ("file system", None),
        ("", None),
    ],
)
def test_only_what_a_machine_can_check_is_scored(text: str, places: Places | None) -> None:
    """The rest is free text."""
    assert read_places(text) == places


# Scores


def case(who: Places | None = None, action: Action = EXCLUDE, **context: Any) -> Case:
    """A failed GPU, and who is guilty."""
    return Case(Truth("a.log", Category.GPU, action, None, who, ""), (), Context(**context) if context else None)


def judged(
    of: Case,
    *,
    category: Category = Category.GPU,
    action: Action = EXCLUDE,
    confidence: float = 0.9,
    drain: tuple[str, ...] = (),
    **who: Any,
) -> Scored:
    """How this verdict scores."""
    verdict = Hypothesis(
        signature="X",
        category=category,
        action=action,
        action_if_it_repeats=action,
        confidence=confidence,
        implicated=Implicated(**who),
        drain_nodes=drain,
    )
    return score(of, Diagnosis(hypotheses=(verdict,)))


RANK_5_ON_N2 = Places(ranks=frozenset({5}), nodes=frozenset({"n2"}))


@pytest.mark.parametrize(
    ("who", "naming"),
    [
        ({"ranks": (5,), "nodes": ("n2.example",), "gpus": ("1",)}, Naming.EXACT),
        ({"ranks": (5,)}, Naming.PARTLY),
        ({"nodes": ("n2",)}, Naming.PARTLY),
        ({}, Naming.SILENT),
        ({"gpus": ("1",)}, Naming.SILENT),
        ({"ranks": (4, 5), "nodes": ("n2",)}, Naming.WRONG),
        ({"ranks": (5,), "nodes": ("n1",)}, Naming.WRONG),
    ],
)
def test_naming_is_right_when_nobody_else_is_named(who: dict[str, Any], naming: Naming) -> None:
    """Rank or node is enough; a second one beside it, or another one, is wrong."""
    assert judged(case(RANK_5_ON_N2), **who).naming is naming


def test_a_local_rank_is_found_by_the_map_of_ranks() -> None:
    """Global rank 5 is the second of its node."""
    label = Places(local_ranks=frozenset({1}))
    seats = {5: Seat(node="n2", gpu="1")}
    assert judged(case(label, rank_map=seats), ranks=(5,)).naming is Naming.EXACT
    assert judged(case(label), ranks=(5,)).naming is Naming.WRONG
    assert judged(case(label), ranks=(1,)).naming is Naming.EXACT


@pytest.mark.parametrize("who", [None, Places()])
def test_free_text_and_nobody_are_not_scored_as_naming(who: Places | None) -> None:
    """They are counted."""
    told = summary([judged(case(who), nodes=("n1",))])["localisation"]
    assert (told["checked"], told["share"]) == (0, None)
    assert (told["free_text"], told["nobody"], told["nobody_but_named"]) == ((1, 0, 0) if who is None else (0, 1, 1))


@pytest.mark.parametrize(
    ("label", "verdict", "nodes"),
    [
        (Action.STOP, {"nodes": ("n1",)}, ("n1",)),
        (Action.RESTART, {}, ("?",)),
        (Action.RESTART, {"action": Action.RESTART, "nodes": ("n1",)}, ()),
        (Action.RESTART, {"action": Action.RESTART, "drain": ("n1",)}, ("n1",)),
        (EXCLUDE, {"nodes": ("n2",)}, ()),
        (EXCLUDE, {"nodes": ("n2", "n3")}, ("n3",)),
    ],
)
def test_healthy_nodes_that_are_taken_away_are_counted(
    label: Action, verdict: dict[str, Any], nodes: tuple[str, ...]
) -> None:
    """Excluded where the label says otherwise, or drained, or others than the labelled ones."""
    assert judged(case(RANK_5_ON_N2, action=label), **verdict).wronged == nodes


def test_confidence_is_held_against_the_truth() -> None:
    """By tenths, and as Brier score."""
    scored = [
        judged(case(), confidence=1.0),
        judged(case(), confidence=0.95, category=Category.NODE),
        judged(case(), confidence=0.5),
    ]
    told = summary(scored)["calibration"]
    assert [(each["from"], each["of"], each["right"]) for each in told["deciles"]] == [(0.5, 1, 1), (0.9, 2, 1)]
    assert told["mean_confidence_right"] == 0.75
    assert told["mean_confidence_wrong"] == 0.95
    assert told["brier"] == round((0.95**2 + 0.5**2) / 3, 4)


# A small corpus, whole

ECC = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
MODULE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"
KERNEL = (
    "2026-11-30T09:30:59.000000+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Four cases: one log alone, one with a context, a folder of logs with a kernel log, and a wrong label."""
    labels = HEAD + (
        "ecc.log\tGPU\tRESTART_EXCLUDING_NODE\tRESTART_EXCLUDING_NODE\trank 1 on node n2\tCUDA_ECC\n"
        "module.log\tUSER_CODE\tSTOP\tSTOP\tall ranks\tIMPORT_ERROR\n"
        "lost/\tGPU\tRESTART_EXCLUDING_NODE\tRESTART_EXCLUDING_NODE\tnode n1 GPU 3b:00\t\n"
        "mislabelled.log\tNETWORK\tRESTART\tSTOP\tnone\t\n"
    )
    corpus(tmp_path, labels, ecc_log=ECC, module_log=MODULE, mislabelled_log=MODULE)
    (tmp_path / "ecc.context.yaml").write_text("nodes: [n1, n2]\nrank_map: {0: {node: n1}, 1: {node: n2}}\n")
    (tmp_path / "lost").mkdir()
    for rank in (0, 1):
        (tmp_path / f"lost/rank-{rank}.out").write_text("training\n")
    (tmp_path / "lost.kernel-n1.log").write_text(KERNEL)
    context = {"nodes": ["n1", "n2"], "interrupted_at": "2026-11-30T09:31:00Z", "interruption": "crash"}
    (tmp_path / "lost.context.json").write_text(json.dumps(context))
    return tmp_path


def test_cases_have_their_logs_kernel_logs_and_contexts(small: Path) -> None:
    """By name, beside the log."""
    ecc, module, lost, _ = read_corpus(small)
    assert [source.name for source in lost.sources] == ["lost/rank-0.out", "lost/rank-1.out", "lost.kernel-n1.log"]
    assert [source.node for source in lost.sources] == [None, None, "n1"]
    assert ecc.context is not None
    assert ecc.context.rank_map[1].node == "n2"
    assert module.context is None
    assert module.truth.who is None


def test_json_has_the_numbers(small: Path) -> None:
    """The keys that the help promises."""
    done = bench(small, "--json")
    told = json.loads(done.output)
    assert done.exit_code == 0
    assert told["cases"] == 4
    assert told["both"] == {"of": 4, "right": 3, "share": 0.75}
    assert told["signature"] == {"of": 2, "right": 2, "share": 1.0}
    assert told["localisation"]["exact"] == 2
    assert told["localisation"]["free_text"] == 1
    assert told["healthy_isolated"] == {"cases": 0, "nodes": []}
    assert told["confusion"]["category"]["NETWORK"] == {"USER_CODE": 1}
    (miss,) = told["misses"]
    assert (miss["file"], miss["got"]["action"]) == ("mislabelled.log", "STOP")
    help_text = CliRunner().invoke(lab, ["bench", "attribution", "--help"]).output
    assert [key for key in told if key not in help_text] == []


def test_text_shows_shares_confusion_and_misses(small: Path) -> None:
    """For a person."""
    shown = bench(small, width=160).output
    for text in ("Attribution of 4 cases", "75.0%", "Healthy nodes isolated: none", "mislabelled.log", "Brier score"):
        assert text in shown
