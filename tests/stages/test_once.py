"""What a run does once: load the tokenizer, tokenize a prompt, check a reward's numbers."""

import json
from collections import Counter

import pytest
import transformers
from rich.console import Console

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import load_train_config
from burnish.config.pipeline_config import load_pipeline_config
from burnish.ppo import scores
from burnish.stages.pipeline import run_pipeline
from burnish.stages.stage import STAGES
from failures import PIPELINE, make_workplace


@pytest.fixture
def counted(monkeypatch):
    """How often tokenizers were loaded, prompts tokenized and rewards checked."""
    found: dict[str, Counter] = {name: Counter() for name in ("tokenizers", "prompts", "references", "numbers")}
    load, tokens_of, check = (
        transformers.AutoTokenizer.from_pretrained,
        PromptEncoder._tokens_of,
        scores.finite_number,
    )
    tokenize = transformers.PreTrainedTokenizerBase.__call__

    def loading(name, *rest, **more):
        found["tokenizers"][str(name)] += 1
        return load(name, *rest, **more)

    def tokenizing(self, prompt):
        found["prompts"][str(prompt)] += 1
        return tokens_of(self, prompt)

    def reading(self, text, *rest, **more):
        if str(text).startswith("Reference answer: "):
            found["references"][text] += 1
        return tokenize(self, text, *rest, **more)

    def checking(value, what):
        found["numbers"]["checked"] += 1
        return check(value, what)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", loading)
    monkeypatch.setattr(PromptEncoder, "_tokens_of", tokenizing)
    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", reading)
    monkeypatch.setattr(scores, "finite_number", checking)
    return found


def test_a_run_reads_each_prompt_and_reference_once(tmp_path, counted):
    folder = make_workplace(tmp_path)
    rows = [{"prompt": f"number {n}:", "reference": f"answer {n}"} for n in range(14)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = ["steps=3", "best_of=1", "value_reads_reference=true"]
    config = load_train_config(folder / "config.yaml", [f"run_dir={folder / 'runs'}", *settings])
    stage = STAGES["ppo"]
    data = stage.load(config)
    stage.work(config, data, Console(quiet=True))
    assert sum(counted["tokenizers"].values()) == 1
    assert set(counted["prompts"]) == {str(prompt) for prompt in data.everything}
    assert set(counted["prompts"].values()) == {1}
    assert len(counted["references"]) == len(data.train)
    assert set(counted["references"].values()) == {1}
    held_out = 2 * len(data.held_out)  # before and after
    assert counted["numbers"]["checked"] == 2 + 3 * config.batch_size + held_out  # two of them to try the reward out


def test_a_pipeline_loads_one_tokenizer(tmp_path, counted):
    folder = make_workplace(tmp_path)
    rows = [{"prompt": f"number {n}:", "completion": "yes", "chosen": "yes", "rejected": "no"} for n in range(12)]
    for name in ("demonstrations", "preferences"):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pipeline.yaml").write_text(PIPELINE)
    config = load_pipeline_config(folder / "pipeline.yaml", [f"run_dir={folder / 'runs'}", "run_name=once"])
    run_pipeline(config, Console(quiet=True))
    assert sum(counted["tokenizers"].values()) == 1
    assert max(counted["prompts"].values()) <= len(config.stages)  # each stage has an encoder of its own
