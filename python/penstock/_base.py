"""The parts that LLM and AsyncLLM share."""
import concurrent.futures
import json
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, NoReturn, TypeAlias, TypeGuard, cast

import numpy
import numpy.typing

from penstock import _penstock
from penstock._driver import Driver, Request
from penstock.errors import InputError, UsageError
from penstock.sampling import SamplingParams

TokenIds: TypeAlias = Sequence[int]
Messages: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = str | TokenIds
AnyPrompt: TypeAlias = str | TokenIds | Messages

# The options of an LLM that also describe it to the planner.
_PLANNED = ("threads", "context_length", "dtype", "activations", "kv_dtype", "batch_size", "schedule", "gpu_memory",
            "model_mirror")
CHAT_FIELDS = ("system", "tool_choice", "parallel_tool_calls", "documents", "reasoning_effort", "continue_final_message",
               "chat_template_kwargs")
_TEXTS = (str, bytes, bytearray, memoryview)


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """The flags of the command line that say the same: batch_size=8 is --batch-size=8, and True a flag without value.

    A list gives a flag several times.
    """
    words = []
    for name, given in options.items():
        flag = "--" + name.replace("_", "-")
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                words.append(f"{flag}={_flag_value(name, value)}")
    return words


def _flag_value(name: str, value: object) -> str:
    text = str(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not isinstance(value, str | int | float | numpy.number | os.PathLike):
        raise UsageError(f"{name}: expected a text, a number or a path, found {_type_name(value)}")
    if not text:
        raise UsageError(f"{name}: is empty")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{name}: {text!a:.80} has characters that Penstock cannot take")
    return text


def set_log_level(level: str) -> None:
    """Shows what the engine logs on stderr, from this level on: "debug", "info", "warning" (the default) or "error"."""
    _penstock.set_log_level(valid_text("level", level))


def plan(model: str | os.PathLike[str] | None = None, **flags: Any) -> dict[str, Any]:
    """Predicts whether and how fast a model runs: the JSON of `penstock plan --json`. Takes that command's flags."""
    return _plan({"model": model, **flags}, is_of_session=False)


def _plan(flags: Mapping[str, Any], is_of_session: bool) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(_penstock.plan_json(flags_of(flags), is_of_session)))


def _type_name(value: object) -> str:
    return type(value).__name__


def _plain(value: object) -> object:
    """Makes numpy's numbers and arrays Python's, which JSON knows."""
    if isinstance(value, numpy.generic | numpy.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if is_list(value):
        return list(value)
    raise TypeError(f"expected text, numbers, lists and objects, found {_type_name(value)}")


def json_text(name: str, value: object) -> str:
    """A value as JSON. The name is that of a field or argument."""
    try:
        text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)
        text.encode()  # refuses surrogates
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {error}") from None


def request_line(fields: Mapping[str, Any]) -> str:
    """The job line with these fields. Checks only what JSON cannot express."""
    return "{" + ", ".join(f"{json.dumps(name)}: {json_text(name, value)}"
                           for name, value in fields.items() if value is not None) + "}"


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence of things. A text and bytes are not."""
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def listed(name: str, values: object) -> list[Any]:
    """A list of the items of a sequence, an array, a column of a table or an iterator."""
    is_scalar = isinstance(values, numpy.ndarray) and values.ndim == 0
    if is_scalar or not isinstance(values, Iterable) or isinstance(values, (Mapping, Set, *_TEXTS)):
        raise InputError(f"{name}: expected a list, found {_type_name(values)}")
    return list(values)


def whole_number(name: str, value: object) -> None:
    """Refuses what is no integer of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise InputError(f"{name}: expected a whole number of 64 bits")


def valid_text(name: str, text: object) -> str:
    """The text, if UTF-8 can express it."""
    if not isinstance(text, str):
        raise InputError(f"{name}: expected a text, found {_type_name(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: {error}") from None
    return text


def id_list(ids: TokenIds) -> list[int]:
    """Token ids for the extension, which checks that the model has them."""
    items = [item.item() if isinstance(item, numpy.generic) else item for item in listed("ids", ids)]
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 1 << 31:
            raise InputError("ids: expected whole numbers of 0 or more")
    return items


