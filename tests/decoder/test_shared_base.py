"""One base, four roles: what is shared is computed once, and is the same as computing it every time."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig

from burnish import InputError, PPOTrainer, RewardModel, SAPairBuilder, SAPairs, SharedBase
from burnish.base_setup.base_setup import BaseSetup
from burnish.decoder import attention
from burnish.ppo.reward_computer import RewardComputer
from burnish.sa_pairs.padding import left_padded
from tiny import (
    FAMILIES,
    PROMPTS,
    count_vowels,
    encoded,
    generate,
    perturb,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
)


def rollout_of(trainer, seed=0):
    sampler = trainer.generator.sampler
    return generate(trainer.policy, encoded(trainer), 10, sampler, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("block", [5, 96], ids=["several blocks", "one block"])
@pytest.mark.parametrize("family", FAMILIES)
def test_layer_walk_is_the_models_own_forward_pass(family, block, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", block)
    reference = tiny_model(family)
    base = SharedBase(tiny_model(family), tiny_tokenizer())
    ids = torch.randint(0, 256, (3, 12), generator=torch.Generator().manual_seed(0))
    from burnish.decoder.key_values import Recorder

    decoder = base.decoder
    hidden = decoder.run_layers(decoder.embed(ids), torch.ones_like(ids).bool(), Recorder(), range(2))
    ours = decoder.logits(decoder.norm(hidden).flatten(0, 1)).unflatten(0, ids.shape)
    torch.testing.assert_close(ours, reference(ids).logits, atol=1e-4, rtol=1e-4)


def test_blocks_of_queries_change_no_gradient(monkeypatch):
    gradients = []
    for block in (3, 96):
        monkeypatch.setattr(attention, "BLOCK", block)
        trainer = tiny_trainer(adapter_scope="sequence", top_k=0, top_p=1.0)
        perturb(trainer)
        context = rollout_of(trainer).context
        hidden = trainer.base.state_hidden("policy", context)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
        (hidden * weights).sum().backward()
        gradients.append([p.grad for p in trainer.policy.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("scope", ["response", "sequence"])
@pytest.mark.parametrize("lora_layers", ["all", 1, [1, 2]])
def test_shared_work_equals_a_whole_forward_pass_without_any_cache(scope, lora_layers):
    """Policy log-probabilities from prefix and trunk against one plain pass of the peft model over everything.

    In response scope the adapter must be off before the invocation: peft's own activated LoRA is the judge.
    """
    trainer = tiny_trainer(layers=3, adapter_scope=scope, lora_layers=lora_layers, top_k=0, top_p=1.0)
    perturb(trainer)
    rollout = rollout_of(trainer)
    base = trainer.base
    plain = tiny_model(layers=3)
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    theirs_config = LoraConfig(
        **{
            k: getattr(base.peft_model.peft_config["policy"], k)
            for k in ("task_type", "r", "lora_alpha", "target_modules", "layers_to_transform")
        }
    )
    if scope == "response":
        theirs_config.alora_invocation_tokens = base.invocation
    theirs = get_peft_model(plain, theirs_config)
    set_peft_model_state_dict(theirs, get_peft_model_state_dict(base.peft_model, adapter_name="policy"))
    theirs.eval()
    for row, prompt in enumerate(encoded(trainer)):
        length = int(rollout.mask[row].sum())
        response = rollout.action[row, :length].tolist()
        ids = torch.tensor([prompt + response])
        kwargs = {}
        if scope == "response":
            kwargs["alora_offsets"] = [len(base.invocation) + length]
        with torch.no_grad():
            logits = theirs(ids, **kwargs).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(1).gather(1, torch.tensor(response)[:, None]).squeeze(1)
        torch.testing.assert_close(rollout.logprob[row, :length], expected, atol=1e-4, rtol=1e-4)


def test_a_response_that_contains_the_invocation_is_scored_from_where_it_was_sampled():
    """peft looks for the last occurrence, which is in the response. Told where to begin, it agrees; left alone, not."""
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    trainer = tiny_trainer(top_k=0, top_p=1.0)
    perturb(trainer)
    (prompt, *_) = encoded(trainer)
    base = trainer.base
    response = [*trainer.base.tokenizer.encode("abc"), *base.invocation, *trainer.base.tokenizer.encode("de")]
    ours = trainer.policy.logprobs(SAPairs.of_tokens([prompt], [response]))[0]
    settings = {k: getattr(base.peft_model.peft_config["policy"], k) for k in ("r", "lora_alpha", "target_modules")}
    lora = LoraConfig(task_type="CAUSAL_LM", alora_invocation_tokens=base.invocation, **settings)
    theirs = get_peft_model(tiny_model(), lora).eval()
    set_peft_model_state_dict(theirs, get_peft_model_state_dict(base.peft_model, adapter_name="policy"))

    def logprobs(**where):
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt + response]), **where).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(1).gather(1, torch.tensor(response)[:, None]).squeeze(1)

    told = logprobs(alora_offsets=[len(base.invocation) + len(response)])
    torch.testing.assert_close(ours, told, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(ours, logprobs(), atol=1e-2)


def test_cutting_a_batch_into_rows_changes_no_logprob():
    for scope in ("response", "sequence"):
        trainer = tiny_trainer(layers=3, adapter_scope=scope, lora_layers=2)
        perturb(trainer)
        rollout = rollout_of(trainer)
        pairs = SAPairBuilder().build(rollout, trainer.policy)
        whole = trainer.policy.logprobs(pairs)
        for row in range(len(PROMPTS)):
            rows = torch.tensor([row])
            width = int(rollout.mask[row].sum())
            alone = trainer.policy.logprobs(pairs.select(rows))
            torch.testing.assert_close(alone, whole[rows, :width], atol=1e-5, rtol=0)


def test_context_built_later_equals_the_rollouts():
    trainer = tiny_trainer(layers=3, lora_layers=1)
    rollout = rollout_of(trainer)
    built = trainer.base.build_context(rollout.context.prompt_ids, rollout.context.prompt_mask, rollout.action)
    torch.testing.assert_close(built.prefix, rollout.context.prefix)
    real = rollout.mask[:, 1:]  # a token's trunk is there if another token followed: it is what that one is drawn from
    k = trainer.base.num_adapted_prompt_tokens
    torch.testing.assert_close(built.trunk[:, k:][real], rollout.context.trunk[:, k:][real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_base_and_reference_are_bit_identical_after_training(scope):
    trainer = tiny_trainer(adapter_scope=scope, learning_rate=1e-2)
    frozen = {n: p.clone() for n, p in trainer.base.model.named_parameters() if "lora_" not in n}
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    reference = trainer.sft_model.states(pairs)
    for _ in range(3):
        trainer.ppo_step(PROMPTS)
    for name, parameter in trainer.base.model.named_parameters():
        if "lora_" not in name:
            assert torch.equal(parameter, frozen[name]), name
    again = trainer.sft_model.logprobs(replace(pairs, kept=None))
    torch.testing.assert_close(again, pairs["ref_logprob"])
    assert torch.equal(trainer.sft_model.states(pairs), reference)
    moved = trainer.policy.logprobs(pairs)
    assert not torch.allclose(moved, pairs["logprob"], atol=1e-3)  # while the policy did move


def test_training_one_role_leaves_the_other_alone():
    trainer = tiny_trainer()
    pairs = trainer.ppo_step(PROMPTS)["sa_pairs"]
    value = [p.clone() for p in trainer.value_model.parameters()]
    trainer.model_trainer.train_policy_model(pairs)
    assert all(torch.equal(a, b) for a, b in zip(value, trainer.value_model.parameters(), strict=True))
    policy = [p.clone() for p in trainer.policy.parameters()]
    trainer.model_trainer.train_value_model(pairs)
    assert all(torch.equal(a, b) for a, b in zip(policy, trainer.policy.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(value, trainer.value_model.parameters(), strict=True))


def test_policy_starts_as_the_reference():
    trainer = tiny_trainer(top_k=0, top_p=1.0)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    torch.testing.assert_close(pairs["logprob"], pairs["ref_logprob"], atol=2e-5, rtol=0)


def test_value_is_read_before_the_action():
    """Changing a token must leave the value of its own state alone and change those after it."""
    trainer = tiny_trainer()
    perturb(trainer)
    rollout = rollout_of(trainer)
    pairs = replace(SAPairBuilder().build(rollout, trainer.policy), mask=torch.ones_like(rollout.mask))
    before = trainer.value_model.values(pairs)
    response = pairs.context.response
    response[:, 2] = (response[:, 2] + 1) % 256
    after = trainer.value_model.values(pairs)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3], after[:, 3], atol=1e-4).any()


@pytest.mark.parametrize(("wanted", "expected"), [("all", [0, 1, 2]), (2, [1, 2]), ([0, 2], [0, 2])])
def test_lora_layers_choose_the_layers(wanted, expected):
    trainer = tiny_trainer(layers=3, lora_layers=wanted)
    names = [n for n, p in trainer.base.model.named_parameters() if ".policy." in n]
    assert sorted({int(n.split("layers.")[1].split(".")[0]) for n in names}) == expected
    assert trainer.base.trunk_depth == expected[0]


def test_lora_target_modules_choose_the_modules():
    trainer = tiny_trainer(lora_target_modules=["q_proj", "v_proj"])
    names = [n for n, p in trainer.base.model.named_parameters() if ".policy." in n]
    assert {n.split(".lora_")[0].split(".")[-1] for n in names} == {"q_proj", "v_proj"}


def test_layers_and_modules_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="has layers 0 to 1"):
        tiny_trainer(lora_layers=5)
    with pytest.raises(InputError, match="did you mean 'q_proj'"):
        tiny_trainer(lora_target_modules=["q_prj"])


def test_what_the_model_has_positions_for_is_the_context():
    model = tiny_model("mistral", sliding_window=10, context=40)
    trainer = PPOTrainer(tiny_config(), count_vowels, model, tiny_tokenizer())
    trainer.ppo_step(["x" * 34])  # longer than the window, which is no limit
    with pytest.raises(InputError, match="context of 40 leaves room for 34"):
        trainer.ppo_step(["x" * 35])


def test_an_adopted_model_still_answers_when_called_directly():
    model, ids = tiny_model(), torch.arange(20)[None]
    padding = torch.ones(1, 20).long()
    padding[:, :5] = 0
    before = model(ids).logits, model(ids, attention_mask=padding).logits[:, 5:]
    SharedBase(model, tiny_tokenizer())
    torch.testing.assert_close(model(ids).logits, before[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(ids, attention_mask=padding).logits[:, 5:], before[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 7, 7).bool()], ids=["none", "full"])
def test_a_foreign_mask_is_not_taken_for_a_causal_one(mask, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 3)
    query, key, value = torch.randn(3, 2, 4, 7, 8, generator=torch.Generator().manual_seed(0)).unbind()
    ours, _ = attention.grouped_attention(None, query, key, value, mask)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(ours, theirs.transpose(1, 2))


def test_model_without_any_stop_token_is_refused():
    with pytest.raises(InputError, match="no end-of-text token"):
        BaseSetup(tiny_config(), tiny_model(eos=False), tiny_tokenizer(eos=False))


def test_untrained_reward_head_is_never_used_silently():
    setup = BaseSetup(tiny_config(), tiny_model(), tiny_tokenizer())
    setup.add_adapter("reward")
    reward = RewardModel(setup.base, setup.encoder.encode)
    with pytest.raises(InputError, match="untrained"):
        reward.compute_rewards(["a:"], ["b"])


def test_reward_model_learns_to_tell_apart_and_scores_a_ppo_step():
    trainer = tiny_trainer()
    from burnish.base_setup.lora_setup import lora_config

    setup = BaseSetup(tiny_config(), tiny_model(), tiny_tokenizer())
    trainer.base.add_adapter("reward", lora_config(tiny_config(), setup.base.decoder.layers, "llama"))
    trainer.generator.agree_on_invocation(PROMPTS)
    reward = RewardModel(trainer.base, setup.encoder.encode)
    prompt_ids = torch.tensor([[1, 2, 3]] * 4)
    everything = torch.ones(4, 2, dtype=torch.bool)
    good, bad = torch.tensor([[5, 6]] * 4), torch.tensor([[7, 8]] * 4)
    optimizer = torch.optim.Adam(reward.parameters(), 1e-2)
    for _ in range(20):
        tables = [SAPairs(everything, {"action": r}, prompt_ids, prompt_ids > 0) for r in (good, bad)]
        scores = [reward.raw_score(table) for table in tables]
        loss = -torch.nn.functional.logsigmoid(scores[0] - scores[1]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    reward.mark_trained()
    trainer.reward_computer = RewardComputer(reward)
    results = trainer.ppo_step(PROMPTS)
    assert len(results["rewards"]) == len(PROMPTS)
    # the generated tokens scored one by one, without batch or padding
    pairs = results["sa_pairs"]
    alone = [reward.score(pairs.select(torch.tensor([row]))).item() for row in range(len(PROMPTS))]
    assert results["rewards"] == pytest.approx(alone, abs=1e-4)


def test_a_text_scores_like_the_tokens_it_was_made_of():
    setup = BaseSetup(tiny_config(chat_template=True), tiny_model(), tiny_tokenizer())
    setup.add_adapter("reward")
    setup.base.invocation = setup.encoder.header
    reward = RewardModel(setup.base, setup.encoder.encode)
    reward.mark_trained()
    prompts, texts = ["tell me", "and me too"], ["yes", "certainly not"]
    prompt_ids, prompt_mask = left_padded(setup.encoder.encode(prompts))
    by_text = reward.compute_rewards(prompts, texts)
    for row, text in enumerate(texts):
        tokens = torch.tensor([[*setup.base.tokenizer(text)["input_ids"], 256]])
        with torch.no_grad():
            alone = reward.score(
                SAPairs(torch.ones_like(tokens).bool(), {"action": tokens}, prompt_ids[[row]], prompt_mask[[row]])
            )
        assert by_text[row] == pytest.approx(alone.item(), abs=1e-4)


def test_size_of_a_pass_by_hand():
    """Of ten prompt tokens and five of an answer, in tokens that are computed."""
    for scope, expected in (("sequence", 15.0), ("response", 1 + 5 + 9 * 512 / 4352)):
        base = tiny_trainer(adapter_scope=scope).base
        # two layers of float32: 4 * 32 residual, 4 * 32 query, 2 * 16 key and value, 4 * 64 feed-forward
        assert base.activation_bytes == 2 * 4 * (128 + 128 + 32 + 256) == 4352
        assert base.prefix_activation_bytes == 2 * (2 * 4 * 2 * 16) == 512  # keys and values of two layers, twice
        assert sum(base.pass_sizes(10, 5)) == pytest.approx(expected)
