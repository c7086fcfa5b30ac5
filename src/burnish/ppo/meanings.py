"""Every number of a step: what it means, what is healthy, what is a red flag. docs/metrics.md is made from this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    meaning: str
    healthy: str
    red_flag: str


METRICS: dict[str, Metric] = {
    "step": Metric("Number of the PPO step, from 1.", "-", "-"),
    "reward": Metric(
        "Mean score of the step's responses, without KL or penalties (per-token rewards: their sum).",
        "rises, with noise from step to step",
        "flat after 10 steps: the learning rate is too low, or the reward hardly differs between responses",
    ),
    "reward_parts": Metric(
        "Mean score of each part of the reward, by name, before its weight.",
        "the parts you care about rise",
        "one part rises at the cost of the others: change the weights",
    ),
    "left_out": Metric(
        "Responses that the reward could not score, asked again and alone; they are not trained on.",
        "0",
        "above 0: look at the warnings, and at the reward with `burnish reward-test`",
    ),
    "reward_costs": Metric(
        "What the parts of the reward that cost something have cost in this step: calls to a judge, and tokens as its "
        "service counts them. Answers that were kept cost nothing.",
        "calls: one to a response, two where answers are compared",
        "-",
    ),
    "reward_std": Metric(
        "Standard deviation of the scores within the step.", "clearly above 0", "near 0: nothing to tell apart"
    ),
    "flat_groups": Metric(
        "Share of the step's prompts whose responses all earned the same; there is nothing to learn from them.",
        "below half",
        "near 1: the prompts are too easy or too hard, or the reward hardly differs between responses",
    ),
    "group_explained": Metric(
        "How much of the scores' variance the mean of the prompt's other responses predicts: what comparing responses "
        "to the same prompt is worth beside comparing them with the whole batch.",
        "0.2-0.8, and well above `explained_variance` where a value model has learned little",
        "below 0: prompts hardly differ in what they earn, so the comparison only adds noise; use more responses to "
        "a prompt, or `recipe: reinforce++`",
    ),
    "kl": Metric(
        "KL of the policy to the reference per response in nats: at each token the exact KL of the distribution that "
        "was sampled from to the reference's whole distribution, summed over the response, then the mean over them.",
        "grows slowly from its start (0, or with top-k and top-p what they cut off: -log of the mass they keep, a "
        "token); 1-15 above that",
        "far above 20: the text is leaving the reference, look at the samples",
    ),
    "kl_coef": Metric("Price of one nat in this step.", "constant, or drifting with a target", "rises without end"),
    "entropy": Metric(
        "Mean entropy per token of the distribution that was sampled from, in nats.",
        "falls slowly",
        "near 0: the policy always says the same thing; raise kl_coef, lower the learning rate",
    ),
    "response_tokens": Metric("Mean number of generated tokens.", "steady", "drifts to 1 or to max_new_tokens"),
    "finished": Metric(
        "Share of responses that ended in a stop token.", "rises or steady", "near 0: raise max_new_tokens"
    ),
    "value": Metric("Mean predicted value.", "follows `returns`", "far from `returns`"),
    "returns": Metric("Mean value target.", "rises with the reward", "falls while the reward rises: KL costs too much"),
    "tether_weight": Metric(
        "Share of the value model in the baseline that rewards are compared with (baseline: tether).",
        "rises from 0 as the value model learns",
        "stays near 0: the value model explains nothing that the other responses do not",
    ),
    "advantage_mean": Metric(
        "Mean advantage of all tokens before whitening, which subtracts it: tokens above it are made more likely.",
        "near 0 once the value model has learned",
        "far from 0 for long: the values are off, see `explained_variance`",
    ),
    "advantage_std": Metric("Spread of the advantages before whitening.", "above 0", "near 0: no credit to assign"),
    "explained_variance": Metric(
        "How much of the returns' variance the values predicted before this step's update.",
        "rises towards 0.3-0.9",
        "below 0 after 10 steps: the critic misleads; use value_warmup_steps or a higher value_learning_rate",
    ),
    "policy_loss": Metric(
        "Mean PPO-clip loss over the step's updates, with the KL where `kl_in` charges it there. 0 in warm-up steps.",
        "small, around 0",
        "its size says little; look at `reward`",
    ),
    "value_loss": Metric("Mean of half the squared error to the returns.", "falls", "grows for many steps"),
    "ratio": Metric("Mean probability ratio new / old over the updates.", "0.95-1.05", "outside 0.8-1.2"),
    "first_ratio_error": Metric(
        "Largest distance of a ratio from 1 before the first update: how well training reproduces sampling.",
        "below 1e-4 in float32, about 0.1 in bfloat16",
        "grows; the run stops if ratios are off by 1e-4 on average (bfloat16: 0.12, float16: 0.015)",
    ),
    "sampler_gap": Metric(
        "In half precision, or with rollouts from a server: mean distance of a token's log-probability as the sampler "
        "and as a training pass have it. Updates use the training pass's.",
        "about 0.03 in bfloat16, 0.003 in float16, below 1e-4 from a server in float32",
        "grows: the two drift apart; the run stops at 0.2 and 0.03 (a server in float32: 0.01), or at "
        "`rollout.max_gap`",
    ),
    "weight_cut": Metric(
        "With rollouts from a server: share of tokens whose weight, training's probability over the server's, was "
        "bounded (`rollout.correction`).",
        "below 0.01",
        "above 0.1: server and training differ too much; look at `sampler_gap`",
    ),
    "clip_fraction": Metric(
        "Share of tokens whose ratio left the clip range.", "0.02-0.3", "above 0.5: lower learning_rate or epochs"
    ),
    "approx_kl": Metric(
        "How far the updates moved the policy within the step.", "0.001-0.05", "above 0.1: lower learning_rate"
    ),
    "policy_grad_norm": Metric(
        "Gradient norm of the policy before clipping.", "steady", "jumps by 10x: an unstable update"
    ),
    "value_grad_norm": Metric("Gradient norm of the value model before clipping.", "steady", "jumps by 10x"),
    "value_clip_fraction": Metric(
        "Share of values outside the value clip.", "below 0.5", "near 1 for long: raise value_clip"
    ),
    "learning_rate": Metric("The policy's learning rate in this step.", "as scheduled", "-"),
    "policy_updates": Metric("Optimizer steps of the policy so far.", "grows by epochs x mini-batches", "stands still"),
    "value_updates": Metric("Optimizer steps of the value model so far.", "likewise", "stands still"),
    "buffer_mb": Metric("Memory of the experience: table and shared context.", "steady", "grows"),
    "seconds": Metric("Wall clock of the step.", "steady", "grows"),
    "seconds_generate_sequences": Metric("... of the rollout and the reference.", "-", "-"),
    "seconds_compute_rewards": Metric("... of the reward.", "small", "dominates: a slow reward function"),
    "seconds_add_values_to_sa_pairs": Metric("... of the value predictions.", "-", "-"),
    "seconds_train_value_model": Metric("... of the value updates.", "-", "-"),
    "seconds_train_policy_model": Metric("... of the policy updates.", "-", "-"),
    "seconds_by_process": Metric(
        "With several processes: the seconds that each of them worked, without waiting.",
        "alike",
        "one is much slower than the others: they all wait for it",
    ),
    "seconds_waited": Metric(
        "With several processes: how long a process waited for the others, sending included; the mean over them.",
        "a small part of `seconds`",
        "half of `seconds`: fewer processes, or a larger batch_size and mini_batch_size",
    ),
}
