"""Commands that ask how good a model, a reward or its credit is."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.app import AsJson, Config, PPORun, Trust, app, console, tell_json

PANEL = "Judge"


@app.command("eval", rich_help_panel=PANEL)
def evaluate(
    run: PPORun,
    best_of: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="answers of the start model to choose the best from; default: as in the config"
        ),
    ] = None,
    ask: Annotated[int, typer.Option(min=0, help="blind comparisons for you to make; kept as preferences")] = 0,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """The tuned model against its start on held-out prompts: was it worth it?"""
    from burnish.errors import InputError
    from burnish.stages.evaluate import evaluate_run, told_verdict

    if ask and as_json:
        raise InputError("--ask asks in the terminal, where --json leaves no room; give one of them")
    evaluate_run(console, run, best_of, ask, trust=trust)
    if as_json:
        tell_json(told_verdict(run))


@app.command(rich_help_panel=PANEL)
def generate(
    run: Annotated[str, typer.Argument(help="folder of a PPO or SFT run", metavar="RUN")],
    prompts: Annotated[
        list[str], typer.Argument(help="prompts, as in training (a chat template is added if it was on)")
    ],
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer; default: as in training")] = None,
    sample: Annotated[bool, typer.Option(help="draw with the run's temperature, top-k and top-p")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="for --sample")] = 0,
    step: Annotated[int | None, typer.Option(min=1, help="a checkpoint's answers too (burnish checkpoints)")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """The start model's answers beside the tuned model's: the most likely ones, or drawn ones with --sample."""
    from burnish.runs.run import Run
    from burnish.show.terminal import starting

    Run.open(run)  # one that does not exist is reported at once
    with starting(console):
        from burnish.stages.generate import generate_beside_start

    answers = generate_beside_start(console, run, prompts, max_new_tokens, sample, seed, trust, step)
    if as_json:
        tell_json({"run": run, "answers": answers})


@app.command(rich_help_panel=PANEL)
def credit(
    run: PPORun,
    prompts: Annotated[int, typer.Option(min=2, help="held-out prompts, one response each")] = 16,
    positions: Annotated[int, typer.Option(min=1, help="tokens of each response")] = 4,
    continuations: Annotated[int, typer.Option(min=2, help="from the state before and after each of them")] = 16,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """How far the credit of tokens may be trusted: against what continuations from each state really earn."""
    from burnish.show.terminal import starting
    from burnish.stages.evaluate import held_out_of

    held_out = held_out_of(console, run, trust)
    with starting(console):
        from burnish.stages.credit import measure_run

    found = measure_run(console, held_out, prompts, positions, continuations)
    if as_json:
        tell_json({"run": run} | found.as_dict())


@app.command("reward-test", rich_help_panel=PANEL)
def reward_test(
    config: Config,
    prompt: Annotated[str, typer.Argument(help="a prompt")],
    response: Annotated[str, typer.Argument(help="an answer to it")],
    reference: Annotated[
        str | None, typer.Option(help="the right answer, for rules that compare (rouge_l, exact_number)")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """What each part of a config's reward thinks of one answer."""
    from burnish.config import load_train_config
    from burnish.stages.reward_test import check_trust, show_reward

    settings = load_train_config(config)
    check_trust(console, config, settings, trust)
    scored = show_reward(console, settings, prompt, response, reference)
    if as_json:
        tell_json(scored)
