#!/usr/bin/env python3
"""Evaluates the demo model with lm-eval through the server, on small tasks in the style of GSM8K, MMLU and HellaSwag.

Log-likelihoods must be those of `penstock run` with choices, for texts and for tokens, one at a time and in batches. Answers
must be those of `penstock run`.

Usage: lm_eval_server.py --penstock PROGRAM
"""
import argparse
import json
import os
import pathlib
import tempfile

import environment

environment.enter()
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
                  OPENAI_API_KEY="x", HF_HUB_DISABLE_TELEMETRY="1")

import service  # noqa: E402

MAX_DIFFERENCE = 1e-4

SCHOOL = [
    ("A cat is an animal that says", ["meow", "moo", "quack", "woof"], 0),
    ("The colour of the sky on a fine day is", ["green", "blue", "black", "red"], 1),
    ("A king lives in a", ["castle", "shoe", "pond", "nest"], 0),
    ("Water that is very cold becomes", ["smoke", "bread", "ice", "gold"], 2),
    ("The opposite of day is", ["week", "noon", "hour", "night"], 3),
    ("A bird has two", ["horns", "wheels", "wings", "tails"], 2),
]
STORIES = [
    ("Once upon a time there was an old woman who", ["lived in a little house in the wood.",
                                                     "the the of and, to.", "blue seven quickly under.",
                                                     "had a son, and he was very poor."], 0),
    ("The fox looked up at the grapes and", ["said that they were sour.", "grapes grapes of, said.",
                                             "the up looked at.", "went to the king's house."], 0),
    ("The prince took the princess by the hand,", ["and they went to the castle.", "hand castle of it.",
                                                   "for was not but.", "and asked her to dance with him."], 3),
]
SUMS = [("Tom has 2 apples and gets 3 more. How many apples has he?", "5"), ("What is 4 plus 4?", "8"),
        ("A hen lays 1 egg on each of 3 days. How many eggs are there?", "3")]

TASKS = {
    "tiny_school": ("multiple_choice", """
doc_to_text: "{{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}\\nD. {{choices[3]}}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: label
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""),
    "tiny_stories": ("multiple_choice", """
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""),
    "tiny_sums": ("generate_until", """
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:", ". "], max_gen_toks: 24, do_sample: false, temperature: 0}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
"""),
}


def write_tasks(folder):
    rows = {"tiny_school": [{"question": q, "choices": c, "label": n} for q, c, n in SCHOOL],
            "tiny_stories": [{"question": q, "choices": c, "label": n} for q, c, n in STORIES],
            "tiny_sums": [{"question": q, "answer": a} for q, a in SUMS]}
    for name, (kind, text) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\noutput_type: {kind}\n"
            f"test_split: test\n{text}", encoding="utf-8")


def text_model():
    """Returns the name of lm-eval's model that sends texts, without the text of the first special token.

    lm-eval would send "<s>", which the server takes for three letters, as it takes all that users write for text.
    """
    from lm_eval.api.registry import register_model
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    @register_model("texts-without-bos")
    class Texts(LocalCompletionsAPI):
        def decode_batch(self, tokens):
            return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)

    return "texts-without-bos"


def evaluate(kind, url, tasks, folder, chat=False, **fields):
    import lm_eval
    import lm_eval.tasks

    arguments = {"model": service.NAME, "base_url": url, "max_retries": 1, "max_length": 2000, **fields}
    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=tasks, task_manager=manager, num_fewshot=0,
                                   log_samples=True, bootstrap_iters=0, apply_chat_template=chat, verbosity="ERROR")


def run_scores(penstock, folder, samples):
    """Returns the log-likelihood and whether it is greedy of each (context, continuation), by `penstock run`."""
    source, output = folder / "scored.jsonl", folder / "scores.jsonl"
    source.write_text("".join(json.dumps({"id": str(i), "prompt": context, "choices": [continuation]}) + "\n"
                              for i, (context, continuation) in enumerate(samples)), encoding="utf-8")
    penstock.run_job(service.MODEL, source, output, "--quiet")
    found = {}
    for line in output.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        choice = result["response"]["body"]["choices"][0]
        found[samples[int(result["custom_id"])]] = (choice["logprob"], choice["is_greedy"])
    output.unlink()
    return found


