#!/usr/bin/env python3
"""Proves that demanded tools are called with arguments that fit their schemas, streamed or not, and over every API.

Also with arguments in tags, and behind the thoughts of a model that thinks first. The demo model knows no tools, so its
calls are random; `tool_choice` alone makes it write them.
"""
import argparse
import json
import pathlib
import shutil
import tempfile

import service

# The form of Hermes and Qwen, by which the calls are recognised.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "{{ 'Calls: <tool_call>{\"name\": NAME, \"arguments\": OBJECT}</tool_call>' }}{% endif %}"
    "{% for message in messages %}{{ '\\n' + message.role + ': ' + (message.content or '') }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nassistant: ' }}{% endif %}")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                           "days": {"type": "integer", "minimum": 1, "maximum": 14},
                                           "unit": {"enum": ["C", "F"]}},
          "required": ["city", "days", "unit"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "tides")]


# The same with GLM's form, whose arguments are tags.
TAGGED_TEMPLATE = TEMPLATE.replace('{"name": NAME, "arguments": OBJECT}',
                                   "NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n")
END = 1  # the id of the end of a text
THOUGHTS_END = 5  # the id of <pad>, a token that the demo model never writes


def model_with(template, folder, name):
    model = pathlib.Path(folder) / name
    shutil.copytree(service.MODEL, model)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = template
    path.write_text(json.dumps(config), encoding="utf-8")
    return model


def model_that_thinks(folder):
    """The template opens the thoughts, and <pad> becomes the token that ends them."""
    opening = TEMPLATE.replace("'\\nassistant: '", "'\\nassistant: <think>\\n'")
    model = model_with(opening + "{% if false %}</think>{% endif %}", folder, "thinking")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = model / name
        path.write_text(path.read_text(encoding="utf-8").replace('"<pad>"', '"</think>"'), encoding="utf-8")
    return model


def check_arguments(text):
    arguments = json.loads(text)
    assert set(arguments) == {"city", "days", "unit"}, arguments
    assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 12, arguments
    assert isinstance(arguments["days"], int) and 1 <= arguments["days"] <= 14, arguments
    assert arguments["unit"] in ("C", "F"), arguments


def chat(**more):
    return {"messages": [{"role": "user", "content": "The weather in Oslo?"}], "tools": TOOLS, "max_tokens": 200,
            "temperature": 0.9, "seed": 5, "tool_choice": {"type": "function", "function": {"name": "tides"}}, **more}


def events(answer):
    """Returns the data of an event stream."""
    lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_chat(server):
    answer = server.post("/v1/chat/completions", chat())
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls", answer
    call, = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "tides" and choice["message"]["content"] == "", answer
    check_arguments(call["function"]["arguments"])
    joined, names = "", []
    for event in events(server.post("/v1/chat/completions", chat(stream=True))):
        for delta in event["choices"][0]["delta"].get("tool_calls", []):
            names += [delta["function"]["name"]] if "name" in delta["function"] else []
            joined += delta["function"]["arguments"]
    assert names == ["tides"] and joined == call["function"]["arguments"], (names, joined)
    for seed in range(20):
        call, = server.post("/v1/chat/completions", chat(seed=seed)).json()["choices"][0]["message"]["tool_calls"]
        check_arguments(call["function"]["arguments"])


