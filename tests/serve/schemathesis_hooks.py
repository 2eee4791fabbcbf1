"""A serializer that schemathesis lacks, for a stream of NDJSON."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> bytes:
    return str(value).encode(errors="surrogatepass")
