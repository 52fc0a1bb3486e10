"""The learner: one update is the same however it is split, padded and ordered, and what it says is what it does."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tinypolicy import tiny_model, tiny_tokenizer

from echo_env.errors import ConfigError
from echo_env.trainers import losses
from echo_env.trainers.advantages import group_advantages, to_tokens, trajectory_rewards
from echo_env.trainers.job import Algorithm, Lora, Optimiser
from echo_env.trainers.learner import Diverged, Learner, rate_at, with_adapter
from echo_env.trainers.logits import Head
from echo_env.trainers.losses import Clip, Correction, Objective
from echo_env.trainers.trajectory import TokenSequence, Trajectory, collate, grown, reward_table

VOCAB = 320
SGD_LIKE = Optimiser(lr=1e-2, max_grad_norm=1e9)


def talk(rng: random.Random, turns: int) -> TokenSequence:
    sequence = None
    for _ in range(turns):
        prompt = [*(sequence.ids if sequence else ()), *rng.choices(range(2, VOCAB), k=rng.randint(2, 6))]
        reply = rng.choices(range(2, VOCAB), k=rng.randint(1, 5))
        sequence = grown(sequence, prompt, reply, [-5.0] * len(reply), "end")
    assert sequence is not None
    return sequence


def trajectories(seed: int = 0, groups: int = 3, siblings: int = 3, turns: int | None = None) -> list[Trajectory]:
    rng = random.Random(seed)
    made = []
    for group in range(groups):
        for _ in range(siblings):
            sequence = talk(rng, turns or rng.randint(1, 4))
            rewards = tuple(round(rng.uniform(-1, 1), 3) for _ in sequence.replies)
            made.append(
                Trajectory(
                    group=str(group), sequences=(sequence,), rewards=rewards, verdict=sum(rewards), score=sum(rewards),
                    ended="terminated",
                )
            )  # fmt: skip
    return made


def learner(algo: Algorithm | None = None, model: Any = None, optim: Optimiser = SGD_LIKE, **options: Any) -> Learner:
    return Learner(model or tiny_model(), tiny_tokenizer(), algo or Algorithm(name="test"), optim, **options)


def gradient(learner: Learner, given: Sequence[Trajectory]) -> torch.Tensor:
    """The gradient of one optimiser step, by a hook before the optimiser uses it."""
    seen: list[torch.Tensor] = []
    parameters = [p for p in learner.model.parameters() if p.requires_grad]

    def look(*_: Any) -> None:
        seen.append(
            torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        )

    handle = learner._optimiser.register_step_pre_hook(look)
    learner.update(given)
    handle.remove()
    assert len(seen) == 1
    return seen[0].clone()


# ---- log-probabilities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_where_needed_are_those_of_the_whole(temperature: float) -> None:
    model, batch = tiny_model(), collate(trajectories(), pad=7)
    head = Head(model)
    assert not head.full
    given = (batch.ids_BT, batch.policy_BT)
    few, whole = (
        head.scores(*given, temperature=temperature),
        Head(model, full=True).scores(*given, temperature=temperature),
    )
    torch.testing.assert_close(few.logprobs_BT, whole.logprobs_BT, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(few.entropy_BT, whole.entropy_BT, atol=1e-5, rtol=1e-5)
    logits = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits
    stated = losses.token_logprobs(logits, batch.ids_BT, temperature).masked_fill(~batch.policy_BT, 0.0)
    torch.testing.assert_close(few.logprobs_BT, stated, atol=1e-5, rtol=1e-5)
    entropy = losses.token_entropy(logits, temperature).masked_fill(~batch.policy_BT, 0.0)
    torch.testing.assert_close(few.entropy_BT, entropy, atol=1e-5, rtol=1e-5)


def test_the_head_in_pieces_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    given = trajectories()
    whole = gradient(learner(), given)
    monkeypatch.setattr("echo_env.trainers.logits.AT_ONCE", 5 * VOCAB)
    torch.testing.assert_close(gradient(learner(), given), whole, atol=1e-6, rtol=1e-4)


def test_a_model_that_changes_its_logits_is_computed_whole() -> None:
    """Some architectures scale or cap after the head: the way by the body would miss that."""
    model = tiny_model()
    inner = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        out.logits = out.logits * 3
        return out

    model.forward = scaled
    assert Head(model).full


# ---- equivalence ----------------------------------------------------------------------------------------------------

ALGORITHMS = {
    "dapo": Algorithm(name="dapo"),
    "grpo": Algorithm(name="grpo", objective=Objective(aggregation="sequence", kl_coef=0.1)),
    "dr_grpo": Algorithm(name="dr", baseline="dr_grpo", objective=Objective(aggregation="constant", constant=64)),
    "turn": Algorithm(name="turn", credit="turn", turn_discount=0.9, objective=Objective(entropy_coef=0.01)),
    "reinforce_pp": Algorithm(
        name="rpp", estimator="reinforce_pp", baseline="none", reward_kl=0.1, objective=Objective(kl="k1")
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_add_up_to_the_batch(name: str) -> None:
    algo, given = ALGORITHMS[name], trajectories()
    reference = tiny_model(seed=1)
    whole = gradient(learner(algo, reference=copy.deepcopy(reference), micro_tokens=10**6), given)
    split = gradient(learner(algo, reference=reference, micro_tokens=40), given)
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-3)


def test_the_order_of_groups_and_siblings_is_no_matter() -> None:
    given = trajectories()
    mixed = random.Random(1).sample(given, len(given))
    torch.testing.assert_close(gradient(learner(), mixed), gradient(learner(), given), atol=1e-6, rtol=1e-3)


def test_padding_is_no_matter() -> None:
    """A long trajectory without a reward pads the others and changes nothing."""
    given = trajectories()
    long = Trajectory(
        group="0", sequences=(talk(random.Random(3), 30),), rewards=(None,) * 30, verdict=None, score=None,
        ended="terminated",
    )  # fmt: skip
    torch.testing.assert_close(gradient(learner(), [*given, long]), gradient(learner(), given), atol=1e-6, rtol=1e-3)


def test_a_missing_reward_has_no_gradient_and_no_part_in_the_baseline() -> None:
    given = trajectories(groups=1, siblings=4, turns=1)
    rewards = [1.0, None, 0.0, 0.0]
    given = [t.model_copy(update={"rewards": (r,)}) for t, r in zip(given, rewards, strict=True)]
    without = [t for t, r in zip(given, rewards, strict=True) if r is not None]
    torch.testing.assert_close(gradient(learner(), given), gradient(learner(), without), atol=1e-7, rtol=1e-4)


def test_only_the_policys_tokens_teach() -> None:
    """The gradient of the user's words as targets is nothing: all three replies have one, no context token does."""
    batch = collate(trajectories(groups=1, siblings=2, turns=3))
    tokens = to_tokens(torch.ones(2, 3, dtype=torch.float64), batch)
    scores = Head(tiny_model()).scores(batch.ids_BT, tokens.mask_BT)
    assert (scores.logprobs_BT != 0).equal(batch.policy_BT)
    for turn in range(3):
        assert (scores.logprobs_BT[batch.turn_BT == turn] < 0).all()


