"""From judgements of one data set to its measures: which figure, which controls, which baselines.

Pure: what a judge said comes in beside what people said, measures come out. A reply that was not judged is left out of
every figure, never counted as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from echo_env import agreement as ag
from echo_env.agreement import Indices, Measure, Numbers
from echo_env.humanrecords import Labelled, Pair, Talk
from echo_env.types import Evidence, Judgement, Levels

Judgements = Sequence[Judgement | None]
FIRST_TOKENS = 80
"""Normalised tokens of the supporter that are judged when failed conversations are told from normal ones."""
MATCHED = 0.15
"""Largest difference of log length between two conversations that are compared as equally long."""


def net(levels: Levels) -> float:
    """Return a reply's worth: the sum of its six levels."""
    return float(sum(levels))


# --- level-labelled replies ------------------------------------------------------------------------------------------

_FINDS: dict[str, Callable[[Evidence], bool]] = {
    "emotional-reactions": lambda e: e.axis == "A",
    "interpretations": lambda e: e.axis == "C",
    "explorations": lambda e: ag.asks(e.quote),
}
"""Which of a judge's good evidence stands for a mechanism: axis A; axis C; on any axis what it quotes as a question."""


def level_of(mechanism: str, judgement: Judgement) -> int:
    """Return the level that a judge gives a mechanism: that of its strongest good evidence for it."""
    return max((e.level for e in shown(mechanism, judgement)), default=0)


def shown(mechanism: str, judgement: Judgement) -> list[Evidence]:
    """Return a judge's good evidence for a mechanism."""
    return [e for e in judgement.evidence if e.level > 0 and _FINDS[mechanism](e)]


def levels_agreement(mechanism: str, rows: Sequence[Labelled], judged: Judgements, seed: int) -> dict[str, Measure]:
    """Measure one mechanism: Spearman and macro-F1 of levels, token F1 of the quotes against people's spans."""
    kept = [(row, j) for row, j in zip(rows, judged, strict=True) if j is not None]
    posts = [row.post for row, _ in kept]
    true = np.array([row.level for row, _ in kept], dtype=np.int64)
    found = np.array([level_of(mechanism, j) for _, j in kept], dtype=np.int64)
    trivial = {name: np.array([f(row.reply) for row, _ in kept]) for name, f in _TRIVIAL.items()}
    measures = {
        "spearman": ag.measured(
            lambda i: ag.spearman(found[i].astype(float), true[i].astype(float)),
            posts,
            seed=seed,
            baselines={name: ag.spearman(x, true.astype(float)) for name, x in trivial.items()},
        ),
        "macro_f1": ag.measured(
            lambda i: ag.macro_f1(found[i], true[i]),
            posts,
            seed=seed,
            baselines={
                "always 0": ag.macro_f1(np.zeros_like(true), true),
                "question mark: 2": ag.macro_f1(2 * trivial["question mark"].astype(np.int64), true),
                "says 'I': 2": ag.macro_f1(2 * trivial["says 'I'"].astype(np.int64), true),
            },
        ),
    }
    return {f"{mechanism}.{k}": m for k, m in {**measures, **_evidence(mechanism, kept, posts, seed)}.items()}


_TRIVIAL: dict[str, Callable[[str], float]] = {
    "length": lambda text: float(ag.word_count(text)),
    "question mark": lambda text: float(ag.asks(text)),
    "says 'I'": lambda text: float(bool({"i", "me", "my"} & set(ag.tokens(text)))),
}


def _evidence(
    mechanism: str, kept: Sequence[tuple[Labelled, Judgement]], posts: list[str], seed: int
) -> dict[str, Measure]:
    ours = [ag.overlap(row.reply, [e.quote for e in shown(mechanism, j)], row.spans) for row, j in kept]
    blind = [ag.overlap(row.reply, [row.reply], row.spans) for row, _ in kept]

    def of(f1: Callable[[Sequence[ag.Overlap]], float | None], note: str) -> Measure:
        return ag.measured(
            lambda i: f1([ours[k] for k in i]), posts, seed=seed, baselines={"whole reply": f1(blind)}, note=note
        )

    marked = [k for k, o in enumerate(blind) if o.marked]

    def only_marked(all_: Sequence[ag.Overlap]) -> float | None:
        return ag.mean_f1([o for o in all_ if o.marked])

    return {
        "evidence_f1": of(ag.pooled_f1, "over all words of all replies"),
        "evidence_f1_reply": of(ag.mean_f1, "mean over replies; 1 where neither judge nor people mark a word"),
        "evidence_f1_marked": of(only_marked, f"mean over the {len(marked)} replies in which people marked words"),
    }


