"""The command `lab`, also as `python -m lab`; Ctrl-C ends it quietly even while it loads."""

import signal
import sys
import threading
from typing import Any


def main() -> None:
    """Run the command."""
    sys.unraisablehook = _interrupt_again
    try:
        from lab.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("lab: interrupted\n")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own shutdown would report it


def _interrupt_again(unraisable: Any) -> None:
    """Resend a Ctrl-C that arrived where nothing can be raised, as in a library's callback."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        threading.Timer(0.01, signal.pthread_kill, [main_thread, signal.SIGINT]).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
