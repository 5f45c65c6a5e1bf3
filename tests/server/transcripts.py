#!/usr/bin/env python3
"""Replays what coding agents send: Codex's requests to /v1/responses, and Claude Code's to /v1/messages.

The server must take each, its prompt must hold all parts in order, and its streams must be well-formed. The replies of the
tools are made up; the fields are those that the agents send.

Usage: transcripts.py --penstock PROGRAM
"""
import argparse
import json
import tempfile

import service

# Each part of a transcript has a word of its own here, in the order in which the prompt must have them.
WORDS = ("Heron", "Otter", "Badger", "Falcon", "Weasel", "Lizard", "Magpie", "Beaver", "Rabbit", "Turtle")

SHELL_SCHEMA = {"type": "object", "additionalProperties": False, "required": ["command"], "properties": {
    "command": {"type": "array", "items": {"type": "string"}, "description": "The command"},
    "workdir": {"type": "string"}, "timeout_ms": {"type": "number"}}}
PLAN_SCHEMA = {"type": "object", "properties": {"plan": {"type": "array", "items": {
    "type": "object", "required": ["step", "status"],
    "properties": {"step": {"type": "string"},
                   "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]}}}}}}

CODEX_TOOLS = [
    {"type": "function", "name": "shell", "description": f"Runs a command. {WORDS[1]}", "strict": False,
     "parameters": SHELL_SCHEMA},
    {"type": "function", "name": "update_plan", "description": f"Updates the plan. {WORDS[2]}", "strict": False,
     "parameters": PLAN_SCHEMA},
]
CODEX_INPUT = [
    {"type": "message", "role": "developer", "content": [
        {"type": "input_text", "text": f"<permissions>{WORDS[3]}</permissions>"}]},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "<environment_context>\n  <cwd>/w</cwd>\n"},
        {"type": "input_text", "text": f"Fix the test. {WORDS[4]}"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Looks at the files"}],
     "content": [{"type": "reasoning_text", "text": f"I list the files. {WORDS[5]}"}], "encrypted_content": None},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "status": "completed",
     "arguments": json.dumps({"command": ["bash", "-lc", f"ls {WORDS[6]}"]})},
    {"type": "function_call_output", "call_id": "call_1",
     "output": json.dumps({"output": f"a.py\nb.py {WORDS[7]}\n", "metadata": {"exit_code": 0, "duration_seconds": 0.1}})},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
     "content": [{"type": "output_text", "text": f"There are two files. {WORDS[8]}", "annotations": []}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Go on. {WORDS[9]}"}]},
]
CODEX = {
    "model": service.NAME, "instructions": f"You are a coding agent. {WORDS[0]}", "tool_choice": "auto",
    "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0198-7c3a", "text": {"verbosity": "medium"},
    "service_tier": "auto", "client_metadata": {"x-codex-installation-id": "i"}, "max_output_tokens": 24, "temperature": 0}
CODEX_HEADERS = {"Authorization": "Bearer x", "OpenAI-Beta": "responses=experimental", "originator": "codex_cli_rs",
                 "session_id": "0198-7c3a", "Accept": "text/event-stream", "User-Agent": "codex_cli_rs/0.50.0"}

CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_TOOLS = [
    {"name": "Bash", "description": f"Executes a command. {WORDS[1]}", "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#", **SHELL_SCHEMA}},
    {"name": "TodoWrite", "description": f"Writes the list. {WORDS[2]}", "input_schema": PLAN_SCHEMA, **CACHED},
]
CLAUDE_MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": f"<system-reminder>{WORDS[3]}</system-reminder>"},
                                 {"type": "text", "text": f"Fix the test. {WORDS[4]}", **CACHED}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": f"I list the files. {WORDS[5]}", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eHh4"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": ["ls", WORDS[6]]}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False, "content": [
        {"type": "text", "text": f"a.py\nb.py {WORDS[7]}"}], **CACHED}]},
    {"role": "assistant", "content": [{"type": "text", "text": f"There are two files. {WORDS[8]}"}]},
    {"role": "user", "content": [{"type": "text", "text": f"Go on. {WORDS[9]}", **CACHED}]},
]
CLAUDE = {
    "model": service.NAME, "max_tokens": 24, "temperature": 0, "stream": True,
    "system": [{"type": "text", "text": "You are a coding agent.", **CACHED}, {"type": "text", "text": WORDS[0], **CACHED}],
    "metadata": {"user_id": "user_0_account__session_1"}, "thinking": {"type": "enabled", "budget_tokens": 1024}}
CLAUDE_HEADERS = {"x-api-key": "x", "anthropic-version": "2023-06-01", "x-app": "cli",
                  "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
                  "anthropic-dangerous-direct-browser-access": "true", "User-Agent": "claude-cli/2.0.0 (external, cli)"}


