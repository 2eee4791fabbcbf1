"""Run the command line: `python -m lightir`."""

from lightir.cli import main

raise SystemExit(main())
