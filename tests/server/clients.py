#!/usr/bin/env python3
"""Asks the server with the clients of OpenAI and Anthropic from PyPI: every endpoint, whole and as streams, with errors,
timeouts and streams that are given up.

Usage: clients.py --penstock PROGRAM
"""
import argparse
import asyncio
import json
import pathlib
import tempfile
import time
import typing

import environment

environment.enter()

import anthropic  # noqa: E402
import openai  # noqa: E402
import pydantic  # noqa: E402
import service  # noqa: E402
import tool_calls  # noqa: E402

MODEL = service.NAME
HELLO = [{"role": "user", "content": "Hello"}]
PROMPT = "Once upon a time"
GREEDY = {"model": MODEL, "temperature": 0}
SHELL = {"name": "shell", "description": "Runs a shell command", "parameters": {
    "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}}


def equal(found, wanted):
    assert found == wanted, f"found {found!r}, expected {wanted!r}"


def raises(kind, status, call):
    """Returns the error that the call must end with."""
    try:
        call()
    except kind as error:
        equal(type(error), kind)
        if status:
            equal(error.status_code, status)
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_chat(client, report):
    create = client.chat.completions.create
    with report.check("openai: a chat, its usage and its ids"):
        whole = create(messages=HELLO, max_tokens=12, **GREEDY)
        choice = whole.choices[0]
        assert choice.message.content and choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
        equal((whole.object, whole.model, len(whole.choices)), ("chat.completion", MODEL, 1))
        equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        assert whole.id.startswith("chatcmpl-") and abs(whole.created - time.time()) < 60
        equal(create(messages=HELLO, max_completion_tokens=12, **GREEDY).choices[0].message.content, choice.message.content)
    with report.check("openai: a chat's stream says the same"):
        chunks = list(create(messages=HELLO, max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY))
        equal(chunks[0].choices[0].delta.role, "assistant")
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]), choice.message.content)
        equal([chunk.choices[0].finish_reason for chunk in chunks[-3:-1]], [None, choice.finish_reason])
        equal((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], whole.usage.completion_tokens))
        assert all(chunk.usage is None for chunk in chunks[:-1]) and len({chunk.id for chunk in chunks}) == 1
    with report.check("openai: the pieces of a stream count their tokens, as vLLM's do"):
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(create(messages=HELLO, max_tokens=12, stream=True, stream_options=options, **GREEDY))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        equal((counts, counts[0], counts[-1]), (sorted(counts), 0, whole.usage.completion_tokens))
        equal({chunk.usage.prompt_tokens for chunk in chunks}, {whole.usage.prompt_tokens})
    with report.check("openai: the helper of streams"):
        short = {"messages": HELLO, "max_tokens": 200, "stop": "\N{FULL STOP}", **GREEDY}
        with client.chat.completions.stream(**short) as stream:
            kinds = {event.type for event in stream}
            equal(stream.get_final_completion().choices[0].message.content, create(**short).choices[0].message.content)
            assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    with report.check("openai: three answers with one seed, whole and as a stream"):
        fields = {"messages": HELLO, "max_tokens": 8, "n": 3, "seed": 5, "temperature": 1.5, "model": MODEL}
        texts = [one.message.content for one in create(**fields).choices]
        assert len(set(texts)) == 3, texts
        equal([one.message.content for one in create(**fields).choices], texts)
        streamed = [""] * 3
        for chunk in create(stream=True, **fields):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        equal(streamed, texts)
        assert [one.message.content for one in create(**{**fields, "seed": 6}).choices] != texts
    with report.check("openai: log-probabilities of a chat, whole and as a stream"):
        fields = {"messages": HELLO, "max_tokens": 6, "logprobs": True, "top_logprobs": 4, **GREEDY}
        tokens = create(**fields).choices[0].logprobs.content
        assert len(tokens) == 6 and all(len(one.top_logprobs) == 4 for one in tokens)
        assert all(one.logprob == max(top.logprob for top in one.top_logprobs) <= 0 for one in tokens)
        joined = b"".join(bytes(one.bytes) for one in tokens).decode()
        equal(joined, create(**fields).choices[0].message.content)
        parts = [one for chunk in create(stream=True, **fields) if chunk.choices[0].logprobs
                 for one in chunk.choices[0].logprobs.content]
        equal([one.token for one in parts], [one.token for one in tokens])
    with report.check("openai: contents in parts, names, system and developer messages"):
        for role in ("system", "developer"):
            create(messages=[{"role": role, "content": [{"type": "text", "text": "Be brief."}]},
                             {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Hello"}]},
                             {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}],
                   max_tokens=2, user="u", metadata={"a": "b"}, store=False, service_tier="auto", **GREEDY)


def check_completions(client, report):
    create = client.completions.create
    with report.check("openai: a completion holds the answer alone, and its stream says the same"):
        whole = create(prompt=PROMPT, max_tokens=8, **GREEDY)
        text = whole.choices[0].text
        assert text and not text.startswith(PROMPT), f"the prompt is in the answer: {text!r}"
        chunks = create(prompt=PROMPT, max_tokens=8, stream=True, **GREEDY)
        equal("".join(chunk.choices[0].text for chunk in chunks), text)
        equal((whole.usage.completion_tokens, whole.choices[0].finish_reason), (8, "length"))
        equal(whole.object, "text_completion")
        equal(create(prompt=PROMPT, **GREEDY).usage.completion_tokens, 16)
    with report.check("openai: echo and log-probabilities of the prompt"):
        alone = create(prompt=PROMPT, max_tokens=3, logprobs=2, **GREEDY).choices[0]
        both = create(prompt=PROMPT, max_tokens=3, logprobs=2, echo=True, **GREEDY).choices[0]
        equal(both.text, PROMPT + "".join(alone.logprobs.tokens))
        equal("".join(both.logprobs.tokens), both.text)
        equal(both.logprobs.token_logprobs[-3:], alone.logprobs.token_logprobs)
        assert both.logprobs.token_logprobs[0] is None and None not in both.logprobs.token_logprobs[1:]
        starts = [both.text[at:at + len(token)] for at, token in zip(both.logprobs.text_offset, both.logprobs.tokens,
                                                                     strict=True)]
        equal(starts, both.logprobs.tokens)
        scored = create(prompt=PROMPT, max_tokens=0, logprobs=1, echo=True, **GREEDY).choices[0]
        equal((scored.text, scored.logprobs.tokens), (PROMPT, both.logprobs.tokens[:-3]))
        equal(scored.logprobs.token_logprobs, both.logprobs.token_logprobs[:-3])
    with report.check("openai: several prompts, texts and tokens"):
        one = [create(prompt=prompt, max_tokens=4, **GREEDY).choices[0].text for prompt in (PROMPT, "The king")]
        answer = create(prompt=[PROMPT, "The king"], max_tokens=4, n=2, **GREEDY)
        equal([choice.text for choice in answer.choices], [one[0], one[0], one[1], one[1]])
        equal([choice.index for choice in answer.choices], [0, 1, 2, 3])
        ids = create(prompt=[[0, 500, 501], [0, 7]], max_tokens=4, logprobs=0, **GREEDY)
        assert all(choice.text == "".join(choice.logprobs.tokens) for choice in ids.choices), ids
    with report.check("openai: stop texts end an answer, and are not in it"):
        text = create(prompt=PROMPT, max_tokens=24, **GREEDY).choices[0].text.removeprefix(PROMPT)
        stop = text[10:13]
        for stops in (stop, [stop, "\N{SNOWMAN}"]):
            choice = create(prompt=PROMPT, max_tokens=24, stop=stops, **GREEDY).choices[0]
            equal((choice.text.removeprefix(PROMPT), choice.finish_reason), (text[:text.index(stop)], "stop"))
            parts = list(create(prompt=PROMPT, max_tokens=24, stop=stops, stream=True, **GREEDY))
            equal(("".join(part.choices[0].text for part in parts), parts[-1].choices[0].finish_reason),
                  (text[:text.index(stop)], "stop"))
    with report.check("openai: a bias, penalties and a seed change the answer as they should"):
        best = client.completions.create(prompt=PROMPT, max_tokens=1, logprobs=2, extra_body={"top_k": 5},
                                         **GREEDY).choices[0].logprobs
        banned = service_tokens(client, best.tokens[0])
        other = create(prompt=PROMPT, max_tokens=1, logprobs=0, logit_bias={str(banned): -100}, **GREEDY)
        assert other.choices[0].logprobs.tokens != best.tokens
        forced = create(prompt=PROMPT, max_tokens=5, logprobs=0, logit_bias={"500": 100}, **GREEDY)
        equal(len(set(forced.choices[0].logprobs.tokens)), 1)
        fields = {"prompt": "a a a a a", "max_tokens": 20, **GREEDY}
        assert create(presence_penalty=2, frequency_penalty=2, **fields).choices[0].text \
            != create(**fields).choices[0].text
        fields = {"prompt": PROMPT, "max_tokens": 12, "model": MODEL, "temperature": 1, "top_p": 0.9}
        equal(create(seed=3, **fields).choices[0].text, create(seed=3, **fields).choices[0].text)
        assert len({create(**fields).choices[0].text for _ in range(4)}) > 1, "without a seed all answers are the same"


def service_tokens(client, text):
    """Returns the only token of a text."""
    answer = client.post(str(client.base_url).replace("/v1/", "/tokenize"), cast_to=object,
                         body={"prompt": text, "add_special_tokens": False})
    equal(answer["count"], 1)
    return answer["tokens"][0]


def check_tools(client, anthropic_client, report):
    tools = [{"type": "function", "function": SHELL}]
    with report.check("openai: tools are taken, and are in the prompt"):
        plain = client.chat.completions.create(messages=HELLO, max_tokens=2, **GREEDY).usage.prompt_tokens
        for fields in ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}):
            found = client.chat.completions.create(messages=HELLO, max_tokens=2, tools=tools, **fields, **GREEDY)
            assert found.usage.prompt_tokens > plain + 40, found.usage
        none = client.chat.completions.create(messages=HELLO, max_tokens=2, tools=tools, tool_choice="none", **GREEDY)
        equal(none.usage.prompt_tokens, plain)
    with report.check("openai: calls and their results are in the prompt"):
        call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": '{"command": ["ls"]}'}}
        chat = HELLO + [{"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}]
        found = client.chat.completions.create(messages=chat, max_tokens=2, tools=tools, **GREEDY)
        assert found.usage.prompt_tokens > plain + 60, found.usage
    with report.check("openai: responses with tools"):
        answer = client.responses.create(model=MODEL, input="Hello", tools=[{"type": "function", "strict": False, **SHELL}],
                                         max_output_tokens=16, tool_choice="auto")
        assert answer.usage.input_tokens > plain + 40 and answer.tools[0].name == "shell"
    with report.check("anthropic: tools are in the prompt that is counted"):
        plain = anthropic_client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
        tool = {"name": "shell", "description": "Runs", "input_schema": SHELL["parameters"]}
        for choice in ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}):
            with_tool = anthropic_client.messages.count_tokens(model=MODEL, messages=HELLO, tools=[tool], tool_choice=choice)
            assert with_tool.input_tokens > plain + 40, with_tool


