"""Make a data set of manual pages in several languages: find each page by its one-line description.

The documents are pages without their first paragraphs, the queries their descriptions ("copy files and directories"). A
split per language, named by its code, has the queries of its pages. So it measures words of languages for which there
are no judged collections; queries repeat words of pages, which favors exact forms. Debian's packages manpages (English)
and manpages-de, -es, -fr, -pl and others have the pages:

    apt-get download manpages manpages-de manpages-fr
    for package in manpages*.deb; do dpkg-deb -x $package ${package%%_*}; done
    python recipes/manual_pages.py pages en=manpages de=manpages-de fr=manpages-fr
    lightir index pages --out index
    lightir evaluate index --dataset pages --split de
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broad_text import manual, read_text

DESCRIPTION = re.compile(r"^.{1,60}? [-–—]+ (.+)$")
LEAST_WORDS, LEAST_CHARACTERS = 2, 300


@dataclass(frozen=True)
class Page:
    """A manual page.

    Attributes:
        doc_id: language and file name.
        description: words after the name in the page's first section.
        text: the other sections.
    """

    doc_id: str
    description: str
    text: str


def pages(language: str, folder: Path) -> Iterator[Page]:
    """Yield the pages of a folder that have a description of LEAST_WORDS words, each description once."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*.gz")):
        if path.is_symlink() or not re.match(r"man\d", path.parent.name):
            continue
        if re.match(r"\.so ", read_text(path)):  # another name of a page
            continue
        paragraphs = [text for _, text in manual(path)]
        described = [(i, m[1]) for i, text in enumerate(paragraphs[:3]) if (m := DESCRIPTION.match(text))]
        if not described:
            continue
        position, description = described[0][0], described[0][1].split(" . ")[0].strip()
        text = "\n".join(paragraphs[position + 1 :])
        if len(description.split()) < LEAST_WORDS or len(text) < LEAST_CHARACTERS or description in seen:
            continue
        seen.add(description)
        yield Page(f"{language}/{path.stem}", description, text)


def main() -> None:
    """Write corpus, queries and a split per language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the data set")
    parser.add_argument("folders", nargs="+", metavar="LANGUAGE=FOLDER", help="code of a language, folder of its pages")
    args = parser.parse_args()
    (args.out / "qrels").mkdir(parents=True)
    with (
        (args.out / "corpus.jsonl").open("w", encoding="utf-8") as corpus,
        (args.out / "queries.jsonl").open("w", encoding="utf-8") as queries,
    ):
        for language, folder in (named.split("=", 1) for named in args.folders):
            found_pages = list(pages(language, Path(folder)))
            for page in found_pages:
                corpus.write(json.dumps({"_id": page.doc_id, "text": page.text}, ensure_ascii=False) + "\n")
                queries.write(json.dumps({"_id": page.doc_id, "text": page.description}, ensure_ascii=False) + "\n")
            judged = "".join(f"{page.doc_id}\t{page.doc_id}\t1\n" for page in found_pages)
            qrels = args.out / "qrels" / f"{language}.tsv"
            qrels.write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
            print(f"{language}: {len(found_pages)} pages")


if __name__ == "__main__":
    main()
