"""Text to terms for the lexical signal: stemmed words, character pairs for scripts without spaces.

The stoplist holds question words: in a question they name the kind of the answer, and in a turn of
a dialogue they only show that somebody asks.
"""

import re
import threading
from datetime import datetime

import Stemmer

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f"
_TOKEN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+(?:['’][^\W_]+)?")
_IS_CJK = re.compile(rf"[{_CJK}]")
STOPWORDS = frozenset(
    """
    a about above after again all also am an and any are as at be because been before being
    both but by can could did do does doing don down during each else ever few for from
    further get got had has have having he her here hers him his how i if in into is it its
    just kind like ll m many me might mine more most much must my no nor not now of off on
    once one only or other our ours out over own re s same shall she should so some such t
    than that the their theirs them then there these they this those through to too under
    until up us ve very was we were what when where which while who whom whose why will with
    would you your yours
    """.split()  # noqa: SIM905 - a list of words reads better as words
)
_stemmers = threading.local()


def to_terms(text: str) -> list[str]:
    """Return the terms of a text in order, stopwords left out.

    Words are case-folded and stemmed as English; runs of scripts that do not separate words become
    overlapping pairs of characters.
    """
    terms: list[str] = []
    for token in _TOKEN.findall(text.casefold()):
        if _IS_CJK.match(token):
            terms.extend(token[i : i + 2] for i in range(max(1, len(token) - 1)))
            continue
        word = re.split("['’]", token)[0]
        if word not in STOPWORDS:
            terms.append(_stem(word))
    return terms


def date_words(event_time: str) -> str:
    """Return the day of an ISO time in words, `8 May 2023`; empty where there is none."""
    try:
        time = datetime.fromisoformat(event_time)
    except ValueError:
        return ""
    return f"{time.day} {time:%B} {time.year}"


def _stem(word: str) -> str:
    stemmer = getattr(_stemmers, "english", None)
    if stemmer is None:
        stemmer = _stemmers.english = Stemmer.Stemmer("english")
    return str(stemmer.stemWord(word))
