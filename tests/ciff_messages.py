"""CIFF's messages by the protobuf library, from the definition in CommonIndexFileFormat.proto.

ONNX Runtime depends on the library, so all environments of the tests have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGES = {
    "Header": """int32 version = 1; int32 num_postings_lists = 2; int32 num_docs = 3; int32 total_postings_lists = 4;
        int32 total_docs = 5; int64 total_terms_in_collection = 6; double average_doclength = 7;
        string description = 8;""",
    "Posting": "int32 docid = 1; int32 tf = 2;",
    "PostingsList": "string term = 1; int64 df = 2; int64 cf = 3; repeated Posting postings = 4;",
    "DocRecord": "int32 docid = 1; string collection_docid = 2; int32 doclength = 3;",
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="ciff.proto", package="ciff", syntax="proto3")
    for name, body in MESSAGES.items():
        message = file.message_type.add(name=name)
        for line in filter(None, (part.strip() for part in body.split(";"))):
            *label, kind, field_name, _, number = line.split()
            entry = message.field.add(name=field_name, number=int(number))
            entry.label = 3 if label else 1  # repeated, optional
            if kind == "Posting":
                entry.type, entry.type_name = 11, ".ciff.Posting"
            else:
                entry.type = {"double": 1, "int64": 3, "int32": 5, "string": 9}[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ciff.{name}")) for name in MESSAGES}


CLASSES = _classes()
Header, Posting, PostingsList, DocRecord = (CLASSES[name] for name in MESSAGES)


@dataclass
class Ciff:
    """The content of a CIFF file, with documents by their numbers."""

    lists: dict[str, dict[int, int]]
    documents: list[tuple[str, int]]
    description: str = ""
    header: Any = None
    cf: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the frequency of each term by document id."""
        counts: dict[str, dict[str, int]] = {doc_id: {} for doc_id, _ in self.documents}
        for term, postings in self.lists.items():
            for number, frequency in postings.items():
                counts[self.documents[number][0]][term] = frequency
        return counts


def delimited(message: Any) -> bytes:
    """Return a message after its length, a number of 7 bits a byte."""
    content = message.SerializeToString()
    length, size = b"", len(content)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return length + bytes([size]) + content


def written(ciff: Ciff, **header: Any) -> bytes:
    """Return the bytes of a CIFF file."""
    total = sum(length for _, length in ciff.documents)
    values = {
        "version": 1,
        "num_postings_lists": len(ciff.lists),
        "num_docs": len(ciff.documents),
        "total_postings_lists": len(ciff.lists),
        "total_docs": len(ciff.documents),
        "total_terms_in_collection": total,
        "average_doclength": total / max(len(ciff.documents), 1),
        "description": ciff.description,
    }
    content = delimited(Header(**(values | header)))
    for term, postings in ciff.lists.items():
        before, messages = 0, []
        for number in sorted(postings):
            messages.append(Posting(docid=number - before, tf=postings[number]))
            before = number
        frequencies = {"df": len(postings), "cf": sum(postings.values())}
        content += delimited(PostingsList(term=term, postings=messages, **frequencies))
    for number, (doc_id, length) in enumerate(ciff.documents):
        content += delimited(DocRecord(docid=number, collection_docid=doc_id, doclength=length))
    return content


def parsed(content: bytes) -> Ciff:
    """Read a CIFF file by the protobuf library."""
    at = 0

    def message(kind: Any) -> Any:
        nonlocal at
        size = shift = 0
        while True:
            byte = content[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
        return kind.FromString(content[at - size : at])

    header = message(Header)
    ciff = Ciff({}, [], header.description, header)
    for _ in range(header.num_postings_lists):
        postings_list, number, postings = message(PostingsList), 0, {}
        for posting in postings_list.postings:
            number += posting.docid
            postings[number] = posting.tf
        assert len(postings) == postings_list.df == len(postings_list.postings)
        assert postings_list.term not in ciff.lists
        ciff.lists[postings_list.term] = postings
        ciff.cf[postings_list.term] = postings_list.cf
    for number in range(header.num_docs):
        record = message(DocRecord)
        assert record.docid == number
        ciff.documents.append((record.collection_docid, record.doclength))
    assert at == len(content)
    return ciff