def check_cut_off(server):
    """A call that max_tokens cuts off is one with the beginning of its arguments, streamed or not, over every API.

    On a busy machine the server sends several pieces as one, so their number is not checked.
    """
    whole = server.post("/v1/chat/completions", chat()).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    cut = {"max_tokens": 40, "stream": True}
    streamed = events(server.post("/v1/chat/completions", chat(**cut)))
    deltas = [delta["function"] for event in streamed for delta in event["choices"][0]["delta"].get("tool_calls", [])]
    pieces = [delta["arguments"] for delta in deltas[1:]]
    assert deltas[0] == {"name": "tides", "arguments": ""} and pieces, deltas
    assert streamed[-1]["choices"][0]["finish_reason"] == "length", streamed[-1]
    begin = "".join(pieces)
    assert whole["arguments"].startswith(begin) and begin != whole["arguments"], (whole, begin)
    choice, = server.post("/v1/chat/completions", chat(max_tokens=40)).json()["choices"]
    call, = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == "", choice
    assert call["function"] == {"name": "tides", "arguments": begin}, call

    body = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 40,
            "tools": [{"name": "tides", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "tides"},
            "temperature": 0, "seed": 5}
    message = server.post("/v1/messages", body).json()
    block, = message["content"]
    assert message["stop_reason"] == "max_tokens" and block["type"] == "tool_use", message
    pieces = [event["delta"]["partial_json"] for event in events(server.post("/v1/messages", {**body, "stream": True}))
              if event["type"] == "content_block_delta"]
    assert pieces and block["input"] == {"text": "".join(pieces)}, (block, pieces)

    body = {"input": "Weather?", "max_output_tokens": 40, "tool_choice": {"type": "function", "name": "tides"},
            "tools": [{"type": "function", "name": "tides", "parameters": SCHEMA}], "temperature": 0, "seed": 5}
    response = server.post("/v1/responses", body).json()
    item, = response["output"]
    assert response["status"] == item["status"] == "incomplete" and item["type"] == "function_call", response
    told = events(server.post("/v1/responses", {**body, "stream": True}))
    pieces = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert pieces and "".join(pieces) == item["arguments"], (item, pieces)
    assert told[-1]["type"] == "response.incomplete", told[-1]


def calls_of(server, **more):
    message = server.post("/v1/chat/completions", chat(**more)).json()["choices"][0]["message"]
    assert message["content"] == "" and message["tool_calls"], message
    for call in message["tool_calls"]:
        check_arguments(call["function"]["arguments"])
    return message["tool_calls"]


def check_required(server):
    """One of several tools, or several calls, as the model likes."""
    one = [calls_of(server, tool_choice="required", parallel_tool_calls=False, seed=seed) for seed in range(20)]
    assert {len(calls) for calls in one} == {1} and {calls[0]["function"]["name"] for calls in one} == {"weather", "tides"}
    # Without an end the demo model would call for ever.
    many = [server.post("/v1/chat/completions", chat(tool_choice="required", seed=seed, max_tokens=600,
                                                     logit_bias={str(END): seed % 4}))
            for seed in range(20)]
    num_calls = []
    for answer in many:
        choice, = answer.json()["choices"]
        num_calls.append(len(choice["message"]["tool_calls"]))
        for call in choice["message"]["tool_calls"] if choice["finish_reason"] == "tool_calls" else []:
            check_arguments(call["function"]["arguments"])
    assert max(num_calls) > 1, num_calls


def check_strict(server):
    """Calls that need not be made follow their schemas, too, if the tool says so."""
    def tools(schema):
        return [{"type": "function", "function": {"name": "tides", "strict": True, "parameters": schema}}]

    for seed in range(5):
        answer = server.post("/v1/chat/completions", chat(tools=tools(SCHEMA), tool_choice="auto", seed=seed))
        for call in answer.json()["choices"][0]["message"].get("tool_calls", []):
            check_arguments(call["function"]["arguments"])
    refused = server.post("/v1/chat/completions", chat(tools=tools({"uniqueItems": True}), tool_choice="auto"))
    assert refused.status == 400 and "tools" in refused.json()["error"]["message"], refused


def check_messages(server):
    body = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 200,
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = server.post("/v1/messages", body).json()
    block, = message["content"]
    assert message["stop_reason"] == "tool_use" and block["type"] == "tool_use" and block["name"] == "weather", message
    check_arguments(json.dumps(block["input"]))
    joined = "".join(event["delta"].get("partial_json", "") for event in events(server.post("/v1/messages", {
        **body, "stream": True})) if event["type"] == "content_block_delta")
    check_arguments(joined)


