"""Compare the locked packages with the published vulnerabilities, or say plainly that it could not be done.

The exit code is 1 if a locked version has a known vulnerability. Without access to the published vulnerabilities
nothing is known: the last line then says NOT DONE, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def audited(locks: list[Path], program: str) -> list[dict[str, object]]:
    """Return what pip-audit says of each locked package; an empty list if it could not ask at all."""
    files = [argument for lock in locks for argument in ("--requirement", str(lock))]
    command = [program, "--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json", *files]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    try:
        packages: list[dict[str, object]] = json.loads(result.stdout)["dependencies"]
    except ValueError:
        print(result.stderr.strip()[-2000:])
        return []
    return packages


def main() -> int:
    """Print the vulnerable packages and how many were compared; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="pip-audit", help="pip-audit to run")
    parser.add_argument("locks", nargs="*", type=Path, help="locks to compare (default: all)")
    arguments = parser.parse_args()
    locks = arguments.locks or sorted(HERE.glob("*.lock"))  # lowest*.txt are old by intent
    packages = audited(locks, arguments.program)
    vulnerable = sorted({f"{p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", [])})
    compared = {(package["name"], package["version"]) for package in packages if "skip_reason" not in package}
    print(*vulnerable, sep="\n", end="\n" if vulnerable else "")
    if not compared:
        print("audit: NOT DONE: no package could be compared with the published vulnerabilities; is there a network?")
    else:
        skipped = sorted({str(package["name"]) for package in packages if "skip_reason" in package})
        missing = f"; not compared: {', '.join(skipped)}" if skipped else ""
        print(f"audit: {len(compared)} packages compared, {len(vulnerable)} known vulnerabilities{missing}")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
