"""lm-evaluation-harness gets the values of a job and of its own Hugging Face model. Skipped without the harness."""
import json
import os

import common
import pytest

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from penstock.lm_eval import PenstockLM  # noqa: E402

CHOICE = """task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc}
  - {metric: acc_norm}
"""
ROLLING = """task: tiny_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{story}}"
metric_list:
  - {metric: word_perplexity}
"""
UNTIL = """task: tiny_until
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{story}}"
generation_kwargs: {until: ["."], max_gen_toks: 100, do_sample: false}
metric_list:
  - {metric: exact_match}
"""
DOCS = [
    {"question": "She looked at the", "choices": ["sea", "mountain and the river", "king"], "answer": 0,
     "story": "Once upon a time there was a fox. It went over the hills until it found one old house."},
    {"question": "Once upon a", "choices": ["time", "house"], "answer": 0, "story": "The sea was cold and dark."},
    {"question": "The old man and the ", "choices": ["dog", "very small bird"], "answer": 1, "story": "Nobody knew why."},
]


@pytest.fixture(scope="module")
def model():
    return PenstockLM(str(common.MODEL), common.MEMORY)


@pytest.fixture
def tasks(tmp_path):
    data = tmp_path / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS), encoding="utf-8")
    for name, text in (("choice", CHOICE), ("rolling", ROLLING), ("until", UNTIL)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("DATA", str(data)), encoding="utf-8")
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def evaluate(model, tasks, **kwargs):
    found = simple_evaluate(model, tasks=["tiny_choice", "tiny_rolling", "tiny_until"], task_manager=tasks, **kwargs)
    return {name: [sample["resps"] for sample in samples] for name, samples in found["samples"].items()}, found["results"]


def pairs(documents):
    return [pair for document in documents for responses in document for pair in responses]


def test_values_are_those_of_a_job(model, tmp_path):
    lines = [{"prompt": doc["question"], "choices": [" " + choice for choice in doc["choices"]]} for doc in DOCS[:2]]
    records = common.run_job(tmp_path, lines)
    pairs = [(line["prompt"], choice) for line in lines for choice in line["choices"]]
    values = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)
    assert values == [(choice["logprob"], choice["is_greedy"]) for record in records
                      for choice in record["response"]["body"]["choices"]]


def test_chats_keep_their_tokens(model, tasks):
    text = model.apply_chat_template([{"role": "user", "content": "Say </s> twice"}])
    assert model.tok_encode(text) == model._llm.tokenize_chat([{"role": "user", "content": "Say </s> twice"}])
    responses, _ = evaluate(model, tasks, apply_chat_template=True)
    assert len(responses["tiny_choice"]) == len(DOCS)


def test_values_are_those_of_hugging_face(model, tasks):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    ours, our_results = evaluate(model, tasks)
    theirs, their_results = evaluate("hf", tasks, model_args=f"pretrained={common.MODEL},dtype=float32", device="cpu")
    assert ours["tiny_until"] == theirs["tiny_until"]
    for (our_value, our_greedy), (their_value, their_greedy) in zip(
            pairs(ours["tiny_choice"]), pairs(theirs["tiny_choice"]), strict=True):
        assert abs(our_value - their_value) < 1e-4 and our_greedy == their_greedy
    for (our_value,), (their_value,) in zip(ours["tiny_rolling"], theirs["tiny_rolling"], strict=True):
        assert abs(our_value[0] - their_value[0]) < 1e-4
    assert our_results["tiny_choice"]["acc,none"] == their_results["tiny_choice"]["acc,none"]
