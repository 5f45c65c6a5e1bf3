"""The thread that owns a session: it makes the steps, and everybody else only waits for results.

So any number of threads and coroutines can share a model, and an exception such as KeyboardInterrupt in one of them never
interrupts a step.
"""
import atexit
import collections
import concurrent.futures
import dataclasses
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock import _penstock
from penstock.errors import InternalError, StoppedError, UsageError, of_code

T = TypeVar("T")
Result = dict[str, Any]


@dataclasses.dataclass(eq=False)
class Request:
    """A request in the form of a job line. Cancelling its future gives it up."""

    line: str
    number: int = 1  # of the line in its job, from which the seed comes
    on_piece: Callable[[int, str, list[int]], None] | None = None  # gets an answer's index, a text and its tokens
    ticket: int = 0
    future: "concurrent.futures.Future[Result]" = dataclasses.field(default_factory=concurrent.futures.Future)


@dataclasses.dataclass(eq=False)
class _Call:
    function: Callable[[], Any]
    needs_idle: bool
    future: "concurrent.futures.Future[Any]" = dataclasses.field(default_factory=concurrent.futures.Future)


def _settle(future: "concurrent.futures.Future[Any]", result: Any = None, error: BaseException | None = None) -> None:
    try:
        # A traceback would keep the thread's frames alive, and with them the session.
        future.set_exception(error.with_traceback(None)) if error is not None else future.set_result(result)
    except concurrent.futures.InvalidStateError:
        pass  # cancelled


def wait(future: "concurrent.futures.Future[T]") -> T:
    """The result. If Ctrl-C ends the wait, the future is cancelled: what nobody waits for must not hold up requests."""
    try:
        return future.result()
    finally:
        future.cancel()


class Driver:
    """Owns a session. All methods may be called from any thread."""

    def __init__(self, flags: list[str], date: str) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards the next five
        self._backlog: collections.deque[Request] = collections.deque()
        self._calls: collections.deque[_Call] = collections.deque()
        self._given_up: list[int] = []  # tickets; 0 for a call
        self._last_ticket = 0
        self._is_closing = False
        self._error: BaseException | None = None  # after which nothing works any more
        self._running: dict[int, Request] = {}  # used only by the thread
        self._session: _penstock.Session | None = None
        opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._main, args=(flags, date, opened), name="penstock", daemon=True)
        atexit.register(self.close)  # Python must not end before the thread, even if Ctrl-C leaves nobody else to close it
        self._thread.start()
        try:
            opened.result()
        except BaseException as error:  # Ctrl-C, too: the thread closes what it opens
            self._is_closing = True
            if opened.done() and opened.exception() is error:
                atexit.unregister(self.close)
            raise

    def session(self) -> _penstock.Session:
        """The session, for calls that may be made at any time."""
        session = self._session
        self._check()
        if session is None:
            raise StoppedError("the LLM is closed")
        return session

    def submit(self, requests: list[Request]) -> None:
        """Queues requests. Each future gets the result, or an exception."""
        self.check_process()
        with self._changed:
            self._check()
            for request in requests:
                self._last_ticket += 1
                request.ticket = self._last_ticket
                request.future.add_done_callback(functools.partial(self._cancelled, request.ticket))
            self._backlog.extend(requests)
            self._wake()

    def start_call(self, function: Callable[[], T], needs_idle: bool = False) -> "concurrent.futures.Future[T]":
        """Has a function called between two steps, or when no request runs. New requests wait meanwhile."""
        call = _Call(function, needs_idle)
        self.check_process()
        with self._changed:
            self._check()
            call.future.add_done_callback(functools.partial(self._cancelled, 0))
            self._calls.append(call)
            self._wake()
        return call.future

    def close(self) -> None:
        """Gives up all requests and closes the engine. Raises an error if a recording could not be written."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closing = True
            self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check_process(self) -> None:
        """Raises an error in a forked process, where the thread does not exist and may have left a lock locked."""
        if os.getpid() != self._pid:
            raise UsageError("this LLM was opened before the process forked; open one in each process")

    def _check(self) -> None:
        self.check_process()
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._is_closing:
            raise StoppedError("the LLM is closed")

    def _wake(self) -> None:
        self._changed.notify()
        if self._session is not None:
            self._session.wake()

    def _cancelled(self, ticket: int, future: "concurrent.futures.Future[Any]") -> None:
        if not future.cancelled() or os.getpid() != self._pid:
            return
        with self._changed:
            self._given_up.append(ticket)
            self._wake()

    # The rest runs in the thread.

    def _main(self, flags: list[str], date: str, opened: "concurrent.futures.Future[None]") -> None:
        try:
            session = _penstock.Session(flags, date)
        except BaseException as failed:
            _settle(opened, error=failed)
            return
        self._session = session
        _settle(opened)
        error: BaseException | None = None
        try:
            while self._turn(session):
                pass
            session.close_traces()
        except BaseException as caught:
            error = caught.with_traceback(None)
        with self._changed:
            self._is_closing = True
            self._error = error
            left: list[Request | _Call] = [*self._running.values(), *self._backlog, *self._calls]
            self._backlog.clear()
            self._calls.clear()
            self._running.clear()
            self._session = None
        for waiting in left:
            _settle(waiting.future, error=error or StoppedError("the LLM was closed"))

    def _turn(self, session: _penstock.Session) -> bool:
        """Does what was asked for, and makes steps until something happens. False: the end."""
        with self._changed:
            while not (self._backlog or self._calls or self._given_up or self._is_closing or not session.is_idle()):
                self._changed.wait()
            session.clear_wake()
            if self._is_closing:
                return False
            given_up, self._given_up = self._given_up, []
            now = [call for call in self._calls
                   if call.future.cancelled() or not call.needs_idle or session.is_idle()]
            self._calls = collections.deque(call for call in self._calls if call not in now)
        for ticket in given_up:
            if self._running.pop(ticket, None) is not None:
                session.give_up(ticket)
        for call in now:
            if call.future.cancelled():
                continue
            try:
                _settle(call.future, call.function())
            except BaseException as error:
                _settle(call.future, error=error)
        self._feed(session)
        if not session.is_idle():
            self._deliver(*session.run())
        return True

    def _feed(self, session: _penstock.Session) -> None:
        # Prompts wait here, where they take no part of the budget, until the engine has room.
        while session.wants_more():
            with self._changed:
                if self._calls or not self._backlog:  # a call waits until the session is idle
                    return
                request = self._backlog.popleft()
            if request.future.cancelled():
                continue
            try:
                session.submit(request.ticket, request.line, request.number, request.on_piece is not None)
                self._running[request.ticket] = request
            except Exception as error:
                _settle(request.future, error=error)

    def _deliver(self, results: list[Result], pieces: list[tuple[int, int, str, list[int]]]) -> None:
        for ticket, answer_index, text, token_ids in pieces:
            request = self._running.get(ticket)
            if request is not None and request.on_piece is not None:
                request.on_piece(answer_index, text, token_ids)
        for result in results:
            request = self._running.pop(result["ticket"], None)
            if request is None:
                raise InternalError(f"a result for ticket {result['ticket']}, which does not run")
            if "error" in result:
                _settle(request.future, error=of_code(*result["error"]))
            else:
                _settle(request.future, result)
