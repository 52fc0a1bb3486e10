"""Rollouts: conversations in the environment and single replies, as training is to see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from tinypolicy import TEMPLATE, tiny_model, tiny_tokenizer

from echo_env.agents.scoring import ScorablePrompt
from echo_env.build import WorldConfig
from echo_env.errors import ConfigError, RoleFailure
from echo_env.profiles import get_scenario, scenario_ids
from echo_env.rewards import ReplyView
from echo_env.roles import ActorView, Exchange, JudgeView
from echo_env.session import visible
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.outcomes import draw_seed
from echo_env.trainers.rollouts import Conversations, Limits, Overlong, Progress, Replies, Rollout, Task
from echo_env.trainers.sampler import Sample, Sampler
from echo_env.trainers.trajectory import collate
from echo_env.types import Judgement, Levels, Message, Verdict, storable

SCENARIOS = [get_scenario(name) for name in scenario_ids("train")[:2]]
LINES = ("I hear you.", "她走了，我很难过。", "🙂 What now?", "<think>no idea</think>Go on, I am here.")


# --- a world that costs nothing: one thing to say, one thing to find


class Talker:
    """An actor that says who it is and how often it was heard."""

    id = "talker"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def speak(self, view: ActorView) -> str:
        if self.seed == 13:
            raise RoleFailure("nobody there")
        return f"{self.seed} speaks, {len(view.history)} 次 🙂."


class Finder:
    """A judge that finds progress in every reply but one that says nothing."""

    id, rubric = "finder", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        if "mute" in view.exchange.reply:
            raise RoleFailure("no judgement")
        return Judgement(levels=Levels(2, 0, 2, 0, 2, 0), judge=self.id)


class Human:
    """A judge of replies that takes a while, and counts who waits with it."""

    id, waits = "human", True
    now = most = 0

    async def verdict(self, view: ReplyView) -> Verdict:
        Human.now += 1
        Human.most = max(Human.most, Human.now)
        await asyncio.sleep(0.1)
        Human.now -= 1
        if "mute" in view.judged.exchange.reply:
            raise RoleFailure("timed out")
        return Verdict(kind="humanlike", judge=self.id, value=float("hear" in view.judged.exchange.reply))


def plain(**options: Any) -> WorldConfig:
    return WorldConfig(**{"actor": f"{__name__}:Talker", "judge": f"{__name__}:Finder", "max_turns": 3, **options})


HUMAN: dict[str, Any] = {"recipe": "humanlike", "recipe_options": {"humanlike": f"{__name__}:Human"}}


# --- policies: by a script, and a tiny model


class Scripted:
    """Says what it is told to, tokenised; a line that ends in ~ is cut there."""

    def __init__(self, chat: ChatFormat, lines: Iterable[str] = LINES) -> None:
        self.chat, self.lines, self.heard = chat, list(lines), list[list[int]]()
        self.forgot = 0

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: Sequence[int] | int,
        seeds: Sequence[int],
        keys: Sequence[Hashable] | None = None,
    ) -> list[Sample]:
        said = []
        for prompt in prompts:
            line = self.lines[len(self.heard) % len(self.lines)]
            self.heard.append(list(prompt))
            ids = self.chat.reply(line.removesuffix("~"))[: -1 if line.endswith("~") else None]
            said.append(Sample(list(prompt), ids, [-0.5] * len(ids), "length" if line.endswith("~") else "end"))
        return said

    def forget(self) -> None:
        self.forgot += 1


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    tokenizer = tiny_tokenizer()
    return ChatFormat(tokenizer, stops=frozenset({tokenizer.eos_token_id}), system="Be kind.")


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_model()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(12)
    return model


def scripted(chat: ChatFormat, *lines: str, world: WorldConfig | None = None, **options: Any) -> Conversations:
    return Conversations(world or plain(), chat, Scripted(chat, lines or LINES), **options)  # type: ignore[arg-type]


def drawn(chat: ChatFormat, model: Any, world: WorldConfig | None = None, **options: Any) -> Conversations:
    options.setdefault("limits", Limits(reply_tokens=12))
    return Conversations(world or plain(), chat, Sampler(model, chat.stops | {7, 40, 90}), **options)


def tasks(siblings: int = 1, groups: int = 1, seed: int = 5) -> list[Task]:
    return [
        Task(f"g{g}", seed + g, scenario=SCENARIOS[g % 2], number=n) for g in range(groups) for n in range(siblings)
    ]


def one(player: Conversations, task: Task | None = None) -> Rollout:
    (rollout,) = player.collect([task or tasks()[0]])
    return rollout


def trained(rollout: Rollout) -> Any:
    assert rollout.trajectory is not None, rollout.failure
    return rollout.trajectory


def spans(rollout: Rollout, chat: ChatFormat) -> list[str]:
    return [
        chat.tokenizer.decode(s.ids[r.start : r.end]) for s in trained(rollout).sequences for r in s.replies
    ]  # fmt: skip


class TestIds:
    def test_a_reply_that_was_cut_is_closed_once_and_untrained(self, chat: ChatFormat) -> None:
        """OpenRLHF#1128: text and tokens of a cut turn must go together as the template has them."""
        rollout = one(scripted(chat, "I hear~", "Go on."))
        (sequence,) = trained(rollout).sequences
        assert spans(rollout, chat) == ["I hear", "Go on.<|im_end|>", "I hear"]
        assert [r.stop for r in sequence.replies] == ["length", "end", "length"]
        words = [w for t in rollout.turns for w in (t.user, t.reply)][:-1]
        said = [Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate(words)]
        assert list(sequence.ids) == [*chat.prompt(said), *chat.reply("I hear")[:-1]]

    @pytest.mark.parametrize("lines", [LINES, ("a",), ("~", "我~"), ("é🙂👩‍👩‍👧", "\n")])
    def test_each_id_has_a_place_whatever_is_said(self, chat: ChatFormat, lines: tuple[str, ...]) -> None:
        """TRL#5144: ids, mask and log-probabilities of one length, CJK and emoji included."""
        lines = tuple(line if line != "~" else "x~" for line in lines)
        batch = collate([trained(r) for r in scripted(chat, *lines).collect(tasks(3, 2))])
        assert batch.ids_BT.shape == batch.turn_BT.shape == batch.sampled_BT.shape == batch.attention_BT.shape
        assert torch.equal(batch.policy_BT, batch.sampled_BT == -0.5)
        said = [chat.tokenizer.decode(row[mask]) for row, mask in zip(batch.ids_BT, batch.policy_BT, strict=True)]
        assert all("speaks" not in text and "Be kind" not in text for text in said)

    def test_every_prompt_begins_with_the_one_before(self, chat: ChatFormat) -> None:
        """prime-rl#1334: from the third turn on as well."""
        player = scripted(chat, world=plain(max_turns=4))
        (sequence,) = trained(one(player)).sequences
        heard = player.sampler.heard  # type: ignore[attr-defined]
        assert len(heard) == 4
        assert all(list(sequence.ids[: len(prompt)]) == prompt for prompt in heard)

    def test_under_rerender_the_policy_hears_what_it_would_in_use(self, chat: ChatFormat) -> None:
        """verl#5576: thinking is not in the history in use, so it is in none here."""
        rollout = one(scripted(chat, "<think>hm</think>I hear you.", history="rerender"))
        said: list[Message] = []
        assert [s.replies[0].turn for s in trained(rollout).sequences] == [0, 1, 2]
        for turn, sequence in zip(rollout.turns, trained(rollout).sequences, strict=True):
            said.append(Message(role="user", text=turn.user))
            assert list(sequence.ids[: sequence.replies[0].start]) == chat.prompt(said)
            said.append(Message(role="companion", text="I hear you."))

    def test_append_keeps_the_thinking_and_shows_it_to_nobody(self, chat: ChatFormat) -> None:
        rollout = one(scripted(chat, "<think>hm</think>I hear you."))
        assert chat.tokenizer.decode(trained(rollout).sequences[0].ids).count("<think>hm</think>") == 3
        assert {t.reply for t in rollout.turns} == {"I hear you."}

    def test_a_template_that_rewrites_its_history_is_refused_at_the_start(self) -> None:
        """verl#2165: before anything is sampled."""
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
        chat = ChatFormat(tokenizer, stops=frozenset({tokenizer.eos_token_id}))
        with pytest.raises(ConfigError, match="rewrites its history"):
            scripted(chat)
        assert trained(one(scripted(chat, history="rerender"))).rewards

    def test_log_probabilities_are_those_of_one_pass_over_the_whole(self, chat: ChatFormat, model: Any) -> None:
        for rollout in drawn(chat, model).collect(tasks(3, 2)):
            (sequence,) = trained(rollout).sequences
            with torch.no_grad():
                logprobs = torch.log_softmax(model(torch.tensor([sequence.ids])).logits[0], -1)
            for r in sequence.replies:
                picked = logprobs[r.start - 1 : r.end - 1, :].gather(
                    1, torch.tensor(sequence.ids[r.start : r.end])[:, None]
                )
                assert torch.allclose(picked[:, 0], torch.tensor(r.logprobs), atol=1e-4)

    def test_every_reply_is_trained_on_and_nothing_else(self, chat: ChatFormat, model: Any) -> None:
        """TRL#4543: in an episode of three turns, the gradient reaches all three replies and no user."""
        trajectory = trained(one(drawn(chat, model)))
        batch = collate([trajectory])
        logits = model(batch.ids_BT).logits.detach().requires_grad_()
        chosen = torch.log_softmax(logits[:, :-1], -1).gather(-1, batch.ids_BT[:, 1:, None])[..., 0]
        (chosen * batch.policy_BT[:, 1:]).sum().backward()
        assert logits.grad is not None
        reached = logits.grad[0].abs().sum(-1) > 0
        expected = torch.zeros_like(reached)
        for r in trajectory.replies():
            expected[r.start - 1 : r.end - 1] = True
        assert len(list(trajectory.replies())) == 3
        assert torch.equal(reached, expected)


