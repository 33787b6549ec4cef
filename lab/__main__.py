"""The command `lab`, also as `python -m lab`; Ctrl-C ends it quietly while it loads, too."""

import signal
import sys


def main() -> None:
    """Run the command."""
    try:
        from lab.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("lab: interrupted\n")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own end would tell of it


if __name__ == "__main__":
    main()
