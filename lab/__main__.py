"""The command, which lab/bin/lab starts; Ctrl-C ends it quietly even while it loads."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from lab.errors import INTERRUPTED

EXIT_S = 10.0


def main() -> None:
    """Run the command."""
    sys.unraisablehook = _interrupt_again
    # By default the collector takes a fifth of a short verb's time, and finds little.
    gc.set_threshold(100_000, 20, 20)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        from lab.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("lab: interrupted\n")
        _end_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _end_interrupted()
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own shutdown would report it
        # Nor need it look for garbage among all modules: after a report that takes half a second.
        gc.freeze()


def _end_interrupted() -> NoReturn:
    """End with the status of an interrupted command, as documented.

    After sys.exit Python may end by the signal instead: wherever Ctrl-C met code from a string, as
    that of data classes, it takes the interrupt for unhandled.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Functions of libraries may wait at exit for what Ctrl-C interrupted.
    limit = threading.Timer(EXIT_S, os._exit, [INTERRUPTED])
    limit.daemon = True
    limit.start()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(INTERRUPTED)


def _interrupt_again(unraisable: Any) -> None:
    """Resend a Ctrl-C that arrived where nothing can be raised, as in a library's callback."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Thread(target=_interrupt_main, daemon=True).start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_main() -> None:
    """Send Ctrl-C to the main thread once it has left the hook, where nothing can be raised."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    within = True
    while within:
        time.sleep(0.01)
        frame: FrameType | None = sys._current_frames().get(main_thread)
        while frame is not None and frame.f_code is not _interrupt_again.__code__:
            frame = frame.f_back
        within = frame is not None
    signal.pthread_kill(main_thread, signal.SIGINT)


if __name__ == "__main__":
    main()
