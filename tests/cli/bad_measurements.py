"""Tests of rows L: the commands that measure and predict (bench, probe, plan, simulate). See bad_inputs.py."""
import glob
import json
import os

from bad_command_lines import usage


def bench_rows():
    bench = ["bench", "--threads=1", "--prefill=9,20", "--decode=1,3", "--context=5", "--steps=4", "--json"]

    def measures(box):
        result = box.run([*bench, "--model", box.model().path])
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        box.expect([line.get("tokens", line.get("sequences")) for line in lines] == [9, 20, 1, 3],
                   f"other measurements: {lines}")
        box.expect(all(line["tokens_per_second"] > 0 for line in lines), f"no rate: {lines}")
    yield "L11", "bench", measures
    yield "L11", "bench, stdout is full", lambda box: box.run([*bench, "--model", box.model().path], code=5,
                                                              match="No space left",
                                                              stdout=open("/dev/full", "wb"))
    for flags, code, match in ((["--context-length=12"], 2, "--decode 64: .* need a context of 20, and there are 12"),
                               (["--prefill=511"], 2, "--prefill 511: it needs a context of 513, and there are 512"),
                               (["--decode=1,600", "--context=250"], 2, "--decode 600: .* give a smaller --context"),
                               (["--decode=1,300", "--memory=8MiB"], 6, "--decode 300: at most .* fit|least budget")):
        yield "L11", f"bench {' '.join(flags)}", lambda box, flags=flags, code=code, match=match: box.run(
            ["bench", "--model", box.model().path, "--json", *flags], code=code, match=match)

    def cuts_its_sizes(box):  # which no flag has named; before, bench failed halfway
        model = box.model().path
        sizes = []
        for flags in ((), ("--context-length=100",), ("--memory=6MiB",)):
            lines = box.run(["bench", "--model", model, "--threads=1", "--json", *flags]).stdout.splitlines()
            found = [json.loads(line) for line in lines]
            sizes.append([line.get("tokens", line.get("sequences")) for line in found])
        box.expect(sizes[0] == [510, 1, 16, 64] and sizes[1] == [98, 1, 16, 64], f"sizes: {sizes}")
        box.expect(sizes[2][:2] == [510, 1] and sizes[2][-1] < 64, f"sizes of a small budget: {sizes[2]}")
    yield "L11", "bench cuts its usual sizes", cuts_its_sizes


def placement_rows(small):
    """Placements of experts on ranks by a recorded routing."""
    def places(box):
        model, trace = box.model().path, box.output("routing.bin")
        box.run(["generate", "--model", model, "--prompt=hi", "--max-tokens=4", "--record-routing", trace])
        on_ranks = ["simulate", "--model", model, "--hardware=none:dram=1GiB", "--workload=prompt=8,gen=4",
                    "--schedule=on-demand", "--ranks=2", "--network=1gbe", "--routing-trace", trace]
        for flags, code, words in (("", 0, ""), (",replicas=1", 0, ""), (",replicas=99", 2, "a rank lacks [0-9]+ of the")):
            box.run([*on_ranks, f"--expert-placement={trace}{flags}"], code=code, match=words)
        for flag in ("--expert-placement", "--routing-trace"):
            other = ["simulate", *small(box), "--ranks=2", "--network=1gbe", "--schedule=on-demand", f"{flag}={trace}"]
            box.run(other, code=4, match="the trace is of a model with")
            box.run([*other[:-1], f"{flag}={box.file('words', 'words')}"], code=4, match="not a routing trace")
            box.run([*other[:-1], f"{flag}=/nowhere/routing.bin"], code=5, match="/nowhere/routing.bin")
        box.run([*on_ranks, "--parallel=experts=tp", f"--expert-placement={trace}"], code=2,
                match="with --parallel experts=tp each rank has a part of every expert")
        policy = box.file("policy.json", json.dumps({"expert_replicas": 1}))
        box.run([*on_ranks, "--policy", policy], code=2, match="'expert_replicas' needs 'expert_placement'")
    yield "L12", "placement of experts", places


