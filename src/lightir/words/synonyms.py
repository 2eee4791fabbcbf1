"""Synonyms from a file, in the syntax of Solr and Elasticsearch.

Each line is a rule; "#" begins a comment. `tv, television, telly` makes every side match the others. With an arrow, the
sides on the left are replaced by those on the right: `laptop, notebook => portable computer`. A side may have several
words. Sides are cut into terms by the index's analyzer, so upper case and endings do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lightir.errors import InvalidInput, NotFound, storage_errors

Side: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a file of synonyms.

    Attributes:
        left: texts that the rule applies to.
        right: texts that are searched in their place.
        line: number of the line, from 1.
    """

    left: tuple[Side, ...]
    right: tuple[Side, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Synonyms:
    """Rules of synonyms.

    Attributes:
        rules: the rules, in the order of the lines.
        source: name of the file, for messages.
    """

    rules: tuple[Rule, ...]
    source: str = "the synonyms"

    @classmethod
    def read(cls, path: Path | str) -> Synonyms:
        """Read a file of synonyms.

        Raises:
            NotFound: the file does not exist.
            InvalidInput: a line is no rule, or not UTF-8; the message names the file and the line.
        """
        if not Path(path).exists():
            raise NotFound(f"there is no file of synonyms {str(path)!r}")
        with storage_errors(f"cannot read {path}"):
            content = Path(path).read_bytes()
        return cls.parse(content, source=str(path))

    @classmethod
    def parse(cls, content: str | bytes, *, source: str = "the synonyms") -> Synonyms:
        """Return the rules of a text.

        Raises:
            InvalidInput: a line is no rule, or not UTF-8; the message names the source and the line.
        """
        lines: Sequence[str | bytes] = content.splitlines()
        rules = [_rule(line, f"{source}, line {number}", number) for number, line in enumerate(lines, start=1)]
        return cls(tuple(rule for rule in rules if rule is not None), source)


def _rule(line: str | bytes, where: str, number: int) -> Rule | None:
    try:
        text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
    except UnicodeDecodeError:
        raise InvalidInput(f"{where}: not UTF-8; save the file as UTF-8") from None
    text = text.partition("#")[0].strip()
    if not text:
        return None
    sides = [_sides(part, where) for part in text.split("=>")]
    if len(sides) > 2:
        raise InvalidInput(f"{where}: {text!r} has two arrows; expected one, as in 'laptop => notebook'")
    if len(sides) == 1 and len(sides[0]) < 2:
        raise InvalidInput(
            f"{where}: {text!r} is alone; expected words with commas between them, as in 'tv, television'"
        )
    return Rule(sides[0], sides[-1], number)


def _sides(part: str, where: str) -> tuple[Side, ...]:
    sides = tuple(side.strip() for side in part.split(","))
    if not all(sides):
        raise InvalidInput(f"{where}: a synonym is empty; expected a word between commas and arrows")
    return sides


class SynonymTable:
    """Synonyms as terms of one analyzer: the longest rule at each place of a query is found by its first term."""

    def __init__(self, synonyms: Synonyms, terms: Callable[[Sequence[str]], list[list[str]]]) -> None:
        """Cut the sides into terms.

        Args:
            synonyms: the rules.
            terms: function from texts to the terms of each.

        Raises:
            InvalidInput: a side has no terms, such as a stop word alone; the message names the line.
        """
        self._rules: dict[str, dict[tuple[str, ...], list[tuple[str, ...]]]] = {}
        for rule in synonyms.rules:
            left, right = (self._cut(sides, synonyms.source, rule.line, terms) for sides in (rule.left, rule.right))
            for side in left:
                into = self._rules.setdefault(side[0], {}).setdefault(side, [])
                into += [other for other in right if other not in into]

    @staticmethod
    def _cut(
        sides: Sequence[Side], source: str, line: int, terms: Callable[[Sequence[str]], list[list[str]]]
    ) -> list[tuple[str, ...]]:
        cut = [tuple(row) for row in terms(sides)]
        if () in cut:
            side = sides[cut.index(())]
            raise InvalidInput(f"{source}, line {line}: {side!r} has no term; stop words and single letters have none")
        return cut

    def find(self, row: Sequence[str], start: int) -> tuple[int, list[tuple[str, ...]]]:
        """Return the number of terms of the longest left side at a place, and its right sides; 0 if there is none."""
        sides = self._rules.get(row[start], {})
        matching = [side for side in sides if tuple(row[start : start + len(side)]) == side]
        longest = max(matching, key=len, default=())
        return len(longest), sides[longest] if longest else []
