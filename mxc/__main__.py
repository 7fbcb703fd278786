"""`python -m mxc` is the `mxc` command."""

import signal


def main() -> None:
    """Load the command line and run it."""
    # Until a command begins, an interrupt ends the process at once: there is nothing to clean up.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mxc.compiler.cli import main as run

    run()


if __name__ == "__main__":
    main()
