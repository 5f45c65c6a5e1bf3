"""An LLM gives the answers, scores and logits of `penstock run` and of the C++ library, and one-line errors."""
import json
import os
import pathlib
import pickle
import re
import subprocess

import common
import numpy
import pytest
import tool_calls

import penstock
from penstock import SamplingParams

PROMPTS = ["Once upon a time", "The old house", "A fox and a hare went over the hills", "Why?"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=24, logprobs=2)


def test_answers_are_those_of_a_job(llm, tmp_path):
    records = common.run_job(tmp_path, [{"prompt": prompt, **SAMPLED.fields()} for prompt in PROMPTS])
    outputs = llm.generate(PROMPTS, SAMPLED)
    for prompt, output, record in zip(PROMPTS, outputs, records, strict=True):
        expected = record["response"]["body"]["choices"][0]
        answer = output.outputs[0]
        assert answer.text == expected["text"]
        assert answer.finish_reason == expected["finish_reason"]
        assert output.prompt == prompt
        chosen = [entry[token].logprob for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert chosen == expected["logprobs"]["token_logprobs"]
        assert answer.cumulative_logprob == sum(chosen)
        assert all(len(entry) in (2, 3) for entry in answer.logprobs)
        assert min(value.rank for value in answer.logprobs[0].values() if value.rank) == 1


def test_forms_of_prompts(llm):
    text = llm.generate("Once upon a time", GREEDY)
    ids = llm.tokenize("Once upon a time")
    assert [output.prompt_token_ids for output in text] == [ids]
    for form in (ids, numpy.array(ids), [ids], ["Once upon a time"]):
        assert [output.outputs for output in llm.generate(form, GREEDY)] == [output.outputs for output in text]
    mixed = llm.generate([ids, "The old house"], [GREEDY, SamplingParams(temperature=0, max_tokens=2)])
    assert [len(output.outputs[0].token_ids) for output in mixed] == [len(text[0].outputs[0].token_ids), 2]
    assert llm.generate([]) == []
    assert llm.detokenize(text[0].outputs[0].token_ids) == text[0].outputs[0].text


def test_several_answers(llm, tmp_path):
    params = SamplingParams(n=3, max_tokens=8, seed=7)
    record = common.run_job(tmp_path, [{"prompt": PROMPTS[0], **params.fields()}])[0]
    output = llm.generate(PROMPTS[0], params)[0]
    assert [answer.text for answer in output.outputs] == [c["text"] for c in record["response"]["body"]["choices"]]


def test_scores_the_prompt(llm):
    output = llm.generate(PROMPTS[2], SamplingParams(max_tokens=0, prompt_logprobs=1))[0]
    assert output.prompt_logprobs[0] is None and output.outputs[0].token_ids == []
    ids = output.prompt_token_ids
    logits = llm.logits(ids).astype(numpy.float64)
    for row, token, entry in zip(logits, ids[1:], output.prompt_logprobs[1:], strict=False):
        assert abs(entry[token].logprob - (row[token] - row.max() - numpy.log(numpy.exp(row - row.max()).sum()))) < 1e-5


def test_chat_is_that_of_a_job(llm, tmp_path):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me of the </s> sea."}]
    record = common.run_job(tmp_path, [{"messages": messages, **GREEDY.fields()}])[0]
    output = llm.chat(messages, GREEDY)[0]
    assert output.outputs[0].answer.content == record["response"]["body"]["choices"][0]["message"]["content"]
    assert output.prompt_token_ids == llm.tokenize_chat(messages)
    assert llm.chat([messages, messages], GREEDY)[1].outputs == output.outputs


FORMATS = [{"structured_outputs": {"regex": "[0-9]{2} (cats|dogs)"}},
           {"structured_outputs": {"choice": ["a red house", "a blue one"]}},
           {"structured_outputs": {"grammar": 'root ::= "(" [a-z]+ root? ")"'}},
           {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
               "type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
               "required": ["age"], "additionalProperties": False}}}}]


def test_formats_are_those_of_a_job(llm, tmp_path):
    params = [SamplingParams(max_tokens=40, seed=3, **fields) for fields in FORMATS]
    records = common.run_job(tmp_path, [{"prompt": PROMPTS[0], **one.fields()} for one in params])
    answers = [output.outputs[0] for output in llm.generate([PROMPTS[0]] * len(params), params)]
    assert [answer.text for answer in answers] == [r["response"]["body"]["choices"][0]["text"] for r in records]
    assert re.fullmatch("[0-9]{2} (cats|dogs)", answers[0].text) and answers[0].finish_reason == "stop"
    assert answers[1].text in ("a red house", "a blue one")
    assert answers[2].text.startswith("(")
    assert 1 <= json.loads(answers[3].text)["age"] <= 99
    pieces = list(llm.generate_stream(PROMPTS[0], params[0]))
    assert "".join(piece.text for piece in pieces) == answers[0].text
    chat = llm.chat([{"role": "user", "content": "How old?"}], params[3])[0].outputs[0]
    assert 1 <= json.loads(chat.answer.content)["age"] <= 99