def pooled_evidence(sets: dict[str, tuple[Sequence[Labelled], Judgements]], seed: int) -> dict[str, Measure]:
    """Measure the quotes over all mechanisms together."""
    ours, blind, posts = [], [], []
    for mechanism, (rows, judged) in sets.items():
        for row, j in zip(rows, judged, strict=True):
            if j is not None:
                ours.append(ag.overlap(row.reply, [e.quote for e in shown(mechanism, j)], row.spans))
                blind.append(ag.overlap(row.reply, [row.reply], row.spans))
                posts.append(row.post)

    def ratio(i: Indices) -> float | None:
        top, bottom = ag.pooled_f1([ours[k] for k in i]), ag.pooled_f1([blind[k] for k in i])
        return top / bottom if top is not None and bottom else None

    return {
        "evidence_f1": ag.measured(
            lambda i: ag.pooled_f1([ours[k] for k in i]),
            posts,
            seed=seed,
            baselines={"whole reply": ag.pooled_f1(blind)},
            note="over all words, all mechanisms",
        ),
        "evidence_gain": ag.measured(
            ratio, posts, seed=seed, baselines={"whole reply": 1.0}, note="times the whole reply's token F1"
        ),
    }


# --- conversations ---------------------------------------------------------------------------------------------------


def rating_agreement(talks: Sequence[Talk], judged: Sequence[Judgements], seed: int) -> dict[str, Measure]:
    """Measure seekers' ratings during the talk against the judge's mean net level of the replies that they cover."""
    rows: list[tuple[str, float, float, float, float, float]] = []
    for talk, judgements in zip(talks, judged, strict=True):
        for rating in talk.ratings:
            span = range(rating.start, rating.stop)
            nets = [net(j.levels) for k in span if (j := judgements[k]) is not None]
            if nets:
                replies = [talk.exchanges[k].reply for k in span]
                length = float(np.log1p(np.mean([ag.word_count(r) for r in replies])))
                asked = float(np.mean([ag.asks(r) for r in replies]))
                rows.append((talk.id, float(np.mean(nets)), rating.value, rating.stop, length, asked))
    ids = [r[0] for r in rows]
    data = np.array([r[1:] for r in rows], dtype=np.float64).reshape(len(rows), 5)
    score, rated, controls = data[:, 0], data[:, 1], data[:, 2:]

    def inside(x: Numbers) -> float | None:
        return ag.pearson(ag.within(x, ids), ag.within(rated, ids))

    trivial = {name: inside(controls[:, k]) for k, name in enumerate(("turn number", "length", "question mark"))}
    names = np.array(ids, dtype=np.str_)
    return {
        "within_r": ag.measured(
            lambda i: ag.pearson(ag.within(score[i], names[i]), ag.within(rated[i], names[i])),
            ids,
            seed=seed,
            baselines={**trivial, "all three fitted": _fitted(controls, rated, ids)},
        ),
        "within_r_partial": ag.measured(
            lambda i: ag.within_partial(score[i], rated[i], controls[i], names[i]),
            ids,
            seed=seed,
            baselines={"chance": 0.0},
            note="turn number, log length and question mark partialled out",
        ),
    }


def _fitted(controls: Numbers, rated: Numbers, ids: Sequence[str]) -> float | None:
    """Return the multiple correlation of the controls with the ratings, within conversations."""
    y = ag.within(rated, ids)
    left = ag.residual(y, ag.within(controls, ids)) if len(y) > 4 else y
    total = float(y @ y)
    return float(np.sqrt(max(0.0, 1 - float(left @ left) / total))) if total > 0 else None