def test_dapo_with_equal_clips_and_no_filter_is_grpo_with_the_token_mean() -> None:
    """GRPO by hand: advantages over the group, ratio 1, mean over all tokens of -A log p; the gradients agree."""
    given = trajectories()
    dapo = Algorithm(name="dapo", objective=Objective(clip=Clip(low=0.2, high=0.2)))
    found = gradient(learner(dapo), given)
    model, batch, table = tiny_model(), collate(given), reward_table(given)
    advantages_N = group_advantages(trajectory_rewards(table), table.groups_N, "grpo").float()
    logits = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits
    logprobs_BT = losses.token_logprobs(logits, batch.ids_BT)
    loss = -(logprobs_BT * advantages_N[batch.trajectory_B][:, None])[batch.policy_BT].sum() / batch.policy_BT.sum()
    loss.backward()
    by_hand = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, by_hand, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_turn_credit_with_one_turn_is_trajectory_credit(weight: float) -> None:
    given = trajectories(turns=1)
    turn = Algorithm(name="turn", credit="turn", turn_weight=weight, turn_discount=0.5)
    torch.testing.assert_close(gradient(learner(turn), given), gradient(learner(), given), atol=1e-7, rtol=1e-4)


def test_turn_credit_with_more_turns_is_another() -> None:
    given = trajectories(turns=3)
    turn = Algorithm(name="turn", credit="turn", turn_weight=1.0)
    assert (gradient(learner(turn), given) - gradient(learner(), given)).abs().max() > 1e-4


