"""Recipes as YAML: files with bases, overrides of single keys, and the form that is saved with a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightir.contract import shorten, to_json
from lightir.errors import FormatError, InvalidInput, NotFound

MAX_VALUES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-5 is a number, as in YAML 1.2 (in YAML 1.1 it is a string).

    Duplicate keys of an object are refused; PyYAML uses the last.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := [key for key, n in Counter(keys).items() if n > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"duplicate key {repeated[0]!r} in an object", node.start_mark
            )
        return super().construct_mapping(node, deep)


def _parsed(text: str) -> Any:
    """Return the YAML's value.

    Raises:
        ValueError: not YAML, or aliases that are circular or expand to more than MAX_VALUES values.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise ValueError(f"its aliases expand to more than {MAX_VALUES:,} values")
        return loader.construct_document(node)
    # For a bad !!int, !!bool or !!timestamp PyYAML raises Python's own errors.
    except (yaml.YAMLError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a node; an alias counts each time."""
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # until it is counted: a node that contains itself is infinite
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [child for part in inner for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(child, known) for child in parts)
    return known[id(node)]


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), [*"-+.", *"0123456789"]
)


def recipe_content(path: Path | str, *, overrides: Sequence[str] = ()) -> Any:
    """Return the unchecked content of a recipe file, with its bases and overrides (values in YAML) applied.

    `base` names another file, relative to this one, whose keys are inherited: objects are merged key by key, lists and
    values are replaced.

    Raises:
        NotFound: the file does not exist.
        FormatError: not YAML, or circular bases.
        InvalidInput: an override without "=".
    """
    return overridden(_with_base(Path(path), ()), overrides)


def overridden(content: Any, overrides: Sequence[str]) -> Any:
    """Apply overrides in place and return the content: `key=value`, or `key.key=value` for nested keys, values in YAML.

    Raises:
        InvalidInput: an override without "=", whose value is not YAML, or whose key does not exist in a list or value.
    """
    for override in overrides:
        _override(content, override)
    return content


def _with_base(path: Path, above: tuple[Path, ...]) -> Any:
    if not path.is_file():
        raise NotFound(f"recipe {path} does not exist" + (f"; {above[-1]} names it as its base" if above else ""))
    if path.resolve() in above:
        raise FormatError(f"{path} is its own base, by way of {', '.join(parent.name for parent in above)}")
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or "base" not in content:
        return content
    base = content.pop("base")
    if not isinstance(base, str):
        raise FormatError(f"{path}: base is {shorten(base)}; expected the name of a recipe file")
    return _merged(_with_base(path.parent / base, (*above, path.resolve())), content)


def _merged(base: Any, own: Any) -> Any:
    """Merge two contents: objects key by key, other values from `own`."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {**base, **{key: _merged(base.get(key), value) for key, value in own.items()}}


def _override(content: Any, override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise InvalidInput(f"override {override!r}: expected key=value, such as optimisation.steps=100")
    *parents, last = key.split(".")
    try:
        parsed = _parsed(value)
    except ValueError as error:
        raise InvalidInput(f"override {override!r}: the value is not YAML: {error}") from error
    for parent in parents:
        content = (
            content[_position(content, parent, override)]
            if isinstance(content, list)
            else (content.setdefault(parent, {}) if isinstance(content, dict) else None)
        )
        if not isinstance(content, dict | list):
            raise InvalidInput(f"override {override!r}: {parent!r} has no fields")
    if isinstance(content, list):
        content[_position(content, last, override)] = parsed
    elif isinstance(content, dict):
        content[last] = parsed
    else:
        raise InvalidInput(f"override {override!r}: the recipe has no fields")


def _position(values: list[Any], key: str, override: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", key) or int(key) >= len(values):
        raise InvalidInput(f"override {override!r}: {key!r} is no position in a list of {len(values)}")
    return int(key)


def recipe_yaml(recipe: object) -> str:
    """Return the recipe as YAML with every field, defaults included."""
    return yaml.safe_dump(to_json(recipe), sort_keys=False, allow_unicode=True)