def events_of(answer):
    """Returns (name, data) of each event, whose lines must be exactly as the standard has them."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
    text = answer.body.decode("utf-8")
    assert text.endswith("\n\n") and "\r" not in text, text[-50:]
    events = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        fields = json.loads(data[6:])
        assert fields["type"] == name[7:], block
        events.append((name[7:], fields))
    return events


def prompt_of(server, chat):
    """Returns the text and the number of tokens of a chat's prompt."""
    tokens = server.post("/tokenize", chat).json()["tokens"]
    return server.post("/detokenize", {"tokens": tokens}).json()["prompt"], len(tokens)


def has_in_order(text, words):
    places = [text.find(word) for word in words]
    assert -1 not in places and places == sorted(places), f"{dict(zip(words, places, strict=True))} in {text!r}"


def equal(found, wanted):
    assert found == wanted, f"found {found!r}, expected {wanted!r}"


def as_chat(instructions, tools, middle):
    """Returns the same transcript as a chat of /v1/chat/completions."""
    functions = [{"type": "function", "function": {"name": tool["name"], "description": tool["description"],
                                                   "parameters": tool.get("parameters", tool.get("input_schema"))}}
                 for tool in tools]
    return {"tools": functions, "messages": [{"role": "system", "content": instructions}, *middle]}


def check_codex_stream(server, upto):
    body = {**CODEX, "tools": CODEX_TOOLS, "input": CODEX_INPUT[:upto]}
    answer = server.post("/v1/responses", body, headers=CODEX_HEADERS)
    events = events_of(answer)
    equal([fields["sequence_number"] for _, fields in events], list(range(len(events))))
    equal([name for name, _ in events[:2]], ["response.created", "response.in_progress"])
    last, fields = events[-1]
    assert last in ("response.completed", "response.incomplete"), last
    equal(fields["response"]["status"], last.split(".")[1])
    # Items are begun, grown and ended one after the other, and the last event has them all.
    items = []
    for name, event in events[2:-1]:
        if name == "response.output_item.added":
            equal(event["output_index"], len(items))
            items.append({"id": event["item"]["id"], "text": ""})
        elif name == "response.output_text.delta":
            equal(event["item_id"], items[-1]["id"])
            items[-1]["text"] += event["delta"]
        elif name == "response.output_item.done":
            equal(event["item"]["id"], items[-1]["id"])
    output = fields["response"]["output"]
    equal([item["id"] for item in output], [item["id"] for item in items])
    equal(output[-1]["content"][0]["text"], items[-1]["text"])
    return fields["response"]["usage"]