def bench_routing_rows():
    words = "the a in the aa " * 60

    def routing(box, *flags, model=None):
        return ["bench", "routing", "--model", model or box.model().path, "--threads=1", *flags]

    def compares(box):
        model, hardware, trace = box.model().path, box.output("hardware.json"), box.output("routing.bin")
        box.run(["probe", "--threads=1", "--seconds=1", "--model", model, "--output", hardware], max_rss=1400 << 20)
        work = ["--requests=2", "--prompt=9", "--gen=5", "--room=50", "--hardware", hardware, "--seconds=100000"]
        result = box.run(routing(box, "--text", box.file("text", words), *work, "--record-routing", trace, "--json",
                                 model=model), quiet=False, match="pair 1 of [0-9]+, at most [0-9]+ s left")
        head, *pairs = [json.loads(line) for line in result.stdout.splitlines()]
        box.expect(head["rows"] == 26 and len(head["gate_accuracy"]) == 1, f"another trace: {head}")
        box.expect(len(pairs) == 36 and sum(pair["winner"] for pair in pairs) == 1, f"other pairs: {pairs}")
        for pair in pairs:
            plain, oracle = pair["predictor"] == "none", pair["predictor"] == "oracle"
            box.expect(oracle != ("measured_seconds" in pair), f"measured: {pair}")
            box.expect(not plain or pair["hit_rate"] <= pair["belady_hit_rate"] + 1e-9, f"better than Belady: {pair}")
            box.expect(not plain or pair["predicted_saved_seconds"] == 0, f"saved without a predictor: {pair}")
        hurried = box.run(routing(box, "--text", box.file("text", words), *work[:-1], "--seconds=0", "--json", model=model))
        pairs = [json.loads(line) for line in hurried.stdout.splitlines()[1:]]
        box.expect(sum("measured_seconds" in pair for pair in pairs) == 1, "without time more than one pair ran")
        box.expect([pair["predictor"] for pair in pairs if pair["winner"]] == ["none"], "a pair won that did not run")
        box.run(routing(box, "--text", box.file("text", words), *work, "--memory=1MiB", model=model), code=6,
                match="this share of the experts needs .* more than the 1.00 MiB of --memory")
        box.run(routing(box, "--text", box.file("text", words), *work, "--memory=50KiB", model=model), code=6,
                match="reading this text needs")
        again = box.run(routing(box, "--routing", trace, "--room=50,75", "--hardware", hardware, model=model))
        box.expect(again.stdout.count(b"winner: eviction") == 2 and b"Belady" in again.stdout, "no winners")
    yield "L11", "bench routing", compares

    bad = {"no workload": ([], 2, "give --text FILE or --routing FILE"),
           "two workloads": (["--text=a", "--routing=b"], 2, "excludes"),
           "another schedule": (["--text=a", "--schedule=klotski"], 2, "only the schedule hybrid uses predictors"),
           "no file": (["--routing=/nothing"], 5, "No such file")}
    for name, (flags, code, match) in bad.items():
        yield "L11", f"bench routing, {name}", lambda box, flags=flags, code=code, match=match: box.run(
            routing(box, *flags), code=code, match=match)
    for name, content, match in (("a short text", "the a", "the text has . tokens; 8 prompts of 64 need 512"),
                                 ("no text", b"\xff" * 2000, "not UTF-8")):
        yield "L11", f"bench routing, {name}", lambda box, content=content, match=match: box.run(
            routing(box, "--text", box.file("text", content)), code=4, match=match)
    yield "L11", "bench routing, no trace", lambda box: box.run(routing(box, "--routing", box.file("text", words)), code=4,
                                                                match="not a routing trace")
    yield "L11", "scores without a file", lambda box: box.run(["generate", "--model", box.model().path, "--prompt=a",
                                                               "--record-scores"], code=2,
                                                              match="--record-scores: give --record-routing")