class TestGroups:
    def test_siblings_share_the_person_and_draw_apart(self, chat: ChatFormat, model: Any) -> None:
        group = drawn(chat, model).collect(tasks(4))
        assert len({r.turns[0].user for r in group}) == 1
        assert len({trained(r).sequences[0].ids for r in group}) == 4

    def test_a_conversation_does_not_depend_on_the_others(self, chat: ChatFormat, model: Any) -> None:
        asked = tasks(2, 2)
        whole = drawn(chat, model).collect(asked)
        for player in drawn(chat, model, live=1), drawn(chat, model, live=3):
            again = player.collect(asked)
            assert [trained(r).sequences[0].ids for r in again] == [trained(r).sequences[0].ids for r in whole]
            assert [r.task for r in again] == asked
        assert trained(one(drawn(chat, model), asked[3])).sequences[0].ids == trained(whole[3]).sequences[0].ids

    def test_draws_differ_by_sibling_turn_and_update(self) -> None:
        a, b = tasks(2)
        assert len({draw_seed(a, 0, 0), draw_seed(b, 0, 0), draw_seed(a, 1, 0), draw_seed(a, 0, 1)}) == 4

    def test_the_update_that_sampled_is_on_record(self, chat: ChatFormat) -> None:
        (rollout,) = scripted(chat).collect(tasks(), policy_version=7)
        assert trained(rollout).policy_version == 7


