"""Threads, coroutines, signals and forks share an LLM, or are refused; the budget holds."""
import asyncio
import concurrent.futures
import gc
import os
import re
import signal
import subprocess
import sys
import time

import common
import pytest

import penstock
from penstock import SamplingParams

PARAMS = SamplingParams(temperature=0.9, max_tokens=20)


def test_threads_get_their_own_answers(llm):
    prompts = [f"Number {i} of the story" for i in range(8)]
    expected = [llm.generate(prompt, PARAMS)[0].outputs for prompt in prompts]

    def work(i):
        return [llm.generate(prompts[i], PARAMS)[0].outputs == expected[i] and llm.tokenize(prompts[i]) != []
                and llm.score(prompts[i], [" a", " b"])[0].num_tokens == 1 and llm.stats()["requests"] > 0
                for _ in range(4)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(all(good) for good in pool.map(work, range(8)))
    logits = llm.logits(llm.tokenize(prompts[0]))
    assert logits.shape[0] == len(llm.tokenize(prompts[0]))


def test_coroutines_share_a_batch():
    async def main():
        async with penstock.AsyncLLM(common.MODEL, common.MEMORY) as llm:
            prompts = [f"Number {i} of the story" for i in range(20)]
            alone = [await llm.generate(prompt, PARAMS) for prompt in prompts[:3]]
            outputs = await asyncio.gather(*(llm.generate(prompt, PARAMS) for prompt in prompts))
            assert [output.outputs for output in outputs[:3]] == [output.outputs for output in alone]
            text = ""
            async for piece in llm.generate_stream(prompts[0], PARAMS):
                text += piece.text
            assert text == outputs[0].outputs[0].text
            assert (await llm.score("The sky is", [" blue"]))[0].num_tokens == 1
            assert (await llm.chat([{"role": "user", "content": "Hello"}], PARAMS)).outputs[0].answer is not None
            assert (await llm.logits([0, 5])).shape[0] == 2
            with pytest.raises(penstock.InputError):
                await llm.generate("x", SamplingParams(top_p=2))
            long = SamplingParams(max_tokens=1500, ignore_eos=True)
            tasks = [asyncio.create_task(llm.generate(prompt, long)) for prompt in prompts]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            assert (await llm.generate(prompts[0], PARAMS)).outputs == alone[0].outputs
            waits = [asyncio.create_task(llm.generate(prompt, long)) for prompt in prompts]
            await asyncio.sleep(0.05)
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert any(isinstance(result, penstock.StoppedError) for result in results)

    asyncio.run(main())


INTERRUPTED = """
import sys, penstock
llm = penstock.LLM("models/penstock-demo", "24MiB")
before = llm.generate("Once", penstock.SamplingParams(max_tokens=9))[0].outputs
try:
    print("ready", flush=True)
    llm.generate(["Once upon a time"] * 500, penstock.SamplingParams(max_tokens=1500, ignore_eos=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert llm.generate("Once", penstock.SamplingParams(max_tokens=9))[0].outputs == before
print("usable", flush=True)
"""


def test_ctrl_c_gives_requests_up():
    # A shell lets programs in the background ignore SIGINT, and so their children.
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, cwd=common.ROOT,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"  # all requests would take a minute or more
    rest, errors = process.communicate(timeout=common.HANG_S)
    assert (rest, errors, process.returncode) == ("usable\n", "", 0)


OPENING = """
import penstock, signal
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
try:
    signal.setitimer(signal.ITIMER_REAL, {seconds})
    llm = penstock.LLM("models/penstock-demo", "24MiB")  # kept: Python ignores exceptions where an object is freed
    signal.pause()
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize("milliseconds", [1, 2, 4, 7, 11, 16, 22, 30])
def test_ctrl_c_while_a_model_opens(milliseconds):
    done = common.run_python(OPENING.format(seconds=milliseconds / 1000), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_call_that_is_given_up_holds_up_nobody():
    async def main():
        async with penstock.AsyncLLM(common.MODEL, common.MEMORY) as llm:
            ended = []
            stream = llm.generate_stream("Once", SamplingParams(max_tokens=1500, ignore_eos=True))
            await anext(stream)
            logits = asyncio.create_task(llm.logits([1, 2]))  # waits until no request runs
            await asyncio.sleep(0)
            logits.cancel()
            short = asyncio.create_task(llm.generate("The", SamplingParams(max_tokens=1)))
            short.add_done_callback(lambda _: ended.append("short"))
            async for _ in stream:
                pass
            ended.append("long")
            await short
            assert ended == ["short", "long"]

    asyncio.run(main())


def in_child(call):
    """The error of a call in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_a_forked_process_is_told(llm):
    stream = llm.generate_stream("Once upon a time", SamplingParams(max_tokens=1000, ignore_eos=True))
    next(stream)
    calls = (lambda: llm.generate("x", PARAMS), lambda: llm.tokenize("x"), llm.stats, lambda: llm.logits([1]),
             lambda: list(llm.generate_stream("x", PARAMS)), lambda: list(stream))
    for call in calls:
        assert in_child(call).startswith("UsageError: this LLM was opened before the process forked")
    stream.close()
    assert llm.generate("x", PARAMS)


def test_a_forked_process_ends():
    done = common.run_python(
        "import os, penstock\n"
        "llm = penstock.LLM('models/penstock-demo', '24MiB')\n"
        "child = os.fork()\n"
        "if child: print(os.waitpid(child, 0)[1], llm.generate('x', penstock.SamplingParams(max_tokens=2))[0].finished)\n")
    assert done.stdout == "0 True\n"


def test_a_forgotten_llm_is_closed():
    before = len(os.listdir("/proc/self/task"))
    llm = penstock.LLM(common.MODEL, common.MEMORY)
    stream = llm.generate_stream("Once upon a time", SamplingParams(max_tokens=1000, ignore_eos=True))
    next(stream)
    del llm, stream
    gc.collect()
    end = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) > before and time.monotonic() < end:
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/task")) <= before


PEAK = """
import re, penstock
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) << 10
before = peak()
llm = penstock.LLM("models/penstock-demo", 20 << 20)
params = penstock.SamplingParams(max_tokens=20, ignore_eos=True)
llm.generate(["Once upon a time there was a fox number %d" % i for i in range(80)], params)
llm.score_batch([("The sky %d" % i, [" is blue", " was very green"]) for i in range(50)])
print(peak() - before)
"""


def test_the_budget_holds():
    grown = int(common.run_python(PEAK).stdout)
    assert grown <= (20 << 20) + (16 << 20), f"{grown / (1 << 20):.1f} MiB"


def test_ends_without_close():
    done = common.run_python("import penstock, re\nllm = penstock.LLM('models/penstock-demo', '24MiB')\nprint('ok')")
    assert re.fullmatch("ok\n", done.stdout) and done.stderr == ""