def check_responses(client, report):
    with report.check("openai: a response, and the same as a stream"):
        fields = {"model": MODEL, "input": "Hello", "max_output_tokens": 20, "temperature": 0, "store": False}
        whole = client.responses.create(**fields)
        assert whole.output_text and whole.status in ("completed", "incomplete") and whole.id.startswith("resp_")
        equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)
        if whole.status == "incomplete":
            equal(whole.incomplete_details.reason, "max_output_tokens")
            equal(whole.output[-1].status, "incomplete")
        events = list(client.responses.create(stream=True, **fields))
        equal([event.sequence_number for event in events], list(range(len(events))))
        equal([event.type for event in events[:4]], ["response.created", "response.in_progress",
                                                     "response.output_item.added", "response.content_part.added"])
        equal([event.type for event in events[-4:]], ["response.output_text.done", "response.content_part.done",
                                                      "response.output_item.done", f"response.{whole.status}"])
        equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
        equal(events[-1].response.output_text, whole.output_text)
    with report.check("openai: the helper of streams of responses"):
        with client.responses.stream(**{key: value for key, value in fields.items()}) as stream:
            assert [event.type for event in stream][0] == "response.created"
            if whole.status == "completed":
                equal(stream.get_final_response().output_text, whole.output_text)
    with report.check("openai: instructions, items and log-probabilities of a response"):
        answer = client.responses.create(
            model=MODEL, instructions="Be brief.", max_output_tokens=4, temperature=0, top_logprobs=2,
            include=["message.output_text.logprobs"], metadata={"a": "b"}, truncation="disabled",
            input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                   {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
                   {"role": "user", "content": "Go on"}])
        part = answer.output[0].content[0]
        equal((len(part.logprobs), answer.metadata, answer.instructions), (4, {"a": "b"}, "Be brief."))
        equal("".join(one.token for one in part.logprobs), part.text)
    with report.check("openai: a response that would be stored is refused by name"):
        for name, value in (("previous_response_id", "resp_1"), ("background", True), ("truncation", "auto")):
            error = raises(openai.BadRequestError, 400, lambda n=name, v=value: client.responses.create(
                model=MODEL, input="a", **{n: v}))
            equal((error.param, error.code), (name, "unsupported"))
        raises(openai.NotFoundError, 404, lambda: client.responses.retrieve("resp_1"))


