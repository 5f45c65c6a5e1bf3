"""An open model for asyncio: many coroutines share it."""
import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import numpy
import numpy.typing

from penstock._base import AnyPrompt, Messages, Model, Prompt, TokenIds, chat_fields, generation_request, scoring_request
from penstock._driver import Request
from penstock.llm import output_of
from penstock.outputs import ChoiceScore, RequestOutput, StreamPiece, choice_scores, wants_logprobs
from penstock.sampling import SamplingParams


class AsyncLLM(Model):
    """An open model, as LLM. Its requests run together in one batch. Cancelling a coroutine gives its request up."""

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives up all requests, and closes the model."""
        await asyncio.to_thread(self._close)

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
                       number: int = 1) -> RequestOutput:
        """Continues a prompt. Requests without a seed and with another `number` have another random stream."""
        return await self._answer(generation_request("prompt", prompt, sampling_params, number), prompt, sampling_params)

    def generate_stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
                        number: int = 1) -> AsyncIterator[StreamPiece]:
        """The same, piece by piece."""
        return self._stream(generation_request("prompt", prompt, sampling_params, number), prompt, sampling_params)

    async def chat(self, messages: Messages, sampling_params: SamplingParams | None = None, *,
                   tools: Sequence[Mapping[str, Any]] | None = None, number: int = 1, **fields: Any) -> RequestOutput:
        """Answers a chat; see LLM.chat()."""
        request = generation_request("messages", messages, sampling_params, number, chat_fields(tools, fields))
        return await self._answer(request, messages, sampling_params)

    def chat_stream(self, messages: Messages, sampling_params: SamplingParams | None = None, *,
                    tools: Sequence[Mapping[str, Any]] | None = None, number: int = 1,
                    **fields: Any) -> AsyncIterator[StreamPiece]:
        """The same, piece by piece."""
        request = generation_request("messages", messages, sampling_params, number, chat_fields(tools, fields))
        return self._stream(request, messages, sampling_params)

    async def score(self, prompt: AnyPrompt, choices: Sequence[Prompt],
                    logprobs: int | None = None) -> list[ChoiceScore]:
        """The log-likelihood of each choice behind a prompt; see LLM.score()."""
        request = scoring_request(prompt, choices, logprobs)
        self._driver.submit([request])
        return choice_scores(wants_logprobs(logprobs), await asyncio.wrap_future(request.future))

    async def stats(self) -> dict[str, Any]:
        """Counts and times since the model was opened; see LLM.stats()."""
        text = await asyncio.wrap_future(self._start_stats())
        return cast(dict[str, Any], json.loads(text))

    async def logits(self, ids: TokenIds, num_encoded: int = 0) -> "numpy.typing.NDArray[numpy.float32]":
        """The logits after each token; see LLM.logits()."""
        return await asyncio.wrap_future(self._start_logits(ids, num_encoded))

    async def _answer(self, request: Request, prompt: AnyPrompt, params: SamplingParams | None) -> RequestOutput:
        self._driver.submit([request])
        return output_of(request, prompt, params, await asyncio.wrap_future(request.future))

    async def _stream(self, request: Request, prompt: AnyPrompt,
                      params: SamplingParams | None) -> AsyncIterator[StreamPiece]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[StreamPiece | None] = asyncio.Queue()

        def put(piece: StreamPiece | None) -> None:
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                pass  # the loop has ended, so nobody waits

        request.on_piece = lambda answer, text, token_ids: put(StreamPiece(0, text, token_ids, answer))
        request.future.add_done_callback(lambda _: put(None))
        try:
            self._driver.submit([request])
            while (piece := await pieces.get()) is not None:
                yield piece
            yield StreamPiece(0, "", [], output=output_of(request, prompt, params, request.future.result()))
        finally:
            request.future.cancel()