def failure_agreement(
    talks: Sequence[Talk], judged: Sequence[Judgements], seed: int, supervised: bool = False
) -> dict[str, Measure]:
    """Measure how well a judge's mean net level tells normal conversations from failed ones.

    The talks are those that were judged: cut to the first normalised tokens. With `supervised`, a TF-IDF model fitted
    to the labels stands among the baselines.
    """
    kept = [(t, [j for j in js if j is not None]) for t, js in zip(talks, judged, strict=True)]
    kept = [(t, js) for t, js in kept if js and t.failed is not None]
    ids = [t.id for t, _ in kept]
    normal = np.array([not t.failed for t, _ in kept], dtype=np.bool_)
    score = np.array([np.mean([net(j.levels) for j in js]) for _, js in kept], dtype=np.float64)
    length = np.array(
        [np.log(np.mean([max(1, ag.word_count(e.reply)) for e in t.exchanges])) for t, _ in kept], dtype=np.float64
    )
    turns = np.array([float(len(t.exchanges)) for t, _ in kept])
    asked = np.array([np.mean([ag.asks(e.reply) for e in t.exchanges]) for t, _ in kept], dtype=np.float64)
    trivial = {"length": length, "fewer turns": -turns, "question mark": asked}
    if supervised:
        trivial["supervised TF-IDF"] = tfidf_failed([t for t, _ in kept], seed)
    return {
        "auc": ag.measured(
            lambda i: ag.auc(score[i], normal[i]),
            ids,
            seed=seed,
            baselines={name: ag.auc(x, normal) for name, x in trivial.items()},
            note="chance that a normal conversation scores above a failed one",
        ),
        "auc_partial": ag.measured(
            lambda i: ag.auc(ag.residual(score[i], length[i][:, None]), normal[i]),
            ids,
            seed=seed,
            baselines={
                name: ag.auc(ag.residual(x, length[:, None]), normal) for name, x in trivial.items() if name != "length"
            },
            note="log reply length partialled out of the score",
        ),
        "auc_matched": ag.measured(
            lambda i: matched_auc(score[i], normal[i], length[i]),
            ids,
            seed=seed,
            baselines={name: matched_auc(x, normal, length) for name, x in trivial.items()},
            note=f"pairs whose log reply lengths differ by at most {MATCHED}",
        ),
    }


def matched_auc(score: Numbers, positive: NDArray[np.bool_], control: Numbers) -> float | None:
    """Return the AUC over those pairs alone that are alike in a control, ties half."""
    up, down = score[positive], score[~positive]
    alike = np.abs(control[positive][:, None] - control[~positive][None, :]) <= MATCHED
    if not alike.any():
        return None
    wins = (up[:, None] > down[None, :]) + 0.5 * (up[:, None] == down[None, :])
    return float(wins[alike].mean())


def sage_agreement(talks: Sequence[Talk], judged: Sequence[Judgements], seed: int) -> dict[str, Measure]:
    """Measure a judge against the sign of the simulated user's next change of emotion."""
    rows: list[tuple[str, float, float, float]] = []
    for talk, judgements in zip(talks, judged, strict=True):
        for k, j in enumerate(judgements):
            if j is not None and k + 1 < len(talk.points) and talk.points[k + 1] != talk.points[k]:
                rows.append((talk.id, net(j.levels), talk.points[k], float(talk.points[k + 1] > talk.points[k])))
    ids = [r[0] for r in rows]
    data = np.array([r[1:] for r in rows], dtype=np.float64).reshape(len(rows), 3)
    score, before, up = data[:, 0], data[:, 1], data[:, 2] > 0
    return {
        "auc": ag.measured(
            lambda i: ag.auc(score[i], up[i]), ids, seed=seed, baselines={"emotion before": ag.auc(before, up)},
            note="sign of the next change of emotion",
        ),
        "auc_partial": ag.measured(
            lambda i: ag.auc(ag.residual(score[i], before[i][:, None]), up[i]) if len(i) > 3 else None,
            ids, seed=seed, baselines={"chance": 0.5}, note="emotion before the reply partialled out",
        ),
    }  # fmt: skip


