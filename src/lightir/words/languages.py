"""The languages of a collection, by the function words of its texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from lightir.words.stems import languages

DETECTED_CHARACTERS = 1000
"""Number of characters of each text that are read."""

LEAST_SHARE = 0.05
"""Smallest share of a language's function words among all Latin words, below which the answer is English."""

MAX_LANGUAGES = 4
"""Maximum number of languages of a collection."""

LEAST_TEXTS, LEAST_SHARE_OF_TEXTS = 3, 0.1
"""Least number and share of the texts in a language, of those whose language is certain, for it to count."""

LEAST_SHARE_OF_ALL = 0.01
"""Least share of all texts; without it a few Latin quotations in a Chinese collection would count."""

CERTAIN, CERTAIN_RATIO = 3.0, 1.5
"""Least sum of the weights of function words by which the language of a text is certain, and least ratio to the next.
"""

FUNCTION_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "basque": "eta da bat du ez zen ere dira dute izan baina hau beste egin zuen ziren bere oso",
        "catalan": "de la el que les els en per un una amb és del al no més va dels ha com seva aquest són aquesta",
        "czech": "se na je že v do by ale jako jsou jsem byl byla bylo pro není také tak který která podle jeho nebo",
        "danish": "og i at det er en til af på som med for den de ikke der var et har fra blev også efter han eller",
        "dutch": "de van het een en in is dat op te zijn met voor niet aan er om ook als bij door naar wordt werd uit",
        "english": "the of and to in a is that for it as was with be by on not he this are or his from at which but",
        "esperanto": "la de kaj en estas al kun por li estis ne ke pri kiu oni ĝi ankaŭ sed unu tiu kiel inter",
        "estonian": "ja on ei et oli see ta mis kui ka oma aga siis seda nii ning kes või selle pärast olid mida",
        "finnish": "ja on oli ei se että hän joka mutta niin kuin myös sen ovat vuonna sekä tai mukaan ole kanssa",
        "french": "de la le et les des en un une du que est dans pour qui par au plus sur pas ce il avec sont ne",
        "german": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden",
        "hungarian": "a az és hogy nem is egy volt meg ez de csak mint már el vagy még azt van ki ezt aki szerint",
        "indonesian": "yang dan di dari dengan untuk pada ini dalam tidak itu adalah sebagai oleh ke akan atau juga",
        "irish": "an na agus ar a i is go bhí le sé ag do tá ní don bhfuil ach mar ó chun sí siad",
        "italian": "di e il la che in un a per del non una è con i le si da della sono dei nel alla come più",
        "lithuanian": "ir yra kad su iš į tai buvo bet kaip ar po už jis apie taip jo nuo tik buvo dar metų per",
        "norwegian": "og i det er en til av på som for med at den ikke har de et fra var ble også etter han eller",
        "polish": "i w na z się do nie że jest to o a jak od po przez dla jego oraz był są czy tym tego roku który",
        "portuguese": "de a o que e do da em um para com não uma os no se na por mais as dos como ao foi são é",
        "romanian": "de și în a la cu o din pe un care nu este pentru mai ca fost sau au fi prin lui sunt este că",
        "spanish": "de la que el en y a los se del las un por con no una su para es al lo como más o fue",
        "swedish": "och i att det som en på är av för med till den har de inte om ett han men var sig från vi också",
        "turkish": "ve bir bu da de için ile olarak olan çok daha gibi ne kadar sonra en ise var olduğu ancak değil",
    }.items()
}

_LATIN_WORD = re.compile(r"[a-z\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff]+")


def languages_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return Snowball's names of the languages that the Latin words of some texts are in, the main one first.

    The main language is the one whose function words occur most often, each weighted by 1 / the number of languages
    that have it. Texts with few of them, such as names of products, are taken for English; so are texts without Latin
    words. Others follow, most texts first, if LEAST_TEXTS texts are in them, LEAST_SHARE_OF_ALL of all texts, and
    LEAST_SHARE_OF_TEXTS of those whose language is certain; MAX_LANGUAGES in all. The language of a text is certain if
    the weights of its function words are CERTAIN or more, and CERTAIN_RATIO times those of the next language.

    Args:
        texts: texts; the first DETECTED_CHARACTERS of each are read.
    """
    n_texts, n_words, n_certain = 0, 0, 0
    scores: Counter[str] = Counter()
    certain: Counter[str] = Counter()
    for text in texts:
        words = _LATIN_WORD.findall(text[:DETECTED_CHARACTERS].lower())
        of_text = _scores(words)
        language = _certain_language(of_text)
        n_texts += 1
        n_words += len(words)
        scores.update(of_text)
        if language is not None:
            n_certain += 1
            certain[language] += 1
    best = max(sorted(_stemmed()), key=lambda language: (scores[language], language == "english"))
    main = best if scores[best] > LEAST_SHARE * n_words else "english"
    least = max(LEAST_TEXTS, LEAST_SHARE_OF_TEXTS * n_certain, LEAST_SHARE_OF_ALL * n_texts)
    others = [language for language, n in sorted(certain.items(), key=lambda item: (-item[1], item[0])) if n >= least]
    return (main, *(language for language in others if language != main))[:MAX_LANGUAGES]


def _scores(words: Sequence[str]) -> Counter[str]:
    """Return the sum of the weights of each language's function words."""
    scores: Counter[str] = Counter()
    weights = _weights()
    for word, count in Counter(words).items():
        for language, weight in weights.get(word, ()):
            scores[language] += count * weight  # type: ignore[assignment]
    return scores


def _certain_language(scores: Counter[str]) -> str | None:
    """Return the language of a text; None if it has too few function words, or two languages are likely."""
    (first, most), (_, next_most) = [*scores.most_common(2), ("", 0), ("", 0)][:2]
    return first if most >= max(CERTAIN, CERTAIN_RATIO * next_most) else None


@cache
def _weights() -> dict[str, list[tuple[str, float]]]:
    """Return the languages of each function word, with the weight that it has for them."""
    shared = Counter(word for words in FUNCTION_WORDS.values() for word in words)
    languages_of_word: dict[str, list[tuple[str, float]]] = {}
    for language in sorted(_stemmed()):
        for word in FUNCTION_WORDS[language]:
            languages_of_word.setdefault(word, []).append((language, 1 / shared[word]))
    return languages_of_word


@cache
def _stemmed() -> frozenset[str]:
    return frozenset(languages()).intersection(FUNCTION_WORDS)