def check_responses(server):
    body = {"input": "Weather?", "max_output_tokens": 200, "tool_choice": "required", "parallel_tool_calls": False,
            "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]}
    response = server.post("/v1/responses", body).json()
    item, = response["output"]
    assert item["type"] == "function_call" and item["name"] == "weather", response
    check_arguments(item["arguments"])
    done = [event for event in events(server.post("/v1/responses", {**body, "stream": True}))
            if event["type"] == "response.function_call_arguments.done"]
    check_arguments(done[0]["arguments"])


def check_formats(server):
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    for seed in range(10):
        answer = server.post("/v1/chat/completions", {**chat(seed=seed), "tools": [], "tool_choice": "none",
                                                      "response_format": schema})
        check_arguments(answer.json()["choices"][0]["message"]["content"])
    # A format is that of the content, and an answer that must call a tool has none.
    other = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    calls = [server.post("/v1/chat/completions", chat(**more)).json()["choices"][0]["message"]["tool_calls"]
             for more in ({}, {"response_format": other})]
    assert len(calls[0]) == 1 and calls[0][0]["function"] == calls[1][0]["function"], calls
    refused = server.post("/v1/chat/completions", {**chat(), "tools": [], "tool_choice": "none", "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"uniqueItems": True}}}})
    assert refused.status == 400 and "uniqueItems" in refused.json()["error"]["message"], refused


def check_thoughts(server):
    """Thoughts are free, and the answer behind them follows its format: all that end by themselves."""
    fields = {"logit_bias": {str(THOUGHTS_END): 18}, "max_tokens": 400, "n": 4}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    thoughts, num_ended = set(), 0
    for seed in range(10):
        answer = server.post("/v1/chat/completions", chat(seed=seed, tools=[], tool_choice="none", response_format=schema,
                                                          **fields)).json()
        for choice in answer["choices"]:
            thoughts.add(choice["message"].get("reasoning_content", ""))
            if choice["finish_reason"] == "stop":
                num_ended += 1
                check_arguments(choice["message"]["content"])
    assert num_ended > 30 and len(thoughts) > 20, (num_ended, thoughts)
    answer = server.post("/v1/chat/completions", chat(tool_choice="required", parallel_tool_calls=False, **fields)).json()
    for choice in answer["choices"]:
        if choice["finish_reason"] == "tool_calls":
            call, = choice["message"]["tool_calls"]
            check_arguments(call["function"]["arguments"])


def check_tokens_of_thoughts(server):
    """Usage counts the tokens before the one that ends the thoughts, in all forms of the API."""
    found, num_thinking = set(), 0
    for seed in range(8):
        body = {"messages": chat()["messages"], "seed": seed, "logit_bias": {str(THOUGHTS_END): 18}, "max_tokens": 40}
        answer = server.post("/v1/chat/completions", {**body, "logprobs": True}).json()
        tokens = [token["token"] for token in answer["choices"][0]["logprobs"]["content"]]
        count = tokens.index("") if "" in tokens else len(tokens)  # special tokens have no text
        expected = {"reasoning_tokens": count}
        assert answer["usage"]["completion_tokens_details"] == expected, (answer, count)
        found.add(count)
        stream = server.post("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        usage = events(stream)[-1]["usage"]
        assert usage["completion_tokens_details"] == expected, (usage, count)
        response = server.post("/v1/responses", {"input": chat()["messages"], "seed": seed, "max_output_tokens": 8}).json()
        if response["output"][-1]["content"][0]["text"] == "":  # of the message behind the thoughts
            assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 8}, response
            num_thinking += 1
    assert len(found) > 3 and num_thinking > 0, (found, num_thinking)


def run_checks(report, args, model, checks):
    with service.Server(args.penstock, "--memory", "64MiB", model=model) as server:
        for check in checks:
            with report.check(f"{model.name}: {check.__name__.removeprefix('check_')}"):
                check(server)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder:
        run_checks(report, args, model_with(TEMPLATE, folder, "with-calls"),
                   (check_chat, check_cut_off, check_required, check_strict, check_messages, check_responses,
                    check_formats))
        run_checks(report, args, model_with(TAGGED_TEMPLATE, folder, "tagged"),
                   (check_chat, check_required, check_strict, check_messages, check_responses))
        run_checks(report, args, model_that_thinks(folder), (check_thoughts, check_tokens_of_thoughts))
    report.end()


if __name__ == "__main__":
    main()