def is_messages(prompt: object) -> bool:
    """Whether a prompt is a chat: a list of messages."""
    return is_list(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def generation_request(kind: Literal["prompt", "messages"], prompt: AnyPrompt, params: SamplingParams | None,
                       number: int = 1, fields: Mapping[str, Any] | None = None) -> Request:
    """The request that answers a prompt, or messages."""
    if params is not None and not isinstance(params, SamplingParams):
        raise InputError(f"sampling_params: expected SamplingParams, found {_type_name(params)}")
    whole_number("number", number)
    if prompt is None:
        raise InputError(f"{kind}: found None")
    sampling = {} if params is None else params.fields()
    return Request(request_line({kind: prompt, **sampling, **(fields or {})}), number)


def chat_fields(tools: Sequence[Mapping[str, Any]] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat beside its messages and sampling."""
    for name in fields:
        if name not in CHAT_FIELDS:
            raise InputError(f"{name}: unknown field of a chat; beside sampling_params there are {', '.join(CHAT_FIELDS)}")
    return {"tools": tools, **fields}


def scoring_request(prompt: AnyPrompt, choices: Sequence[Prompt], logprobs: int | None) -> Request:
    """The request that scores choices."""
    if choices is None:
        raise InputError("choices: found None")
    kind = "messages" if is_messages(prompt) else "prompt"
    return Request(request_line({kind: prompt, "choices": choices, "logprobs": logprobs}))


class Model:
    """An open model. Any number of threads may use it at once."""

    def __init__(self, model: str | os.PathLike[str], memory: str | int | None = None, *, date: str = "",
                 **options: Any) -> None:
        if not isinstance(model, str | os.PathLike):
            raise UsageError(f"model: expected the path of a model, found {_type_name(model)}")
        self._options = {"model": model, "memory": memory, **options}
        self._driver = Driver(flags_of(self._options), valid_text("date", date))
        # Also called when Python ends, so that the engine's threads end before it.
        self._finalizer = weakref.finalize(self, self._driver.close)
        self._info = self._driver.session().model()

    def __reduce__(self) -> NoReturn:
        raise UsageError(f"an open {type(self).__name__} cannot be pickled; open one in each process")

    def _close(self) -> None:
        if self._finalizer.detach() is not None:
            self._driver.close()

    @property
    def model(self) -> dict[str, Any]:
        """The name, family, fingerprint, dtype, vocab_size and context_length of the model."""
        return dict(self._info)

    @property
    def memory_plan(self) -> dict[str, Any]:
        """How the budget is divided."""
        return self._driver.session().memory_plan()

    @property
    def default_sampling(self) -> dict[str, Any]:
        """The sampling parameters from which requests start."""
        return cast(dict[str, Any], json.loads(self._driver.session().default_sampling()))

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text. It never yields special tokens, except the BOS that the model's tokenizer adds."""
        return self._driver.session().tokenize(valid_text("text", text), bool(add_special_tokens))

    def tokenize_chat(self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None,
                      **variables: Any) -> list[int]:
        """The tokens of the prompt that the model's chat template makes, with the beginning of the answer."""
        return self._driver.session().tokenize_chat(json_text("messages", messages),
                                                    json_text("tools", tools) if tools else "",
                                                    json_text("variables", variables) if variables else "")

    def detokenize(self, ids: TokenIds) -> str:
        """The text of tokens, without that of special ones."""
        return self._driver.session().detokenize(id_list(ids))

    def plan(self, **flags: Any) -> dict[str, Any]:
        """Predicts how fast this model runs here. Takes the flags of `penstock plan`: workload="prompt=512,gen=64"."""
        own = {name: self._options[name] for name in ("model", "memory", *_PLANNED) if name in self._options}
        return _plan({**own, **flags}, is_of_session=True)

    def _start_stats(self) -> "concurrent.futures.Future[str]":
        return self._driver.start_call(self._driver.session().stats)

    def _start_logits(self, ids: TokenIds,
                      num_encoded: int) -> "concurrent.futures.Future[numpy.typing.NDArray[numpy.float32]]":
        session = self._driver.session()
        listed = id_list(ids)
        whole_number("num_encoded", num_encoded)
        return self._driver.start_call(lambda: session.logits(listed, num_encoded), needs_idle=True)
