"""The house: a room stands on those below it, the map names every module, what computes nothing starts at once."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "burnish"
# From the ground up: a room may know those before it, and itself.
ROOMS = """errors text maths system drawing processes services data rewards config sa_pairs runs decoder base_setup
models rollout ppo evaluation supervised show export stages web serving page cli __main__""".split()
MODULES = [f for f in PACKAGE.rglob("*.py") if f.name != "__init__.py"]


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(file: Path) -> set[str]:
    """All rooms that a module imports, inside functions too; imports for type checkers alone are not run."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("burnish.")}


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_down(file):
    allowed = ROOMS[: ROOMS.index(room_of(file)) + 1]
    assert imported_rooms(file) <= {*allowed}, f"{file.relative_to(PACKAGE)} may know {', '.join(allowed)}"


def test_the_hall_is_nearly_empty():
    assert len([f for f in PACKAGE.iterdir() if f.is_file()]) <= 6
    assert {room_of(f) for f in MODULES} == set(ROOMS)


def test_readme_names_every_module():
    text = (ROOT / "README.md").read_text()
    tree = text.split("```text\nsrc/burnish/\n")[1].split("```")[0]
    rooms: dict[str, str] = {}
    for line in tree.splitlines():
        if line.startswith("  ") and line[2] != " ":
            room, _, rest = line.strip().partition(" ")
            rooms[room.rstrip("/")] = rest
        elif line.startswith("   "):
            rooms[room.rstrip("/")] += " " + line.strip()
    for file in MODULES:
        room, name = room_of(file), file.stem
        if file.parent == PACKAGE:
            assert file.name in rooms, f"README's tree lacks {file.name}"
        else:
            assert room in rooms, f"README's tree lacks {room}/"
            words = re.findall(r"\w+", rooms[room])
            assert name in words, f"README's tree lacks {name} in {room}/"
    known = {file.stem for file in MODULES} | {file.parent.name for file in MODULES}
    for room, said in rooms.items():
        for name in re.findall(r"\b[a-z]+_[a-z_]+\b", said):
            assert name in known, f"README's tree names {name} in {room}/, which is not there"


HEAVY = ("torch", "transformers", "peft", "datasets", "numpy")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["config", "lam"], 0),
        (["runs", "runs"], 0),
        (["diff", "runs/one", "runs/one"], 0),
        (["report", "runs/one"], 0),
        (["page", "none"], 2),
        (["checkpoints", "runs/one"], 0),
        (["verify", "runs/one"], 0),
        (["resume", "runs/none"], 2),
        (["eval", "runs/none"], 2),
        (["generate", "runs/none", "prompt"], 2),
        (["serve", "runs/none"], 2),
        (["chat", "runs/none"], 2),
        (["train", "none.yaml"], 2),
        (["train", "wrong.yaml"], 2),
        (["sft", "no_data.yaml"], 2),
        (["train", "no_reward.yaml"], 2),
        (["train", "no_judge.yaml"], 2),
        (["train", "done.yaml"], 0),
        (["train", "done.yaml", "kl_coef=0.5"], 2),
        (["resume", "runs/done"], 0),
        (["resume", "runs/done", "bad=1"], 2),
        (["pipeline", "no_rows.yaml"], 2),
        (["pipeline", "no_judge_pipeline.yaml"], 2),
        (["demo", "--task", "nonsense"], 2),
        (["eval", "runs/done", "--ask", "1"], 0),
        (["eval", "runs/sft"], 2),
        (["credit", "runs/sft"], 2),
        (["export", "runs/none", "--to", "adapter"], 2),
        (["export", "runs/done", "--to", "nonsense"], 2),
        (["export", "runs/done", "--to", "merged"], 2),
        (["push", "runs/done", "me/done"], 2),
        (["reward-test", "done.yaml", "a prompt", "a response"], 0),
        (["benchmark", "--output", "none/numbers.json"], 2),
        (["benchmark", "stps=1"], 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_computes_nothing_starts_without_torch(tmp_path, monkeypatch, arguments, code):
    """Nor does what can only end in a refusal."""
    from burnish.config import SFTConfig, TrainConfig, load_train_config
    from burnish.evaluation.evaluation import Evaluation
    from burnish.runs.run import Run
    from burnish.stages.evaluate import write_verdict

    monkeypatch.chdir(tmp_path)
    run = Run.new("runs", "one").begin(TrainConfig(prompts="prompts.txt"))
    run.log({"step": 1, "reward": 0.5, "kl": 0.1, "seconds": 1.0})
    Path("wrong.yaml").write_text("prompts: p.txt\nbatch_size: none\n")
    Path("prompts.txt").write_text("\n".join(f"prompt {n}" for n in range(40)))
    Path("no_reward.yaml").write_text("prompts: prompts.txt\nreward: none.py:f\n")
    Path("no_judge.yaml").write_text("prompts: prompts.txt\nreward: ./none\n")
    Path("no_data.yaml").write_text("demonstrations: none.jsonl\n")
    Path("no_rows.yaml").write_text("sft: {demonstrations: none.jsonl}\nppo: {prompts: prompts.txt}\n")
    Path("rows.jsonl").write_text("\n".join(f'{{"prompt": "{n}:", "completion": "yes"}}' for n in range(40)))
    Path("no_judge_pipeline.yaml").write_text(
        "sft: {demonstrations: rows.jsonl}\nppo: {prompts: prompts.txt, reward: none.py:f}\n"
    )
    Path("done.yaml").write_text("prompts: prompts.txt\nreward: repetition\nrun_name: done\n")
    done = Run.new("runs", "done").begin(load_train_config("done.yaml"))
    done.write("result.json", {})
    measured = {name: [1.0, 2.0] for name in ("reward", "kl", "tokens", "finished", "surprise")}
    sides = [Evaluation(["prompt 1", "prompt 2"], [text, text], **measured) for text in ("one", "two")]
    write_verdict(Console(quiet=True), done, *sides, None, 1)
    Run.new("runs", "sft").begin(SFTConfig(demonstrations="rows.jsonl"))
    script = (
        "import json, sys\nfrom burnish import cli\n"
        f"sys.argv = ['burnish', *{arguments!r}]\n"
        "code = 0\ntry:\n    cli.main()\nexcept SystemExit as end:\n    code = end.code or 0\n"
        f"print(json.dumps([code, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert json.loads(ended.stdout.splitlines()[-1]) == [code, []], ended.stderr


@pytest.mark.parametrize(
    ("start", "without"),
    [
        ("import burnish", (*HEAVY, "pydantic", "yaml", "rich", "typer", "jinja2")),
        (
            "from burnish import cli; sys.argv = ['', '--help']; cli.main()",
            (*HEAVY, "pydantic", "yaml", "jinja2"),
        ),
    ],
    ids=["import", "help"],
)
def test_the_first_word_comes_at_once(start, without):
    """Nothing is imported that is not needed yet."""
    script = f"import sys\ntry:\n    {start}\nfinally:\n    print([m for m in {without!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_names_are_offered_where_python_looks_for_them():
    import burnish

    assert set(burnish.__all__) <= set(dir(burnish))


def test_what_a_session_prints_is_short():
    from tiny import PROMPTS, tiny_trainer

    trainer = tiny_trainer()
    results = trainer.ppo_step(PROMPTS)
    assert repr(results["sa_pairs"]).startswith(f"SAPairs(8 responses, {len(results['sa_pairs'])} tokens; action, ")
    assert len(repr(results)) < 5000
    assert "reward count_vowels, step 1 of 10" in repr(trainer)
