"""How right the diagnosis is, on logs whose truth is known: category, action, who is named, and who is wronged."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context
from relight.domain.diagnosis import Action, Diagnosis, Hypothesis, Implicated
from relight.lab.bench_attribution_labels import Case, Places, Truth, gpu_key, read_corpus

DECILES = 10


class Naming(StrEnum):
    """How a verdict names the guilty ones that a label names."""

    EXACT = "exact"
    """All ranks, nodes and GPUs of the label, and no other."""
    PARTLY = "partly"
    """The rank or the node or the GPU, and nobody else: enough to find it."""
    SILENT = "silent"
    """Nobody is named."""
    WRONG = "wrong"
    """Somebody else is named, alone or beside the guilty ones."""


class Scored(NamedTuple):
    """A case and what the diagnosis made of it."""

    truth: Truth
    verdict: Hypothesis
    naming: Naming | None
    """None where the label names nobody that can be checked."""
    wronged: tuple[str, ...]
    """Healthy nodes that the verdict takes away; `?` for one that it takes without a name."""
    unreadable: tuple[str, ...]

    @property
    def category(self) -> bool:
        """Whether the category is right."""
        return self.verdict.category is self.truth.category

    @property
    def action(self) -> bool:
        """Whether the action is right."""
        return self.verdict.action is self.truth.action

    @property
    def right(self) -> bool:
        """Both."""
        return self.category and self.action


def measure(folder: Path) -> dict[str, Any]:
    """Diagnose all cases of a corpus and score them; the keys stand in the command's help.

    Raises:
        CorpusError, ContextFileError: when the corpus cannot be used.
    """
    cases = read_corpus(folder)
    began = time.perf_counter()
    scored = [score(case, diagnose(case.sources, case.context)) for case in cases]
    return {"corpus": str(folder), "seconds": round(time.perf_counter() - began, 2), **summary(scored)}


def score(case: Case, diagnosis: Diagnosis) -> Scored:
    """What a diagnosis got right of a case."""
    verdict, truth = diagnosis.verdict, case.truth
    naming = None
    if truth.who is not None and not truth.blames_nobody:
        naming = _naming(truth.who, verdict.implicated, case.context or Context())
    return Scored(truth, verdict, naming, _wronged(truth, verdict), diagnosis.unreadable)


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """All numbers, ready for JSON."""
    checked = [each for each in scored if each.naming]
    namings = Counter(each.naming for each in checked)
    named = namings[Naming.EXACT] + namings[Naming.PARTLY]
    nobody = [each for each in scored if each.truth.blames_nobody]
    wronged = [each for each in scored if each.wronged]
    return {
        "cases": len(scored),
        "category": _share(each.category for each in scored),
        "action": _share(each.action for each in scored),
        "both": _share(each.right for each in scored),
        "repeats": _share(
            each.verdict.action_if_it_repeats is each.truth.repeats for each in scored if each.truth.repeats
        ),
        "signature": _share(each.verdict.signature == each.truth.signature for each in scored if each.truth.signature),
        "localisation": {
            "checked": len(checked),
            **{naming.value: namings[naming] for naming in Naming},
            "share": round(named / len(checked), 4) if checked else None,
            "nobody": len(nobody),
            "nobody_but_named": sum(1 for each in nobody if each.verdict.implicated),
            "free_text": sum(1 for each in scored if each.truth.who is None),
        },
        "healthy_isolated": {
            "cases": len(wronged),
            "nodes": [{"file": each.truth.file, "nodes": list(each.wronged)} for each in wronged],
        },
        "confusion": {
            "category": _confusion((each.truth.category.value, each.verdict.category.value) for each in scored),
            "action": _confusion((each.truth.action.value, each.verdict.action.value) for each in scored),
        },
        "calibration": _calibration(scored),
        "misses": [_miss(each) for each in scored if _missed(each)],
        "unreadable": [line for each in scored for line in each.unreadable],
    }


def _share(answers: Iterable[bool]) -> dict[str, Any]:
    each = list(answers)
    return {"of": len(each), "right": sum(each), "share": round(sum(each) / len(each), 4) if each else None}


def _confusion(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for (label, got), count in sorted(Counter(pairs).items()):
        table.setdefault(label, {})[got] = count
    return table


def _calibration(scored: Sequence[Scored]) -> dict[str, Any]:
    """How far the confidence of a verdict tells whether it is right."""
    deciles = []
    for number in range(DECILES):
        inside = [each for each in scored if min(int(each.verdict.confidence * DECILES), DECILES - 1) == number]
        if inside:
            entry = {"from": number / DECILES, "to": (number + 1) / DECILES, **_share(each.right for each in inside)}
            deciles.append(entry | {"mean_confidence": _mean(inside)})
    return {
        "mean_confidence_right": _mean([each for each in scored if each.right]),
        "mean_confidence_wrong": _mean([each for each in scored if not each.right]),
        "brier": round(sum((each.verdict.confidence - each.right) ** 2 for each in scored) / len(scored), 4),
        "deciles": deciles,
    }


def _mean(scored: Sequence[Scored]) -> float | None:
    return round(sum(each.verdict.confidence for each in scored) / len(scored), 4) if scored else None


def _missed(each: Scored) -> bool:
    return not each.right or each.naming in {Naming.SILENT, Naming.WRONG} or bool(each.wronged)


def _miss(each: Scored) -> dict[str, Any]:
    truth, verdict, who = each.truth, each.verdict, each.verdict.implicated
    return {
        "file": truth.file,
        "label": {"category": truth.category.value, "action": truth.action.value, "who": _words(truth.who)},
        "got": {"category": verdict.category.value, "action": verdict.action.value, "who": _words(_places(who))},
        "signature": verdict.signature,
        "confidence": round(verdict.confidence, 2),
        "naming": each.naming.value if each.naming else None,
        "healthy_isolated": list(each.wronged),
    }


def _places(who: Implicated) -> Places:
    return Places(frozenset(who.ranks), frozenset(), frozenset(who.nodes), frozenset(map(gpu_key, who.gpus)))


def _words(who: Places | None) -> str:
    if who is None:
        return "(free text)"
    each: Mapping[str, Iterable[object]] = {
        "rank": sorted(who.ranks),
        "local_rank": sorted(who.local_ranks),
        "node": sorted(who.nodes),
        "GPU": sorted(who.gpus),
    }
    parts = [f"{kind} {','.join(map(str, names))}" for kind, names in each.items() if names]
    return " ".join(parts) or "nobody"


def _naming(wanted: Places, named: Implicated, context: Context) -> Naming:
    """Compares kind by kind: a label that names a rank says nothing about the nodes that a verdict names."""
    got = _places(named)
    pairs = [(wanted.ranks, got.ranks), (wanted.gpus, got.gpus), (_short(wanted.nodes), _short(got.nodes))]
    if wanted.local_ranks:
        pairs.append((wanted.local_ranks, _local(got.ranks, context)))
    pairs = [(want, have) for want, have in pairs if want]
    if any(have and have != want for want, have in pairs):
        return Naming.WRONG
    hits = [have == want for want, have in pairs]
    return Naming.EXACT if all(hits) else Naming.PARTLY if any(hits) else Naming.SILENT


def _local(ranks: Iterable[int], context: Context) -> frozenset[int]:
    """Ranks on their nodes: by the map where there is one, else of a single node, where both are the same."""
    seats: Mapping[int, Any] = context.rank_map
    known = (seats[rank].gpu if rank in seats else str(rank) for rank in ranks)
    return frozenset(int(text) for text in known if text is not None and text.isdigit())


def _short(names: Iterable[str]) -> frozenset[str]:
    """Host names without their domain; an address is whole."""
    return frozenset(name if name.replace(".", "").isdigit() else name.partition(".")[0] for name in names)


def _wronged(truth: Truth, verdict: Hypothesis) -> tuple[str, ...]:
    """Healthy nodes that would be taken away from this job's retry, or drained."""
    excluded = verdict.action is Action.RESTART_EXCLUDING_NODE
    taken = (*(verdict.implicated.nodes if excluded else ()), *verdict.drain_nodes)
    if truth.action is not Action.RESTART_EXCLUDING_NODE:
        return tuple(dict.fromkeys(taken)) or (("?",) if excluded else ())
    guilty = _short(truth.who.nodes) if truth.who else frozenset()
    return tuple(node for node in dict.fromkeys(taken) if guilty and not _short([node]) <= guilty)
