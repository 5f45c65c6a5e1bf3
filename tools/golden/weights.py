#!/usr/bin/env python3
"""Random weights from a seed: the recipes of golden models (weights.json), and the files that they stand for.

    weights.py check tests/golden                     compares each recipe's hashes with the files made from it
    weights.py make tests/golden/VARIANT FOLDER       writes a variant's model folder, all but its GGUF files
    weights.py vectors > tests/testing/random_weights.json    what tests/testing/random_weights_test.cc compares with

src/penstock/testing/golden/ does the same in C++; both must give the same bytes. A weight is a function of the seed, the
tensor's name and the element's index:

    key = XXH3-64(name, seed)
    bits = the SplitMix64 finaliser of key + (index + 1) * 0x9E3779B97F4A7C15
    z = the sum of the four 16-bit parts of bits, minus 131070            about normal, standard deviation 37837.2
    weight = (z * step + mean) / 2^40, in integers until here

rounded to f32, then to the tensor's type, both to nearest, ties to even. The recipe gives mean and standard deviation in
millionths; step = std * 2^40 / (37837 * 10^6) and mean * 2^40 / 10^6, rounded down.
"""

import argparse
import itertools
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import xxhash

GENERATOR = 1    # version; a recipe names the one that made it
RECIPE = "weights.json"
SIZES = {"F32": 4, "F16": 2, "BF16": 2}
MILLION = 10**6
RANGE = re.compile(r"\{(\d+)-(\d+)\}")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def mix(x):
    """SplitMix64's finaliser of u64 values."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_floats(seed, name, count, mean, std):
    """The f32 weights [count] of a tensor; mean and std in millionths."""
    key = xxhash.xxh3_64_intdigest(name.encode(), seed)
    with np.errstate(over="ignore"):
        bits = mix(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    z = sum(((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)) - 131070
    values = z * (std * 2**40 // (37837 * MILLION)) + mean * 2**40 // MILLION
    assert count == 0 or np.abs(values).max() < 2**53    # exact as f64
    return (values.astype(np.float64) * 2.0**-40).astype(np.float32)


def rounded(values, dtype):
    """The bytes of f32 values as `dtype`."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return ((bits + to_even) >> np.uint32(16)).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def tensor_bytes(seed, tensor):
    count = int(np.prod(tensor["shape"]))
    return rounded(random_floats(seed, tensor["name"], count, tensor.get("mean", 0), tensor["std"]), tensor["dtype"])