class TestRewards:
    def test_each_turn_has_its_own_and_the_outcome_stands_apart(self, chat: ChatFormat) -> None:
        rollout = one(scripted(chat, score="reward"))
        t = trained(rollout)
        assert t.rewards == tuple(turn.reward for turn in rollout.turns)
        assert t.verdict == 0.0
        assert t.score == pytest.approx(sum(t.rewards))
        closed = trained(one(scripted(chat, score="distance"))).score
        last = rollout.turns[-1].epm
        assert last is not None
        assert closed == pytest.approx(1 - last.distance / sum(x * x for x in SCENARIOS[0].p0) ** 0.5)

    def test_success_is_the_verdict(self, chat: ChatFormat) -> None:
        rollout = one(scripted(chat, world=plain(max_turns=40)))
        assert rollout.outcome is not None
        assert rollout.outcome.end == "success"
        assert (trained(rollout).verdict, trained(rollout).ended) == (1.0, "terminated")

    def test_a_missing_judgement_leaves_the_keys_of_the_others(self, chat: ChatFormat) -> None:
        """verl PR#7151: one judge fails, and the rest of the batch is as it was."""
        rollout = one(scripted(chat, "I hear you.", "mute", "Go on.", overlong=Overlong(cap=99, cache=9)))
        assert [r is None for r in trained(rollout).rewards] == [False, True, False]
        assert [set(p) for p in rollout.parts] == [
            {"shaping", "terminal", "overlong"},
            set(),
            {"shaping", "terminal", "overlong"},
        ]

    def test_nobody_could_judge(self, chat: ChatFormat) -> None:
        t = trained(one(scripted(chat, "mute", world=plain(max_turns=9))))
        assert (t.rewards, t.verdict, t.score, t.ended) == ((None, None, None), None, None, "truncated")

    def test_the_users_words_are_in_nobodys_length(self, chat: ChatFormat) -> None:
        """OpenRLHF#1243: replies of four tokens are below a cap of ten, however much the user says between."""
        four = next(text for k in count(1) if len(chat.reply(text := "a" * k)) == 4)
        rollout = one(scripted(chat, four, overlong=Overlong(cap=10, cache=4)))
        assert [p["overlong"] for p in rollout.parts] == [0.0, 0.0, 0.0]
        short = one(scripted(chat, four, overlong=Overlong(cap=4, cache=2, factor=0.1)))
        assert trained(short).rewards == pytest.approx([r - 0.1 for r in trained(rollout).rewards])
        assert trained(short).score == trained(rollout).score

    def test_judges_of_a_recipe_give_the_verdict(self, chat: ChatFormat) -> None:
        rollout = one(scripted(chat, "I hear you.", "Go on.", "mute", world=plain(**HUMAN)))
        assert (trained(rollout).rewards, trained(rollout).verdict) == ((1.0, 0.0, None), 0.5)


