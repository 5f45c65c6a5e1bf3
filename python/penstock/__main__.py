"""The command line: `penstock run ...`, and `python -m penstock run ...`."""
import signal
import sys

from penstock._penstock import run_command_line


def main() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the commands have handlers of their own, where they need some
    sys.exit(run_command_line(["penstock", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
