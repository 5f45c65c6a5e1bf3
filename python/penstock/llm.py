"""An open model for programs that wait for their answers."""
import functools
import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast, overload

import numpy
import numpy.typing

from penstock._base import (
    AnyPrompt,
    Messages,
    Model,
    Prompt,
    TokenIds,
    chat_fields,
    generation_request,
    is_list,
    is_messages,
    listed,
    scoring_request,
)
from penstock._driver import Request, Result, wait
from penstock._progress import Progress
from penstock.errors import InputError, PenstockError
from penstock.outputs import ChoiceScore, RequestOutput, StreamPiece, choice_scores, request_output, wants_logprobs
from penstock.sampling import SamplingParams

Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
_T = TypeVar("_T")
_Pieces: TypeAlias = "queue.SimpleQueue[tuple[int, StreamPiece | None]]"


def _put(items: "queue.SimpleQueue[_T]", item: _T, _: object) -> None:
    items.put(item)


def _put_piece(pieces: _Pieces, index: int, answer: int, text: str, token_ids: list[int]) -> None:
    pieces.put((index, StreamPiece(index, text, token_ids, answer)))


def _is_token_ids(prompt: object) -> bool:
    if isinstance(prompt, numpy.ndarray):
        return prompt.ndim == 1 and prompt.dtype.kind in "iu"
    return is_list(prompt) and bool(prompt) and isinstance(prompt[0], int | numpy.integer)


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, also of one."""
    if isinstance(prompts, str) or _is_token_ids(prompts):
        return [cast(Prompt, prompts)]
    return listed("prompts", prompts)


def output_of(request: Request, prompt: AnyPrompt, params: SamplingParams | None, result: Result) -> RequestOutput:
    """The output of a finished request."""
    has_logprobs = params is not None and wants_logprobs(params.logprobs)
    return request_output(str(request.ticket), prompt if isinstance(prompt, str) else None, has_logprobs, result)


def _params_list(params: Params, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    each: list[SamplingParams | None] = listed("sampling_params", params)
    if len(each) != count:
        raise InputError(f"sampling_params: expected one for each of {count} prompts, found {len(each)}")
    return each


def _requests(kind: Literal["prompt", "messages"], prompts: Sequence[AnyPrompt], params: list[SamplingParams | None],
              fields: Mapping[str, Any]) -> list[Request]:
    requests = []
    for index, (prompt, of_prompt) in enumerate(zip(prompts, params, strict=True)):
        try:
            requests.append(generation_request(kind, prompt, of_prompt, index + 1, fields))
        except InputError as error:
            raise _named(error, index, len(prompts)) from None
    return requests


class LLM(Model):
    """An open model.

    `memory` bounds everything that Penstock allocates: "12GiB", or "50%" of what is free (the default is "75%"). `options`
    are the flags with which `penstock run` opens a model: batch_size=8 is --batch-size 8. Use an LLM as a context manager,
    or close it, when its memory should be free again.
    """

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up all requests, closes the model, and ends the files that `options` asked for."""
        self._close()

    @overload
    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *,
                 progress: bool | None = None, stream: Literal[False] = False) -> list[RequestOutput]: ...
    @overload
    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *,
                 progress: bool | None = None, stream: Literal[True]) -> Iterator[StreamPiece]: ...
    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *,
                 progress: bool | None = None, stream: bool = False) -> list[RequestOutput] | Iterator[StreamPiece]:
        """Continues a prompt, or several: texts or lists of token ids. Returns an output for each, in their order.

        `sampling_params` are for all prompts, or a list with those of each. With `stream`, returns an iterator over pieces
        of text. Ctrl-C gives up the requests; the LLM can be used afterwards.
        """
        each = prompt_list(prompts)
        all_params = _params_list(sampling_params, len(each))
        requests = _requests("prompt", each, all_params, {})
        return self._stream(requests, each, all_params) if stream else self._wait(requests, each, all_params, progress)

    def generate_stream(self, prompts: Prompt | Sequence[Prompt],
                        sampling_params: Params = None) -> Iterator[StreamPiece]:
        """Calls generate() with `stream`."""
        return self.generate(prompts, sampling_params, stream=True)

    @overload
    def chat(self, messages: Messages | Sequence[Messages], sampling_params: Params = None, *,
             tools: Sequence[Mapping[str, Any]] | None = None, progress: bool | None = None,
             stream: Literal[False] = False, **fields: Any) -> list[RequestOutput]: ...
    @overload
    def chat(self, messages: Messages | Sequence[Messages], sampling_params: Params = None, *,
             tools: Sequence[Mapping[str, Any]] | None = None, progress: bool | None = None,
             stream: Literal[True], **fields: Any) -> Iterator[StreamPiece]: ...
    def chat(self, messages: Messages | Sequence[Messages], sampling_params: Params = None, *,
             tools: Sequence[Mapping[str, Any]] | None = None, progress: bool | None = None,
             stream: bool = False, **fields: Any) -> list[RequestOutput] | Iterator[StreamPiece]:
        """Answers a chat, or several, as OpenAI's clients write them.

        `fields` are the other fields of a chat in docs/jobs.md: chat_template_kwargs, reasoning_effort, documents ...
        """
        chats: list[Messages] = [cast(Messages, messages)] if is_messages(messages) else listed("messages", messages)
        all_params = _params_list(sampling_params, len(chats))
        requests = _requests("messages", chats, all_params, chat_fields(tools, fields))
        return self._stream(requests, chats, all_params) if stream else self._wait(requests, chats, all_params, progress)

    def score(self, prompt: AnyPrompt, choices: Sequence[Prompt], logprobs: int | None = None) -> list[ChoiceScore]:
        """The log-likelihood of each choice behind a prompt, which is computed once. A choice is a text or token ids."""
        return self.score_batch([(prompt, choices)], logprobs)[0]

    def score_batch(self, pairs: Sequence[tuple[AnyPrompt, Sequence[Prompt]]], logprobs: int | None = None, *,
                    progress: bool | None = None) -> list[list[ChoiceScore]]:
        """Scores the choices of many prompts, in one batch."""
        requests = [scoring_request(prompt, choices, logprobs) for prompt, choices in pairs]
        return [choice_scores(wants_logprobs(logprobs), result) for result in self._results(requests, progress)]

    def stats(self) -> dict[str, Any]:
        """Counts and times since the model was opened: the fields of `penstock run --stats`."""
        return cast(dict[str, Any], json.loads(wait(self._start_stats())))

    def logits(self, ids: TokenIds, num_encoded: int = 0) -> "numpy.typing.NDArray[numpy.float32]":
        """The logits [n, vocab_size] after each token. The array takes memory of its own, beside the budget.

        Waits until no request runs. With an encoder, the first `num_encoded` tokens are for it.
        """
        return wait(self._start_logits(ids, num_encoded))

    def _wait(self, requests: list[Request], prompts: Sequence[AnyPrompt], params: list[SamplingParams | None],
              progress: bool | None) -> list[RequestOutput]:
        results = self._results(requests, progress)
        return [output_of(*parts) for parts in zip(requests, prompts, params, results, strict=True)]

    def _results(self, requests: list[Request], progress: bool | None) -> list[Result]:
        shown = Progress(len(requests), progress)
        finished: queue.SimpleQueue[Request] = queue.SimpleQueue()
        for request in requests:
            request.future.add_done_callback(functools.partial(_put, finished, request))
        try:
            self._driver.submit(requests)
            for _ in requests:
                request = finished.get()
                _check(request, requests)
                shown.add(sum(len(choice["token_ids"]) for choice in request.future.result()["choices"]))
        finally:
            for request in requests:
                request.future.cancel()
        return [request.future.result() for request in requests]

    def _stream(self, requests: list[Request], prompts: Sequence[AnyPrompt],
                params: list[SamplingParams | None]) -> Iterator[StreamPiece]:
        pieces: _Pieces = queue.SimpleQueue()
        for index, request in enumerate(requests):
            request.on_piece = functools.partial(_put_piece, pieces, index)
            request.future.add_done_callback(functools.partial(_put, pieces, (index, None)))
        num_left = len(requests)
        try:
            self._driver.submit(requests)
            while num_left > 0:
                self._driver.check_process()
                index, piece = pieces.get()
                if piece is not None:
                    yield piece
                    continue
                _check(requests[index], requests)
                num_left -= 1
                result = requests[index].future.result()
                yield StreamPiece(index, "", [], output=output_of(requests[index], prompts[index], params[index], result))
        finally:
            for request in requests:
                request.future.cancel()


def _named(error: PenstockError, index: int, count: int) -> PenstockError:
    """The error of a prompt. Its message names the prompt if there are several."""
    return type(error)(f"prompt {index}: {error}") if count > 1 else error


def _check(request: Request, requests: list[Request]) -> None:
    error = request.future.exception()
    if isinstance(error, PenstockError):
        raise _named(error, requests.index(request), len(requests))
    if error is not None:
        raise error