class TestLimits:
    def test_the_policys_tokens_run_out(self, chat: ChatFormat, model: Any) -> None:
        """OpenRLHF PR#1327: cut by a limit of ours is truncated, not terminated, and says which."""
        limits = Limits(reply_tokens=12, episode_tokens=15)
        rollout = one(drawn(chat, model, plain(max_turns=9), limits=limits))
        assert trained(rollout).policy_tokens == 15
        assert (rollout.cut, trained(rollout).ended, trained(rollout).verdict) == ("episode_tokens", "truncated", 0.0)
        assert rollout.outcome is not None
        assert rollout.outcome.end == "budget"

    def test_the_context_runs_out(self, chat: ChatFormat) -> None:
        whole = len(trained(one(scripted(chat, "I hear you."))).sequences[0].ids)
        rollout = one(scripted(chat, "I hear you.", limits=Limits(reply_tokens=20, context=whole)))
        assert (rollout.cut, trained(rollout).ended, len(rollout.turns)) == ("context", "truncated", 2)
        none = one(scripted(chat, limits=Limits(reply_tokens=20, context=21)))
        assert none.trajectory is None
        assert "leaves no room" in none.failure

    def test_under_rerender_old_exchanges_go_first(self, chat: ChatFormat) -> None:
        limits = Limits(reply_tokens=20, context=len(trained(one(scripted(chat, "I hear you."))).sequences[0].ids))
        rollout = one(scripted(chat, "I hear you.", limits=limits, history="rerender"))
        assert (rollout.cut, len(rollout.turns)) == ("", 3)

    def test_turns_run_out(self, chat: ChatFormat) -> None:
        rollout = one(scripted(chat))
        assert (rollout.cut, trained(rollout).ended) == ("", "truncated")


class TestFailures:
    def test_one_that_fails_is_left_out_and_stops_no_other(self, chat: ChatFormat) -> None:
        told: list[Progress] = []
        lost = Task("x", 13, scenario=SCENARIOS[0])
        first, failed, last = scripted(chat, "I hear you.").collect([tasks()[0], lost, tasks()[0]], tell=told.append)
        assert (failed.trajectory, failed.task) == (None, lost)
        assert "nobody there" in failed.failure
        assert first.trajectory == last.trajectory is not None
        assert (told[-1].done, told[-1].failed, told[-1].turns) == (3, 1, 6)

    def test_ctrl_c_gets_through_and_leaves_nothing(self, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch) -> None:
        player = scripted(chat)

        def interrupted(*_: object, **__: object) -> list[Sample]:
            raise KeyboardInterrupt

        monkeypatch.setattr(player.sampler, "sample", interrupted)
        with pytest.raises(KeyboardInterrupt):
            player.collect(tasks(2))
        assert player.sampler.forgot == 1  # type: ignore[attr-defined]

    @pytest.mark.parametrize("make", [scripted, lambda chat: Replies(plain(), chat, Scripted(chat))])
    def test_a_task_of_the_other_kind_is_refused(self, chat: ChatFormat, make: Callable[[ChatFormat], Any]) -> None:
        with pytest.raises(ConfigError, match="needs a"):
            make(chat).collect([Task("g", 0)])


