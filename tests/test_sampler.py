"""Replies drawn together: their log-probabilities, their independence of the batch, and what is remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tinypolicy import tiny_model

from echo_env.agents import generation
from echo_env.errors import ConfigError
from echo_env.trainers.sampler import Sample, Sampler, _noise

STOPS = frozenset(range(0, 320, 11))
PROMPTS = [[5, 6, 7], [9] * 40, list(range(20, 45)), [300, 3], [17] * 12]


@pytest.fixture
def model() -> Any:
    model = tiny_model()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(12)  # as initialised, all tokens are nearly alike
    return model


def full(model: Any, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of a sample's ids [T, V] by one pass over the whole, as a trainer has them."""
    with torch.no_grad():
        logits = model(torch.tensor([[*sample.prompt, *sample.ids]])).logits[0, len(sample.prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)


def of_ids(logprobs: torch.Tensor, sample: Sample) -> torch.Tensor:
    return logprobs.gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]


def talk(sampler: Sampler, turns: int = 3, keyed: bool = True) -> list[list[Sample]]:
    """Some turns of all conversations, each with a few ids of the user's between."""
    prompts, said = PROMPTS, []
    for turn in range(turns):
        keys = list(range(len(PROMPTS))) if keyed else None
        said.append(sampler.sample(prompts, 12, [100 * turn + k for k in range(len(PROMPTS))], keys))
        prompts = [[*s.prompt, *s.ids, *[40 + turn] * (k + 1)] for k, s in enumerate(said[-1])]
    return said


class TestLogprobs:
    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_are_those_of_one_pass_over_the_whole_in_every_turn(self, model: Any, temperature: float) -> None:
        """Engine and trainer agree to 1e-4, with padding in the batch and memory of earlier turns."""
        samples = [s for turn in talk(Sampler(model, STOPS, temperature=temperature)) for s in turn]
        assert {s.stop for s in samples} == {"end", "length"}
        for s in samples:
            expected = of_ids(full(model, s, temperature), s)
            assert torch.allclose(torch.tensor(s.logprobs), expected, atol=1e-4)
        assert max(-p for s in samples for p in s.logprobs) > 2.0

    def test_under_top_p_are_those_of_what_is_left(self, model: Any) -> None:
        for s in Sampler(model, STOPS, top_p=0.6).sample(PROMPTS, 8, [1, 2, 3, 4, 5]):
            chances, order = full(model, s).exp().sort(descending=True)
            kept = chances.cumsum(-1) - chances < 0.6
            left = torch.where(kept, chances, torch.zeros(())) / (chances * kept).sum(-1, keepdim=True)
            expected = left.gather(-1, (order == torch.tensor(s.ids)[:, None]).int().argmax(-1, keepdim=True))[:, 0]
            assert torch.allclose(torch.tensor(s.logprobs).exp(), expected, atol=1e-4)

    def test_draws_follow_them(self, model: Any) -> None:
        drawn = Sampler(model, frozenset()).sample([PROMPTS[0]] * 2000, 1, range(2000))
        chances = full(model, drawn[0]).exp()[0]
        seen = torch.bincount(torch.tensor([s.ids[0] for s in drawn]), minlength=320) / 2000
        spread = (chances * (1 - chances) / 2000).sqrt()
        assert ((seen - chances).abs() <= 4.5 * spread + 3 / 2000).all()
        assert chances.max() < 0.9