def check_codex(server, report):
    for upto in range(1, len(CODEX_INPUT) + 1):
        with report.check(f"Codex: a transcript of {upto} items as a stream"):
            usage = check_codex_stream(server, upto)
            assert usage["input_tokens"] > 150 and usage["output_tokens"] > 0, usage
    with report.check("Codex: the prompt has all parts in order, and is that of the same chat"):
        call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": CODEX_INPUT[3]["arguments"]}}
        text_of = [item["content"] if "content" in item else None for item in CODEX_INPUT]
        joined = ["".join(part["text"] for part in parts) if parts else None for parts in text_of]
        chat = as_chat(CODEX["instructions"], CODEX_TOOLS, [
            {"role": "developer", "content": joined[0]}, {"role": "user", "content": joined[1]},
            {"role": "assistant", "content": "", "reasoning_content": joined[2], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": CODEX_INPUT[4]["output"]},
            {"role": "assistant", "content": joined[5]}, {"role": "user", "content": joined[6]}])
        for tool, sent in zip(chat["tools"], CODEX_TOOLS, strict=True):
            tool["function"]["strict"] = sent["strict"]
        text, count = prompt_of(server, chat)
        has_in_order(text, WORDS[1:3] + WORDS[:1] + WORDS[3:])  # the template has tools first
        equal(usage["input_tokens"], count)
    with report.check("Codex: the same whole, and a second time from the cache"):
        body = {**CODEX, "stream": False, "tools": CODEX_TOOLS, "input": CODEX_INPUT}
        whole = server.post("/v1/responses", body, headers=CODEX_HEADERS).json()
        equal((whole["object"], whole["usage"]["input_tokens"]), ("response", usage["input_tokens"]))
        assert whole["usage"]["input_tokens_details"]["cached_tokens"] > 0, whole["usage"]
        equal((whole["store"], whole["parallel_tool_calls"], len(whole["tools"])), (False, False, 2))
    with report.check("Codex: an output in parts, and a reasoning item without content"):
        parts = [{"type": "input_text", "text": "a"}]
        items = [*CODEX_INPUT[:2], {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
                 CODEX_INPUT[3], {"type": "function_call_output", "call_id": "call_1", "output": parts}]
        equal(server.post("/v1/responses", {**body, "input": items}).status, 200)
    with report.check("Codex: its own web_search tool does not end the session"):
        tools = [*CODEX_TOOLS, {"type": "web_search", "external_web_access": False}]
        answer = server.post("/v1/responses", {**body, "tools": tools})
        equal(answer.status, 200)
    with report.check("Codex: an image is refused by name"):
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aa"}]}
        answer = server.post("/v1/responses", {**body, "input": [image]})
        equal(answer.status, 400)
        assert "input_image" in answer.json()["error"]["message"], answer


def check_claude_stream(server, upto):
    body = {**CLAUDE, "tools": CLAUDE_TOOLS, "messages": CLAUDE_MESSAGES[:upto]}
    answer = server.post("/v1/messages?beta=true", body, headers=CLAUDE_HEADERS)
    events = [event for event in events_of(answer) if event[0] != "ping"]
    equal([events[0][0], events[-2][0], events[-1][0]], ["message_start", "message_delta", "message_stop"])
    message = events[0][1]["message"]
    equal((message["type"], message["role"], message["content"], message["stop_reason"]),
          ("message", "assistant", [], None))
    opened = None
    for name, event in events[1:-2]:
        if name == "content_block_start":
            assert opened is None, event
            opened = event["index"]
        elif name == "content_block_delta":
            equal(event["index"], opened)
        else:
            equal((name, event["index"]), ("content_block_stop", opened))
            opened = None
    assert opened is None and events[-2][1]["delta"]["stop_reason"] in ("end_turn", "max_tokens"), events[-2]
    return events[-2][1]["usage"], message["usage"]


def check_claude(server, report):
    for upto in (1, 3, 5):
        with report.check(f"Claude Code: a transcript of {upto} messages as a stream"):
            usage, first = check_claude_stream(server, upto)
            total = usage["input_tokens"] + usage["cache_read_input_tokens"]
            equal(total, first["input_tokens"] + first["cache_read_input_tokens"])
            counted = server.post("/v1/messages/count_tokens?beta=true", {
                "model": service.NAME, "system": CLAUDE["system"], "tools": CLAUDE_TOOLS,
                "messages": CLAUDE_MESSAGES[:upto], "thinking": CLAUDE["thinking"]}, headers=CLAUDE_HEADERS)
            equal(counted.json(), {"input_tokens": total})
    with report.check("Claude Code: the prompt has all parts in order, and is that of the same chat"):
        arguments = json.dumps(CLAUDE_MESSAGES[1]["content"][3]["input"])
        call = {"id": "toolu_1", "type": "function", "function": {"name": "Bash", "arguments": arguments}}
        chat = as_chat("You are a coding agent.\n" + WORDS[0], CLAUDE_TOOLS, [
            {"role": "user", "content": [{"type": "text", "text": part["text"]} for part in CLAUDE_MESSAGES[0]["content"]]},
            {"role": "assistant", "content": "I look.", "reasoning_content": f"I list the files. {WORDS[5]}",
             "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": f"a.py\nb.py {WORDS[7]}"},
            {"role": "assistant", "content": f"There are two files. {WORDS[8]}"},
            {"role": "user", "content": f"Go on. {WORDS[9]}"}])
        text, count = prompt_of(server, chat)
        has_in_order(text, WORDS[1:3] + WORDS[:1] + WORDS[3:])
        equal(total, count)
    with report.check("Claude Code: the fields of newer versions do not end the session"):
        newer = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                 "output_config": {"effort": "medium"}, "thinking": {"type": "adaptive"}}
        body = {**CLAUDE, "stream": False, "tools": CLAUDE_TOOLS, "messages": CLAUDE_MESSAGES}
        for name, value in newer.items():
            answer = server.post("/v1/messages?beta=true", {**body, name: value}, headers=CLAUDE_HEADERS)
            assert answer.status == 200, (name, answer)
    with report.check("Claude Code: the small requests before a session"):
        for fields in ({"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]},
                       {"max_tokens": 9, "tools": [], "system": [], "messages": [{"role": "user", "content": "Name it"}]},
                       {"max_tokens": 9, "messages": [{"role": "user", "content": "Is it new?"},
                                                      {"role": "assistant", "content": "{"}]}):
            answer = server.post("/v1/messages?beta=true", {"model": service.NAME, **fields}, headers=CLAUDE_HEADERS)
            assert answer.status == 200 and answer.json()["content"], answer
    with report.check("Claude Code: a failed tool and one without content; a result beside a text"):
        messages = [*CLAUDE_MESSAGES[:2], {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}, {"type": "text", "text": "Again"}]}]
        equal(server.post("/v1/messages", {**body, "messages": messages}).status, 200)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder:
        with service.Server(args.penstock, model=service.model_with_tools(folder)) as server:
            check_codex(server, report)
            check_claude(server, report)
    with service.Server(args.penstock) as server, report.check("tools are not dropped silently where a template has none"):
        tools = [{"name": "Bash", "input_schema": SHELL_SCHEMA}]
        body = {"model": service.NAME, "messages": [{"role": "user", "content": "Hello"}]}
        plain = server.post("/v1/messages/count_tokens", body).json()
        answer = server.post("/v1/messages/count_tokens", {**body, "tools": tools})
        assert answer.status == 400 or answer.json() != plain, answer
    report.end()


if __name__ == "__main__":
    main()