def probe_rows():
    def measures(box):
        path = box.output("hardware.json")
        result = box.run(["probe", "--threads=1", "--seconds=1", "--disk=/nowhere", "--json", "--output", path],
                         max_rss=1400 << 20)
        with open(path, "rb") as file:
            box.expect(file.read() == result.stdout, "--output and --json differ")
        hardware = json.loads(result.stdout)
        rate = hardware["tiers"][0]["rates"][0]
        box.expect(rate["threads"] == 1 and rate["read_bytes_per_second"] > 0, f"no rate: {rate}")
        box.expect(hardware["processors"][0]["peaks"]["f32"]["rates"][0]["ops_per_second"] > 0, "no peak")
        box.expect(len(hardware["processors"][0]["gemm"]) == 9, "no kernels")
        box.expect(hardware["links"] == [], "a disk that is not there was measured")
    yield "L11", "probe all formats, no folder for the disk", measures

    def measures_a_model(box):
        path = box.output("model.json")
        box.run(["probe", "--threads=1", "--seconds=1", "--model", box.model().path, "--output", path], max_rss=1400 << 20)
        with open(path, "rb") as file:
            hardware = json.load(file)
        box.expect(len(hardware["processors"][0]["gemm"]) == 1 and hardware["links"][0]["bytes_per_second"] > 0,
                   "no kernels or no disk")
    yield "L11", "probe --model", measures_a_model

    def plans_a_job(box):
        source = box.file("in.jsonl", '{"prompt": "abc", "max_tokens": 3}\n' * 4)
        stats, model = box.output("stats.json"), box.model().path
        with box.own_cache() as own:
            box.run(["probe", "--threads=1", "--seconds=1", "--model", model], max_rss=1400 << 20, env=own)
            result = box.run(["run", "--threads=1", "--policy=auto", "--model", model, "--input", source, "--output",
                              box.output(), "--stats", stats], quiet=False, max_rss=1400 << 20, env=own)
        box.expect(b"as it was measured on" in result.stderr, "it was measured again")
        box.expect(b"predicted" in result.stderr, "no prediction is shown")
        with open(stats, "rb") as file:
            box.expect(json.load(file)["tokens_per_second"]["predicted_generation"] > 0, "no prediction")
    yield "L11", "run --policy auto", plans_a_job
    yield "L11", "run --policy auto within --memory", lambda box: box.run(
        ["run", "--policy=auto", "--memory=100MiB", "--model", box.model().path, "--input",
         box.file("in.jsonl", '{"prompt": "abc"}\n'), "--output", box.output()], code=6,
        match="measuring this machine needs 256 MiB .* found 100 MiB in --memory: run penstock probe once",
        env={"XDG_CACHE_HOME": box.dir})

    def keeps(box):
        machine = ["--threads=1", "--model", box.model().path]
        with box.own_cache() as own:
            def measures(change=lambda content: None):
                for path in glob.glob(os.path.join(own["XDG_CACHE_HOME"], "penstock", "*")):
                    with open(path, encoding="utf-8") as file:
                        kept = json.load(file)
                    change(kept["content"])
                    with open(path, "w", encoding="utf-8") as file:
                        json.dump(kept, file)
                stderr = box.run(["plan", "--workload=prompt=4,gen=4,requests=1", *machine], quiet=False, max_rss=1400 << 20,
                                 env=own).stderr
                return [what for what in ("kernels", "the disk") if f"measuring {what}".encode() in stderr]

            def age(content):
                content["disk_measured"] = 1

            def slow(content):
                for pace in content["paces"]:
                    pace["call_seconds"] = 1

            # A busy machine may have another pace in each look, so its kernels may be measured again at any time.
            box.run(["probe", "--seconds=1", *machine], max_rss=1400 << 20, env=own)
            box.expect("the disk" not in measures(), "a new measurement was not kept")
            box.expect("the disk" in measures(age), "an old disk was not measured again")
            box.expect("the disk" not in measures(), "the disk's new measurement was not kept")
            box.expect("kernels" in measures(slow), "a CPU of another pace was not measured again")
    yield "L11", "a kept probe", keeps
    yield "L11", "generate --policy auto", lambda box: box.run(
        ["generate", "--model", box.model().path, "--prompt=a", "--raw", "--policy=auto"], code=2,
        match="--policy auto works only with run")

    yield "L11", "probe --model, no folder", usage(["probe", "--model=/nowhere"], "cannot open the model folder", code=3)
    yield "L11", "probe, stdout is full", lambda box: box.run(["probe", "--threads=1", "--seconds=1", "--disk=none",
                                                               "--model", box.model().path], code=5,
                                                              match="No space left", max_rss=1400 << 20,
                                                              stdout=open("/dev/full", "wb"))


