"""Data of fine-tuning: what is refused, what is drawn, in which order, and which tokens are trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from sftfiles import TALKS, line, talk, write

from echo_env.errors import ConfigError, RecordError
from echo_env.profiles import get_scenario
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.scratch import make_tokenizer
from echo_env.trainers.sftdata import (
    Chat,
    Source,
    best_of,
    companions,
    difficulty,
    example,
    held_out,
    mix,
    ordered,
    people,
    read,
    windows,
)


def chat(name: str, texts: tuple[str, ...] = TALKS[0], **fields) -> Chat:
    fields = {"companion": "skilled-1", "scenario": "train-0001", "language": "en", "system": ""} | fields
    return Chat(id=name, origin=name, messages=talk(*texts), **fields)


# ---- reading


def test_a_line_is_read_whole(tmp_path):
    file = write(tmp_path / "a.jsonl", [line("one", TALKS[0], system="Be kind.", end="success", rewards=[0.5, 1.5])])
    [found] = read(file)
    assert (found.id, found.system, found.companion, found.turns) == ("one", "Be kind.", "skilled-1", 2)
    assert found.messages == talk(*TALKS[0])
    assert found.success is True
    assert found.returned == 2.0
    assert found.distance == pytest.approx(np.linalg.norm(get_scenario("train-0001").p0))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda d: d["meta"].pop("turns"), "meta.turns"),
        (lambda d: d["messages"][0].update(role="robot"), "messages.0.role"),
        (lambda d: d["messages"].pop(), "do not take turns"),
        (lambda d: d["messages"].pop(0), "do not take turns"),
        (lambda d: d["messages"].clear(), "do not take turns"),
    ],
)
def test_a_bad_line_is_told_by_file_line_and_field(tmp_path, spoil, told):
    file = write(tmp_path / "a.jsonl", [line("one", TALKS[0]), line("two", TALKS[1])])
    first, second = file.read_text().splitlines()
    data = json.loads(second)
    spoil(data)
    file.write_text(f"{first}\n{json.dumps(data)}\n")
    with pytest.raises(RecordError, match=rf"a\.jsonl, line 2: .*{told}"):
        read(file)


def test_no_json_is_told_too(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("{oh\n")
    with pytest.raises(RecordError, match="line 1"):
        read(file)


@pytest.mark.parametrize("person", ["first of the benchmark", "dev-0003"])
def test_who_is_measured_on_is_refused_by_name(tmp_path, person):
    person = person if person.startswith("dev") else _benchmark()[0]
    with pytest.raises(ConfigError, match="never trained on"):
        read(write(tmp_path / "a.jsonl", [line("one", TALKS[0], scenario=person)]))


def _benchmark() -> list[str]:
    from echo_env.profiles import scenario_ids

    return [*scenario_ids("benchmark"), *scenario_ids("benchmark-zh")]


def test_every_benchmark_person_is_refused_even_under_another_name(tmp_path):
    for number, person in enumerate(_benchmark()):
        under = line("one", TALKS[0], scenario="a-friend", scenario_hash=get_scenario(person).digest)
        with pytest.raises(ConfigError, match="never"):
            read(write(tmp_path / f"{number}.jsonl", [under]))


def test_a_run_folder_is_read_and_its_benchmark_refused(tmp_path):
    from echo_env.agents.rollout import RunConfig, run

    for split in ("train", "benchmark"):
        run(RunConfig(policy="template", split=split, limit=2), tmp_path / split)
    found = read(tmp_path / "train")
    assert [c.scenario for c in found] == ["train-0000", "train-0001"]
    assert all(c.epm_q is not None and c.success is not None and c.turns > 5 for c in found)
    assert found == read(tmp_path / "train" / "template")
    with pytest.raises(ConfigError, match="never trained on"):
        read(tmp_path / "benchmark")


def test_nothing_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="no conversations at"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no finished conversation"):
        read(tmp_path)


# ---- mixing


def _sources(tmp_path: Path) -> tuple[Source, Source]:
    a = [line(f"a{k}", TALKS[0], companion="skilled-1") for k in range(20)]
    b = [line(f"b{k}", TALKS[1], companion="template-1") for k in range(20)]
    return (
        Source(path=write(tmp_path / "a.jsonl", a), share=0.8),
        Source(path=write(tmp_path / "b.jsonl", b), share=0.2),
    )


def test_shares_are_exact_and_nothing_is_drawn_twice(tmp_path):
    drawn = mix(_sources(tmp_path), 10, seed=0)
    assert companions(drawn) == {"skilled-1": 8, "template-1": 2}
    assert len({c.id for c in drawn}) == 10


def test_the_draw_depends_on_the_seed_alone(tmp_path):
    sources = _sources(tmp_path)
    one, same, other = ([c.id for c in mix(sources, 10, seed=s)] for s in (0, 0, 1))
    assert one == same
    assert one != other


def test_without_a_count_it_is_as_many_as_the_shares_allow(tmp_path):
    # 20 of the first are 0.8 of 25, so 5 of the second
    assert companions(mix(_sources(tmp_path), None, seed=0)) == {"skilled-1": 20, "template-1": 5}


def test_too_large_a_share_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.jsonl holds 20 conversations, its share is 24"):
        mix(_sources(tmp_path), 30, seed=0)


def test_policies_pick_companions_by_name(tmp_path):
    file = write(tmp_path / "a.jsonl", [line(n, TALKS[0], companion=n) for n in ("skilled-1", "skilled", "skilledX")])
    assert len(mix([Source(path=file, policies=("skilled",))], None, 0)) == 2
    with pytest.raises(ConfigError, match="no conversation of parrot"):
        mix([Source(path=file, policies=("parrot",))], None, 0)


def test_a_conversation_is_held_out_or_trained_on_never_both():
    chats = [chat(str(k)) for k in range(40)]
    train, measured = held_out(chats, 0.1)
    assert len(measured) == 4
    assert sorted([*train, *measured], key=lambda c: int(c.id)) == chats
    assert held_out(chats[::-1], 0.1)[1] == measured[::-1]
    assert held_out(chats[:1], 0.9) == (chats[:1], [])


def test_people_carry_their_digest():
    found = people([chat("1"), chat("2", scenario="somebody-else"), chat("3", scenario="")])
    assert found == {"train-0001": get_scenario("train-0001").digest}


# ---- rejection sampling


def test_success_comes_first_then_the_index():
    own = [
        chat("low", success=True, epm_q=40.0, returned=9.0),
        chat("failed", success=False, epm_q=90.0, returned=9.0),
        chat("high", success=True, epm_q=60.0, returned=1.0),
        chat("else", success=False, epm_q=1.0, scenario="train-0002"),
    ]
    assert [c.id for c in best_of(own, 1)] == ["high", "else"]
    assert [c.id for c in best_of(own, 2)] == ["high", "low", "else"]


def test_the_return_ranks_where_one_has_no_index():
    own = [chat("a", success=True, epm_q=90.0, returned=1.0), chat("b", success=True, returned=2.0)]
    assert [c.id for c in best_of(own)] == ["b"]


def test_what_was_not_judged_is_no_candidate(tmp_path):
    file = write(
        tmp_path / "a.jsonl",
        [line("gap", TALKS[0], rewards=[9.0, None]), line("whole", TALKS[0], rewards=[-1.0, 0.0])],
    )
    assert [c.id for c in best_of(read(file))] == ["whole"]
    with pytest.raises(ConfigError, match="judged"):
        best_of([chat("nobody looked")])


# ---- order


def test_difficulty_by_hand():
    chats = [
        chat("a", TALKS[0][:2], distance=10.0),
        chat("b", ("I feel sad.", "Oh.", "Sad and lonely.", "Yes."), distance=30.0),
        chat("c", TALKS[2], distance=20.0),
    ]
    # turns 1, 2, 2: ranks 0, .75, .75; distance: 0, 1, .5; feelings a message 0, 3/2, 0: ranks .25, 1, .25
    assert difficulty(chats) == pytest.approx([0.0625, 0.375 + 0.5, 0.375 + 0.1875])


def test_a_sign_that_is_missing_is_left_out_not_zero():
    chats = [chat("a", distance=None), chat("b", distance=5.0), chat("c", distance=7.0)]
    # alike but for the distance: turns and feelings rank .5; distances None, 0, 1
    assert difficulty(chats) == pytest.approx([0.5, 0.375, 0.625])


def test_stages_go_from_easy_to_hard_and_are_mixed_within():
    hardness = np.linspace(1, 0, 40)
    order = ordered(hardness, "staged", 4, seed=0, epoch=0)
    for stage in range(4):
        met = order[10 * stage : 10 * stage + 10]
        assert sorted(met) == list(range(30 - 10 * stage, 40 - 10 * stage))
        assert met != sorted(met, reverse=True)
    assert order != ordered(hardness, "staged", 4, seed=0, epoch=1)
    assert order == ordered(hardness, "staged", 4, seed=0, epoch=0)


def test_shuffle_meets_each_once():
    order = ordered(np.zeros(30), "shuffle", 4, seed=0, epoch=0)
    assert Counter(order) == Counter(range(30))
    assert order != sorted(order)


# ---- ids and masks

TOKENIZER = make_tokenizer([text for texts in TALKS for text in texts], 400, 512)
END = TOKENIZER.eos_token_id
FORMAT = ChatFormat(TOKENIZER, stops=frozenset({END}), system="")


def _runs(e) -> list[str]:
    """Return the text of each run of tokens that are trained on."""
    runs: list[list[int]] = []
    for k, (token, on) in enumerate(zip(e.ids, e.mask, strict=True)):
        if on and not e.mask[k - 1]:
            runs.append([])
        if on:
            runs[-1].append(token)
    return [TOKENIZER.decode(run) for run in runs]


@pytest.mark.parametrize(
    "texts", [TALKS[0], ("我睡不着。", "什麼讓你醒著？🙂", "太安靜 🏠", "👍🏽 安靜。"), ("a", "<think>hm</think>b")]
)
def test_only_replies_and_their_ends_are_trained_on(texts):
    e = example(chat("x", texts), FORMAT.conversation, 512)
    assert _runs(e) == [f"{reply}<|im_end|>" for reply in texts[1::2]]
    assert TOKENIZER.decode(e.ids) == "".join(
        f"<|im_start|>{'assistant' if k % 2 else 'user'}\n{text}<|im_end|>" for k, text in enumerate(texts)
    )
    assert not e.mask[0]


def test_the_mask_by_hand():
    e = example(chat("x", ("I", "You", "I", "I")), FORMAT.conversation, 512)
    user, assistant = (TOKENIZER.convert_tokens_to_ids(f"<|im_start|>{r}\n") for r in ("user", "assistant"))
    i, you = TOKENIZER("I")["input_ids"], TOKENIZER("You")["input_ids"]
    assert list(e.ids) == [user, *i, END, assistant, *you, END, user, *i, END, assistant, *i, END]
    on = [0, *[0] * len(i), 0, 0, *[1] * len(you), 1, 0, *[0] * len(i), 0, 0, *[1] * len(i), 1]
    assert list(e.mask) == [bool(x) for x in on]


def test_everything_is_all_but_the_first():
    e = example(chat("x"), FORMAT.conversation, 512, everything=True)
    assert e.mask == (False, *[True] * (len(e.ids) - 1))


@pytest.mark.parametrize("room", [20, 30, 40, 60, 100])
def test_a_long_one_is_cut_after_a_whole_turn(room):
    texts = tuple(f"word {k}" for k in range(40))
    whole = example(chat("x", texts), FORMAT.conversation, 10_000)
    e = example(chat("x", texts), FORMAT.conversation, room)
    assert len(e.ids) <= room
    assert e.ids == whole.ids[: len(e.ids)]
    assert e.ids[-1] == END
    assert e.mask[-1]
    assert e.cut
    turn = example(chat("x", texts[: 2 * len(_runs(e)) + 2]), FORMAT.conversation, 10_000)
    assert len(turn.ids) > room, "one turn more would have fitted"


def test_one_that_does_not_fit_at_all_is_none():
    assert example(chat("x"), FORMAT.conversation, 5) is None


# ---- pieces

LONG = tuple(f"word {k}" for k in range(14))  # seven exchanges


@pytest.mark.parametrize("exchanges", [1, 2, 3, 7, 9])
def test_every_reply_of_a_conversation_is_trained_on_in_one_piece(exchanges):
    pieces = windows([chat("x", LONG)], exchanges)
    assert all(piece.turns <= exchanges for piece in pieces)
    found = [run for piece in pieces for run in _runs(example(piece, FORMAT.conversation, 512))]
    assert found == [f"{reply}<|im_end|>" for reply in LONG[1::2]]


def test_pieces_by_hand():
    pieces = windows([chat("x", LONG)], 3)
    said = [[int(m.text.split()[1]) for m in piece.messages] for piece in pieces]
    assert said == [list(range(6)), list(range(6, 12)), [12, 13]]
    assert windows([chat("x", LONG)], 0) == [chat("x", LONG)]
