"""The exceptions of the package. Each message is one line."""


class PenstockError(Exception):
    """An error that Penstock reports; `code` is the exit code that the command line gives for it."""

    code = 1


class InternalError(PenstockError, RuntimeError):
    """A fault of Penstock itself."""


class UsageError(PenstockError, ValueError):
    """An option or argument is wrong."""

    code = 2


class ModelError(PenstockError):
    """The model folder is invalid or damaged."""

    code = 3


class InputError(PenstockError, ValueError):
    """A prompt, a message or a sampling parameter is invalid."""

    code = 4


class IoError(PenstockError, OSError):
    """Reading or writing failed."""

    code = 5


class ResourceError(PenstockError, MemoryError):
    """The budget or the machine does not suffice. The message says how much would."""

    code = 6


class StoppedError(PenstockError):
    """The LLM was closed while a request ran."""

    code = 7


_BY_CODE: dict[int, type[PenstockError]] = {
    kind.code: kind
    for kind in (InternalError, UsageError, ModelError, InputError, IoError, ResourceError, StoppedError)
}


def of_code(code: int, message: str) -> PenstockError:
    """The exception for an exit code of the command line."""
    return _BY_CODE.get(code, InternalError)(message)
