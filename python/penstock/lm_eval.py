"""The model "penstock" of lm-evaluation-harness, and its command line: python -m penstock.lm_eval --model penstock ..."""
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from penstock.errors import InputError, UsageError
from penstock.llm import LLM
from penstock.sampling import SamplingParams

MAX_CHOICES = 256  # of one request

_Tokens = tuple[Any, list[int], list[int]]


def _end_token(model: str) -> int:
    """The token that ends a text, by the model folder's config.json."""
    path = pathlib.Path(model) / "config.json"
    ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    token_id = ids[0] if isinstance(ids, list) and ids else ids
    if not isinstance(token_id, int):
        raise UsageError(f"{path}: has no eos_token_id; give eot_token_id in model_args")
    return token_id


@register_model("penstock")
class PenstockLM(TemplateLM):  # type: ignore[misc]
    """Takes the arguments of LLM. A batch_size of 1, the harness's default, leaves the batch to Penstock.

    Values are those of the model "hf", with two exceptions. Text that looks like a special token stays text. And a prompt
    with its answer has at most context_length tokens, one fewer than with "hf".
    """

    def __init__(self, model: str | None = None, memory: str | int | None = None, *, pretrained: str | None = None,
                 max_gen_toks: int = 256, eot_token_id: int | None = None, batch_size: str | int | None = None,
                 max_batch_size: int | None = None, device: str | None = None, **options: Any) -> None:
        super().__init__()
        folder = model or pretrained
        if folder is None:
            raise UsageError("model_args: give model=DIR")
        if str(batch_size).isdigit() and int(str(batch_size)) > 1:
            options["batch_size"] = int(str(batch_size))
        if device is not None:
            options["device"] = device
        self._llm = LLM(folder, memory, **options)
        self._max_gen_toks = int(max_gen_toks)
        self._end = _end_token(os.fspath(folder)) if eot_token_id is None else int(eot_token_id)
        begin = self._llm.tokenize("")
        self._prefix = begin[0] if begin else self._end
        self._chats: dict[str, list[int]] = {}  # rendered chats and their tokens

    @property
    def eot_token_id(self) -> int:
        return self._end

    @property
    def prefix_token_id(self) -> int:
        return self._prefix

    @property
    def max_length(self) -> int:
        """The tokens of a context that leaves room for one more token."""
        return int(self._llm.model["context_length"]) - 1

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return str(self._llm.model["fingerprint"])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Renders a chat. Its tokens are kept, because the text alone does not say which tokens are special ones."""
        if not add_generation_prompt:
            raise InputError("the chat's last message cannot be continued; leave out gen_prefix")
        ids = self._llm.tokenize_chat(chat_history)
        text = self._llm.detokenize(ids)
        while self._chats.setdefault(text, ids) != ids:  # a chat that differs only in special tokens
            text += " "
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None and string in self._chats:
            return self._chats[string]
        return self._llm.tokenize(string, add_special_tokens is not False)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context in self._chats:
            return self._chats[context], self._llm.tokenize(continuation, False)
        pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
        return pair

    def _loglikelihood_tokens(self, requests: Sequence[_Tokens], disable_tqdm: bool = False,
                              **_kwargs: Any) -> list[tuple[float, bool]]:
        groups: dict[tuple[int, ...], list[int]] = {}  # requests by their context, which is computed once
        for index, (_given, context, continuation) in enumerate(requests):
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise InputError(f"a text of {len(continuation)} tokens does not fit the context length of "
                                 f"{self.max_length + 1}")
            groups.setdefault(tuple(context[-room:]), []).append(index)
        parts = [(context, members[begin:begin + MAX_CHOICES]) for context, members in groups.items()
                 for begin in range(0, len(members), MAX_CHOICES)]
        scores = self._llm.score_batch([(context, [requests[i][2] for i in members]) for context, members in parts],
                                       progress=False if disable_tqdm else None)
        results: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for (_context, members), of_members in zip(parts, scores, strict=True):
            for index, score in zip(members, of_members, strict=True):
                results[index] = (score.logprob, score.is_greedy)
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], results[index])
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[_Tokens] = []
        ends = []
        for request in requests:
            parts = get_rolling_token_windows(token_list=self.tok_encode(request.args[0]), prefix_token=self._prefix,
                                              max_seq_len=self.max_length, context_len=1)
            windows += [(None, *make_disjoint_window(part)) for part in parts]
            ends.append(len(windows))
        values = [value for value, _ in self._loglikelihood_tokens(windows, disable_tqdm)]
        sums = [sum(values[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        prompts = []
        params = []
        for request in requests:
            context, given = request.args
            kwargs = normalize_gen_kwargs(given, self._max_gen_toks)
            max_tokens = kwargs.pop("max_gen_toks")
            until = handle_stop_sequences(kwargs.pop("until", None), eos=None)
            if not kwargs.pop("do_sample", False):
                kwargs["temperature"] = 0
            room = self.max_length + 1 - max_tokens
            if room < 1:
                raise InputError(f"max_gen_toks: {max_tokens} tokens do not fit the context length")
            prompts.append(self.tok_encode(context)[-room:])
            try:
                params.append(SamplingParams(max_tokens=max_tokens, stop=until or None, **kwargs))
            except TypeError as error:
                raise InputError(f"generation_kwargs: {error}") from None
        outputs = self._llm.generate(prompts, params, progress=False if disable_tqdm else None)
        texts = [output.outputs[0].text for output in outputs]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