def check_likelihoods(results, penstock, folder):
    pairs = {}
    for task in ("tiny_school", "tiny_stories"):
        for sample in results["samples"][task]:
            for (context, continuation), ((value, greedy),) in zip(
                    [tuple(one) for one in arguments_of(sample)], sample["resps"], strict=True):
                pairs[context, continuation] = (float(value), str(greedy) == "True")
    assert len(pairs) == 4 * (len(SCHOOL) + len(STORIES)), len(pairs)
    wanted = run_scores(penstock, folder, list(pairs))
    worst = max(abs(pairs[key][0] - wanted[key][0]) for key in pairs)
    assert worst <= MAX_DIFFERENCE, f"log-likelihoods differ by {worst}"
    assert all(pairs[key][1] == wanted[key][1] for key in pairs), "is_greedy differs"
    return worst


def arguments_of(sample):
    """Returns the (context, continuation) pairs of a logged sample, whichever form this lm-eval writes."""
    arguments = sample["arguments"]
    if isinstance(arguments, dict):
        return [tuple(one[f"arg_{i}"] for i in range(2)) for _, one in sorted(arguments.items())]
    return [tuple(one[:2]) for one in arguments]


def run_answers(penstock, folder, lines):
    source, output = folder / "asked.jsonl", folder / "answers.jsonl"
    source.write_text("".join(json.dumps({"id": str(i), "temperature": 0, "max_tokens": 24, **line}) + "\n"
                              for i, line in enumerate(lines)), encoding="utf-8")
    penstock.run_job(service.MODEL, source, output, "--quiet")
    choices = {}
    for line in output.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        choice = result["response"]["body"]["choices"][0]
        choices[int(result["custom_id"])] = choice["message"]["content"] if "message" in choice else choice["text"]
    output.unlink()
    return [choices[i] for i in range(len(lines))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    penstock = service.program.Penstock(args.penstock)
    report = service.Report()
    with tempfile.TemporaryDirectory() as name, service.Server(args.penstock) as server:
        folder = pathlib.Path(name)
        os.environ["HF_HOME"] = os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        tasks = folder / "tasks"
        tasks.mkdir()
        write_tasks(tasks)
        url = f"{server.url}/v1/completions"
        tokenizer = {"tokenizer": str(service.MODEL), "tokenizer_backend": "huggingface", "add_bos_token": True}
        texts = text_model()
        for what, fields in (("tokens, one at a time", {"tokenized_requests": True}),
                             ("tokens, 8 prompts a request", {"tokenized_requests": True, "batch_size": 8}),
                             ("texts, one at a time", {"tokenized_requests": False}),
                             ("texts, 4 requests at once", {"tokenized_requests": False, "num_concurrent": 4})):
            with report.check(f"lm-eval: log-likelihoods by {what}"):
                kind = "local-completions" if fields["tokenized_requests"] else texts
                found = evaluate(kind, url, ["tiny_school", "tiny_stories"], tasks, **tokenizer, **fields)
                worst = check_likelihoods(found, penstock, folder)
                print(f"largest difference {worst:.1e}; accuracies "
                      f"{[found['results'][task]['acc,none'] for task in ('tiny_school', 'tiny_stories')]}")
        with report.check("lm-eval: answers of completions"):
            found = evaluate("local-completions", url, ["tiny_sums"], tasks, tokenizer_backend="none")
            wanted = run_answers(penstock, folder, [{"prompt": f"Question: {question}\nAnswer:",
                                                     "stop": ["Question:", ". "]} for question, _ in SUMS])
            answers = [sample["resps"][0][0] for sample in found["samples"]["tiny_sums"]]
            assert answers == wanted, (answers, wanted)
        with report.check("lm-eval: answers of chats"):
            found = evaluate("local-chat-completions", f"{server.url}/v1/chat/completions", ["tiny_sums"], tasks, chat=True)
            wanted = run_answers(penstock, folder, [{"messages": [{"role": "user",
                                                                   "content": f"Question: {question}\nAnswer:"}],
                                                     "stop": ["Question:", ". "]} for question, _ in SUMS])
            answers = [sample["resps"][0][0] for sample in found["samples"]["tiny_sums"]]
            assert answers == wanted, (answers, wanted)
    report.end()


if __name__ == "__main__":
    main()
