"""The parts that LLM and AsyncLLM share."""
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, cast

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
                words.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def plan(model: str | os.PathLike[str] | None = None, **flags: Any) -> dict[str, Any]:
    """Predicts whether and how fast a model runs: the JSON of `penstock plan --json`. Takes that command's flags."""
    return _plan({"model": model, **flags}, is_of_session=False)


def _plan(flags: Mapping[str, Any], is_of_session: bool) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(_penstock.plan_json(flags_of(flags), is_of_session)))


def _plain(value: object) -> object:
    """Makes numpy's numbers and arrays Python's, which JSON knows."""
    if isinstance(value, numpy.generic | numpy.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise InputError(f"expected text, numbers, lists and objects, found {type(value).__name__}")


def request_line(fields: Mapping[str, Any]) -> str:
    """The job line with these fields. Checks only what JSON cannot express."""
    try:
        return json.dumps({name: value for name, value in fields.items() if value is not None}, default=_plain,
                          allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from None


def is_messages(prompt: object) -> bool:
    """Whether a prompt is a chat: a list of messages."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def prompt_fields(prompt: AnyPrompt) -> dict[str, Any]:
    """The field of a job line that holds the prompt."""
    return {"messages" if is_messages(prompt) else "prompt": prompt}


def generation_request(prompt: AnyPrompt, params: SamplingParams | None, number: int = 1, **fields: Any) -> Request:
    """The request that answers a prompt."""
    sampling = {} if params is None else params.fields()
    return Request(request_line({**prompt_fields(prompt), **sampling, **fields}), number)


def scoring_request(prompt: AnyPrompt, choices: Sequence[Prompt], logprobs: int | None) -> Request:
    """The request that scores choices."""
    return Request(request_line({**prompt_fields(prompt), "choices": choices, "logprobs": logprobs}))


class Model:
    """An open model. Any number of threads may use it at once."""

    def __init__(self, model: str | os.PathLike[str], memory: str | int | None = None, *, date: str = "",
                 **options: Any) -> None:
        self._options = {"model": model, "memory": memory, **options}
        self._driver = Driver(flags_of(self._options), date)
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
        return self._driver.session().tokenize(text, add_special_tokens)

    def tokenize_chat(self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None,
                      **variables: Any) -> list[int]:
        """The tokens of the prompt that the model's chat template makes, with the beginning of the answer."""
        return self._driver.session().tokenize_chat(json.dumps(messages), json.dumps(tools) if tools else "",
                                                    json.dumps(variables) if variables else "")

    def detokenize(self, ids: TokenIds) -> str:
        """The text of tokens, without that of special ones."""
        return self._driver.session().detokenize(list(ids))

    def plan(self, **flags: Any) -> dict[str, Any]:
        """Predicts how fast this model runs here. Takes the flags of `penstock plan`: workload="prompt=512,gen=64"."""
        own = {name: self._options[name] for name in ("model", "memory", *_PLANNED) if name in self._options}
        return _plan({**own, **flags}, is_of_session=True)

    def _stats(self) -> dict[str, Any]:
        session = self._driver.session()
        return cast(dict[str, Any], json.loads(self._driver.call(session.stats)))

    def _logits(self, ids: TokenIds, num_encoded: int) -> "numpy.typing.NDArray[numpy.float32]":
        session = self._driver.session()
        return self._driver.call(lambda: session.logits(list(ids), num_encoded), needs_idle=True)
