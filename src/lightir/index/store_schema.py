"""SQL of the store: its tables, and what its checksums cover."""

from __future__ import annotations

# Metadata has its own table, so that a filter reads no texts. Keys are never reused: a tombstoned document of a segment
# must not be taken for a later one.
SCHEMA = """
CREATE TABLE record (value TEXT NOT NULL);
CREATE TABLE generation (number INTEGER NOT NULL);
CREATE TABLE segments (
    number INTEGER PRIMARY KEY AUTOINCREMENT, documents INTEGER NOT NULL, manifest_sha256 TEXT NOT NULL, deleted BLOB
);
CREATE TABLE documents (
    doc_key INTEGER PRIMARY KEY AUTOINCREMENT, doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE metadata (doc_key INTEGER PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO generation VALUES (0);
"""

# Documents whose keys are smaller than covered_from may lack a checksum, because an earlier release stored them.
ADD_CHECKSUMS = (
    "ALTER TABLE metadata ADD COLUMN checksum INTEGER",
    "CREATE TABLE state (checksum TEXT NOT NULL, covered_from INTEGER NOT NULL)",
    "INSERT INTO state SELECT '', coalesce(max(seq) + 1, 0) FROM sqlite_sequence WHERE name = 'documents'",
)

# What the checksum of the state covers: everything but documents and metadata, which have their own checksums.
STATE = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name",
    "SELECT value FROM record",
    "SELECT number FROM generation",
    "SELECT covered_from FROM state",
    "SELECT name, seq FROM sqlite_sequence ORDER BY name",
    "SELECT number, documents, manifest_sha256, deleted FROM segments ORDER BY number",
    "PRAGMA user_version",
)

ROWS = """
SELECT doc_key, typeof(doc_id) || typeof(title) || typeof(text) || typeof(value) = 'texttexttexttext',
    CAST(doc_id AS BLOB), CAST(title AS BLOB), CAST(text AS BLOB), CAST(value AS BLOB), {checksum}
FROM documents LEFT JOIN metadata USING (doc_key) WHERE doc_key > ? ORDER BY doc_key LIMIT ?
"""
