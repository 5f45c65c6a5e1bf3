"""How answers are sampled."""
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How an answer is sampled. The fields have vLLM's names, and those of requests in docs/jobs.md.

    A field that is None takes the model's own default (generation_config.json), and otherwise Penstock's. Without a seed,
    each prompt of a call has a random stream of its own, the one that its line has in `penstock run`. So the same call
    gives the same answers each time.
    """

    n: int | None = None  # answers per prompt
    temperature: float | None = None  # 0: greedy
    top_k: int | None = None  # 0 or -1: off
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None  # 0 with prompt_logprobs: only scores the prompt
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None  # generation ends before the first of these texts
    include_stop_str_in_output: bool | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None  # alternatives to report for each token; None: no log-probabilities
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    # The format of the answer, as in requests: {"type": "json_schema", "json_schema": {"schema": {...}}}, or in a short
    # form: {"json": {...}}, {"regex": "[0-9]+"}, {"choice": ["yes", "no"]}, {"grammar": "root ::= ..."}.
    response_format: Mapping[str, Any] | None = None
    structured_outputs: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, object]:
        """The fields of a request that say the same."""
        given = {name: value for name, value in self.__dict__.items() if value is not None}
        if isinstance(self.logit_bias, Mapping):
            given["logit_bias"] = {str(token_id): bias for token_id, bias in self.logit_bias.items()}
        return given