# ---- old log-probabilities, correction, steps -----------------------------------------------------------------------


def resampled(model: Any, given: Sequence[Trajectory], shift: float = 0.0) -> list[Trajectory]:
    """The same trajectories, with the log-probabilities that this model gives, all shifted."""
    batch = collate(given)
    with torch.no_grad():
        scores = Head(model).scores(batch.ids_BT, batch.policy_BT).logprobs_BT
    changed = []
    for row, t in enumerate(given):
        replies = tuple(
            r.model_copy(update={"logprobs": tuple((scores[row, r.start : r.end] + shift).tolist())})
            for r in t.sequences[0].replies
        )
        changed.append(t.model_copy(update={"sequences": (t.sequences[0].model_copy(update={"replies": replies}),)}))
    return changed


def test_a_single_step_needs_no_old_pass_and_reports_the_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    given = resampled(model, trajectories(), shift=0.25)
    one = learner(model=model)
    monkeypatch.setattr(one, "logprobs", lambda *_, **__: pytest.fail("a pass that was not needed"))
    figures = one.update(given)
    assert figures["mismatch"] == pytest.approx(0.25, abs=1e-5)
    assert figures["mismatch_abs"] == pytest.approx(0.25, abs=1e-5)
    assert figures["moved"] == pytest.approx(0.0, abs=1e-7)
    assert figures["clip_low"] == figures["clip_high"] == 0


def test_an_engine_that_is_off_is_corrected() -> None:
    model = tiny_model()
    given = resampled(model, trajectories(), shift=2.0)
    algo = Algorithm(name="c", objective=Objective(correction=Correction(low=0.5, high=5.0)))
    figures = learner(algo, model=model).update(given)
    assert figures["cut"] == pytest.approx(1.0)  # e^-2 is below 0.5 for every token
    assert figures["grad_norm"] == pytest.approx(0.0, abs=1e-9)


def test_more_steps_move_the_ratio_and_are_clipped() -> None:
    algo = Algorithm(name="steps", epochs=3, minibatches=2, objective=Objective(clip=Clip(low=0.01, high=0.01)))
    figures = learner(algo, optim=Optimiser(lr=3e-3)).update(trajectories())
    assert figures["moved"] is not None
    assert abs(figures["moved"]) > 1e-5
    assert figures["clip_low"] + figures["clip_high"] > 0


def test_an_update_makes_good_replies_likelier() -> None:
    one, given = learner(optim=Optimiser(lr=3e-3)), trajectories(groups=2, turns=1)
    batch, table = collate(given), reward_table(given)
    best = group_advantages(trajectory_rewards(table), table.groups_N) > 0.3
    before = one.logprobs(batch).sum(1)
    for _ in range(3):
        one.update(given)
    gain = one.logprobs(batch).sum(1) - before
    assert gain[best].mean() > gain[~best].mean()