def check_calls(client, anthropic_client, report):
    """Arguments of calls come in pieces, and the clients' helpers join them to what the whole answer has."""
    weather = [{"role": "user", "content": "The weather in Oslo?"}]
    greedy = {**GREEDY, "model": "with-calls"}
    function = {"name": "tides", "parameters": tool_calls.SCHEMA}
    with report.check("openai: a chat's call streams in pieces"):
        fields = {"messages": weather, "tools": [{"type": "function", "function": function}], "tool_choice": "required",
                  "parallel_tool_calls": False, "max_tokens": 200, **greedy}
        choice, = client.chat.completions.create(**fields).choices
        wanted = choice.message.tool_calls[0].function
        tool_calls.check_arguments(wanted.arguments)
        with client.chat.completions.stream(**fields) as stream:
            pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            joined, = stream.get_final_completion().choices
        call, = joined.message.tool_calls
        equal((call.function.name, call.function.arguments, joined.finish_reason), ("tides", wanted.arguments, "tool_calls"))
        assert pieces and "".join(pieces) == wanted.arguments and call.id, pieces
    with report.check("openai: a response's call streams in pieces"):
        fields = {"input": weather, "tools": [{"type": "function", "strict": True, **function}], "tool_choice": "required",
                  "parallel_tool_calls": False, "max_output_tokens": 200, **greedy}
        item, = client.responses.create(**fields).output
        tool_calls.check_arguments(item.arguments)
        with client.responses.stream(**fields) as stream:
            pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            joined, = stream.get_final_response().output
        equal((joined.type, joined.name, joined.arguments), ("function_call", "tides", item.arguments))
        assert pieces and "".join(pieces) == item.arguments, pieces
    with report.check("anthropic: a message's call streams in pieces, also if it is cut off"):
        fields = {"messages": weather, "tools": [{"name": "tides", "input_schema": tool_calls.SCHEMA}],
                  "tool_choice": {"type": "tool", "name": "tides"}, "max_tokens": 200, "model": "with-calls",
                  "extra_body": {"temperature": 0}}
        block, = anthropic_client.messages.create(**fields).content
        tool_calls.check_arguments(json.dumps(block.input))
        for max_tokens, reason in ((200, "tool_use"), (40, "max_tokens")):
            with anthropic_client.messages.stream(**{**fields, "max_tokens": max_tokens}) as stream:
                pieces = [event.partial_json for event in stream if event.type == "input_json"]
                message = stream.get_final_message()
            joined, = message.content
            equal((joined.type, joined.name, message.stop_reason), ("tool_use", "tides", reason))
            assert pieces, message
            if reason == "tool_use":
                equal((joined.input, json.loads("".join(pieces))), (block.input, block.input))


