"""The objects that requests return. Names are vLLM's where it has the same thing."""
import dataclasses
from typing import Any, Literal

TokenTuple = tuple[int, float, str]


@dataclasses.dataclass(frozen=True)
class Logprob:
    """The log-probability of a token, from the model's own distribution."""

    logprob: float
    rank: int | None  # 1: the most likely token; None: not among the reported alternatives
    decoded_token: str


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of a function that the model asks for."""

    name: str
    arguments: str  # JSON as the model wrote it, so it may be invalid


@dataclasses.dataclass(frozen=True)
class ChatAnswer:
    """The answer to a chat, split into its parts."""

    content: str
    reasoning: str
    tool_calls: list[ToolCall]


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]  # without the end-of-sequence token
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None = None  # the stop text that ended it
    logprobs: list[dict[int, Logprob]] | None = None  # one for each token
    cumulative_logprob: float | None = None  # with logprobs
    answer: ChatAnswer | None = None  # of a chat


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A finished request."""

    request_id: str
    prompt: str | None  # None if the prompt was given as tokens or messages
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # None for the first token, which nothing predicts
    finished: bool = True


@dataclasses.dataclass(frozen=True)
class StreamPiece:
    """A part of an answer. The last piece of each prompt has its whole output, and nothing else.

    A text is final. The text of a token may come with a later piece, because a stop text or a character may begin in it.
    """

    prompt_index: int
    text: str
    token_ids: list[int]
    answer_index: int = 0
    output: RequestOutput | None = None


@dataclasses.dataclass(frozen=True)
class ChoiceScore:
    """The log-likelihood of a given choice."""

    text: str
    token_ids: list[int]
    logprob: float  # sum over its tokens
    num_tokens: int
    is_greedy: bool  # each of its tokens is the most likely one
    logprobs: list[dict[int, Logprob]] | None = None


def wants_logprobs(count: int | None) -> bool:
    """Whether a field `logprobs` asks for log-probabilities. 0 does, but False does not."""
    return count is not None and count is not False


def _logprobs(tokens: list[tuple[TokenTuple, list[TokenTuple]]]) -> list[dict[int, Logprob]]:
    entries = []
    for (token_id, logprob, text), top in tokens:
        entry = {other: Logprob(value, rank, words) for rank, (other, value, words) in enumerate(top, 1)}
        entry.setdefault(token_id, Logprob(logprob, None, text))
        entries.append(entry)
    return entries


def _completion(index: int, choice: dict[str, Any], has_logprobs: bool) -> CompletionOutput:
    answer = None
    if "answer" in choice:
        content, reasoning, calls = choice["answer"]
        answer = ChatAnswer(content, reasoning, [ToolCall(*call) for call in calls])
    return CompletionOutput(
        index=index, text=choice["text"], token_ids=choice["token_ids"], finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
        logprobs=_logprobs(choice["logprobs"]) if has_logprobs else None,
        cumulative_logprob=sum(chosen[1] for chosen, _ in choice["logprobs"]) if has_logprobs else None, answer=answer)


def request_output(request_id: str, prompt: str | None, has_logprobs: bool, result: dict[str, Any]) -> RequestOutput:
    """Makes an output of what the extension returns for a request."""
    choices = result["choices"]
    of_prompt = result["prompt_logprobs"]
    return RequestOutput(
        request_id=request_id, prompt=prompt, prompt_token_ids=result["prompt_ids"],
        outputs=[_completion(index, choice, has_logprobs) for index, choice in enumerate(choices)],
        prompt_logprobs=[None, *_logprobs(of_prompt[1:])] if of_prompt else None)


def choice_scores(has_logprobs: bool, result: dict[str, Any]) -> list[ChoiceScore]:
    """Makes scores of what the extension returns for a request with choices."""
    return [
        ChoiceScore(choice["text"], choice["token_ids"], logprob, num_tokens, is_greedy,
                    _logprobs(choice["logprobs"]) if has_logprobs else None)
        for choice in result["choices"] for logprob, num_tokens, is_greedy in [choice["score"]]
    ]