def test_no_trajectory_is_no_step_but_an_update() -> None:
    one = learner()
    before = {k: v.clone() for k, v in one.model.state_dict().items()}
    empty, full = one.update([]), one.update([t.model_copy(update={"policy_version": 1}) for t in trajectories()])
    assert empty.keys() == full.keys()
    assert empty["loss"] is None
    assert one.done == 2
    fresh = learner()
    fresh.update(trajectories())
    for key, value in fresh.model.state_dict().items():
        torch.testing.assert_close(one.model.state_dict()[key], value)
        assert before[key].shape == value.shape


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    one = learner(Algorithm(name="huge", baseline="dr_grpo"))
    before = {k: v.clone() for k, v in one.model.state_dict().items()}
    bad = [t.model_copy(update={"rewards": (*t.rewards[:-1], 1e300 * k)}) for k, t in enumerate(trajectories())]
    with pytest.raises(Diverged, match="update 1"):
        one.update(bad)
    for key, value in one.model.state_dict().items():
        assert torch.equal(value, before[key])


# ---- schedule -------------------------------------------------------------------------------------------------------


def test_the_schedule_by_hand() -> None:
    linear = Optimiser(lr=1.0, schedule="linear", warmup=2)
    assert [rate_at(linear, k, 6) for k in range(7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    cosine = Optimiser(lr=2.0, schedule="cosine")
    assert [round(rate_at(cosine, k, 4), 6) for k in (0, 2, 4)] == [2.0, 1.0, 0.0]
    assert rate_at(Optimiser(lr=3.0), 99, 10) == 3.0


# ---- reference and LoRA ---------------------------------------------------------------------------------------------


def test_the_kl_needs_a_reference() -> None:
    with pytest.raises(ConfigError, match="frozen reference"):
        learner(Algorithm(name="kl", objective=Objective(kl_coef=0.1)))


def test_the_reference_is_the_model_without_its_adapter(tmp_path: Path) -> None:
    given, lora = trajectories(), Lora(rank=4, alpha=8)
    algo = Algorithm(name="lora", objective=Objective(kl_coef=0.1))
    one = learner(algo, model=with_adapter(tiny_model(), lora), optim=Optimiser(lr=1e-2))
    first = one.update(given)
    assert first["kl"] == pytest.approx(0.0, abs=1e-7)  # an adapter begins as nothing
    second = one.update(given)
    assert second["kl"] is not None
    assert second["kl"] > 1e-6
    batch = collate(given)
    frozen = learner(model=tiny_model()).logprobs(batch)
    torch.testing.assert_close(one.logprobs(batch, of_reference=True), frozen, atol=1e-6, rtol=1e-5)

    one.save_hf(tmp_path)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(learner(model=merged).logprobs(batch), one.logprobs(batch), atol=1e-5, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == one.tokenizer.chat_template
    again = learner(algo, model=with_adapter(tiny_model(), lora, tmp_path / "adapter"))
    assert torch.equal(again.logprobs(batch), one.logprobs(batch))


def test_lora_trains_its_adapter_alone() -> None:
    model = with_adapter(tiny_model(), Lora(rank=2, alpha=4))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    learner(model=model).update(trajectories())
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed
    assert all("lora_" in k for k in changed)


def test_layers_that_are_not_there_are_told() -> None:
    with pytest.raises(ConfigError, match="LoRA"):
        with_adapter(tiny_model(), Lora(targets=("nothing_of_the_kind",)))


# ---- state ----------------------------------------------------------------------------------------------------------


def test_stopped_and_resumed_is_unbroken(tmp_path: Path) -> None:
    algo = Algorithm(name="r", minibatches=2, epochs=2)
    optim = Optimiser(lr=1e-3, schedule="cosine", warmup=1)
    data = [trajectories(seed) for seed in range(4)]
    unbroken = learner(algo, optim=optim, updates=4)
    for given in data:
        unbroken.update(given)
    first = learner(algo, optim=optim, updates=4)
    for given in data[:2]:
        first.update(given)
    first.save_hf(tmp_path)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    from transformers import AutoModelForCausalLM

    second = learner(algo, model=AutoModelForCausalLM.from_pretrained(tmp_path), optim=optim, updates=4)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for given in data[2:]:
        second.update(given)
    for (name, a), b in zip(unbroken.model.named_parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-6, msg=name)
