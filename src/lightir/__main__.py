"""`python -m lightir` is the command line."""

from lightir.cli import main

raise SystemExit(main())
