"""Run tpmon as ``python -m tpmon``."""

from tpmon.cli import main

raise SystemExit(main())
