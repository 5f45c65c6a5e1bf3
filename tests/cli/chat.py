#!/usr/bin/env python3
"""Proves that `chat` answers with the history so far, obeys its commands, and survives Ctrl-C, in pipes and a terminal.

Greedy answers of the demo model are compared with those of `run` for the same messages.
"""
import argparse
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import time

import program


class Chat:
    """Runs chats with the demo model."""

    def __init__(self, binary):
        self.penstock = program.Penstock(binary)

    def command(self, *flags):
        usual = [("--model", program.DEMO_MODEL), ("--temperature", 0), ("--max-tokens", 24)]
        more = [word for pair in usual if pair[0] not in flags for word in pair]
        return self.penstock.command("chat", *more, *flags)

    def talk(self, text, *flags, code=0):
        """Returns (stdout, stderr) of a chat whose input is `text`."""
        done = subprocess.run(self.command(*flags), input=text.encode(), capture_output=True, timeout=program.HANG_S,
                              check=False)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, (done.returncode, err)
        return out, err

    def message(self, folder, model, messages):
        """Returns the message with which `run` answers."""
        source, output = folder / "in.jsonl", folder / "out.jsonl"
        source.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
        output.unlink(missing_ok=True)
        self.penstock.run_job(model, source, output, "--temperature", 0, "--max-tokens", 24)
        return json.loads(output.read_text(encoding="utf-8"))["response"]["body"]["choices"][0]["message"]

    def answer(self, folder, messages):
        return self.message(folder, program.DEMO_MODEL, messages)["content"]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def check_history(chat, folder):
    first = chat.answer(folder, [user("Tell me a story.")])
    turns = [user("Tell me a story."), assistant(first), user("And then?")]
    second = chat.answer(folder, turns)
    out, err = chat.talk("Tell me a story.\nAnd then?\n")
    assert out == first + "\n" + second + "\n", (out, first, second)
    assert err.count("tokens/s") == 2 and "reused" in err and "experts:" in err and "read from disk" in err, err

    out, _ = chat.talk("Tell me a story.\n/undo\nTell me a story.\n/reset\nTell me a story.\n/retry\n")
    assert out == 4 * (first + "\n"), out

    system = [{"role": "system", "content": "Be kind."}, user("Hello\nyou")]
    with_system = chat.answer(folder, system)
    for text in ("Hello\\\nyou\n", '"""Hello\nyou"""\n'):
        assert chat.talk(text, "--system", "Be kind.")[0] == with_system + "\n"
    assert chat.talk("/system Be kind.\nHello\\\nyou")[0] == with_system + "\n", "a last line without its end"

    saved = folder / "chat.json"
    out, _ = chat.talk(f"Tell me a story.\n/save {saved}\n/reset\n/load {saved}\nAnd then?\n/quit\nnot asked\n")
    assert out == first + "\n" + second + "\n", out
    assert json.loads(saved.read_text(encoding="utf-8")) == {"messages": turns[:2]}
    assert chat.answer(folder, json.loads(saved.read_text(encoding="utf-8"))["messages"] + turns[2:]) == second


def check_commands(chat, folder):
    for line, reply in (("/help", "/retry"), ("/martian", "unknown command /martian"), ("/undo", "nothing to undo"),
                        ("/retry", "no question"), ("/load", "expected /load FILE"), ("/stats", "tokens/s"),
                        (f"/save {program.DEMO_MODEL}/config.json", "config.json"),
                        (f"/load {folder}/none", "No such file"), ("/set temperature x", "temperature"),
                        ("/set temperature", "/set NAME VALUE"), ("/set temperature 0.7\n/set top_k 5", ""),
                        ("/set enable_thinking false", "template sees enable_thinking = false")):
        out, err = chat.talk(line + "\n", "--log-level", "info")
        assert out == "" and reply in err, (line, err)
    bad = folder / "bad.json"
    for text, reply in (("{", "line 1"), ("[]", "at least one message"), ("{}", '"messages"')):
        bad.write_text(text, encoding="utf-8")
        _, err = chat.talk(f"/load {bad}\n")
        assert reply in err, err
    short, _ = chat.talk("Tell me a story.\n/set max_tokens 3\n/retry\n")
    assert len(short.splitlines()[-1]) < len(short.splitlines()[0]), short
    varied, _ = chat.talk("Tell me a story.\n/retry\n/retry\n", "--temperature", 1.0)
    assert len(set(varied.splitlines())) > 1, "retries are all alike"


def check_overflow(chat):
    long = "word " * 60
    out, err = chat.talk(f"first {long}\nsecond {long}\nthird {long}\n", "--context-length", 256)
    assert out.count("\n") >= 3 and "the oldest turn is left out: first word" in err, err
    out, err = chat.talk(f"{long * 10}\nHello\n", "--context-length", 256)
    assert "the message has" in err and "not kept" in err and out.strip(), err


def check_thoughts(chat, folder):
    model = folder / "thinking"
    shutil.copytree(program.DEMO_MODEL, model)
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    opening = config["chat_template"].replace("<|assistant|>\\n'", "<|assistant|>\\n<think>\\n'")
    config["chat_template"] = opening + "{% if false %}</think>{% endif %}"
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    message = chat.message(folder, model, [user("Tell me a story.")])
    assert message["content"] == "" and message["reasoning_content"], message
    out, err = chat.talk("Tell me a story.\n", "--model", model)
    assert out == "" and message["reasoning_content"] in err and "there is no answer" in err, (out, err)


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)
        self.seen = ""

    def wait_for(self, text):
        """Reads until `text` comes, and forgets what came so far."""
        deadline = time.monotonic() + program.HANG_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError as error:
                    raise AssertionError(f"the chat ended: {self.seen}") from error
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """Returns the exit code."""
        deadline = time.monotonic() + program.HANG_S
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"does not end: {self.seen}")


def check_terminal(chat):
    endless = chat.command("--ignore-eos", "--max-tokens", 100000, "--context-length", 2048)
    terminal = Terminal([str(word) for word in endless])
    terminal.wait_for("> ")
    terminal.type("Tell me a story.\n")
    terminal.wait_for("the ")
    terminal.type("\x03")
    terminal.wait_for("tokens/s")
    terminal.wait_for("> ")
    terminal.type("/save /dev/null/none\n")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0

    terminal = Terminal([str(word) for word in endless])
    terminal.wait_for("> ")
    terminal.type("half a line\x03")
    terminal.wait_for("Ctrl-C again")
    terminal.wait_for("> ")
    terminal.type("\x03")
    assert terminal.end() == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    chat = Chat(parser.parse_args().penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_history(chat, folder)
        check_commands(chat, folder)
        check_overflow(chat)
        check_thoughts(chat, folder)
    check_terminal(chat)
    print("chats answer, obey their commands and end as they should")


if __name__ == "__main__":
    main()