class Trip(pydantic.BaseModel):
    """The value that an answer with a schema has. Anthropic's client leaves bounds of numbers and lengths to the model."""
    city: typing.Literal["Oslo", "Rome"]
    days: typing.Literal[3, 7, 14]
    is_booked: bool


def check_formats(client, anthropic_client, report):
    """The clients' own parsers take answers that follow a schema."""
    with report.check("openai: a chat's answer is parsed by its schema, whole and as a stream"):
        fields = {"messages": HELLO, "response_format": Trip, "max_tokens": 200, **GREEDY}
        wanted = client.chat.completions.parse(**fields).choices[0].message.parsed
        equal(type(wanted), Trip)
        with client.chat.completions.stream(**fields) as stream:
            equal(stream.get_final_completion().choices[0].message.parsed, wanted)
    with report.check("openai: JSON mode, and a schema that cannot be honoured"):
        chat = client.chat.completions.create
        found = chat(messages=HELLO, response_format={"type": "json_object"}, max_tokens=400, n=4, seed=1, temperature=1,
                     model=MODEL)
        ended = [json.loads(one.message.content) for one in found.choices if one.finish_reason == "stop"]
        assert ended and all(isinstance(one, dict) for one in ended), found
        schema = {"name": "n", "schema": {"type": "array", "uniqueItems": True}}
        error = raises(openai.BadRequestError, 400, lambda: chat(messages=HELLO, model=MODEL, response_format={
            "type": "json_schema", "json_schema": schema}))
        assert "uniqueItems" in error.message and error.param.startswith("response_format"), error
    with report.check("openai: a response is parsed by its schema, whole and as a stream"):
        fields = {"input": "Hello", "text_format": Trip, "max_output_tokens": 200, **GREEDY}
        wanted = client.responses.parse(**fields).output_parsed
        equal(type(wanted), Trip)
        with client.responses.stream(**fields) as stream:
            equal(stream.get_final_response().output_parsed, wanted)
    with report.check("anthropic: a message is parsed by its schema, whole and as a stream"):
        fields = {"messages": HELLO, "output_format": Trip, "max_tokens": 200, "model": MODEL,
                  "extra_body": {"temperature": 0}}
        wanted = anthropic_client.messages.parse(**fields).parsed_output
        equal(type(wanted), Trip)
        with anthropic_client.messages.stream(**fields) as stream:
            equal(stream.get_final_message().parsed_output, wanted)


