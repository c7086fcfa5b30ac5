"""`burnish benchmark`: on a tiny model, as a user runs it, and what it does with a GPU and with errors."""

import contextlib
import io
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from burnish import BurnishError, InputError
from burnish.cli.app import app
from burnish.ppo import metrics
from burnish.stages import measuring
from burnish.stages.benchmark import benchmark_config, report_file, run_benchmark, table_of
from tiny import tiny_model, tiny_tokenizer

FEW = ["batch_size=2", "max_new_tokens=4", "epochs=1", "steps=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """With room for long prompts."""
    folder = tmp_path_factory.mktemp("model") / "roomy"
    tiny_model(context=512).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def shown(config, file):
    out = io.StringIO()
    run_benchmark(Console(file=out, width=80), config, file)
    return out.getvalue()


def test_a_user_gets_a_table_and_a_file(tmp_path, capsys):
    tiny_model(context=256).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with contextlib.chdir(tmp_path):
        app(["benchmark", "--model", "model", "--output", "numbers.json", *FEW], standalone_mode=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for text in ("GFLOP/s in float32", "cpu, float32", "rollout", "scoring", "training", "tokens/s", "predicted"):
        assert text in out
    assert "No long prompts: the model reads prompts of 252 tokens at most." in out
    assert "All numbers are in numbers.json" in out
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert report["environment"]["torch"] == torch.__version__
    assert report["model"]["parameters"] == sum(p.numel() for p in tiny_model().parameters())
    assert report["settings"]["batch_size"] == 2
    short = report["shapes"][0]
    assert short["responses"] * short["new_tokens"] == 8
    for part, seconds in short["seconds"].items():
        assert 0 < seconds <= short["seconds"]["step"]
        if part != "step":
            assert short["tokens_per_second"][part] == pytest.approx(8 / seconds)
    assert short["peak_mb"] > 50
    assert short["predicted_peak_mb"] > 50
    assert 0 <= short["first_ratio_error"] < 1e-3
    assert short["sampler_gap"] is None  # float32
    assert short["waits_per_token"] is None


def test_long_prompts_are_measured_where_they_fit(model, tmp_path):
    out = shown(benchmark_config(str(model), FEW), tmp_path / "numbers.json")
    assert "long prompts" in out
    short, long = json.loads((tmp_path / "numbers.json").read_text())["shapes"]
    assert short["prompt_tokens"][1] <= 64 + 7  # and the ending that all share
    assert 200 <= long["prompt_tokens"][1] <= 400 + 7


def test_a_model_that_reads_too_little_is_refused(tmp_path):
    tiny_model(context=64).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="reads prompts of 60 tokens at most, and the benchmark's have up to 71"):
        shown(benchmark_config(str(tmp_path), FEW), tmp_path / "numbers.json")


def test_half_precision_shows_how_far_sampling_and_training_are_apart(model, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "matmul_rate", lambda *_: 1.0)  # many CPUs take seconds for it in bfloat16
    told, sampler_gap = [], metrics.sampler_gap

    def widened(pairs):
        """Some CPUs round a model this small alike in both passes, and its gap is 0."""
        told.append(sampler_gap(pairs) + 0.05)
        return told[-1]

    monkeypatch.setattr(metrics, "sampler_gap", widened)
    shown(benchmark_config(str(model), [*FEW, "dtype=bfloat16"]), tmp_path / "numbers.json")
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert report["model"]["dtype"] == "bfloat16"
    assert set(report["matmul_gflops"]) == {"float32", "bfloat16"}
    gaps = [shape["sampler_gap"] for shape in report["shapes"]]
    assert max(gaps) == max(told)
    assert 0.05 <= min(gaps) < 0.25


def test_a_failure_is_a_report_too(model, tmp_path, monkeypatch):
    def fails(shape, trainer, watch):
        raise BurnishError("ratios are off")

    monkeypatch.setattr(measuring.Shape, "measure", fails)
    with pytest.raises(BurnishError, match="ratios are off"):
        shown(benchmark_config(str(model), FEW), tmp_path / "numbers.json")
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert report["error"] == "BurnishError: ratios are off"
    assert report["model"]["layers"] == 2


@pytest.mark.parametrize("stopped_by", [InputError("no such device"), KeyboardInterrupt()], ids=["mistake", "Ctrl-C"])
def test_what_is_not_worth_sending_leaves_no_file(tmp_path, monkeypatch, stopped_by):
    def stop(config):
        raise stopped_by

    monkeypatch.setattr(measuring, "load", stop)
    with pytest.raises(type(stopped_by)):
        shown(benchmark_config(None, []), tmp_path / "numbers.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_file_can_be_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        report_file(str(tmp_path / "none" / "numbers.json"))
    with pytest.raises(InputError, match="is no file"):
        report_file(str(tmp_path))
    assert report_file(None).name.startswith("benchmark-20")


def test_large_numbers_fit_into_eighty_columns():
    parts = {"rollout": 1234.56, "scoring": 123.45, "training": 1234.56}
    shape = {
        "prompt_tokens": [200, 400],
        "responses": 1024,
        "new_tokens": 1024,
        "seconds": parts | {"step": 12345.6},
        "tokens_per_second": dict.fromkeys(parts, 123456.7),
        "peak_mb": 81920.0,
        "predicted_peak_mb": 91920.0,
        "first_ratio_error": 0.012,
        "sampler_gap": 0.012,
        "waits_per_token": 0.125,
    }
    out = io.StringIO()
    Console(file=out, width=200).print(table_of([shape | {"name": "short"}, shape | {"name": "long"}]))
    lines = out.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert lines[4].split() == ["rollout", *["1234.56", "s,", "123,457", "tokens/s"] * 2]
    assert lines[-1].split() == ["waits", "per", "token", "0.125", "0.125"]


def test_prompts_have_the_lengths_that_are_asked_for():
    tokenizer = tiny_tokenizer()  # a token is a byte, so a word has several
    sizes = [len(tokenizer(p)["input_ids"]) for p in measuring.prompts_of_length(tokenizer, (16, 64), 32)]
    assert max(sizes) <= 64
    assert min(sizes) >= 8
    assert sum(sizes) / len(sizes) == pytest.approx(40, abs=8)
    assert measuring._cut(tokenizer, "x" * 50, 10) == "x" * 10


def test_memory_on_a_gpu_is_that_of_its_tensors(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123 if device == gpu else 0)
    assert measuring.peak_of(gpu) == 123
    assert measuring.peak_of(torch.device("cpu")) > 50 * 2**20


def test_waits_for_a_gpu_are_counted_by_torchs_own_warnings(monkeypatch):
    modes, device = [], torch.device("cuda")

    def generate(policy, prompts, num_tokens, sampler, generator, stop_ids):
        for _ in range(5 + num_tokens // 8):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch, "Generator", lambda device: torch.default_generator)
    trainer = SimpleNamespace(
        base=SimpleNamespace(device=device),
        config=SimpleNamespace(max_new_tokens=32),
        setup=SimpleNamespace(encoder=SimpleNamespace(encode=lambda prompts: prompts)),
        generator=SimpleNamespace(engine=SimpleNamespace(generate=generate), sampler=None),
        policy=None,
    )
    assert measuring.waits_per_token(trainer, ["a"]) == 2 / 16  # 9 waits for 32 tokens, 7 for 16
    assert modes == ["warn", "default"] * 2
