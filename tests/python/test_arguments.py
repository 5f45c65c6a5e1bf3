"""Wrong arguments raise an error that names them, and the LLM goes on."""
import asyncio
import math

import common
import numpy
import pytest

import penstock
from penstock import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=2)
CHAT = [{"role": "user", "content": "Hi"}]
SURROGATE = "\ud800"


@pytest.fixture(scope="module", autouse=True)
def goes_on(llm):
    yield
    assert llm.generate("x", GREEDY)[0].finished


def refused(call, words):
    with pytest.raises(penstock.PenstockError) as raised:
        call()
    assert words in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("prompts", "words"), [
    (None, "prompts: expected a list, found NoneType"),
    (7, "prompts: expected a list, found int"),
    (b"Once", "prompts: expected a list, found bytes"),
    (memoryview(b"Once"), "prompts: expected a list, found memoryview"),
    ({"a": 1}, "prompts: expected a list, found dict"),
    ({"a"}, "prompts: expected a list, found set"),
    (numpy.array(5), "prompts: expected a list, found ndarray"),
    ([None], "prompt: found None"),
    (["x", None], "prompt 1: prompt: found None"),
    (["x", b"y"], "prompt 1: prompt: expected text, numbers, lists and objects, found bytes"),
    ([[]], "prompt: is empty"),
    ([True], "prompt: expected token ids"),
    ([1.5], "prompt: expected a string or a list of token ids"),
    ([-1], "prompt: expected token ids"),
    ([1 << 70], "prompt: expected token ids"),
    (CHAT, "prompt: expected a string or a list of token ids, found object"),
    ([CHAT], "prompt: expected token ids"),
    (SURROGATE, "surrogates not allowed"),
])
def test_prompts(llm, prompts, words):
    refused(lambda: llm.generate(prompts, GREEDY), words)
    refused(lambda: list(llm.generate_stream(prompts, GREEDY)), words)


def test_arrays_are_prompts(llm):
    rows = numpy.array([[0, 70], [0, 71]])
    expected = llm.generate(rows.tolist(), GREEDY)
    assert [output.outputs for output in llm.generate(rows, GREEDY)] == [output.outputs for output in expected]
    texts = llm.generate(numpy.array(["a", "b"]), GREEDY)
    assert [output.prompt for output in texts] == ["a", "b"]


@pytest.mark.parametrize(("messages", "words"), [
    ("hello", "messages: expected a list, found str"),
    (["hello"], "messages: expected a list of at least one message"),
    ([[5, 6]], "messages[0]: expected an object"),
    ({"role": "user", "content": "x"}, "messages: expected a list, found dict"),
    ([{"role": "user", "content": b"x"}], "messages: expected text, numbers, lists and objects, found bytes"),
    ([{("a", "b"): 1}], "messages: keys must be str"),
    ([{"role": "user", "content": SURROGATE}], "surrogates not allowed"),
])
def test_messages(llm, messages, words):
    refused(lambda: llm.chat(messages, GREEDY), words)


@pytest.mark.parametrize("field", ["choices", "logprobs", "n", "temperature", "prompt", "number", "params", "custom_id"])
def test_fields_of_other_requests_are_none_of_a_chat(llm, field):
    refused(lambda: llm.chat(CHAT, GREEDY, **{field: 1}), f"{field}: unknown field of a chat")


@pytest.mark.parametrize(("params", "words"), [
    ({"temperature": 0}, "sampling_params: expected a list, found dict"),
    ("x", "sampling_params: expected a list, found str"),
    (["x"], "sampling_params: expected SamplingParams, found str"),
    (5, "sampling_params: expected a list, found int"),
    ([GREEDY, GREEDY], "sampling_params: expected one for each of 1 prompts, found 2"),
    (SamplingParams(temperature=math.nan), "temperature: "),
    (SamplingParams(max_tokens=True), "max_tokens: expected an integer, found boolean"),
    (SamplingParams(logit_bias=[1]), "logit_bias: "),
    (SamplingParams(stop=b"x"), "stop: expected text, numbers, lists and objects, found bytes"),
    (SamplingParams(stop=[SURROGATE]), "stop: "),
])
def test_sampling(llm, params, words):
    refused(lambda: llm.generate("x", params), words)


def test_no_log_probabilities(llm):
    answer = llm.generate("x", SamplingParams(max_tokens=2, logprobs=False))[0].outputs[0]
    assert answer.logprobs is None and answer.cumulative_logprob is None
    assert llm.score("x", [" a"], logprobs=False)[0].logprobs is None


@pytest.mark.parametrize(("call", "words"), [
    (lambda llm: llm.score("x", None), "choices: found None"),
    (lambda llm: llm.score("x", "abc"), "choices: "),
    (lambda llm: llm.score(b"x", [" a"]), "prompt: "),
    (lambda llm: llm.tokenize(5), "text: expected a text, found int"),
    (lambda llm: llm.tokenize(SURROGATE), "surrogates not allowed"),
    (lambda llm: llm.tokenize_chat([{"role": "user", "content": math.nan}]), "messages: "),
    (lambda llm: llm.tokenize_chat(CHAT, [b"x"]), "tools: "),
    (lambda llm: llm.detokenize("abc"), "ids: expected a list, found str"),
    (lambda llm: llm.detokenize([1 << 70]), "ids: "),
    (lambda llm: llm.detokenize([4096]), "token id 4096"),
    (lambda llm: llm.logits([1.5]), "ids: "),
    (lambda llm: llm.logits([True]), "ids: "),
    (lambda llm: llm.logits([]), "expected 1 to 2048 tokens"),
    (lambda llm: llm.logits([1], num_encoded="a"), "num_encoded: "),
    (lambda llm: penstock.set_log_level(5), "level: expected a text, found int"),
    (lambda llm: penstock.set_log_level("loud"), "loud"),
    (lambda llm: penstock.read_routing(b"x"), "path: expected a text, found bytes"),
])
def test_other_calls(llm, call, words):
    refused(lambda: call(llm), words)


@pytest.mark.parametrize(("options", "words"), [
    ({"model": None}, "model: expected the path of a model, found NoneType"),
    ({"model": True}, "model: expected the path of a model, found bool"),
    ({"model": ""}, "model: is empty"),
    ({"model": f"{common.MODEL}\0x"}, "characters that Penstock cannot take"),
    ({"model": "/tmp/\udcff"}, "characters that Penstock cannot take"),
    ({"memory": b"24MiB"}, "memory: expected a text, a number or a path, found bytes"),
    ({"memory": True}, "--memory"),
    ({"memory": math.nan}, "--memory"),
    ({"batch_size": [2, 3]}, "--batch-size"),
    ({"help": True}, "unknown argument '--help'"),
    ({"version": True}, "unknown argument '--version'"),
    ({"date": 5}, "date: expected a text, found int"),
])
def test_options(options, words):
    refused(lambda: penstock.LLM(**{"model": common.MODEL, "memory": common.MEMORY, **options}), words)


def test_numbers_of_requests():
    async def main():
        async with penstock.AsyncLLM(common.MODEL, common.MEMORY) as llm:
            for number in ("a", None, 1.5, True, 1 << 63):
                with pytest.raises(penstock.InputError, match="number: "):
                    await llm.generate("x", GREEDY, number=number)
            assert (await llm.generate("x", GREEDY, number=2)).finished

    asyncio.run(main())
