"""What a ranking is worth: evidence ids as data sets write them, and how many a ranking finds."""

import re
from collections.abc import Collection, Sequence

_TURN = re.compile(r"\bD:?(\d+):(\d+)\b")


def evidence_ids(evidence: object, known: Collection[str]) -> tuple[str, ...]:
    """Return the turns that a LoCoMo question names as evidence, in the order it names them.

    The file's slips are read as they are meant: several ids in one string, `D:11:26` for D11:26,
    `D30:05` for D30:5. What names no turn of the conversation (a bare `D`, an unknown id) is left
    out; the result is empty where nothing remains.

    Args:
        evidence: The question's field: a list of strings, one string, or nothing.
        known: Ids of the conversation's turns.
    """
    parts = evidence if isinstance(evidence, list | tuple) else (evidence,)
    named = [match for part in parts for match in _TURN.findall(str(part))]
    ids = dict.fromkeys(f"D{int(session)}:{int(turn)}" for session, turn in named)
    return tuple(turn_id for turn_id in ids if turn_id in known)


def recall_at(ranked: Sequence[str], evidence: Collection[str], k: int) -> float:
    """Return the share of the evidence that is among the first k.

    Args:
        ranked: Document ids, best first, each once.
        evidence: Ids to find, each once; at least one.
        k: At least 1.
    """
    return _found(ranked, evidence, k) / len(evidence)


def precision_at(ranked: Sequence[str], evidence: Collection[str], k: int) -> float:
    """Return the share of k places that hold evidence; places that were not filled count too.

    Args:
        ranked: Document ids, best first, each once.
        evidence: Ids to find.
        k: At least 1.
    """
    return _found(ranked, evidence, k) / k


def _found(ranked: Sequence[str], evidence: Collection[str], k: int) -> int:
    return len(set(ranked[:k]) & set(evidence))
