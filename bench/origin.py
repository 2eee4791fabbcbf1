"""The line above a benchmark's tables that says which code ran where, when and how."""

from __future__ import annotations

from lightir.provenance import provenance


def print_origin() -> None:
    """Print commit, date, machine and command of this run."""
    record = provenance()
    machine = record["machine"]
    hardware = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    print(f"lightir {record['lightir']} at {record['commit']}, {record['date']}, {hardware}, Python {record['python']}")
    print(f"{record['command']}\n", flush=True)