class TestBatch:
    def test_a_reply_does_not_depend_on_the_others(self, model: Any) -> None:
        sampler = Sampler(model, STOPS)
        together = sampler.sample(PROMPTS, [12, 3, 12, 12, 1], [7, 8, 9, 10, 11])
        for k, s in enumerate(together):
            (alone,) = sampler.sample([PROMPTS[k]], len(s.ids), [7 + k])
            assert alone.ids == s.ids
            assert alone.logprobs == pytest.approx(s.logprobs, abs=1e-4)
        assert len({len(s.ids) for s in together}) > 2

    def test_caps_are_each_rows_own_and_the_stop_is_told(self, model: Any) -> None:
        for limit, s in zip((4, 9, 1), Sampler(model, STOPS).sample(PROMPTS[:3], [4, 9, 1], [1, 2, 3]), strict=True):
            assert 1 <= len(s.ids) <= limit
            assert (s.stop == "end") == (s.ids[-1] in STOPS)
            assert not STOPS & set(s.ids[:-1])
            assert len(s.logprobs) == len(s.ids)
            assert s.stop == "end" or len(s.ids) == limit

    def test_seeds_tell_siblings_apart(self, model: Any) -> None:
        group = Sampler(model, STOPS).sample([PROMPTS[0]] * 4, 12, [1, 2, 3, 1])
        assert len({tuple(s.ids) for s in group}) == 3
        assert group[0].ids == group[3].ids

    def test_a_longer_cap_goes_on_with_the_same_noise(self) -> None:
        whole = _noise(3, 100)
        assert all(torch.equal(_noise(3, n), whole[:n]) for n in (1, 7, 16, 64))

    def test_siblings_read_their_prompt_once(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []
        forward = model.forward
        monkeypatch.setattr(model, "forward", lambda **i: (seen.append(i["input_ids"].numel()), forward(**i))[1])
        Sampler(model, STOPS).sample([PROMPTS[1]] * 8, 1, range(8))
        assert seen == [40]

    def test_nobody_there(self, model: Any) -> None:
        assert Sampler(model, STOPS).sample([], 4, []) == []


class TestMemory:
    def test_changes_no_reply(self, model: Any) -> None:
        with_, without = talk(Sampler(model, STOPS)), talk(Sampler(model, STOPS), keyed=False)
        assert [[s.ids for s in turn] for turn in with_] == [[s.ids for s in turn] for turn in without]

    def test_a_turn_reads_only_what_is_new(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        sampler = Sampler(model, STOPS)
        (first,) = sampler.sample([PROMPTS[1]], 6, [3], keys=["a"])
        seen: list[int] = []
        forward = model.forward
        monkeypatch.setattr(model, "forward", lambda **i: (seen.append(i["input_ids"].numel()), forward(**i))[1])
        sampler.sample([[*first.prompt, *first.ids, 8, 8]], 1, [4], keys=["a"])
        assert seen == [3], "the last id of the reply and two of the user's"

    def test_does_not_outlive_the_weights(self, model: Any) -> None:
        sampler = Sampler(model, STOPS)
        talk(sampler, 1)
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(1.05)
        assert [s.ids for s in talk(sampler, 1)[0]] == [s.ids for s in talk(Sampler(model, STOPS), 1)[0]]
        (again,) = sampler.sample([PROMPTS[1]], 4, [3], keys=[1])
        assert torch.allclose(torch.tensor(again.logprobs), of_ids(full(model, again), again), atol=1e-4)

    def test_is_bounded_and_can_be_dropped(self, model: Any) -> None:
        sampler = Sampler(model, STOPS, reuse_tokens=60)
        talk(sampler)
        assert 0 < sum(len(p.ids) for p in sampler._pasts.values()) == sampler._held <= 60
        sampler.forget()
        assert (sampler._pasts, sampler._held) == ({}, 0)

    def test_another_conversation_under_the_same_key_is_read_anew(self, model: Any) -> None:
        sampler = Sampler(model, STOPS)
        sampler.sample([PROMPTS[1]], 4, [3], keys=["a"])
        (other,) = sampler.sample([PROMPTS[2]], 4, [3], keys=["a"])
        assert torch.allclose(torch.tensor(other.logprobs), of_ids(full(model, other), other), atol=1e-4)


def test_the_mode_of_the_model_is_put_back(model: Any) -> None:
    for mode in (True, False):
        model.train(mode)
        Sampler(model, STOPS).sample([[1, 2]], 1, [0])
        assert model.training is mode


def test_rows_that_end_are_filled_from_the_back() -> None:
    assert generation._closed_up(6, [1, 2]) == [0, 5, 4, 3]
    assert generation._closed_up(5, [4]) == [0, 1, 2, 3]
    assert generation._closed_up(4, [0, 3]) == [2, 1]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_what_cannot_be_drawn_from_is_refused(model: Any, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Sampler(model, STOPS, **options)