def safetensors_bytes(seed, tensors):
    """A safetensors file of these tensors, in this order."""
    header, data = {"__metadata__": {"format": "pt"}}, []
    end = 0
    for tensor in tensors:
        data.append(tensor_bytes(seed, tensor))
        header[tensor["name"]] = {"dtype": tensor["dtype"], "shape": tensor["shape"],
                                  "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)


# Patterns: "layers.{0-2}.experts.{0-7}.w1" stands for 24 names; the number of the last range changes fastest.

def expand(pattern):
    parts = RANGE.split(pattern)
    ranges = [range(int(first), int(last) + 1) for first, last in zip(parts[1::3], parts[2::3], strict=True)]
    for numbers in itertools.product(*ranges):
        yield parts[0] + "".join(str(number) + text for number, text in zip(numbers, parts[3::3], strict=True))


def ranges_of(tuples):
    """Ranges whose products are these tuples of numbers, which are sorted: [((first, last), ...), ...]."""
    if tuples == [()]:
        return [()]
    rest = {}
    for first, *others in tuples:
        rest.setdefault(first, []).append(tuple(others))
    rest = {first: ranges_of(others) for first, others in rest.items()}
    result = []
    for _, run in itertools.groupby(enumerate(rest), key=lambda item: (item[1] - item[0], rest[item[1]])):
        numbers = [number for _, number in run]
        result += [((numbers[0], numbers[-1]), *others) for others in rest[numbers[0]]]
    return result


def patterns(names):
    """Patterns that stand for these names, each once, in an order of their own."""
    by_text = {}
    for name in names:
        by_text.setdefault(NUMBER.sub("{}", name), []).append(tuple(map(int, NUMBER.findall(name))))
    for text, tuples in sorted(by_text.items()):
        for ranges in ranges_of(sorted(tuples)):
            yield text.format(*(str(first) if first == last else f"{{{first}-{last}}}" for first, last in ranges))


# Recipes

def compact(tensors):
    """The tensors as a recipe has them: equal ones by pattern."""
    alike = {}
    for tensor in tensors:
        alike.setdefault(json.dumps({key: tensor[key] for key in tensor if key != "name"}), []).append(tensor["name"])
    entries = [dict(name=pattern, **json.loads(others)) for others, names in alike.items() for pattern in patterns(names)]
    return sorted(entries, key=lambda entry: entry["name"])


def tensors_of(file):
    """The tensors of a file of a recipe, as it has them one after the other."""
    return [dict(entry, name=name) for entry in file["tensors"] for name in expand(entry["name"])]


def write_recipe(folder, seed, files):
    """files: {name: file}. A line for each tensor."""
    text = []
    for name, file in files.items():
        lines = ",\n      ".join(json.dumps(entry) for entry in file["tensors"])
        fields = "".join(f'      "{key}": {json.dumps(file[key])},\n' for key in file if key != "tensors")
        text.append(f'    "{name}": {{\n{fields}      "tensors": [\n      {lines}\n    ]}}')
    (folder / RECIPE).write_text(
        f'{{\n  "generator": {GENERATOR},\n  "seed": {seed},\n  "files": {{\n' + ",\n".join(text) + "\n  }\n}\n")


def read_recipe(folder):
    recipe = json.loads((folder / RECIPE).read_text())
    assert recipe["generator"] == GENERATOR
    return recipe


def write_files(folder, seed, files):
    """files: {name: tensors}. Writes them, and the recipe."""
    recipe = {}
    for name, tensors in files.items():
        entries = compact(tensors)
        data = safetensors_bytes(seed, tensors_of({"tensors": entries}))
        (folder / name).write_bytes(data)
        recipe[name] = {"xxh3": xxhash.xxh3_64_hexdigest(data), "tensors": entries}
    write_recipe(folder, seed, recipe)


# (Pattern, mean, standard deviation, gain): the first pattern found in a tensor's name counts. A gain stands for the
# standard deviation gain / sqrt(inputs). Norms are near 1. Biases and the router are large enough to matter. The gain
# keeps the layers in charge of the logits, not the embedding of the last token.
DISTRIBUTIONS = (
    (r"post_feedforward_layernorm\.weight$", 3.0, 0.6, None),    # Gemma 4 multiplies its embedding by sqrt(inputs)
    (r"norm\w*\.weight$", 1.0, 0.2, None),
    (r"moe_statics|mlp\.router\.e_score", 0.0, 0.03, None),    # of softmax scores
    (r"correction_bias$|expert_bias$", 0.0, 0.1, None),
    (r"bias$|\.sinks$|softmax_offset$", 0.0, 0.3, None),
    (r"embed_tokens|wte", 0.0, 0.4, None),
    (r"layer_scalar$|router\.scale$|per_expert_scale$", 1.0, 0.2, None),
    (r"router\.proj", 0.0, None, 12.0),    # Gemma 4 divides its logits by sqrt(inputs)
    (r"\.gate\.weight$|router", 0.0, None, 2.0),
    (r"", 0.0, None, 1.5),
)


def recipe_of(name, shape, dtype, scale=1.0):
    """A tensor of a recipe; `scale` multiplies weights that are not near 1."""
    mean, std, gain = next(rest for pattern, *rest in DISTRIBUTIONS if re.search(pattern, name))
    std = (std or gain / shape[-1] ** 0.5) * (1.0 if mean else scale)
    tensor = dict(name=name, dtype=dtype, shape=list(shape), std=round(std * MILLION))
    return dict(tensor, mean=round(mean * MILLION)) if mean else tensor


def randomize(folder, seed, scale=1.0):
    """Gives the tensors of a model folder's files random values (recipe_of()), and the folder their recipe."""
    files = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        files[path.name] = [recipe_of(name, tensor["shape"], tensor["dtype"], scale) for name, tensor in header.items()]
    write_files(folder, seed, files)


def keep(folder, target):
    """Copies what the repository keeps of a variant's folder: not the weights that a recipe stands for."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    has_recipe = (folder / RECIPE).exists()
    for path in folder.iterdir():
        if not (has_recipe and path.match("model*.safetensors")):
            shutil.copyfile(path, target / path.name)


def make_folder(source, target):
    """Writes the model folder that `source` has the recipe of; what its GGUF files hold is not made here."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    recipe = read_recipe(source)
    for name, file in recipe["files"].items():
        if "header" in file:
            continue
        data = safetensors_bytes(recipe["seed"], tensors_of(file))
        if xxhash.xxh3_64_hexdigest(data) != file["xxh3"]:
            raise SystemExit(f"{source}: {name} has other bytes than when the recipe was written")
        (target / name).write_bytes(data)


def vectors():
    cases = []
    for seed, name, dtype, mean, std in (
            (1, "lm_head.weight", "F32", 0, 265165), (2, "lm_head.weight", "F32", 0, 265165),
            (1, "model.norm.weight", "F32", MILLION, 200000), (1, "x", "F32", -7, 1), (2**64 - 1, "", "F32", 3, 3 * MILLION),
            (1, "lm_head.weight", "BF16", 0, 265165), (1, "model.norm.weight", "BF16", MILLION, 200000),
            (1, "lm_head.weight", "F16", 0, 265165), (1, "model.norm.weight", "F16", MILLION, 200000),
            (1, "small", "F16", 0, 3)):
        data = tensor_bytes(seed, dict(name=name, shape=[12], dtype=dtype, mean=mean, std=std))
        long = tensor_bytes(seed, dict(name=name, shape=[100, 50], dtype=dtype, mean=mean, std=std))
        cases.append(dict(seed=str(seed), name=name, dtype=dtype, mean=mean, std=std, first_12=data.hex(),
                          xxh3_of_5000=xxhash.xxh3_64_hexdigest(long)))
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


def main():
    parser = argparse.ArgumentParser(description="Make and check golden models' random weights.")
    parser.add_argument("what", choices=("check", "make", "vectors"))
    parser.add_argument("folders", nargs="*", type=Path)
    args = parser.parse_args()
    if args.what == "vectors":
        vectors()
    elif args.what == "make":
        make_folder(*args.folders)
    else:
        recipes = sorted(args.folders[0].glob(f"*/{RECIPE}"))
        for path in recipes:
            with tempfile.TemporaryDirectory() as folder:
                make_folder(path.parent, Path(folder))
        print(f"{len(recipes)} recipes agree", file=sys.stderr)


if __name__ == "__main__":
    main()
