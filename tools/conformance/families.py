"""tokenizer.json files of model families: published vocabularies where the data folder has them, and otherwise a family's
normalizer, patterns and decoder on another vocabulary."""

import base64
import json

WORDS = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORDS}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{LINES}"
QWEN35 = (rf"{CONTRACTIONS}|{WORDS}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}")
O200K = (rf"{WORDS}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORDS}{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}"
         rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}")
TEKKEN = (rf"{WORDS}{UPPER}*{LOWER}+|{WORDS}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}")
SPACE = "\u2581"


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def byte_level(model, patterns, normalizer=None, ignore_merges=False, added=()):
    """Returns a tokenizer.json whose words are split by the patterns and spelled in the alphabet of bytes."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "added_tokens": list(added), "normalizer": normalizer,
            "pre_tokenizer": sequence("pretokenizers", *map(split, patterns), level), "post_processor": None,
            "decoder": level, "model": {**model, "ignore_merges": ignore_merges}}


def spaces_replaced(model, pre_tokenizer=None):
    """Returns a tokenizer.json that writes spaces as U+2581, without one before the text, and falls back to bytes."""
    return {"version": "1.0", "added_tokens": [], "normalizer": replace(" ", SPACE), "pre_tokenizer": pre_tokenizer,
            "post_processor": None, "decoder": sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"},
                                                        {"type": "Fuse"}), "model": model}


def bpe(vocab, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **options}


def byte_alphabet():
    """Returns GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def bpe_of_ranks(ranks):
    """Returns the model that transformers makes of tiktoken's ranks: each way to split a token becomes a merge."""
    alphabet = byte_alphabet()

    def spelled(token):
        return "".join(alphabet[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        parts = [(ranks[left], ranks[right], left, right) for left, right in parts if left in ranks and right in ranks]
        merges += [[spelled(left), spelled(right)] for _, _, left, right in sorted(parts)]
    return bpe({spelled(token): rank for token, rank in ranks.items()}, merges)


def bpe_of_gguf(fields, **options):
    """Returns the model of a GGUF file's tokenizer.ggml.* keys."""
    merges = []
    for merge in fields["merges"]:
        space = merge.index(" ", 1)
        merges.append([merge[:space], merge[space + 1:]])
    return bpe({token: i for i, token in enumerate(fields["tokens"])}, merges, **options)


def added_of_gguf(fields):
    return [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": fields["token_type"][i] == 3}
            for i, token in enumerate(fields["tokens"]) if fields["token_type"][i] in (3, 4)]


def cases(root, dump):
    """Yields (name, tokenizer.json as a dictionary, or None, what is missing).

    dump(path) returns the tokenizer.ggml.* keys of a GGUF file.
    """
    olmoe = json.loads((root / "olmoe/tokenizer.json").read_text(encoding="utf-8"))["model"]
    mixtral = json.loads((root / "mixtral_hf/tokenizer.json").read_text(encoding="utf-8"))["model"]
    nfc = {"type": "NFC"}

    def published(name, path, make):
        return (name, make(path), "") if path.exists() else (name, None, f"{path.relative_to(root)} is missing")

    def qwen35(path):
        fields = dump(path)
        return byte_level(bpe_of_gguf(fields), [QWEN35], nfc, added=added_of_gguf(fields))

    def gemma4(path):
        fields = dump(path)
        words = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        model = bpe_of_gguf(fields, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        return {**spaces_replaced(model, words), "added_tokens": added_of_gguf(fields)}

    def llama4(path):
        lines = (line.split() for line in path.read_bytes().splitlines() if line)
        return byte_level(bpe_of_ranks({base64.b64decode(token): int(rank) for token, rank in lines}), [O200K],
                          ignore_merges=True)

    def tekken(path):
        file = json.loads(path.read_text(encoding="utf-8"))
        num_ranks = file["config"]["default_vocab_size"] - file["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in file["vocab"][:num_ranks]}
        return byte_level(bpe_of_ranks(ranks), [file["config"]["pattern"]], ignore_merges=True)

    yield published("Qwen3.5", root / "llama_cpp_vocab/ggml-vocab-qwen35.gguf", qwen35)
    yield published("Gemma 4", root / "llama_cpp_vocab/ggml-vocab-gemma-4.gguf", gemma4)
    yield published("DeepSeek-V3.2 (V4's vocabulary)", root / "deepseek_v4/tokenizer.json",
                    lambda path: json.loads(path.read_text(encoding="utf-8")))
    yield published("Llama 4", root / "llama4/tokenizer.model", llama4)
    yield published("Mistral Small 4 (tekken)", root / "tekken/tekken_240911.json", tekken)
    yield "gpt-oss and MiniMax-M2: parts", byte_level(olmoe, [O200K]), ""
    yield "GLM-5 and LFM2: parts", byte_level(olmoe, [LLAMA3], ignore_merges=True), ""
    yield "Granite 4: parts", byte_level(olmoe, [LLAMA3]), ""
    yield "Nemotron-3: parts", byte_level(olmoe, [TEKKEN], ignore_merges=True), ""
    yield "Qwen3-Next, VL and Omni: parts", byte_level(olmoe, [LLAMA3.replace("{1,3}", "")], nfc), ""
    yield "ERNIE 4.5: parts", spaces_replaced(mixtral), ""
