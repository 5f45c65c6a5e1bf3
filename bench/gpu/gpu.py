#!/usr/bin/env python3
"""Builds, tests and measures Penstock on a GPU in one go, and writes the results as JSON.

  gpu.py kit --output KIT.tar.xz    builds on a machine with a compiler, and collects binaries, tests and libraries for a
                                    machine with a GPU that cannot build
  gpu.py run --output FILE          runs tests (and compute-sanitizer), kernels, then random models in the shapes of
                                    Mixtral-8x7B, Qwen3.6-35B-A3B and Gemma-4-26B-A4B: schedules with a small budget of GPU
                                    memory, predictions, everything resident, and other engines where present; builds first
                                    unless --kit KIT.tar.xz names the output of `kit`

The most important steps run first; a step for which no time is left (--minutes) is skipped and named. FILE has each step's
results as soon as the step ends. llama.cpp needs --llama-cpp BUILD, a build tree with CUDA (bin/llama-bench). transformers
and accelerate are measured if python3 finds them.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GIB = 1 << 30
BLOB_ALIGNMENT = 4096       # of the layers in a packed store
GPU_TESTS = ("kernels_cuda_kernels_test_gpu", "engine_cuda_device_test_gpu")
KERNEL_BENCHES = ("bench/gpu_cuda_gemm_bench", "bench/gpu_cuda_recurrent_bench")
BINARIES = ("bin/penstock", *KERNEL_BENCHES, "tests/make_golden_models",
            *(f"tests/{name}" for name in GPU_TESTS))
# Mixtral-8x7B has 16 GiB of GPU memory, the others have 12; fewer layers get a proportional share.
FULL_LAYERS, FULL_GPU_MEMORY = 32, 16 * GIB
MIXTRAL = ("--family", "mixtral", "--model-dim", 4096, "--num-heads", 32, "--num-kv-heads", 8, "--head-dim", 128,
           "--num-experts", 8, "--num-topk", 2, "--expert-dim", 14336, "--vocab-size", 32000, "--context", 32768)
# make_model.py's flags; the layers that differ, which are made once and then repeated; the layers of the whole model.
SHAPES = {"mixtral": (MIXTRAL, 1, FULL_LAYERS),
          "qwen3.6": (("--preset", "qwen35"), 4, 40),
          "gemma-4": (("--preset", "gemma4-mini", "--num-experts", 128), 6, 30)}
HYBRID_GPU_MEMORY = 12 * GIB
# Klotski's ideas added one after another, and the schedules that CGOPipe is compared with.
ABLATION = {
    "zero": {"schedule": "zero"},
    "zigzag": {"schedule": "zigzag"},
    "klotski, only hot experts": {"schedule": "klotski", "reorder": False},
    "klotski": {"schedule": "klotski"},
}
PIPELINES = ("cgopipe", "zigzag", "zigzag-cpu-attention", "fastdecode")


class Skipped(Exception):
    """A step that this machine cannot take; the message says why."""


class Report:
    """The results, written to disk after every step."""

    def __init__(self, path, minutes, only):
        self.path, self.deadline, self.only = path, time.monotonic() + 60 * minutes, only.split(",")
        self.data = {"date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "machine": machine(),
                     "steps": {}}

    def left(self):
        return self.deadline - time.monotonic()

    def step(self, name, least_seconds, take):
        if not any(part in name for part in self.only):
            return
        begin = time.monotonic()
        if self.left() < least_seconds:
            result = {"skipped": f"{self.left():.0f} s were left, but it takes {least_seconds}"}
        else:
            try:
                result = take()
            except Skipped as reason:
                result = {"skipped": str(reason)}
            except subprocess.CalledProcessError as error:
                result = {"failed": f"exit {error.returncode}",
                          "output": ((error.stdout or "") + (error.stderr or ""))[-3000:]}
            except subprocess.TimeoutExpired as error:
                result = {"failed": f"took longer than {error.timeout:.0f} s"}
        self.data["steps"][name] = {"seconds": round(time.monotonic() - begin, 1), "result": result}
        self.path.write_text(json.dumps(self.data, indent=1) + "\n")
        text = json.dumps(result)
        print(f"{name} ({time.monotonic() - begin:.0f} s): {text if len(text) < 600 else text[:600] + ' ...'}", flush=True)


def output_of(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, **more).stdout


def try_output(command):
    try:
        return output_of(command).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    return {"cpu": cpu, "cpus": os.cpu_count(), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpu": try_output(["nvidia-smi",
                               "--query-gpu=name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current",
                               "--format=csv,noheader"]),
            "commit": try_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])}


# Building

def build():
    output_of(["cmake", "--preset", "cuda"], cwd=ROOT)
    output_of(["cmake", "--build", "build/cuda", "-j", os.cpu_count()], cwd=ROOT)
    return ROOT / "build/cuda"


def kit(args):
    tree = build() if args.build is None else args.build
    target = pathlib.Path(tempfile.mkdtemp(prefix="penstock-kit-"))
    (target / "lib").mkdir()
    for name in BINARIES:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy2(tree / name, target / name)
        subprocess.run(["strip", target / name], check=True)
        for line in output_of(["ldd", tree / name]).splitlines():
            words = line.split()
            # The C library's own files come from the machine that runs the kit.
            if len(words) >= 3 and words[2].startswith("/") and not words[0].startswith(
                ("libc.", "libm.", "libpthread.", "libdl.", "librt.")):
                shutil.copy2(words[2], target / "lib" / words[0])
    (target / "commit").write_text(try_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]) + "\n")
    with tarfile.open(args.output, "w:xz", preset=9) as archive:   # programs share much: a wide window
        archive.add(target, arcname=".")
    shutil.rmtree(target)
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.0f} MB")


# Measuring

class Bench:
    def __init__(self, args, report):
        self.args, self.report = args, report
        self.folder = pathlib.Path(args.work or tempfile.mkdtemp(prefix="penstock-gpu-"))
        self.folder.mkdir(exist_ok=True)
        self.environment = dict(os.environ)
        if args.kit is None:
            self.tree = build()
        else:
            self.tree = self.folder / "kit"
            with tarfile.open(args.kit) as archive:
                archive.extractall(self.tree)
            self.environment["LD_LIBRARY_PATH"] = f"{self.tree / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
            if (self.tree / "commit").exists():
                report.data["machine"]["commit"] = (self.tree / "commit").read_text().strip()

    def run(self, *command, timeout=None, environment=None):
        return output_of([self.tree / command[0], *command[1:]], env=environment or self.environment, timeout=timeout)

    def penstock(self, *flags):
        return self.run("bin/penstock", *flags, timeout=max(30, self.report.left()))

    def lines(self, *flags):
        return [json.loads(line) for line in self.penstock("bench", *flags, "--json", "--quiet").splitlines()]

    # Tests

    def test(self, name):
        """Runs a test program; its output lies beside the results."""
        golden = self.folder / "golden"
        if not golden.exists():
            self.run("tests/make_golden_models", ROOT / "tests/golden", golden)
        log = self.report.path.with_name(f"{name}.log")
        with log.open("w", encoding="utf-8") as sink:
            code = subprocess.run([self.tree / f"tests/{name}"], stdout=sink, stderr=subprocess.STDOUT,
                                  timeout=max(60, self.report.left() / 3), check=False,
                                  env={**self.environment, "PENSTOCK_TEST_GOLDEN_DIR": str(golden)}).returncode
        lines = log.read_text(errors="replace").splitlines()
        count = {name: sum(line.startswith(mark) for line in lines)
                 for name, mark in (("passed", "[       OK ]"), ("skipped", "[  SKIPPED ]"))}
        return {"exit": code, **count, **({"failed": lines[-30:]} if code != 0 else {})}

    def sanitize(self, tool):
        if shutil.which("compute-sanitizer") is None:
            raise Skipped("compute-sanitizer is not installed")
        # Runs each kernel once, and the shortest generation.
        text = output_of(["compute-sanitizer", "--tool", tool, "--error-exitcode", 9, self.tree / "tests" / GPU_TESTS[0],
                          "--gtest_filter=*ExpertsHave*:*AttentionHas*:*Sorted*:*Routers*:*Norms*:*Largest*:"
                          "*Convolutions*:*Rules*:*Scans*:*GatesChange*"],
                         env=self.environment, timeout=min(120, max(30, self.report.left() / 3)))
        return {"passed": text.strip().splitlines()[-1]}

    # Models

    def model(self, quantize, num_layers, shape="mixtral"):
        """Makes a model of random weights with the given number of layers: makes and packs those that differ, then writes
        them repeatedly."""
        path = self.folder / f"{shape}-{quantize}-{num_layers}"
        if path.exists():
            return path
        flags, num_different, _ = SHAPES[shape]
        one, source = self.folder / f"{shape}-one-{quantize}", self.folder / f"{shape}-one-source"
        if not source.exists():
            output_of([sys.executable, ROOT / "tools/synth/make_model.py", *flags, "--num-layers", num_different, "--output",
                       source])
        if not one.exists():
            self.penstock("pack", "--model", source, "--output", one, "--quantize", quantize, "--quiet")
        repeat_layers(one, path, num_different, num_layers // num_different)
        return path

    def rates(self, model, policy, sequences, *flags):
        path = self.folder / "policy.json"
        path.write_text(json.dumps(policy))
        return self.lines("--model", model, "--policy", path, "--device", "cuda", "--prefill", 0, "--decode", sequences,
                          "--empty-context",
                          "--context", self.args.context, "--steps", self.args.steps, *flags)

    def offload(self, model, gpu_memory, names, sequences, micro_batch_size):
        """Measures decoding with a GPU that holds a share of the model; `names`: schedules, or policies by name."""
        memory = ("--gpu-memory", f"{gpu_memory}B")
        results = {}
        for name in names:
            policy = ABLATION.get(name, {"schedule": name})
            results[name] = self.rates(model, policy, sequences, "--micro-batch-size", micro_batch_size, *memory)[0]
        return results

    def predictions(self, model, num_layers):
        hardware, errors = self.folder / "hardware.json", {}
        self.penstock("probe", "--model", model, "--output", hardware, "--seconds", 10, "--quiet")
        for name, sequences in (("cgopipe", 64), ("klotski", 64), ("zigzag", 64), ("on-demand", 1)):
            lines = self.rates(model, {"schedule": name}, sequences, "--micro-batch-size", 32, "--hardware", hardware,
                               "--record-routing",
                               self.folder / f"routing-{name}", "--gpu-memory",
                               f"{FULL_GPU_MEMORY * num_layers // FULL_LAYERS}B")
            errors[name] = next(line for line in lines if line["kind"] == "prediction")
        return {"hardware": json.loads(hardware.read_text()), "predictions": errors}

    def resident(self, model):
        lines = self.lines("--model", model, "--device", "cuda", "--prefill", "512,4096", "--decode", "1,16,64", "--context",
                           self.args.context,
                           "--prefill-chunk", 4096, "--steps", 4 * self.args.steps)
        return {f"{line['kind']} {line.get('tokens', line.get('sequences'))}": line for line in lines}

    # Others

    def torch_rates(self):
        """Measures PyTorch's rates, the ceilings that others quote."""
        script = """
import json, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
c = torch.empty(1 << 31, dtype=torch.uint8, device="cuda"); d = torch.empty_like(c)
h = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
def seconds(run):
    times = []
    for i in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(); run(); end.record(); torch.cuda.synchronize()
        if i > 1: times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2]
print(json.dumps({"bf16_tflops": 2 * 8192**3 / seconds(lambda: a @ b) * 1e-12,
    "copy_gb_per_s": 2 * c.numel() / seconds(lambda: d.copy_(c)) * 1e-9,
    "link_gb_per_s": h.numel() / seconds(lambda: c[:h.numel()].copy_(h, non_blocking=True)) * 1e-9}))
"""
        if try_output([sys.executable, "-c", "import torch"]) == "" and subprocess.run(
                [sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode != 0:
            raise Skipped("python3 finds no torch")
        return json.loads(output_of([sys.executable, "-c", script], timeout=120))

    def accelerate(self, num_layers):
        """Measures transformers with accelerate's offload: the same shapes in bf16, the same share of GPU memory."""
        script = f"""
import json, time, torch
from accelerate import dispatch_model, infer_auto_device_map
from transformers import MixtralConfig, MixtralForCausalLM
config = MixtralConfig(num_hidden_layers={num_layers}, vocab_size=32000)
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"):
    model = MixtralForCausalLM(config)
model = model.to_empty(device="cpu").eval()
for p in model.parameters(): p.data.fill_(0.01)
devices = infer_auto_device_map(model, max_memory={{0: {FULL_GPU_MEMORY * num_layers // FULL_LAYERS}, "cpu": "100GiB"}},
                                no_split_module_classes=["MixtralDecoderLayer"])
model = dispatch_model(model, devices, main_device=0)
results = {{}}
for batch in (1, 16):
    ids = torch.randint(3, 30000, (batch, 32), device=0)
    with torch.no_grad():
        model.generate(ids, max_new_tokens=2, do_sample=False)
        times = []
        for tokens in (2, 6):
            begin = time.monotonic(); model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)
            times.append(time.monotonic() - begin)
    results[batch] = 4 * batch / (times[1] - times[0])
print(json.dumps(results))
"""
        if subprocess.run([sys.executable, "-c", "import accelerate, transformers, torch"], capture_output=True,
                          check=False).returncode != 0:
            raise Skipped("python3 finds no transformers and accelerate")
        return {"tokens_per_second": json.loads(
            output_of([sys.executable, "-c", script], timeout=max(60, self.report.left())).splitlines()[-1])}

    def llama_cpp(self, num_layers):
        if self.args.llama_cpp is None:
            raise Skipped("--llama-cpp names no build")
        gguf = self.folder / f"mixtral-{num_layers}.gguf"
        output_of([sys.executable, ROOT / "tools/synth/make_model.py", *MIXTRAL, "--num-layers", num_layers, "--gguf",
                   "q8_0", gguf])
        # The CPU computes the experts of all layers that the budget does not hold.
        on_gpu = max(0, int(num_layers * (FULL_GPU_MEMORY / FULL_LAYERS) / (1.45e9) * 0.9))
        text = output_of([self.args.llama_cpp / "bin/llama-bench", "-m", gguf, "-ngl", 99, "--n-cpu-moe",
                          num_layers - on_gpu, "-p", 512, "-n", 16,
                          "-o", "json"], timeout=max(60, self.report.left()))
        return {"layers_on_gpu": on_gpu, "runs": json.loads(text)}


def repeat_layers(one, target, num_different, times):
    """Makes a packed store that repeats the layers of `one`."""
    index = json.loads((one / "penstock.json").read_text())
    layer_of = {name: int(name.split(".")[2]) for name in index["tensors"] if name.startswith("model.layers.")}
    first = min(index["tensors"][name]["offset"] for name in layer_of)
    head_bytes = first // BLOB_ALIGNMENT * BLOB_ALIGNMENT
    layers_bytes = -(-(index["weights_bytes"] - head_bytes) // BLOB_ALIGNMENT) * BLOB_ALIGNMENT
    tensors = {name: t for name, t in index["tensors"].items() if name not in layer_of}
    for i in range(times):
        for name, layer in layer_of.items():
            t = index["tensors"][name]
            own = name.replace(f"layers.{layer}.", f"layers.{layer + i * num_different}.", 1)
            tensors[own] = {**t, "offset": t["offset"] + i * layers_bytes}
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with (one / "penstock.bin").open("rb") as source, (partial / "penstock.bin").open("wb") as sink:
        sink.write(source.read(head_bytes))
        data = source.read()
        data += bytes(layers_bytes - len(data))
        for _ in range(times):
            sink.write(data)
    index.update(tensors=tensors, weights_bytes=head_bytes + times * layers_bytes)
    del index["files"]["config.json"]   # its checksum; the number of layers changes below
    (partial / "penstock.json").write_text(json.dumps(index))
    config = json.loads((one / "config.json").read_text())
    config["num_hidden_layers"] = times * num_different
    if "layer_types" in config:
        config["layer_types"] *= times
    (partial / "config.json").write_text(json.dumps(config))
    for name in index["files"]:
        shutil.copy2(one / name, partial / name)
    partial.rename(target)


def ratios(result, base):
    if base not in result:
        return
    for line in result.values():
        line["of_first"] = line["tokens_per_second"] / result[base]["tokens_per_second"]


def run(args):
    report = Report(args.output, args.minutes, args.only)
    if "NVIDIA" not in report.data["machine"]["gpu"] and not args.anyway:
        sys.exit("gpu.py: nvidia-smi finds no GPU here")
    bench = Bench(args, report)
    for name in GPU_TESTS:
        report.step(name, 10, lambda name=name: bench.test(name))
    report.step("torch", 20, bench.torch_rates)
    for name in KERNEL_BENCHES:
        report.step(name, 20, lambda name=name: [json.loads(line) for line in bench.run(name, timeout=120).splitlines()])
    layers = args.layers

    gpu_memory = FULL_GPU_MEMORY * layers // FULL_LAYERS

    def with_model(quantize, take):
        return lambda: take(bench.model(quantize, layers))

    def pipelines(model):
        found = bench.offload(model, gpu_memory, PIPELINES, args.sequences, 64)
        ratios(found, "zigzag")
        return found

    def ablation(model):
        found = bench.offload(model, gpu_memory, list(ABLATION), 64, 16)
        ratios(found, "zero")
        return found

    def hybrid(shape, take):
        _, num_different, full_layers = SHAPES[shape]
        num_layers = max(1, layers // num_different) * num_different
        return take(bench.model("int8", num_layers, shape), HYBRID_GPU_MEMORY * num_layers // full_layers)

    for shape in ("qwen3.6", "gemma-4"):
        report.step(f"{shape}, int8: resident", 60,
                    lambda shape=shape: hybrid(shape, lambda model, _: bench.resident(model)))
        for sequences, names in ((1, ("on-demand", "klotski", "hybrid")), (64, ("on-demand", "klotski", "cgopipe"))):
            report.step(f"{shape}, int8: {sequences} sequences", 40,
                        lambda shape=shape, sequences=sequences, names=names: hybrid(
                            shape, lambda model, memory: bench.offload(model, memory, names, sequences, sequences)))

    report.step("int8: one sequence", 60,
                with_model("int8", lambda model: bench.offload(model, gpu_memory, ("on-demand", "klotski", "hybrid"), 1, 1)))
    report.step("int8: pipelines", 60, with_model("int8", pipelines))
    report.step("int8: klotski's ablation", 50, with_model("int8", ablation))
    report.step("int8: resident", 40, with_model("int8", bench.resident))
    report.step("int8: predictions", 60, with_model("int8", lambda model: bench.predictions(model, layers)))
    for tool in ("memcheck", "racecheck"):
        report.step(f"compute-sanitizer {tool}", 30, lambda tool=tool: bench.sanitize(tool))
    report.step("bf16: pipelines", 60, with_model("none", pipelines))
    report.step("accelerate", 60, lambda: bench.accelerate(layers))
    report.step("llama.cpp", 90, lambda: bench.llama_cpp(layers))
    report.step("bf16: resident", 40, with_model("none", bench.resident))
    if args.work is None:
        shutil.rmtree(bench.folder)
    shares = [line["bound_fraction"] for name, step in report.data["steps"].items() if "pipelines" in name
              and "skipped" not in step["result"]
              and "failed" not in step["result"] for line in step["result"].values()]
    print(f"{args.output}: shares of the bound {', '.join(f'{share:.0%}' for share in shares)}" if shares
          else str(args.output))
    failed = [name for name, step in report.data["steps"].items() if "failed" in step["result"]]
    if failed:
        sys.exit(f"gpu.py: failed: {', '.join(failed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kit", "run"))
    parser.add_argument("--output", type=pathlib.Path, required=True, help="kit: the archive; run: the JSON file")
    parser.add_argument("--build", type=pathlib.Path, help="kit: a build tree to collect from, instead of building")
    parser.add_argument("--kit", type=pathlib.Path, help="run: use what `kit` collected instead of building")
    parser.add_argument("--work", type=pathlib.Path,
                        help="run: folder for models, which stay there (default: a temporary one)")
    parser.add_argument("--minutes", type=float, default=8.5, help="run: start no step that would end later")
    parser.add_argument("--layers", type=int, default=8, help="run: how many of Mixtral-8x7B's 32 layers, or of the others' "
                                                              "40 and 30; GPU memory in proportion")
    parser.add_argument("--only", default="", help="run: only steps whose name has this part; several with commas")
    parser.add_argument("--sequences", type=int, default=384, help="run: sequences in the pipelines")
    parser.add_argument("--context", type=int, default=256, help="run: tokens that each sequence has read")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--llama-cpp", type=pathlib.Path, help="run: a build tree of llama.cpp with CUDA")
    parser.add_argument("--anyway", action="store_true", help="run: continue without a GPU; every step then says why it is "
                                                              "skipped")
    args = parser.parse_args()
    {"kit": kit, "run": run}[args.what](args)


if __name__ == "__main__":
    main()
