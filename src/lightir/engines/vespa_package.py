"""The application package that Vespa has to run before an index can be pushed to it.

Vespa creates no collections on request: a schema is deployed with the whole application. The package describes an
application of one node with one schema. In an application that exists already, the schema and the query profile are
copied, and the schema is named among the documents of services.xml.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lightir.engines.address import EngineAddress
from lightir.engines.engine import DENSE, DOC_ID, METADATA, SPARSE, TEXT, TITLE, VERSION, CollectionRecord
from lightir.errors import AlreadyExists, InvalidInput

ROW, VALUES = "lightir_row", "lightir_values"
"""Fields with a hash of the doc_id, and hashes of the metadata's values, which queries and filters look up."""

IDS = "lightir_ids"
"""Name of the summary that is read from memory."""

PROFILE = "lightir"
"""Name of the query profile, which raises the number of rows that a search returns."""

MAX_HITS = 10_000
"""Maximum number of rows of a search; Vespa keeps the scores of as many."""

_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SERVICES = """<?xml version="1.0" encoding="UTF-8"?>
<services version="1.0">
    <container id="{name}_container" version="1.0">
        <search/>
        <document-api/>
        <document-processing/>
    </container>
    <content id="{name}_content" version="1.0">
        <redundancy>1</redundancy>
        <documents>
            <document type="{name}" mode="index"/>
        </documents>
        <nodes>
            <node distribution-key="0" hostalias="node1"/>
        </nodes>
    </content>
</services>
"""

_QUERY_PROFILE = f"""<query-profile id="{PROFILE}">
    <field name="maxHits">{MAX_HITS}</field>
    <field name="dispatch.topKProbability">1.0</field>
</query-profile>
"""

_GRAPH = """
            index {
                hnsw {
                    max-links-per-node: 16
                    neighbors-to-explore-at-insert: 200
                }
            }"""


def schema_name(address: EngineAddress) -> str:
    """Return the name of the schema of an address.

    Raises:
        InvalidInput: Vespa allows no such name.
    """
    if not _SCHEMA_NAME.fullmatch(address.collection):
        raise InvalidInput(
            f"{str(address)!r} names the schema {address.collection!r}; in Vespa a name has letters, digits and _, and "
            "begins with no digit"
        )
    return address.collection


def application_package(name: str, record: CollectionRecord) -> dict[str, str]:
    """Return the files of an application package by their paths.

    Args:
        name: name of the schema.
        record: record of what the schema's documents will hold.
    """
    return {
        "services.xml": _SERVICES.format(name=name),
        f"schemas/{name}.sd": _schema(name, record),
        f"search/query-profiles/{PROFILE}.xml": _QUERY_PROFILE,
    }


def write_package(folder: str | os.PathLike[str], address: EngineAddress | str, record: CollectionRecord) -> None:
    """Write the application package of an address to a folder.

    Args:
        folder: folder that does not exist, or is empty.
        address: address of a schema in Vespa.
        record: record of what the schema's documents will hold, as `collection_of` returns it for an index.

    Raises:
        InvalidInput: an address of another engine, or a name that Vespa does not allow.
        AlreadyExists: the folder holds something.
    """
    chosen = EngineAddress.parse(address) if isinstance(address, str) else address
    if chosen.kind != "vespa":
        raise InvalidInput(f"{chosen.kind} requires no application package; push without --package")
    files = application_package(schema_name(chosen), record)
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise AlreadyExists(f"{root} exists and is not an empty folder; choose another one for the application package")
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def _schema(name: str, record: CollectionRecord) -> str:
    fields = [
        _field(DOC_ID, "string", "attribute | summary"),
        _field(ROW, "long", "attribute", fast_search=True),
        _field(TITLE, "string", "summary"),
        _field(TEXT, "string", "summary"),
        _field(METADATA, "string", "summary"),
        _field(VALUES, "array<long>", "attribute", fast_search=True),
        _field(VERSION, "string", "summary"),
    ]
    profiles = []
    if record.dense_dim is not None:
        tensor = f"tensor<float>(x[{record.dense_dim}])"
        fields.append(_dense_field(tensor, record.index == "hnsw"))
        inputs = f"\n        inputs {{\n            query(q) {tensor}\n        }}"
        profiles.append(_rank_profile(DENSE, f"sum(query(q) * attribute({DENSE}))", inputs))
    if record.vocab_size is not None:
        fields.append(_field(SPARSE, "weightedset<int>", "attribute | summary", fast_search=True))
        profiles.append(_rank_profile(SPARSE, f"rawScore({SPARSE})"))
    summary = f"    document-summary {IDS} {{\n        summary {DOC_ID} {{}}\n    }}\n"
    document = f"    document {name} {{\n{''.join(fields)}    }}\n"
    return f"schema {name} {{\n{document}{''.join(profiles)}{summary}}}\n"


def _field(name: str, kind: str, indexing: str, *, fast_search: bool = False) -> str:
    attribute = "            attribute {\n                fast-search\n            }\n" * fast_search
    return f"        field {name} type {kind} {{\n            indexing: {indexing}\n{attribute}        }}\n"


def _dense_field(tensor: str, has_graph: bool) -> str:
    indexing = "attribute | index | summary" if has_graph else "attribute | summary"
    return f"""        field {DENSE} type {tensor} {{
            indexing: {indexing}
            attribute {{
                distance-metric: dotproduct
            }}{_GRAPH * has_graph}
        }}
"""


def _rank_profile(name: str, expression: str, inputs: str = "") -> str:
    return f"""    rank-profile {name} {{{inputs}
        first-phase {{
            expression {{
                {expression}
            }}
        }}
    }}
"""
