"""Tests of rows L: flags, environment variables, option files, the environment, packing and shards. See bad_inputs.py."""
import json
import os
import re
import resource
import subprocess

MODEL_COMMANDS = ("run", "generate", "chat", "pack", "mirror", "inspect", "tokenize", "perplexity", "bench")


def usage(args, pattern, code=2, **options):
    return lambda box: box.run(args, code=code, match=pattern, **options)


def generate(*more):
    """Returns a function that takes a Box and returns the arguments of a short run."""
    def args(box):
        length = [] if any(flag.startswith("--max-tokens") for flag in more) else ["--max-tokens=2"]
        return ["generate", "--model", box.model().path, "--prompt", "hi", "--raw", *length, *more]
    return args


def generating(*more, code=0, match=None, **options):
    return lambda box: box.run(generate(*more)(box), code=code, match=match, **options)


def flag_rows():
    yield "L1", "no command", usage([], "command", quiet=False)
    yield "L1", "unknown command", usage(["martian"], "martian|command", quiet=False)
    yield "L1", "unknown flag before the command", usage(["--martian", "run"], "martian|command|argument", quiet=False)
    for name, flag, meant in (("typo", "--memroy", "memory"), ("typo with a value", "--thread=2", "threads"),
                              ("typo of two words", "--max-token", "max-tokens"),
                              ("underscore", "--batch_size", "batch-size")):
        yield "L1", name, generating(flag, "2", code=2, match=f"unknown argument '{flag}'.*did you mean --{meant}")
    yield "L1", "unknown flag", generating("--zzzzzzzz", code=2, match="unknown argument '--zzzzzzzz'")
    yield "L1", "unknown task", usage(["run", "--task", "score"], "--task: expected one of answer, classify")
    yield "L1", "stray word", generating("stray", code=2, match="unknown argument 'stray'")
    yield "L1", "a file without --input", lambda box: box.run(
        ["run", "--model", "x", box.file("requests.jsonl", "")], code=2, match="did you mean --input .*requests.jsonl")
    yield "L1", "a folder without --model", lambda box: box.run(
        ["inspect", box.model().path], code=2, match="did you mean --model ")
    yield "L1", "control characters", generating("--a\nb\x1b[31m", code=2, match="unknown argument")
    yield "L1", "not UTF-8", lambda box: box.run([b"inspect", b"--\xff\xfe"], code=2, match="argument|model")
    yield "L1", "flag of 100 kB", generating("--" + "x" * 100_000, code=2, match="unknown argument")
    yield "L1", "missing value", usage(["inspect", "--model"], "--model: a value is required", quiet=False)
    yield "L1", "flag twice", generating("--threads", "1", "--threads", "2", code=2, match="threads")
    yield "L1", "model twice", lambda box: box.run(["inspect", "--model", "a", "--model", "b"], code=2, match="model")
    for command in MODEL_COMMANDS:
        other = {"run": ["--input", "x"], "perplexity": ["--text", "x"]}.get(command, [])
        missing = "give --model DIR or --config FILE" if command == "inspect" else "--model is required"
        yield "L1", f"{command} without --model", usage([command, *other], missing)
    for command in ("generate", "chat", "bench", "perplexity"):
        other = {"perplexity": ["--text", "x"], "generate": ["--prompt", "x"]}.get(command, [])
        for flag in ("--schedule", "--policy"):
            yield "L1", f"{command} {flag} auto", lambda box, args=(command, *other, f"{flag}=auto"): box.run(
                [*args, "--model", box.model().path], code=2, match="auto works only with run and serve")
    yield "L1", "model and config", usage(["inspect", "--model", "a", "--config", "b"], "give --model DIR or --config FILE")
    yield "L1", "a config without weights to verify", lambda box: box.run(
        ["inspect", "--config", box.model().path + "/config.json", "--verify"], code=2, match="--config has no weights")
    yield "L1", "misspelt --model", usage(["inspect", "--modle", "x"], "unknown argument '--modle'; did you mean --model")
    yield "L1", "conflict", generating("--prompt-file", "x", code=2, match="prompt")
    yield "L1", "no prompt", lambda box: box.run(["generate", "--model", box.model().path], code=2, match="--prompt")
    yield "L1", "no text", lambda box: box.run(["tokenize", "--model", box.model().path], code=2, match="--text")
    yield "L1", "no output", lambda box: box.run(["run", "--model", "x", "--input", box.file("i", "")], code=2,
                                                 match="--output")
    yield "L1", "no input", usage(["run", "--model", "x", "--output", "y"], "--input is required")
    for flag, values in (("--threads", ("0", "-1", "1e3", "x", "", "99999999999999999999", "1025", "2.5")),
                         ("--batch-size", ("0", "-1", "x", "4097")), ("--context-length", ("0", "1", "-5", "x", "16777217")),
                         ("--max-tokens", ("0", "-1", "1e18", "x")), ("--temperature", ("-1", "1e9", "nan", "inf", "x", "")),
                         ("--top-p", ("0", "2", "-1", "nan")), ("--top-k", ("-1", "x")), ("--min-p", ("2", "-1")),
                         ("--repetition-penalty", ("0", "-1", "nan")),
                         ("--seed", ("x", "-1", "1.5", "18446744073709551616")),
                         ("--prefill-chunk", ("0", "65537")), ("--dtype", ("f8", "", "F32")), ("--kv-dtype", ("int4",)),
                         ("--comm-dtype", ("f16",)),
                         ("--parallel", ("", "tp", "attention", "attention=", "attention=ep", "experts=dp", "attention=tp,",
                                         "attention=tp;experts=ep", "heads=tp")),
                         ("--prefix-dir-size", ("", "0", "8", "-1GiB", "1QB")),
                         ("--expert-placement", (",replicas=1", "x,replicas=", "x,replicas=-1", "x,replicas=y")),
                         ("--schedule", ("martian", "")), ("--device", ("tpu", "", "cpu:x")), ("--log-level", ("loud", ""))):
        for value in values:
            yield "L1", f"{flag} {value!r}", generating(f"{flag}={value}", code=2, match=flag.strip("-"),
                                                        quiet=flag != "--log-level")
    yield "L1", "a size without a folder", generating("--prefix-dir-size=1GiB", code=2, match="give --prefix-dir, too")
    for flags, match in ((("--attention-window=64",), "with --attention-window"),
                         (("--no-prefix-sharing",), "computes every prompt in full")):
        yield "L1", f"--prefix-dir {flags[0]}", lambda box, flags=flags, match=match: box.run(
            generate("--prefix-dir", box.path("prefixes"), *flags)(box), code=2, match=f"--prefix-dir: .*{match}")
    for kind, place in (("a file", lambda box: box.file("x", "")), ("no parent", lambda box: box.path("a/b"))):
        yield "L1", f"--prefix-dir {kind}", lambda box, place=place: box.run(
            generate("--prefix-dir", place(box))(box), code=5, match="--prefix-dir: .*cannot create the folder")
    yield "L1", "--context-length beyond the model's", generating("--context-length", "513", code=2,
                                                                  match="513 is more than the model's 512")
    for value in ("", b"\xff", "x" * 257):
        yield "L1", f"--stop {value[:8]!r}", lambda box, value=value: box.run(
            [*generate()(box), "--stop", value], code=2, match="stop")
    for flag, match in (("--threads=0", "threads"), ("--threads=x", "threads"), ("--threads=1025", "threads"),
                        ("--thread=1", "did you mean --threads"),
                        ("--models=x", "unknown argument"), ("stray", "unknown argument"), ("--output", "--output")):
        yield "L1", f"probe {flag}", usage(["probe", flag], match, quiet=flag != "--output")
    for flag in ("--prefill=x", "--prefill=-1", "--decode=4097", "--context=0", "--steps=0", "--repetitions=0"):
        yield "L1", f"bench {flag}", lambda box, flag=flag: box.run(["bench", "--model", box.model().path, flag], code=2,
                                                                   match=flag.split("=")[0])
    yield "L1", "bench of nothing", lambda box: box.run(["bench", "--model", box.model().path, "--prefill=0", "--decode=0"],
                                                        code=2,
                                                        match="nothing to measure")
    # Fails before anything is measured: measuring takes more memory than a run may.
    for path in ("/nowhere/hardware.json", "/"):
        yield "L1", f"probe --output {path}", usage(["probe", "--output", path], f"{path}: cannot open for writing", code=5)
    def standard_streams(box):
        model, source = box.model().path, box.file("i", '{"prompt": "hi", "max_tokens": 2}\n')
        answers = box.run(["run", "--model", model, "--input", source, "--output", "-"]).stdout
        box.expect(len(answers.splitlines()) == 1 and json.loads(answers)["error"] is None, f"stdout: {answers}")
        box.run(["run", "--model", model, "--input", source, "--output", "-", "--resume"], code=5, match="standard output")
        ids = box.run(["tokenize", "--model", model, "--text", "hi"]).stdout
        box.expect(box.run(["tokenize", "--model", model, "hi"]).stdout == ids, "other tokens without --text")
        bare = ["generate", "--model", model, "--raw", "--max-tokens=2", "hi"]
        box.expect(box.run(bare).stdout == box.run([*bare[:-1], "--prompt", "hi"]).stdout, "another answer without --prompt")
        box.expect(box.run(["tokenize", "--model", model, "--file", "-"], stdin=b"hi\n").stdout == ids,
                   "other tokens from standard input")
    yield "L1", "standard streams", standard_streams
    yield "L1", "not a number", generating("--threads=0", code=2, match="an integer from 1 to 1024, found '0'")
    yield "L1", "--temperature 1e-300", generating("--temperature", "1e-300")
    yield from help_rows()

    for value in ("2026-13-01", "2026-02-30", "2026-1-1", "today", ""):
        yield "L2", f"--date {value!r}", generating(f"--date={value}", code=2, match="--date.*such as 2026-11-21")
    for value in ("0", "10Q", "-1", "-1GiB", "", "GiB", "1 GiB", "1e3GiB", "nanGiB", "infGiB", "0x10MiB", "1GiBB",
                  "0.1B", "9999999TiB", "1,5GiB"):
        yield "L2", f"--memory {value!r}", generating(f"--memory={value}", code=2, match="--memory.*unit, such as 512MiB")
    yield "L2", "more than the machine has", generating("--memory=900TiB", code=6, match="more than this machine .* has")
    yield "L2", "--memory 12", generating("--memory=12", code=2, match="is a number of bytes; write 12GiB, or 12%")
    yield "L2", "--memory 1000", generating("--memory=1000", code=2, match="is a number of bytes; write 1000MiB$")
    for value in ("1048576", "1B", "1KiB", "1M", "1MiB", "1mib", "1mb", "1k", "2.1MiB"):
        yield "L2", f"--memory {value}", generating(f"--memory={value}", code=6,
                                                    match=r"budget of .* is too small: .* least budget is \d+ bytes")
    yield "L2", "--memory 1.5GiB", generating("--memory=1.5GiB")
    for value in ("0%", "101%", "-5%", "%", "5 %", "nan%", "1e1%"):
        yield "L2", f"--memory {value!r}", generating(f"--memory={value}", code=2, match="more than 0% and at most 100%")
    yield "L2", "--memory 20%", generating("--memory=20%")
    yield "L2", "--memory 0.001%", generating("--memory=0.001%", code=6, match="least budget is")

    def least(box):  # the least budget in the message is enough, and one byte less is not
        args = generate("--threads", "1")(box)
        num_bytes = box.least_memory(args)
        for unit in ("", "B"):
            box.run(args + [f"--memory={num_bytes}{unit}"])
        refusal = box.run(args + [f"--memory={num_bytes - 1}B"], code=6).stderr.decode()
        typed = re.search(r"give --memory (\S+) or more", refusal).group(1)
        box.expect(len(typed) <= len("1023MiB"), f"{typed} is long to type")
        box.run(args + [f"--memory={typed}"])
    yield "L2", "the least budget", least