def planning_rows():
    config = os.path.join(os.path.dirname(__file__), "..", "data", "configs", "mixtral-8x7b.json")
    machine = ["--hardware=none:dram=1536MiB", "--workload=prompt=32,gen=4,requests=16"]

    simulate = ["simulate", f"--config={config}", *machine]

    def small(box):  # two layers of Mixtral 8x7B, whose experts do not all fit
        with open(config, encoding="utf-8") as file:
            fields = {**json.load(file), "num_hidden_layers": 2}
        return ["--config", box.file("config.json", json.dumps(fields)), "--weights=int8", *machine]

    def plans(box):
        model = small(box)
        text = box.run(["plan", *model]).stdout.decode()
        first = text.splitlines()[:3]
        box.expect(first[0].startswith("It runs") and "tokens per second" in first[1] and "limited by" in first[2],
                   f"the first lines: {first}")
        box.expect("assumed" not in text, f"the workload is given: {text}")
        policy = box.output("policy.json")
        done = box.run(["plan", *model, "--json", "--output", policy], quiet=False,
                       match=r"wrote .*policy\.json, for penstock run --policy; .* may have 36 tokens together")
        plan = json.loads(done.stdout)
        best = plan["choices"][0]
        box.expect(best["predicted"]["generation_tokens_per_second"] > 0 and plan["what_would_help"], f"no rate: {best}")
        with open(policy, encoding="utf-8") as file:
            box.expect(json.load(file) == best["policy"], "--output and --json differ")
        simulated = json.loads(box.run(["simulate", *model, "--policy", policy, "--json"]).stdout)["schedules"][0]
        ratio = simulated["tokens_per_second"]["generation"] / best["predicted"]["generation_tokens_per_second"]
        box.expect(0.85 < ratio < 1.15, f"the simulation says {ratio} of the plan")
    yield "L12", "plan, and the simulation of its policy", plans

    def assumes(box):  # what the command line does not say
        plan = ["plan", "--model", box.model().path, "--hardware=none:dram=1GiB"]
        text = box.run(plan).stdout.decode()
        box.expect("No --workload is given" in text and "1000 requests" in text, text)
        rows = text[text.index("other schedules"):text.index("what would help")].splitlines()[2:-1]
        others = rows[0].split("  ")[-1].split(", ")
        box.expect(len(rows) == 1 and sorted(others) == ["hybrid", "klotski", "zero", "zigzag"], f"not one row: {rows}")
        text = box.run([*plan, "--workload=prompt=8,gen=4"]).stdout.decode()
        box.expect("As many requests are assumed as are computed at once" in text, text)
        text = box.run(["plan", *plan[1:3], "--hardware=rtx4090", "--workload=prompt=16,gen=4,requests=64"]).stdout.decode()
        rows = text[text.index("other schedules"):].splitlines()[1:]
        box.expect(any(" on the GPU" in row for row in rows) and all(len(row) <= 100 for row in rows), f"no table: {rows}")
    yield "L12", "plan, without a workload", assumes

    def counts_the_job(box):  # so that a run of the workload has room for as many experts as its plan
        model = box.model().path
        requests = "".join(json.dumps({"prompt": [3] * 8, "max_tokens": 4}) + "\n" for _ in range(16))
        described = ["--model", model, "--workload=prompt=8,gen=4,requests=16", "--threads=1", "--hardware=none:dram=1GiB"]
        planned, simulated = (box.least_memory([command, *described]) for command in ("plan", "simulate"))
        run = box.least_memory(["run", "--model", model, "--input", box.file("in.jsonl", requests), "--output", box.output(),
                                "--context-length=12", "--threads=1"])
        box.expect(run <= planned < run + (512 << 10), f"the least budgets are {planned} of the plan and {run} of the run")
        box.expect(planned == simulated, f"the least budgets are {planned} of the plan and {simulated} of the simulation")
    yield "L12", "a plan and a simulation count the memory of their run", counts_the_job

    def simulates(box):
        page, trace = box.output("page.html"), box.output("trace.json")
        model = small(box)
        box.run(["simulate", *model, "--schedule=klotski", "--trace-html", page, "--trace", trace])
        with open(page, encoding="utf-8") as file:
            box.expect("disk_to_dram" in file.read(), "no lane on the page")
        with open(trace, encoding="utf-8") as file:
            box.expect(len(json.load(file)) > 0, "no events")
        lines = box.run(["simulate", *model, "--schedule=all"]).stdout.decode().splitlines()
        box.expect(
            sum(line.startswith(name) for line in lines for name in ("klotski ", "zigzag ", "zero ", "on-demand ")) == 4,
            f"{lines}")
    yield "L12", "simulate", simulates

    def sweeps(box):
        picture = box.output("sweep.svg")
        lines = box.run(["simulate", *small(box), "--sweep=disk=1GB..8GB", "--plot", picture]).stdout.decode().splitlines()
        box.expect(lines[0].startswith("disk_gb_per_second,schedule,") and len(lines) == 5, f"{lines}")
        rates = [float(line.split(",")[-1]) for line in lines[1:]]
        box.expect(rates == sorted(rates) and rates[0] < rates[-1], f"a faster disk is slower: {rates}")
        with open(picture, encoding="utf-8") as file:
            box.expect(file.read().startswith("<svg"), "no picture")
    yield "L12", "simulate --sweep", sweeps
    def plans_for_this_machine(box):
        model = box.model().path
        with box.own_cache() as own:
            box.run(["probe", "--threads=1", "--seconds=1", "--model", model], max_rss=1400 << 20, env=own)
            text = box.run(["plan", "--model", model, "--memory=8MiB", "--threads=1",
                            "--workload=prompt=8,gen=4,requests=4"], max_rss=1400 << 20, env=own).stdout
        box.expect(text.startswith(b"It runs with --context-length "), "no plan")
    yield "L12", "plan for this machine", plans_for_this_machine
    for sweep in ("disk", "disk=1GB", "tape=1GB..2GB", "disk=2GB..1GB", "disk=0..1GB", "cpu-memory=x..y",
                  "batch-size=1..99999"):
        yield "L12", f"--sweep={sweep}", usage([*simulate, f"--sweep={sweep}"], "--sweep")
    for flags, words in ((["--ranks=0"], "--ranks"), (["--ranks=300", "--network=1gbe"], "--ranks"),
                         (["--ranks=2"], "--network"), (["--ranks=2", "--network=string"], "10gbe"),
                         (["--ranks=200", "--network=1gbe"], "each rank needs at least one"),
                         (["--comm-dtype=f64"], "comm-dtype"),
                         (["--ranks=200", "--network=1gbe", "--parallel=attention=tp"], "KV heads for 200 ranks"),
                         (["--ranks=200", "--network=1gbe", "--weights=hqq4", "--parallel=experts=tp"],
                          "cannot be cut for 200 ranks")):
        yield "L12", f"simulate {' '.join(flags)}", usage([*simulate, *flags], words)
    yield from placement_rows(small)
    yield "L12", "a plot of nothing", usage([*simulate, "--plot=x"], "--plot draws a --sweep")

    for command in ("plan", "simulate"):
        yield "L12", f"{command}: no model", usage([command], "give --model DIR or --config FILE")
        yield "L12", f"{command}: two models", usage([command, "--model=x", "--config=y"],
                                                     "give --model DIR or --config FILE")
        yield "L12", f"{command}: no such config", usage([command, "--config=/nowhere/config.json", *machine],
                                                         "/nowhere/config.json", code=5)
        yield "L12", f"{command}: unknown hardware", usage([command, f"--config={config}", "--hardware=cray"],
                                                           "'cray' is unknown: expected t4")
        yield "L12", f"{command}: unknown part", usage([command, f"--config={config}", "--hardware=l4:disk=tape"],
                                                       "disk 'tape' is unknown")
        yield "L12", f"{command}: unknown weights", usage([command, f"--config={config}", "--hardware=l4", "--weights=int5"],
                                                          "'int5': expected one of f32")
        for workload in ("", "prompt=5", "prompt=0,gen=1", "mtbench:gen=x", "prompt=9,max-prompt=8,gen=1"):
            yield "L12", f"{command}: workload '{workload}'", usage(
                [command, f"--config={config}", "--hardware=l4", f"--workload={workload}"], "workload")
        yield "L12", f"{command}: too little memory", usage([command, f"--config={config}", *machine, "--memory=100MiB"],
                                                            "least budget is", code=6)
        yield "L12", f"{command}: no device", usage([command, f"--config={config}", *machine, "--schedule=cgopipe"],
                                                    "cgopipe")
        yield "L12", f"{command}: list", lambda box, command=command: box.expect(
            b"rtx4090" in box.run([command, "--hardware=list"]).stdout, "no presets")
    for text in ("", "[]", "{", '{"processors": 3}', '{"links": [{"name": "disk_to_dram", "bytes_per_second": -1}]}'):
        yield "L12", f"hardware file {text!r}", lambda box, text=text: box.run(
            ["plan", f"--config={config}", "--hardware", box.file("hw.json", text)], code=4, match="hw.json")
    yield "L12", "unknown family", lambda box: box.run(
        ["plan", "--config", box.file("config.json", '{"architectures": ["MartianForCausalLM"]}'), *machine], code=3,
        match="config.json.*Martian")
    yield "L12", "a trace of all", usage([*simulate, "--schedule=all", "--trace=x"],
                                         "--trace and --trace-html show one schedule")


def cases():
    yield from probe_rows()
    yield from bench_rows()
    yield from bench_routing_rows()
    yield from planning_rows()
