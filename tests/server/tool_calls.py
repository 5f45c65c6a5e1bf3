#!/usr/bin/env python3
"""Proves that a named tool is called with arguments that fit its schema, streamed or not, and over every API.

The demo model knows no tools, so its calls are random; `tool_choice` alone makes it write them.
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


def model_with_calls(folder):
    model = pathlib.Path(folder) / "with-calls"
    shutil.copytree(service.MODEL, model)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = TEMPLATE
    path.write_text(json.dumps(config), encoding="utf-8")
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


def check_messages(server):
    body = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 200,
            "tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
    message = server.post("/v1/messages", body).json()
    block, = message["content"]
    assert message["stop_reason"] == "tool_use" and block["type"] == "tool_use" and block["name"] == "weather", message
    check_arguments(json.dumps(block["input"]))
    joined = "".join(event["delta"].get("partial_json", "") for event in events(server.post("/v1/messages", {
        **body, "stream": True})) if event["type"] == "content_block_delta")
    check_arguments(joined)


def check_responses(server):
    body = {"input": "Weather?", "max_output_tokens": 200, "tool_choice": "required",
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
    refused = server.post("/v1/chat/completions", chat(response_format=schema))
    assert refused.status == 400 and "response_format" in refused.json()["error"]["message"], refused
    refused = server.post("/v1/chat/completions", {**chat(), "tools": [], "tool_choice": "none", "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}})
    assert refused.status == 400 and "not" in refused.json()["error"]["message"], refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder, service.Server(
            args.penstock, "--memory", "64MiB", model=model_with_calls(folder)) as server:
        for check in (check_chat, check_messages, check_responses, check_formats):
            with report.check(check.__name__.removeprefix("check_")):
                check(server)
    report.end()


if __name__ == "__main__":
    main()