class TestWaiting:
    def test_judges_that_wait_are_waited_for_together(self, chat: ChatFormat) -> None:
        """verl#1507: sixteen calls of 0.1 s, eight at a time."""
        Human.most = 0
        player = scripted(chat, world=plain(**HUMAN, max_turns=1), at_once=8)
        start = time.monotonic()
        assert all(trained(r).rewards for r in player.collect(tasks(16)))
        assert Human.most == 8
        assert time.monotonic() - start < 1.6, "one after the other they take longer"

    def test_a_judge_says_the_same_in_both_modes(self, chat: ChatFormat) -> None:
        """verl#5949: one judge, reached in one way, for single replies and for conversations."""
        rollout = one(scripted(chat, world=plain(**HUMAN, max_turns=2)))
        exchange = Exchange(rollout.turns[0].user, rollout.turns[0].reply)
        prompt = ScorablePrompt(rollout.turns[1].user, (exchange,), scenario=SCENARIOS[0].id)
        replies = Replies(plain(**HUMAN), chat, Scripted(chat, LINES[1:]))  # type: ignore[arg-type]
        (single,) = replies.collect([Task("g", 0, prompt=prompt)])
        assert single.turns[0].verdicts == rollout.turns[1].verdicts
        assert trained(single).rewards == trained(rollout).rewards[1:]


class TestReplies:
    prompt = ScorablePrompt("My dog died.", (Exchange("Hi.", "Hello."),))

    def collect(self, chat: ChatFormat, lines: Sequence[str], **options: Any) -> list[Rollout]:
        replies = Replies(WorldConfig(recipe="echo_n1"), chat, Scripted(chat, lines), **options)  # type: ignore[arg-type]
        return replies.collect([Task("g", 0, prompt=self.prompt, number=n) for n in range(len(lines))])

    def test_one_reply_to_a_fixed_history(self, chat: ChatFormat) -> None:
        cut, whole = self.collect(chat, ["I hear~", "<think>hm</think>You miss your dog."])
        assert (trained(cut).ended, trained(whole).ended) == ("truncated", "terminated")
        said = [
            Message(role=r, text=t) for r, t in (("user", "Hi."), ("companion", "Hello."), ("user", "My dog died."))
        ]
        assert list(trained(cut).sequences[0].ids) == [*chat.prompt(said), *chat.reply("I hear")[:-1]]
        (turn,) = whole.turns
        assert (turn.index, turn.reply) == (2, "You miss your dog.")
        assert trained(whole).rewards == (turn.reward,)
        assert set(whole.parts[0]) == {"empathy", "humanlike"}
        assert trained(whole).verdict == pytest.approx(sum(v.value or 0.0 for v in turn.verdicts) / 2)

    def test_length_costs_in_the_reward_alone(self, chat: ChatFormat) -> None:
        free, costly = (
            self.collect(chat, ["I hear you."], overlong=o, score="reward")[0]
            for o in (None, Overlong(cap=2, cache=1, factor=0.1))
        )
        assert trained(costly).rewards[0] == pytest.approx(trained(free).rewards[0] - 0.1)
        assert trained(costly).score == trained(free).score == free.turns[0].reward
        assert costly.parts[0]["overlong"] == pytest.approx(-0.1)

    def test_what_does_not_fit_is_left_out(self, chat: ChatFormat) -> None:
        (none,) = self.collect(chat, ["I hear you."], limits=Limits(reply_tokens=20, context=21))
        assert none.trajectory is None
        assert "leaves no room" in none.failure


def test_a_tiny_model_talks_in_the_embedded_world(chat: ChatFormat, model: Any) -> None:
    group = drawn(chat, model, WorldConfig(max_turns=3)).collect(tasks(2, 2))
    assert len({r.turns[0].user for r in group}) == 2
    for rollout in group:
        t = trained(rollout)
        assert len(t.rewards) == len(rollout.turns) == len(list(t.replies()))
        assert all(turn.judgement is not None for turn in rollout.turns)
        said = [chat.text(t.sequences[0].ids[r.start : r.end]) for r in t.replies()]
        assert [visible(storable(text)) for text in said] == [turn.reply for turn in rollout.turns]