def check_small(client, server, report):
    with report.check("openai: models"):
        equal([model.id for model in client.models.list()], [MODEL])
        equal(client.models.retrieve(MODEL).owned_by, "penstock")
        raises(openai.NotFoundError, 404, lambda: client.models.retrieve("other"))
    with report.check("openai: errors have the status, the class and the parameter"):
        chat = client.chat.completions.create
        raises(openai.NotFoundError, 404, lambda: chat(model="other", messages=HELLO))
        raises(openai.NotFoundError, 404, lambda: client.embeddings.create(model=MODEL, input="a"))
        raises(openai.NotFoundError, 404, lambda: client.images.generate(prompt="a"))
        for name, value in (("n", 0), ("temperature", 1000), ("top_logprobs", 21), ("messages", []),
                            ("max_tokens", -1), ("tool_choice", "sometimes"), ("audio", {"voice": "alloy"})):
            fields = {"model": MODEL, "messages": HELLO, "logprobs": True}
            fields["tools"] = [{"type": "function", "function": SHELL}]
            error = raises(openai.BadRequestError, 400, lambda n=name, v=value, f=fields: chat(**{**f, n: v}))
            assert error.param.startswith(name) and error.type == "invalid_request_error" and error.code, error.body
    with report.check("openai: a client that has no patience frees its place"):
        hasty = client.with_options(timeout=0.2, max_retries=0)
        raises(openai.APITimeoutError, None, lambda: hasty.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=2000, n=4, extra_body={"ignore_eos": True}))
        server.wait_until("the place is free", lambda: server.metric("vllm:num_requests_running") == 0, seconds=5)
    with report.check("openai: a stream that is given up frees its place"):
        stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2000, stream=True,
                                           extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        server.wait_until("the place is free", lambda: server.metric("vllm:num_requests_running") == 0, seconds=5)
    with report.check("openai: 40 requests at once give what one at a time gives"):
        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=client.base_url, api_key="x", max_retries=0) as many:
                return await asyncio.gather(*[many.completions.create(prompt=f"Number {i}", max_tokens=10, **GREEDY)
                                              for i in range(40)])
        for i, answer in enumerate(asyncio.run(all_at_once())):
            if i % 10 == 0:
                equal(answer.choices[0].text,
                      client.completions.create(prompt=f"Number {i}", max_tokens=10, **GREEDY).choices[0].text)