def test_many_formats_wait_for_memory(llm):
    texts = [letter * 20000 for letter in "abcdefgh"]  # these formats take more than the 1 MiB that is set aside
    params = [SamplingParams(max_tokens=2, structured_outputs={"choice": [text]}) for text in texts]
    outputs = llm.generate(["Once"] * len(params), params, progress=False)
    assert [text.startswith(output.outputs[0].text) for text, output in zip(texts, outputs, strict=True)] == [True] * 8


@pytest.mark.parametrize(("words", "params", "fields"), [
    ("structured_outputs", {"structured_outputs": {"regex": "("}}, {}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}, {}),
    ("response_format", {"response_format": {"type": "yaml"}}, {}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, {}),
    ("tool_choice: there are no tools", {}, {"tool_choice": "required"}),
    ("tools", {}, {"tools": [{"type": "function", "function": {"name": "f"}}]}),  # its template shows none
    ("guided_decoding: unknown", {}, {"guided_decoding": {"regex": "a"}}),
])
def test_refuses_what_it_cannot_honour(llm, words, params, fields):
    with pytest.raises(penstock.InputError, match=words):
        llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(**params), **fields)


def test_tools_are_those_of_a_job(tmp_path):
    model = tool_calls.model_with(tool_calls.TEMPLATE, tmp_path, "with-calls")
    body = tool_calls.chat()
    messages, names = body.pop("messages"), ("tools", "tool_choice")
    record = common.run_job(tmp_path, [{"messages": messages, **body}], model=model)[0]
    params = SamplingParams(**{name: value for name, value in body.items() if name not in names})
    with penstock.LLM(model, common.MEMORY) as with_calls:
        output = with_calls.chat(messages, params, **{name: body[name] for name in names})[0]
    call, = output.outputs[0].answer.tool_calls
    expected, = record["response"]["body"]["choices"][0]["message"]["tool_calls"]
    assert {"name": call.name, "arguments": call.arguments} == expected["function"]
    assert call.name == "tides" and output.outputs[0].answer.content == ""
    tool_calls.check_arguments(call.arguments)


def test_scores_are_those_of_a_job(llm, tmp_path):
    choices = [" sea", " mountain and the river", " xyz"]
    record = common.run_job(tmp_path, [{"prompt": "She looked at the", "choices": choices}])[0]
    scores = llm.score("She looked at the", choices, logprobs=1)
    for score, expected in zip(scores, record["response"]["body"]["choices"], strict=True):
        assert score.text == expected["text"]
        assert (score.logprob, score.num_tokens, score.is_greedy) == (
            expected["logprob"], expected["num_tokens"], expected["is_greedy"])
        assert len(score.logprobs) == score.num_tokens == len(score.token_ids)
    before = llm.stats()["computed_prompt_tokens"]
    prompt = "A prompt that nobody has asked before, and that is computed only once"
    llm.score(prompt, choices)
    assert llm.stats()["computed_prompt_tokens"] - before < 2 * len(llm.tokenize(prompt))


def test_logits_are_those_of_the_library(llm):
    program = os.environ.get("PENSTOCK_TEST_LOGITS")
    if program is None:
        pytest.skip("PENSTOCK_TEST_LOGITS names no program")
    ids = llm.tokenize("The fox went over the hills until it found one old house")
    logits = llm.logits(ids)
    assert logits.shape == (len(ids), llm.model["vocab_size"]) and logits.dtype == numpy.float32
    done = subprocess.run([program, common.MODEL, *map(str, ids)], capture_output=True, check=True)
    assert logits.tobytes() == done.stdout
    answer = llm.generate(ids, SamplingParams(temperature=0, max_tokens=1))[0].outputs[0]
    assert answer.token_ids == [int(logits[-1].argmax())]


def test_streams_pieces_of_the_answer(llm):
    whole = llm.generate(PROMPTS, GREEDY)
    texts = [""] * len(PROMPTS)
    outputs = {}
    tokens = [[] for _ in PROMPTS]
    for piece in llm.generate_stream(PROMPTS, GREEDY):
        texts[piece.prompt_index] += piece.text
        tokens[piece.prompt_index] += piece.token_ids
        if piece.output is not None:
            outputs[piece.prompt_index] = piece.output
    assert texts == [output.outputs[0].text for output in whole]
    assert [outputs[i].outputs for i in range(len(PROMPTS))] == [output.outputs for output in whole]
    assert tokens == [output.outputs[0].token_ids for output in whole]
    assert next(llm.generate(PROMPTS[0], GREEDY, stream=True)).prompt_index == 0  # the rest is given up
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs == whole[0].outputs


