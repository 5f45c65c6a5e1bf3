#!/usr/bin/env python3
"""Measures how a mirror adds up the speed of two unequal disks.

Needs root, loop devices and the blkio controller of cgroup v1.

Each disk is an ext4 file system in an image file, behind a loop device whose reads the controller throttles. The model is
copied to both. The program then reads it from each disk alone and from both, and must give the same answers.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program

GROUPS = pathlib.Path("/sys/fs/cgroup/blkio")
MIB = 1 << 20


def command(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """A loop device with a file system of its own."""

    def __init__(self, folder, name, num_bytes, bytes_per_s):
        self.image, self.root, self.bytes_per_s = folder / f"{name}.img", folder / name, bytes_per_s
        self.root.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(num_bytes)
        command("mkfs.ext4", "-q", "-m", "0", self.image)
        self.device = command("losetup", "--find", "--show", self.image)
        command("mount", self.device, self.root)

    def number(self):
        device = os.stat(self.device).st_rdev
        return f"{os.major(device)}:{os.minor(device)}"

    def close(self):
        subprocess.run(["umount", self.root], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)


class ThrottledProgram(penstock_program.Program):
    """The program in a control group."""

    def __init__(self, path, group):
        super().__init__(path)
        self.group = group

    def finish(self, *arguments):
        def join():
            (self.group / "tasks").write_text(str(os.getpid()), encoding="ascii")
        return subprocess.run([str(self.path), *map(str, arguments)], capture_output=True, text=True, check=False,
                              preexec_fn=join)


def measure(program, model, mirrors, args):
    """Returns the bytes of experts read in each second of generation, the statistics, and a hash of the answers."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        requests = [{"id": str(i), "prompt": [7 * i + 3 * j + 5 for j in range(16)], "max_tokens": args.tokens,
                     "temperature": 0, "ignore_eos": True} for i in range(args.sequences)]
        (folder / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests), encoding="ascii")
        flags = [word for mirror in mirrors for word in ("--model-mirror", mirror)]
        penstock_program.succeeded(program.finish(
            "run", "--model", model, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--stats",
            folder / "stats.json", "--quiet", "--memory", args.memory, "--batch-size", args.sequences, *flags, *args.flag))
        stats = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
        answers = (folder / "out.jsonl").read_bytes()
        seconds = stats["seconds"]["prefill"] + stats["seconds"]["decode"]
        return stats["bytes"]["disk_to_dram"] / seconds, stats, hashlib.sha256(answers).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a packed store, or a model folder")
    parser.add_argument("--mirror", help="what the second disk has in place of a whole copy (penstock mirror)")
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--folder", default="/var/tmp", help="has room for two copies of the model")
    parser.add_argument("--rates", default="300,100", help="MB/s of the two disks")
    parser.add_argument("--memory", required=True, help="so little that experts stream")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="another flag of penstock run")
    args = parser.parse_args()
    rates = [float(rate) * 1e6 for rate in args.rates.split(",")]
    num_bytes = sum(file.stat().st_size for file in pathlib.Path(args.model).rglob("*") if file.is_file())
    group = GROUPS / f"penstock-{os.getpid()}"
    folder = pathlib.Path(tempfile.mkdtemp(dir=args.folder))
    disks = []
    group.mkdir()
    try:
        for name, rate in zip(("a", "b"), rates, strict=True):
            disks.append(Disk(folder, name, num_bytes * 11 // 10 + 64 * MIB, rate))
            source = args.mirror if name == "b" and args.mirror else args.model
            command("cp", "-r", "--sparse=always", source, disks[-1].root / "model")
            with open(group / "blkio.throttle.read_bps_device", "w", encoding="ascii") as file:
                file.write(f"{disks[-1].number()} {int(rate)}\n")
        command("sync")
        program = ThrottledProgram(args.penstock, group)
        models = [disk.root / "model" for disk in disks]
        ways = {"a": (models[0], []), "a and b": (models[0], [models[1]])}
        if not args.mirror:
            ways["b"] = (models[1], [])
        found = {way: [] for way in ways}
        hashes = set()
        for _ in range(args.rounds):
            for way, (model, mirrors) in ways.items():
                rate, stats, digest = measure(program, model, mirrors, args)
                found[way].append(rate)
                hashes.add(digest)
                shares = [round(one["bytes"] / MIB) for one in stats["directories"] or []]
                print(f"{way:8} {rate / 1e6:7.1f} MB/s  MiB by disk {shares}  {digest[:16]}", flush=True)
        both = statistics.median(found["a and b"])
        alone = sum(statistics.median(found[way]) for way in ways if way != "a and b")
        if not args.mirror:
            print(f"both: {both / 1e6:.1f} MB/s, {both / alone:.3f} of the sum of each alone; {len(hashes)} hash(es)")
        return 0 if len(hashes) == 1 else 1
    finally:
        for disk in disks:
            disk.close()
        shutil.rmtree(folder, ignore_errors=True)
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