def help_rows():
    def stdout(box, args):
        return box.run(args, quiet=False).stdout.decode()

    def pages(box):  # the help of every command, found in the help of the program and of its commands
        commands = [[]]
        for command in commands:
            page = stdout(box, [*command, "--help"])
            box.expect(page == stdout(box, ["help", *command]), f"help {command} is another page")
            box.expect(max(map(len, page.splitlines())) <= 100, f"{command}: a line is wider than 100 columns")
            box.expect("Exit codes: 0 done" in page, f"{command}: no exit codes")
            box.expect(not command or "\nExamples\n  " in page, f"{command}: no example")
            if "\nCommands\n" in page:
                names = re.findall(r"^  (\w+)  ", page.split("\nCommands\n")[1].split("\n\n")[0], re.MULTILINE)
                commands += [[*command, name] for name in names if name != "help"]
        box.expect(["bench", "routing"] in commands and len(commands) > 13, f"commands are missing: {commands}")
        run = stdout(box, ["run", "--help"])
        for heading in ("Job", "Model and memory", "Schedule", "Records", "General"):
            box.expect(f"\n{heading}\n  -" in run, f"no group {heading}")
        box.expect("[default: 30;" in run and "[required]" in run, "no defaults")
    yield "L1", "--help of every command", pages

    def version(box):
        line = stdout(box, ["--version"])
        box.expect(re.fullmatch(r"penstock \d+\.\d+\.\d+ \((commit [0-9a-f]{12}, )?[a-z0-9]+\)\n", line), line)
        forced = box.run(["--version"], quiet=False, env={"PENSTOCK_FORCE_ISA": "scalar"}).stdout.decode()
        box.expect(forced.endswith("scalar)\n"), forced)
    yield "L1", "--version", version
    yield "L1", "help of an unknown command", usage(["help", "pln"], "unknown command 'pln'; did you mean plan", quiet=False)
    yield "L1", "a flag's beginning", generating("--temp=1", code=2, match="did you mean --temperature")

    def completion(box):
        script = box.file("completion", stdout(box, ["completion", "bash"]))
        for words, expected in ((["ben"], ["bench"]), (["bench", "ro"], ["routing"]), (["run", "--mem"], ["--memory"]),
                                (["bench", "routing", "--req"], ["--requests"]),
                                (["bench", "routing", "--mem"], ["--memory"]), (["run", "--model", "r"], []),
                                (["run", "--kv-dtype", "''"], ["auto", "f32", "bf16", "int8"]),
                                (["run", "--kv-dtype", "=", "b"], ["bf16"]), (["generate", "--device", "cp"], ["cpu"]),
                                (["pack", "--quantize", "="], ["none", "int8", "hqq4", "hqq3", "hqq2", "ternary"]),
                                (["bench", "routing", "--dtype", "bf"], ["bf16"]),
                                (["plan", "--hardware", "l4"], ["l4", "l40s"]),
                                (["list", "work"], ["workloads"]), (["completion", "z"], ["zsh"])):
            line = " ".join(words)
            found = subprocess.run(
                ["bash", "-c", f"source {script}; COMP_WORDS=(penstock {line}); COMP_CWORD={len(words)}; _penstock_words; "
                               'echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True).stdout.split()
            box.expect(found == expected, f"{line}: completed to {found}, not {expected}")
        for shell in ("zsh", "fish"):
            box.expect("penstock" in stdout(box, ["completion", shell]), f"no script for {shell}")
        fish = stdout(box, ["completion", "fish"])
        box.expect("-l kv-dtype -x -a 'auto f32 bf16 int8'" in fish, "fish does not know the KV types")
        box.run(["completion", "csh"], code=2, match="expected bash, zsh or fish", quiet=False)
        page = stdout(box, ["man"])
        box.expect(page.startswith(".TH PENSTOCK 1") and ".SH EXIT STATUS" in page and "\\-\\-memory" in page, "no page")
    yield "L1", "completion and the manual page", completion


def environment_rows():
    for name, value in (("THREADS", "abc"), ("THREADS", "0"), ("TEMPERATURE", "hot"), ("BATCH_SIZE", "-1")):
        yield "L3", f"PENSTOCK_{name}={value}", generating(code=2, match=name.lower().replace("_", "-"),
                                                           env={f"PENSTOCK_{name}": value})
    yield "L3", "PENSTOCK_MEMORY=10Q", generating(code=2, match="--memory", env={"PENSTOCK_MEMORY": "10Q"})
    yield "L3", "PENSTOCK_DEVICE=cuda", generating(code=6, match="no GPU", env={"PENSTOCK_DEVICE": "cuda"})
    yield "L3", "no variable for all outputs", generating(quiet=False, match="PENSTOCK_OUTPUT is not known",
                                                          env={"PENSTOCK_OUTPUT": "x"})

    def files_of_the_model(box):
        model, source = box.model(), box.file("in.jsonl", '{"prompt": "x"}\n')
        config = model.file("config.json")
        for flag in ("--stats", "--trace", "--trace-html", "--record-routing", "--record-correlation"):
            box.run(["run", "--model", model.path, "--input", source, "--output", box.output(), flag, config],
                    code=2, match=f"{flag}.*in the model's folder")
        for command in (["plan", "--output"], ["plan", "--plot"], ["probe", "--output"]):
            box.run([command[0], "--model", model.path, command[1], config], code=2,
                    match=f"{command[1]}.*in the model's folder")
        unwritten = box.path("policy.json")
        box.run(["plan", "--model", model.path, "--output", unwritten, "--hardware", "x"], code=2,
                match="rtx4090.*or auto, or a file")
        box.expect(not os.path.exists(unwritten), "an empty policy file is left")
    yield "L3", "files of the model are not overwritten", files_of_the_model
    yield "L3", "a flag overrides its variable", generating("--device", "cpu", env={"PENSTOCK_DEVICE": "cuda"})
    yield "L3", "unknown variable", generating(quiet=False, match="PENSTOCK_TREADS is not known; did you mean "
                                                                  "PENSTOCK_THREADS",
                                               env={"PENSTOCK_TREADS": "2"})
    yield "L3", "unknown variable with odd bytes", generating(quiet=False, match="is not known",
                                                              env={"PENSTOCK_\n\x1b": "2"})
    yield "L3", "very long variable", generating(quiet=False, match="is not known", env={"PENSTOCK_" + "X" * 5000: "1"})
    yield "L3", "unknown instruction set", generating(code=2, match="unknown instruction set 'mmx'",
                                                      env={"PENSTOCK_FORCE_ISA": "mmx"})

    def option_file(content, pattern, code=2):
        return lambda box: box.run(generate("--options-file", box.file("options", content))(box), code=code, match=pattern)
    # Precedence: flag, then variable, then file.
    yield "L4", "a flag overrides the file", lambda box: box.run(
        generate("--device", "cpu", "--options-file", box.file("options", "device = cuda\n"))(box))
    yield "L4", "a variable overrides the file", lambda box: box.run(
        generate("--options-file", box.file("options", "device = cuda\n"))(box), env={"PENSTOCK_DEVICE": "cpu"})
    yield "L4", "a variable of bench routing", usage(["bench", "routing", "--model", "x"], "--runs",
                                                     env={"PENSTOCK_RUNS": "300"})
    yield "L4", "the file counts", option_file("device = cuda\n", "no GPU", code=6)
    yield "L4", "file named by a variable", lambda box: box.run(
        generate()(box), code=6, match="no GPU", env={"PENSTOCK_OPTIONS_FILE": box.file("options", "device = cuda\n")})
    yield "L4", "required flags in the file", lambda box: box.run(
        ["tokenize", "--options-file", box.file("options", f'model = "{box.model().path}"\ntext = "hi"\n')])
    yield "L4", "good", option_file('# all is well\nthreads = 1\nmemory = "1GiB"\n', None, code=0)
    yield "L4", "unknown key", option_file("threads = 1\nmartian = 2\n", "options, line 2: .*martian")
    yield "L4", "a section", option_file("[generate]\nthreads = 1\n", r"sections such as \[generate\] have no meaning")
    yield "L4", "typo", option_file("thread = 1\n", "thread")
    yield "L4", "wrong type", option_file("\n\nthreads = many\n", "options, line 3: .*threads")
    yield "L4", "out of range", option_file("threads = 5000\n", "line 1: .*threads")
    yield "L4", "bad size", option_file("memory = 10Q\n", "--memory")
    yield "L4", "text", option_file("hello world\n", "hello|options")
    yield "L4", "not UTF-8", option_file(b"\xff\xfe = 1\n", "options|argument|INI")
    yield "L4", "NUL", option_file(b"\0" * 100, "options|argument|INI")
    yield "L4", "1 MB line", option_file("x" * 1_000_000, "options|argument|INI")
    yield "L4", "missing", generating("--options-file", "/nowhere/options", code=2, match="/nowhere/options")
    yield "L4", "folder", lambda box: box.run(generate("--options-file", box.dir)(box), code=2, match="option|config|file")


def one_cpu():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def limit(kind, soft):
    return lambda: resource.setrlimit(kind, (soft, soft))


def surroundings_rows():
    def same_answer(**options):
        def test(box):
            args = generate("--max-tokens=8")(box)
            plain = box.run(args, env={"PENSTOCK_FORCE_ISA": "scalar"})
            other = box.run(args, **options)
            box.expect(plain.stdout and plain.stdout == other.stdout, f"{plain.stdout!r} and {other.stdout!r}")
        return test
    yield "L5", "no instruction set beyond the baseline", same_answer(env={"PENSTOCK_FORCE_ISA": "scalar"}, quiet=False)
    yield "L5", "one CPU", same_answer(env={"PENSTOCK_FORCE_ISA": "scalar"}, preexec=one_cpu)
    yield "L5", "one CPU, 64 threads", generating("--threads", "64", preexec=one_cpu)
    yield "L6", "OMP_NUM_THREADS", same_answer(env={"OMP_NUM_THREADS": "abc", "PENSTOCK_FORCE_ISA": "scalar"})
    # Not covered: a machine without /proc or /sys, or with NUMA nodes offline. Both need rights that a test
    # does not have.
    for device in ("cuda", "cuda:0", "cuda:99"):
        yield "L7", device, generating("--device", device, code=6, match="no GPU.*; use --device cpu")
    yield "L7", "cuda:x", generating("--device", "cuda:x", code=2, match="--device 'cuda:x'")
    yield "L7", "auto", generating("--device", "auto")

    def closed(*numbers):
        return lambda: [os.close(number) for number in numbers]
    yield "L8", "stdout closed", generating(code=5, match="stdout", preexec=closed(1))
    yield "L8", "stdout is full", lambda box: box.run(generate()(box), code=5, match="No space left",
                                                      stdout=open("/dev/full", "wb"))

    def broken_pipe(box):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            for args in (generate()(box), ["inspect", "--model", box.path("model")],
                         ["tokenize", "--model", box.path("model"), "--text", "x"]):
                box.run(args, code=5, match="stdout: .*[Bb]roken pipe", stdout=pipe)
    yield "L8", "stdout is a pipe without reader", broken_pipe

    def nothing_open(box):  # with any standard stream closed, results never mix with messages
        model = box.model()
        source = box.file("in.jsonl", "".join(json.dumps({"prompt": "hi", "max_tokens": 2}) + "\n" for _ in range(5)) +
                          "x\n")
        for numbers in ((0,), (1,), (2,), (1, 2), (0, 1, 2)):
            name = "out" + "".join(map(str, numbers))
            process = box.start(["run", "--model", model.path, "--input", source, "--output", box.output(name)],
                                preexec=closed(*numbers))
            result = box.finish(process)
            box.program.num_runs += 1
            box.expect(result.code == 8, f"closed {numbers}: exit code {result.code}, {result.stderr!r}")
            with open(box.path(name), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            box.expect(len(lines) == 6, f"closed {numbers}: {len(lines)} results")
        return None
    yield "L8", "stdin, stdout, stderr closed", nothing_open
    for name, env in (("NO_COLOR", {"NO_COLOR": "1"}), ("TERM=dumb", {"TERM": "dumb"}), ("no TERM", {"TERM": ""})):
        def plain(box, env=env):
            model = box.model()
            source = box.file("in.jsonl", json.dumps({"prompt": "hi", "max_tokens": 2}) + "\n")
            box.run(["run", "--model", model.path, "--input", source, "--output", box.output()], quiet=False, env=env)
        yield "L8", name, plain
    # Not covered: jumps of the clock. Only the steady clock is read, and no answer depends on it.
    for locale in ("tr_TR.UTF-8", "de_DE.UTF-8", "C", "martian"):
        yield "L9", locale, same_answer(env={"LC_ALL": locale, "LANG": locale, "PENSTOCK_FORCE_ISA": "scalar"})
    yield "L9", "comma decimals", lambda box: box.run(generate("--temperature", "0,5")(box), code=2, match="temperature",
                                                      env={"LC_ALL": "de_DE.UTF-8"})

    yield "L10", "ulimit -n 64", generating(preexec=limit(resource.RLIMIT_NOFILE, 64))

    def hardly_any_files(number):
        def check(box):
            # The sanitizer opens pipes to inspect memory, and reports faults of its own when it cannot.
            if not box.program.sanitized:
                generating(code=(0, 5, 6), preexec=limit(resource.RLIMIT_NOFILE, number))(box)
        return check
    for number in (4, 5, 6, 8):  # with 3 the dynamic loader itself fails
        yield "L10", f"ulimit -n {number}", hardly_any_files(number)

    def few_files(box):
        if box.program.sanitized:
            return
        model = box.model()
        model.split()
        box.run(["inspect", "--model", model.path], code=6, match=r"ulimit -n", preexec=limit(resource.RLIMIT_NOFILE, 4))
    yield "L10", "fewer files than shards", few_files
    yield "L10", "ulimit -l 0", generating(preexec=limit(resource.RLIMIT_MEMLOCK, 0))

    def small_stack(box):
        if not box.program.sanitized:  # sanitized stack frames are several times as large
            box.run(generate()(box), preexec=limit(resource.RLIMIT_STACK, 256 << 10))
    yield "L10", "ulimit -s 256", small_stack

    def address_space(box):
        if box.program.sanitized:  # the sanitizer's shadow memory takes terabytes of addresses
            return
        args = generate("--threads", "1")(box)
        for mib in (100, 200, 400):
            box.run(args, code=(0, 6), match=None, preexec=limit(resource.RLIMIT_AS, mib << 20))
        box.run(args + ["--memory=1GiB", "--context-length=512", "--batch-size=4096"], code=(0, 6),
                preexec=limit(resource.RLIMIT_AS, 300 << 20))
    yield "L10", "ulimit -v", address_space

    def probe_address_space(box):
        if not box.program.sanitized:
            box.run(["probe", "--threads=1"], code=6, match="needs 256 MiB and uses",
                    preexec=limit(resource.RLIMIT_AS, 60 << 20))
    yield "L10", "probe with ulimit -v", probe_address_space

    # If results cannot be written, the job ends as with a full disk: at the end of a line, and it can be resumed.
    def file_size(box):
        model = box.model()
        lines = "".join(json.dumps({"id": f"r{i}", "prompt": "hi", "max_tokens": 2}) + "\n" for i in range(60))
        source, out = box.file("in.jsonl", lines), box.output()
        args = ["run", "--model", model.path, "--input", source, "--output", out]
        box.run(args, code=(5, 7), match="File too large|--resume", preexec=limit(resource.RLIMIT_FSIZE, 4000))
        box.run(args + ["--resume"])
        with open(out, encoding="utf-8") as file:
            box.expect(len({json.loads(line)["custom_id"] for line in file}) == 60, "results are missing")
    yield "L10", "ulimit -f", file_size


def pack_rows():
    def pack(box, *more):
        return ["pack", "--model", box.model().path, "--output", box.output("store"), *more]

    yield "L12", "no output", lambda box: box.run(["pack", "--model", box.model().path], code=2,
                                                  match="--output is required")
    for value in ("", "int5", "HQQ4", "f32"):
        yield "L12", f"--quantize {value!r}", lambda box, value=value: box.run(
            pack(box, "--quantize", value), code=2, match="quantize")
    yield "L12", "--dtype f8", lambda box: box.run(pack(box, "--dtype=f8"), code=2, match="dtype")
    for value in ("", "0.5", "17", "nan", "three"):
        yield "L12", f"--bits {value!r}", lambda box, value=value: box.run(pack(box, "--bits", value), code=2, match="bits")
    yield "L12", "--bits and --quantize", lambda box: box.run(pack(box, "--bits=4", "--quantize=hqq4"), code=2,
                                                              match="--quantize")
    yield "L12", "--bits 1", lambda box: box.run(pack(box, "--bits=1"), code=2, match="the smallest formats take")

    def quality(box, text, requests, **expected):
        model = box.model().path
        return box.run(["quality", "--model", model, "--reference", model, "--text", text, "--requests", requests],
                       **expected)

    yield "L12", "quality of requests that are not there", lambda box: quality(
        box, box.file("text", "a b c"), box.path("none"), code=5, match="none")
    yield "L12", "quality of standard input twice", lambda box: quality(box, "-", "-", code=2, match="standard input")
    yield "L12", "--importance alone", lambda box: box.run(pack(box, "--importance", box.path("none")), code=2,
                                                           match="--importance goes with")
    yield "L12", "no importances", lambda box: box.run(pack(box, "--quantize=hqq3", "--importance", box.path("none")),
                                                       code=4, match="cannot be opened")

    def other_importances(box):
        path = box.path("importance")
        with open(path, "wb") as file:
            file.write(b"\x02\0\0\0\0\0\0\0{}")
        box.run(pack(box, "--quantize=hqq3", "--importance", path), code=4, match="no importance file")
    yield "L12", "a file of no importances", other_importances
    yield "L12", "no such model", lambda box: box.run(["pack", "--model", box.path("none"), "--output", box.output("store")],
                                                      code=3,
                                                      match="none")
    yield "L12", "no such folder", lambda box: box.run(["pack", "--model", box.model().path, "--output",
                                                        box.path("none/store")], code=5,
                                                       match="cannot be made")

    def damaged(box):
        model, store = box.model().path, box.output("store")
        box.run(["pack", "--model", model, "--output", store, "--quantize=hqq4"])
        run = ["generate", "--model", store, "--prompt", "hi", "--raw", "--max-tokens=2"]
        box.run(run)
        box.run(["pack", "--model", model, "--output", store], code=5, match="the output exists")
        box.run(["pack", "--model", store, "--output", store + "2"], code=2, match="packed store already")
        index, weights = os.path.join(store, "penstock.json"), os.path.join(store, "penstock.bin")
        with open(weights, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        box.run(["inspect", "--model", store, "--verify"], code=3, match="checksum.*expected")
        with open(weights, "r+b") as file:
            file.truncate(100)
        box.run(run, code=3, match="100 bytes, expected")
        with open(index, "w", encoding="utf-8") as file:
            file.write("{}")
        box.run(run, code=3, match="penstock.json: penstock_packed_store")
        os.remove(weights)
        box.run(run, code=3, match="penstock")
    yield "L12", "a damaged store", damaged


def mirror_rows():
    def run(box, *more):
        model = box.path("model") if os.path.exists(box.path("model")) else box.model().path
        return ["generate", "--model", model, "--prompt", "hi", "--raw", "--max-tokens=2", *more]

    yield "L14", "no such mirror", lambda box: box.run(run(box, "--model-mirror", box.path("none")), code=3,
                                                       match="--model-mirror: .*none")
    yield "L14", "the model as its mirror", lambda box: box.run(run(box, "--model-mirror", box.model().path), code=2,
                                                                match="the model's own file")
    yield "L14", "an empty folder", lambda box: box.run(run(box, "--model-mirror", os.path.dirname(box.file("x", ""))),
                                                        code=3, match="has no file of the model")
    yield "L14", "17 mirrors", lambda box: box.run(run(box, *["--model-mirror=a"] * 17), code=2, match="at most 15 mirrors")
    yield "L14", "plan of a config", lambda box: box.run(
        ["plan", "--config", os.path.join(box.model().path, "config.json"), "--model-mirror=a"], code=2,
        match="--model-mirror: a model of --config has no files")
    yield "L14", "plan for other hardware", lambda box: box.run(
        ["plan", "--model", box.model().path, "--hardware=rtx4090", "--model-mirror", copied(box)], code=2,
        match="--model-mirror: only --hardware auto")
    yield "L14", "probe without a model", lambda box: box.run(["probe", "--model-mirror=a"], code=2,
                                                              match="--model-mirror: give --model, too")

    def copied(box):
        return box.model("copy").path

    def damaged(box):
        model, mirror = box.model().path, box.output("mirror")
        box.run(["mirror", "--model", model, "--output", mirror])
        box.run(run(box, "--model-mirror", mirror))
        box.run(run(box, "--model-mirror", mirror, "--model-mirror", mirror), code=2, match="given twice")
        box.run(["mirror", "--model", model, "--output", mirror], code=5, match="the output exists")
        index = os.path.join(mirror, "penstock-mirror.json")
        with open(index, encoding="utf-8") as file:
            text = file.read()
        for wrong in ("", "[]", "{}", text[:len(text) // 2], text.replace('"xxh3":"', '"xxh3":"0')):
            with open(index, "w", encoding="utf-8") as file:
                file.write(wrong)
            box.run(run(box, "--model-mirror", mirror), code=3, match="penstock-mirror.json")
    yield "L14", "a damaged index", damaged

    def mirror(box, *more):
        return ["mirror", "--model", box.model().path, "--output", box.output("mirror"), *more]

    for size, match in (("10", "--size"), ("-1GiB", "--size"), ("4KiB", "not one expert")):
        yield "L14", f"mirror --size={size}", lambda box, size=size, match=match: box.run(
            mirror(box, f"--size={size}"), code=2, match=match)
    yield "L14", "mirror without output", lambda box: box.run(["mirror", "--model", box.model().path], code=2,
                                                              match="--output is required")


def shard_rows():
    lines = [json.dumps({"id": f"r{number}", "prompt": "hi", "max_tokens": 2}) + "\n" for number in range(5)]
    requests = "".join(lines)

    def run(box, *flags, name, text=requests):
        model = box.path("model") if os.path.exists(box.path("model")) else box.model().path
        return ["run", "--model", model, "--input", box.file("in.jsonl", text), "--output", box.output(f"{name}.jsonl"),
                *flags]

    def merge(box, *names):
        return ["merge", "--output", box.output("all.jsonl"), *(box.path(name + ".jsonl") for name in names)]

    def shards(box):
        for number in (1, 2):
            box.run(run(box, f"--shard={number}/2", name=f"part{number}"))
        return box

    def refusing(names, match, code=4, change=lambda box: None):
        def check(box):
            change(shards(box))
            box.run(merge(box, *names), code=code, match=match)
            box.expect(not os.path.exists(box.path("all.jsonl")), "an output was written")
        return check

    def cut(box):
        with open(box.path("part2.jsonl"), "r+b") as file:
            file.truncate(10)

    def joined(box):
        box.run(merge(shards(box), "part2", "part1"))
        with open(box.path("all.jsonl"), encoding="utf-8") as file:
            ids = [json.loads(line)["custom_id"] for line in file]
        box.expect(ids == ["r0", "r1", "r2", "r3", "r4"], f"other results: {ids}")
        box.run(merge(box, "part2", "part1"), code=5, match="all.jsonl: the output exists")
        box.run(run(box, "--shard=1/2", "--resume", name="part1"))
        for flags, now in (([], "none"), (["--shard=1/1"], "none"), (["--shard=1/3"], "1/3")):
            box.run(run(box, "--resume", *flags, name="part1"), code=4,
                    match=f"cannot resume.*: shard: 1/2 then, {now} now")
    yield "L13", "all shards", joined
    for value in ("0/4", "5/4", "1/0", "x", "1/4/2", "", "1", "1/4097", "-1/2"):
        yield "L13", f"--shard {value!r}", lambda box, value=value: box.run(
            run(box, f"--shard={value}", name="part"), code=2, match="--shard: expected I/N.*2/16")
    yield "L13", "--shard in a file", lambda box: box.run(
        run(box, "--options-file", box.file("options", "shard = 3/2\n"), name="part"), code=2, match="line 1: .*--shard")
    yield "L13", "a shard is missing", refusing(["part2"], "shard 1 of 2 is missing")
    yield "L13", "a shard twice", refusing(["part1", "part2", "part1"], "are both shard 1/2")
    yield "L13", "unfinished", refusing(["part1", "part2"], "2 of 5 requests have no result.*shard 2 of 2 is not finished",
                                        change=cut)
    yield "L13", "another input", refusing(
        ["part1", "other"], "are not of one job: input.digest",
        change=lambda box: box.run(run(box, "--shard=2/2", name="other", text="".join(lines[1:] + lines[:1]))))
    yield "L13", "other sampling", refusing(
        ["part1", "other"], "sampling.top_k: not given in the first, 3 in the second",
        change=lambda box: box.run(run(box, "--shard=2/2", "--top-k=3", name="other")))
    yield "L13", "no manifest", refusing(["part1", "part2"], "part2.jsonl.manifest.json", code=5,
                                         change=lambda box: os.remove(box.path("part2.jsonl.manifest.json")))
    yield "L13", "no part", refusing(["part1", "none"], "none.jsonl: cannot open", code=5)
    yield "L13", "a folder", lambda box: box.run(["merge", "--output", box.output("all.jsonl"), box.dir], code=5,
                                                 match="regular file")
    yield "L13", "nothing to merge", usage(["merge", "--output", "x"], "parts is required")
    yield "L13", "no output", usage(["merge", "x"], "--output is required")


def cases():
    yield from flag_rows()
    yield from pack_rows()
    yield from mirror_rows()
    yield from shard_rows()
    yield from environment_rows()
    yield from surroundings_rows()