def test_stop_and_bad_words(llm):
    text = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=40))[0].outputs[0].text
    stop = text.split()[3]
    stopped = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=40, stop=stop))[0].outputs[0]
    assert stopped.finish_reason == "stop" and stopped.text == text[:text.index(stop)] and stopped.stop_reason == stop
    avoided = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=40, bad_words=[stop]))[0].outputs[0].text
    assert avoided != text


def test_describes_itself(llm):
    assert llm.model["family"] == "mixtral" and llm.memory_plan["budget_bytes"] == 24 << 20
    assert llm.default_sampling["temperature"] >= 0
    stats = llm.stats()
    assert stats["generated_tokens"] > 0 and stats["policy"]["memory_bytes"] == 24 << 20
    assert penstock.__version__ in (common.ROOT / "CMakeLists.txt").read_text(encoding="utf-8")


def test_plan_is_that_of_the_command(llm):
    flags = ["--device=cpu", "--schedule=on-demand", "--workload=prompt=16,gen=4",
             "--hardware=rtx4090:dram=64GiB,disk=nvme4"]
    done = subprocess.run([common.PENSTOCK, "plan", "--config", common.MODEL / "config.json", *flags, "--json"],
                          capture_output=True, check=True, text=True)
    options = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    assert penstock.plan(config=common.MODEL / "config.json", **options) == json.loads(done.stdout)
    assert llm.plan(**options)["choices"]


def test_plan_counts_the_memory_of_an_llm():
    with penstock.LLM(common.MODEL, common.MEMORY, threads=2) as llm:
        own = llm.memory_plan
        plan = llm.plan(hardware="rtx4090:dram=64GiB,disk=nvme4", device="cpu", schedule="on-demand",
                        workload="prompt=128,gen=128", batch_size=own["batch_size"], context_length=own["context_length"])
    assert plan["choices"][0]["memory"]["fixed_bytes"] == own["fixed_bytes"]


def test_records_routing(tmp_path):
    path = tmp_path / "routing"
    with penstock.LLM(common.MODEL, common.MEMORY, record_routing=path) as llm:
        output = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))[0]
    routing = penstock.read_routing(path)
    num_rows = len(output.prompt_token_ids) + 4  # the last token was chosen, but not computed
    assert routing.experts.shape == (num_rows, 4, 2) and routing.num_experts == 8
    assert routing.positions.tolist() == list(range(num_rows))
    assert routing.experts.min() >= 0 and routing.experts.max() < 8


@pytest.mark.parametrize(("error", "words", "options"), [
    (penstock.UsageError, "did you mean --batch-size", {"batch_sizes": 3}),
    (penstock.UsageError, "--memory", {"memory": "12Gib of RAM"}),
    (penstock.ResourceError, "the least budget", {"memory": "1MiB"}),
    (penstock.ModelError, "config.json", {"model": str(common.ROOT / "docs")}),
])
def test_refuses_wrong_options(error, words, options):
    with pytest.raises(error) as raised:
        penstock.LLM(**{"model": common.MODEL, **options})
    assert words in str(raised.value) and "\n" not in str(raised.value) and "--help" not in str(raised.value)


@pytest.mark.parametrize(("words", "prompt", "params"), [
    ("temperature", "x", SamplingParams(temperature=-1)),
    ("n:", "x", SamplingParams(n=0)),
    ("float", "x", SamplingParams(temperature=float("nan"))),
    ("prompt", 7, None),
    ("token id", [5, 1 << 20], None),
    ("prompt 1: ", ["x", "y " * 9000], None),
])
def test_refuses_wrong_requests(llm, words, prompt, params):
    with pytest.raises((penstock.InputError, TypeError)) as raised:
        llm.generate(prompt, params)
    assert words in str(raised.value).lower() or raised.type is TypeError
    assert llm.generate("x", GREEDY)


def test_errors_are_also_builtin_ones():
    assert issubclass(penstock.InputError, ValueError) and issubclass(penstock.ResourceError, MemoryError)
    assert issubclass(penstock.IoError, OSError) and issubclass(penstock.UsageError, ValueError)


def test_is_not_pickled(llm):
    with pytest.raises(penstock.UsageError, match="cannot be pickled"):
        pickle.dumps(llm)
    assert pickle.loads(pickle.dumps(llm.generate("x", GREEDY)))


def test_closed_is_closed(tmp_path):
    llm = penstock.LLM(common.MODEL, common.MEMORY)
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("x"), lambda: llm.tokenize("x"), llm.stats):
        with pytest.raises(penstock.StoppedError, match="is closed"):
            call()


def test_command_line():
    done = common.run_python("import sys; sys.argv = ['penstock', 'tokenize', '-m', 'models/penstock-demo', 'a'];"
                             "import penstock.__main__ as m; m.main()")
    assert json.loads(done.stdout)
    assert pathlib.Path(penstock.__file__).with_name("py.typed").exists()
