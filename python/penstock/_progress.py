"""A line on stderr that shows how far many requests have come."""
import sys
import time


class Progress:
    """Shows the line if `shown`; if None, when there are several requests and stderr is a terminal."""

    def __init__(self, total: int, shown: bool | None) -> None:
        self._total = total
        self._shown = shown if shown is not None else total > 1 and sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._done = self._tokens = 0

    def add(self, num_tokens: int) -> None:
        """Counts a finished request."""
        self._done += 1
        self._tokens += num_tokens
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and self._done < self._total):
            return
        self._last = now
        rate = self._tokens / max(now - self._begin, 1e-9)
        line = f"\rpenstock: {self._done} of {self._total} requests, {rate:.1f} tokens/s "
        print(line, end="\n" if self._done == self._total else "", file=sys.stderr, flush=True)
