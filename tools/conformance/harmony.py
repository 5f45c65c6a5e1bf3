"""The conversations of openai/harmony's tests, as messages for the chat template of gpt-oss.

Each golden text is the output of OpenAI's renderer for one conversation. The template's output differs from it in a
few deliberate ways. Each function here rewrites a golden for one such difference and describes it. EXCLUDED names the
goldens that messages cannot express.
"""

import re

ROBOT = {"role": "developer", "content": "Answer the user's questions like a robot."}
CAPITAL = {"role": "user", "content": "What is the capital of the largest country in the world?"}
FORMAT = {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}
DATE = "2025-06-28"


def function(name, description, parameters=None):
    body = {"name": name, "description": description}
    if parameters is not None:
        body["parameters"] = parameters
    return {"type": "function", "function": body}


def schema(properties, required=()):
    return {"type": "object", "properties": properties, "required": list(required)}


WEATHER = function("lookup_weather", "Use this tool to lookup the weather in a given location. Call it with the parameter "
                   "'location', can be any textual description of a location.",
                   schema({"location": {"type": "string"}}, ["location"]))
RIDDLE_TOOLS = [
    function("get_location", "Gets the location of the user."),
    function("get_current_weather", "Gets the current weather in the provided location.", schema({
        "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
        "format": FORMAT}, ["location"])),
    function("get_multiple_weathers", "Gets the current weather in the provided list of locations.", schema({
        "locations": {"type": "array", "items": {"type": "string"},
                      "description": "List of city and state, e.g. [\"San Francisco, CA\", \"New York, NY\"]"},
        "format": FORMAT},
        ["locations"])),
]
TOOL_CALL = {"type": "function", "function": {"name": "lookup_weather", "arguments": {"location": "San Francisco"},
                                              "content_type": "<|constrain|>json"}}


def with_date(text):
    """The template always writes the date; the renderer writes it only if one is given."""
    return text.replace("\nKnowledge cutoff: 2024-06\n\n", f"\nKnowledge cutoff: 2024-06\nCurrent date: {DATE}\n\n")


def blank_after_instructions(text):
    """The template ends instructions with an empty line, even if no tools follow."""
    return re.sub(r"(# Instructions\n\n(?:(?!# Tools|<\|end\|>).)*?)<\|end\|>", "\\1\n\n<|end|>", text, flags=re.S)


def with_user(text):
    """The template needs a message; the renderer does not."""
    return text.removesuffix("<|start|>assistant") + "<|start|>user<|message|>Hi<|end|><|start|>assistant"


def returns(text):
    """Without a generation prompt, the template ends an answer as training texts end."""
    return text.removesuffix("<|end|>") + "<|return|>"


def comma_after_default(text):
    """The template writes a comma after the last parameter even if a comment follows it."""
    return re.sub(r"(// default: \w+)\n\}\) => any", "\\1,\n}) => any", text)


def with_recipient(text):
    """The template addresses a tool's answer to the assistant."""
    return text.replace("<|start|>functions.lookup_weather<|message|>",
                        "<|start|>functions.lookup_weather to=assistant<|channel|>commentary<|message|>")


def without_oneof(text):
    """The two write notes of nested schemas differently, so the function that combines all kinds of schemas is left out."""
    return re.sub(r"// A function with various complex schemas\.\n.*?\}\) => any;\n\n", "", text, flags=re.S)


EXCLUDED = {
    "test_preserve_cot": "keeps the analysis of earlier turns; the template always drops it",
    "test_reasoning_system_message": "channels other than the template's fixed ones",
    "test_reasoning_system_message_no_instruction": "channels other than the template's fixed ones",
    "test_reasoning_system_message_with_dates": "channels and a knowledge cutoff other than the template's fixed ones",
    "test_simple_reasoning_response": "tokens to parse, not a rendering",
    "test_simple_tool_call": "tokens to parse, not a rendering",
    "test_streamable_parser": "a text to parse, not a rendering",
    "test_tool_response_parsing": "a text to parse, not a rendering",
}
THOUGHT = {"role": "user", "content": "What is 2 + 2?"}
# name: (the renderer's arguments besides the messages, messages, adjustments)
CASES = {
    "test_simple_convo": ({}, [THOUGHT], (with_date,)),
    "test_no_tools": ({}, [{"role": "user", "content": "Hi"}], (with_user,)),
    "test_browser_tool_only": ({"builtin_tools": ["browser"]}, [{"role": "user", "content": "Hi"}], (with_user,)),
    "test_browser_and_python_tool": ({"builtin_tools": ["browser", "python"]}, [{"role": "user", "content": "Hi"}],
                                     (with_user,)),
    "test_browser_and_function_tool": ({"builtin_tools": ["browser"], "tools": [WEATHER]},
                                       [{"role": "user", "content": "Hi"}], (with_user,)),
    "test_render_functions_with_parameters": (
        {"reasoning_effort": "high", "tools": RIDDLE_TOOLS},
        [{"role": "developer", "content": "Always respond in riddles"},
         {"role": "user", "content": "What is the weather like in SF?"}],
        (without_oneof, comma_after_default)),
    "test_dropping_cot_by_default": (
        {}, [THOUGHT, {"role": "assistant", "thinking": "Simple arithmetic.", "content": "2 + 2 equals 4."},
             {"role": "user", "content": "What about 9 / 2?"}], ()),
    "test_does_not_drop_if_ongoing_analysis": (
        {}, [{"role": "user", "content": "What is the weather in SF?"},
             {"role": "assistant", "tool_calls": [TOOL_CALL], "thinking":
              "User asks: \u201cWhat is the weather in SF?\u201d We need to use lookup_weather tool."},
             {"role": "tool", "content": {"temperature": 20, "description": "sunny"}}], (with_recipient,)),
    "test_keep_analysis_between_finals": (
        {"add_generation_prompt": False},
        [THOUGHT, {"role": "assistant", "thinking": "thinking 2+2", "content": "4"},
         {"role": "user", "content": "What is 3 + 5?"},
         {"role": "assistant", "thinking": "thinking 3+5", "content": "8"}], (returns,)),
    **{f"test_simple_convo_{effort}_effort{suffix}": ({"reasoning_effort": effort}, messages,
                                                      (with_date, blank_after_instructions))
       for effort in ("low", "medium", "high") for suffix, messages in (
           ("", [ROBOT, CAPITAL]), ("_no_instruction", [CAPITAL]))},
}


def cases(folder):
    """Yields (name, trusted, untrusted, expected text) of each golden that has an equivalent."""
    for path in sorted(folder.glob("*.txt")):
        if path.stem in EXCLUDED:
            continue
        settings, messages, adjustments = CASES[path.stem]
        text = path.read_text(encoding="utf-8").rstrip()
        for adjust in adjustments:
            text = adjust(text)
        untrusted = {"messages": messages, **{key: value for key, value in settings.items() if key == "tools"}}
        trusted = {"add_generation_prompt": True, **{key: value for key, value in settings.items() if key != "tools"}}
        yield path.stem, {**trusted, "current_time": DATE}, untrusted, text


def agrees(golden, rendered):
    """Returns whether the rendering equals the golden. A golden without a system message is only the end of a rendering,
    because the template always writes one."""
    if golden.startswith("<|start|>system"):
        return rendered == golden
    system, _, rest = rendered.partition("<|end|>")
    return system.startswith("<|start|>system") and rest == golden
