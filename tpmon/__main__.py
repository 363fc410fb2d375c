"""Run tpmon, as the command or as ``python -m tpmon``."""

import sys


def main() -> int:
    """Run one command and return its exit status; ``run`` mostly becomes another program instead."""
    refused = None
    if sys.argv[1:2] == ["run"]:
        from tpmon.commands.run import start  # noqa: PLC0415 before all that only a tool needs

        refused = start(sys.argv[2:])
    from tpmon.supervisor import supervise, work  # noqa: PLC0415

    supervise()
    from tpmon.cli import main as run_command  # noqa: PLC0415

    return work(lambda: run_command(refused=refused))


if __name__ == "__main__":
    raise SystemExit(main())