# --- pairs -----------------------------------------------------------------------------------------------------------


def pair_agreement(
    pairs: Sequence[Pair], judged: Sequence[tuple[Judgement | None, Judgement | None]], seed: int
) -> dict[str, Measure]:
    """Measure which of two replies a judge scores higher, against what most raters preferred, for each aspect."""
    kept = [(p, a, b) for p, (a, b) in zip(pairs, judged, strict=True) if a is not None and b is not None]
    margins = np.array([net(a.levels) - net(b.levels) for _, a, b in kept], dtype=np.float64)
    lengths = np.array([_margin(p, lambda t: float(ag.word_count(t))) for p, _, _ in kept])
    asked = np.array([_margin(p, lambda t: float(ag.asks(t))) for p, _, _ in kept])
    measures = {}
    for aspect in sorted({a for p in pairs for a in p.votes}):
        sides = np.array([ag.preferred(p.votes.get(aspect, ())) for p, _, _ in kept], dtype=np.float64)
        decided = np.flatnonzero(sides)
        credit = ag.pair_credits(margins[decided], sides[decided])
        tied = float((margins[decided] == 0).mean()) if len(decided) else 0.0
        measures[f"{aspect}.accuracy"] = ag.measured(
            lambda i, credit=credit: float(credit[i].mean()) if len(i) else None,  # type: ignore[misc]
            [kept[k][0].id for k in decided],
            seed=seed,
            baselines={
                "longer wins": _mean(ag.pair_credits(lengths[decided], sides[decided])),
                "asks wins": _mean(ag.pair_credits(asked[decided], sides[decided])),
                "chance": 0.5,
            },
            ceiling=ag.raters_ceiling([p.votes.get(aspect, ()) for p, _, _ in kept]),
            note=f"the judge ties {tied:.0%} of them, counted half",
        )
    return measures


def _margin(pair: Pair, worth: Callable[[str], float]) -> float:
    return worth(pair.replies[0]) - worth(pair.replies[1])


def _mean(x: Numbers) -> float | None:
    return float(x.mean()) if len(x) else None


# --- a supervised yardstick ------------------------------------------------------------------------------------------


def tfidf_levels(rows: Sequence[Labelled], seed: int) -> dict[str, float | None]:
    """Return Spearman and macro-F1 of a supervised TF-IDF model on these rows, cross-validated by post.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    x, y = [row.reply for row in rows], np.array([row.level for row in rows], dtype=np.int64)
    predicted = _tfidf(x, y, [row.post for row in rows], seed).argmax(axis=1)
    return {
        "spearman": ag.spearman(predicted.astype(float), y.astype(float)),
        "macro_f1": ag.macro_f1(predicted.astype(np.int64), y),
    }


def tfidf_failed(talks: Sequence[Talk], seed: int) -> Numbers:
    """Return the chance that each talk is a normal one, by a supervised TF-IDF model on the supporter's words.

    Cross-validated: no talk is scored by a model that has seen its label.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    y = np.array([not t.failed for t in talks], dtype=np.int64)
    text = [" ".join(e.reply for e in t.exchanges) for t in talks]
    return np.asarray(_tfidf(text, y, [t.id for t in talks], seed)[:, 1], dtype=np.float64)


def _tfidf(texts: list[str], y: Indices, groups: list[str], seed: int) -> Numbers:
    """Return out-of-fold class probabilities, shape (rows, classes 0..max)."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GroupKFold
        from sklearn.pipeline import make_pipeline
    except ImportError:
        from echo_env.errors import missing_extra

        raise missing_extra("scikit-learn", "validate") from None
    found = np.zeros((len(texts), int(y.max()) + 1))
    for train, test in GroupKFold(5, shuffle=True, random_state=seed).split(texts, y, groups):
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True),
            LogisticRegression(C=10, max_iter=1000, class_weight="balanced"),
        )
        model.fit([texts[k] for k in train], y[train])
        chances = model.predict_proba([texts[k] for k in test])
        for column, label in enumerate(model.classes_):
            found[test, int(label)] = chances[:, column]
    return found