def batch_file(folder, count, path="/v1/chat/completions", **body):
    file = pathlib.Path(folder) / "batch.jsonl"
    bodies = ({"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 6 if i % 5 else -1, **body}
              for i in range(count))
    file.write_text("".join(json.dumps({"custom_id": f"c{i}", "method": "POST", "url": path, "body": one}) + "\n"
                            for i, one in enumerate(bodies)), encoding="utf-8")
    return file


def wait_for(client, batch, *states):
    deadline = time.monotonic() + 120
    while batch.status not in states:
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def check_batches(client, report):
    folder = tempfile.TemporaryDirectory()
    with folder, report.check("openai: files: create, list, retrieve, content, delete"):
        path = batch_file(folder.name, 20)
        files = [client.files.create(file=path, purpose="batch") for _ in range(3)]
        equal((files[0].bytes, files[0].filename, files[0].purpose), (path.stat().st_size, "batch.jsonl", "batch"))
        equal({file.id for file in client.files.list(limit=1)}, {file.id for file in files})
        equal(client.files.retrieve(files[0].id).id, files[0].id)
        equal(client.files.content(files[0].id).read(), path.read_bytes())
        assert client.files.delete(files[2].id).deleted
        raises(openai.NotFoundError, 404, lambda: client.files.retrieve(files[2].id))
        raises(openai.NotFoundError, 404, lambda: client.files.content(files[2].id))
        raises(openai.NotFoundError, 404, lambda: client.files.delete(files[2].id))
        raises(openai.BadRequestError, 400, lambda: client.files.create(file=path, purpose="fine-tune"))
    with report.check("openai: a batch with good and bad lines completes, and its results are those of requests"):
        wanted = client.chat.completions.create(messages=HELLO, max_tokens=6, **GREEDY).choices[0].message.content
        batch = client.batches.create(input_file_id=files[0].id, endpoint="/v1/chat/completions", completion_window="24h",
                                      metadata={"a": "b"})
        assert batch.status in ("validating", "in_progress") and batch.metadata == {"a": "b"}
        batch = wait_for(client, batch, "completed")
        equal((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (20, 16, 4))
        lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        equal(sorted(line["custom_id"] for line in lines), sorted(f"c{i}" for i in range(20) if i % 5))
        equal({line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}, {wanted})
        errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
        equal({line["custom_id"] for line in errors}, {"c0", "c5", "c10", "c15"})
        assert batch.created_at <= batch.in_progress_at <= batch.completed_at
        assert batch.id in [one.id for one in client.batches.list(limit=1)]
    with tempfile.TemporaryDirectory() as other, report.check("openai: a batch that is cancelled keeps what it has"):
        path = batch_file(other, 300, max_tokens=400, ignore_eos=True)
        file = client.files.create(file=path, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = wait_for(client, batch, "in_progress")
        raises(openai.ConflictError, 409, lambda: client.with_options(max_retries=0).files.delete(file.id))
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        wait_for(client, batch, "cancelled")
        raises(openai.BadRequestError, 400, lambda: client.batches.cancel(batch.id))
        assert client.files.delete(file.id).deleted
    with report.check("openai: batches that cannot be are refused"):
        for fields in ({"input_file_id": "file-0"}, {"endpoint": "/v1/embeddings"}, {"completion_window": "1h"}):
            usual = {"input_file_id": files[1].id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            raises(openai.BadRequestError, 400, lambda f=fields, u=usual: client.batches.create(**{**u, **f}))
        raises(openai.NotFoundError, 404, lambda: client.batches.retrieve("batch_0"))
        raises(openai.NotFoundError, 404, lambda: client.batches.cancel("batch_0"))
    with tempfile.TemporaryDirectory() as other, report.check("openai: a batch whose lines name another endpoint fails"):
        file = client.files.create(file=batch_file(other, 3, path="/v1/embeddings"), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = wait_for(client, batch, "failed", "completed")
        assert batch.status == "failed" or batch.request_counts.failed == 3, batch


def check_anthropic(client, report):
    fields = {"model": MODEL, "max_tokens": 12, "extra_body": {"temperature": 0}}
    with report.check("anthropic: a message, its usage and its end"):
        whole = client.messages.create(messages=HELLO, **fields)
        equal((whole.type, whole.role, whole.content[0].type), ("message", "assistant", "text"))
        assert whole.id.startswith("msg_") and whole.content[0].text and whole.stop_reason in ("end_turn", "max_tokens")
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
        equal(whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0), counted)
    with report.check("anthropic: the events of a stream come in order"):
        events = list(client.messages.create(messages=HELLO, stream=True, **fields))
        kinds = [event.type for event in events if event.type != "ping"]
        equal(kinds[:2] + kinds[-3:], ["message_start", "content_block_start", "content_block_stop", "message_delta",
                                       "message_stop"])
        equal(set(kinds[2:-3]), {"content_block_delta"})
        equal("".join(event.delta.text for event in events if event.type == "content_block_delta"), whole.content[0].text)
        delta = next(event for event in events if event.type == "message_delta")
        equal((delta.delta.stop_reason, delta.usage.output_tokens), (whole.stop_reason, whole.usage.output_tokens))
        assert events[0].message.usage.input_tokens > 0
    with report.check("anthropic: the helper of streams"):
        with client.messages.stream(messages=HELLO, **fields) as stream:
            equal("".join(stream.text_stream), whole.content[0].text)
            equal(stream.get_final_message().stop_reason, whole.stop_reason)
    with report.check("anthropic: system, stop sequences, several blocks, sampling"):
        plain = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
        for system in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
            assert client.messages.count_tokens(model=MODEL, messages=HELLO, system=system).input_tokens > plain + 2
        stop = whole.content[0].text[4:7]
        found = client.messages.create(messages=HELLO, stop_sequences=[stop, "\N{SNOWMAN}"], **fields)
        equal((found.stop_reason, found.stop_sequence), ("stop_sequence", stop))
        assert stop not in found.content[0].text
        client.messages.create(model=MODEL, max_tokens=3, messages=HELLO, metadata={"user_id": "u"},
                               extra_body={"temperature": 1, "top_p": 0.9, "top_k": 20},
                               thinking={"type": "disabled"}, service_tier="auto")
    with report.check("anthropic: errors have the status, the class and the type"):
        create = client.messages.create
        error = raises(anthropic.NotFoundError, 404, lambda: create(**{**fields, "model": "other"}, messages=HELLO))
        equal((error.body["type"], error.body["error"]["type"]), ("error", "not_found_error"))
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
        for bad in ({"messages": []}, {"messages": HELLO, "max_tokens": 0},
                    {"messages": HELLO, "extra_body": {"temperature": -1}},
                    {"messages": [{"role": "user", "content": [image]}]},
                    {"messages": [{"role": "wizard", "content": "a"}]},
                    {"messages": HELLO, "tools": [{"type": "bash_20250124", "name": "bash"}]}):
            error = raises(anthropic.BadRequestError, 400, lambda b=bad: create(**{**fields, **b}))
            equal(error.body["error"]["type"], "invalid_request_error")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder:
        model = service.model_with_tools(folder)
        key = "a-key"
        with service.Server(args.penstock, "--batches", pathlib.Path(folder) / "batches", model=model) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=120)
            other = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=120)
            check_chat(client, report)
            check_completions(client, report)
            check_tools(client, other, report)
            check_responses(client, report)
            check_formats(client, other, report)
            check_small(client, server, report)
            check_batches(client, report)
            check_anthropic(other, report)
        calls = tool_calls.model_with(tool_calls.TEMPLATE, folder, "with-calls")
        with service.Server(args.penstock, model=calls) as server:
            check_calls(openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=120),
                        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=120), report)
        with service.Server(args.penstock, "--api-key", key) as server, report.check("both clients: keys"):
            openai.OpenAI(base_url=server.url + "/v1", api_key=key).models.list()
            raises(openai.AuthenticationError, 401, openai.OpenAI(base_url=server.url + "/v1", api_key="y").models.list)
            for keys, kind in (({"api_key": key}, None), ({"auth_token": key}, None), ({"api_key": "y"}, 401)):
                client = anthropic.Anthropic(base_url=server.url, **keys)
                ask = (lambda c: lambda: c.messages.count_tokens(model=MODEL, messages=HELLO))(client)
                raises(anthropic.AuthenticationError, 401, ask) if kind else ask()
    report.end()


if __name__ == "__main__":
    main()
