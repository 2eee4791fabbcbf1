"""Query generation from a passage's [E], by beam search or random draws."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightir.models.backbones import Backbone
from lightir.models.likelihood import EndStates, continue_from, next_logits


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One generated text.

    Attributes:
        token_ids: token ids without the end token.
        score: mean log probability of the tokens, including the end token if it was reached.
    """

    token_ids: tuple[int, ...]
    score: float


@torch.no_grad()
def beam_search(
    backbone: Backbone, ends: EndStates, *, beams: int, max_tokens: int, stop_ids: Collection[int]
) -> list[list[Hypothesis]]:
    """Return the best texts of each of n passages, at most `beams`, best first; ties by token ids; no empty text.

    A text that has not ended after max_tokens is returned as it is.

    Args:
        backbone: backbone that computed the end states.
        ends: end states of n passages.
        beams: number of texts that are continued for each passage.
        max_tokens: maximum number of tokens of a text.
        stop_ids: ids of the tokens that end a text; they are not part of it.
    """
    n, device = len(ends.states), backbone.device
    if not n:
        return []
    finished: list[dict[tuple[int, ...], float]] = [{} for _ in range(n)]
    first = _log_probs(backbone, ends.states)
    first[:, list(stop_ids)] = -torch.inf
    scores, tokens = first.topk(min(beams, first.shape[1] - len(stop_ids)), dim=1)
    width = tokens.shape[1]
    texts: list[list[tuple[int, ...]]] = [[(int(token),) for token in row] for row in tokens.tolist()]
    kept = ends.take(torch.arange(n, device=device).repeat_interleave(width))
    for length in range(2, max_tokens + 1):
        _, kept = continue_from(backbone, kept, tokens.reshape(-1, 1))
        following = scores[:, :, None] + _log_probs(backbone, kept.states).view(n, width, -1)
        vocab_size = following.shape[2]
        # A beam ends once per stop token, so this many continuations leave `width` that go on.
        best = following.view(n, -1).topk(min(width * (1 + len(stop_ids)), width * vocab_size), dim=1)
        texts, scores, tokens, parents = _carry_on(
            texts, best.values, best.indices, vocab_size, stop_ids, finished, length
        )
        scores, tokens, parents = scores.to(device), tokens.to(device), parents.to(device)
        kept = kept.take((torch.arange(n, device=device)[:, None] * width + parents).reshape(-1))
        if all(map(_is_settled, finished, (scores / length).amax(dim=1).tolist(), [width] * n)):
            break
    for text_scores, row, values in zip(finished, texts, scores.tolist(), strict=True):
        for text, value in zip(row, values, strict=True):
            text_scores.setdefault(text, value / len(text))
    return [_best(text_scores, width) for text_scores in finished]


@torch.no_grad()
def sample(
    backbone: Backbone,
    ends: EndStates,
    generators: Sequence[np.random.Generator],
    *,
    draws: int,
    among: int,
    max_tokens: int,
    stop_ids: Collection[int],
) -> list[list[Hypothesis]]:
    """Draw texts for each of n passages and return the distinct ones, best first; no empty text.

    Each token is drawn from the `among` most probable ones, in proportion to their probabilities. A text that has not
    ended after max_tokens is returned as it is.

    Args:
        backbone: backbone that computed the end states.
        ends: end states of n passages.
        generators: one random generator per passage, so that draws do not depend on the batch.
        draws: number of texts drawn for each passage.
        among: number of most probable tokens to draw from; 1 always takes the most probable.
        max_tokens: maximum number of tokens of a text.
        stop_ids: ids of the tokens that end a text; they are not part of it.
    """
    if not generators:
        return []
    device = backbone.device
    stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
    drawn: list[list[int]] = [[] for _ in range(len(generators) * draws)]  # including the end token
    scores = [0.0] * len(drawn)
    running = torch.arange(len(drawn))
    kept = ends.take((running // draws).to(device))
    for length in range(1, max_tokens + 1):
        log_probs = _log_probs(backbone, kept.states)
        if length == 1:
            log_probs[:, stops] = -torch.inf
        uniform = torch.from_numpy(np.concatenate([rng.random(draws) for rng in generators]))[running]
        tokens = _draw(log_probs, uniform.to(log_probs), among=among)
        values = log_probs.gather(1, tokens[:, None])[:, 0]
        for row, token, value in zip(running.tolist(), tokens.tolist(), values.tolist(), strict=True):
            drawn[row].append(token)
            scores[row] += value
        goes_on = (~torch.isin(tokens, stops)).nonzero()[:, 0]
        running = running[goes_on.cpu()]
        if not len(running) or length == max_tokens:
            break
        _, kept = continue_from(backbone, kept.take(goes_on), tokens[goes_on, None])
    texts: list[dict[tuple[int, ...], float]] = [{} for _ in generators]
    for row, (ids, score) in enumerate(zip(drawn, scores, strict=True)):
        text = tuple(token for token in ids if token not in stop_ids)
        texts[row // draws][text] = max(score / len(ids), texts[row // draws].get(text, score / len(ids)))
    return [_best(text_scores, draws) for text_scores in texts]


def _draw(log_probs: Tensor, uniform: Tensor, *, among: int) -> Tensor:
    """Return (n,) token ids, drawn from each row's most probable ones by one number in [0, 1)."""
    best = log_probs.topk(min(among, log_probs.shape[1]), dim=1)
    below = best.values.softmax(dim=1).cumsum(dim=1)
    ranks = (below <= uniform[:, None] * below[:, -1:]).sum(dim=1).clamp(max=below.shape[1] - 1)
    return best.indices.gather(1, ranks[:, None])[:, 0]


def _carry_on(
    texts: list[list[tuple[int, ...]]],
    values: Tensor,
    indices: Tensor,
    vocab_size: int,
    stop_ids: Collection[int],
    finished: list[dict[tuple[int, ...], float]],
    length: int,
) -> tuple[list[list[tuple[int, ...]]], Tensor, Tensor, Tensor]:
    """Return the beams' next texts, scores, last tokens and parent beams; add the texts that end to `finished`."""
    width = len(texts[0])
    new_texts, new_scores, new_tokens, parents = [], [], [], []
    for row, (row_values, row_indices) in enumerate(zip(values.tolist(), indices.tolist(), strict=True)):
        chosen: list[tuple[float, int, int]] = []
        for value, index in zip(row_values, row_indices, strict=True):
            beam, token = divmod(index, vocab_size)
            if token in stop_ids:
                ended = texts[row][beam]
                finished[row][ended] = max(value / length, finished[row].get(ended, value / length))
            elif len(chosen) < width:
                chosen.append((value, beam, token))
        new_scores.append([value for value, _, _ in chosen])
        parents.append([beam for _, beam, _ in chosen])
        new_tokens.append([token for _, _, token in chosen])
        new_texts.append([(*texts[row][beam], token) for _, beam, token in chosen])
    return new_texts, torch.tensor(new_scores), torch.tensor(new_tokens), torch.tensor(parents)


def _is_settled(finished: dict[tuple[int, ...], float], best_open: float, width: int) -> bool:
    """Return whether `width` texts ended with a better score than the best open one has."""
    return len(finished) >= width and sorted(finished.values())[-width] >= best_open


def _best(scores: dict[tuple[int, ...], float], n: int) -> list[Hypothesis]:
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hypothesis(text, score) for text, score in ordered[:n]]


def _log_probs(backbone: Backbone, states: Tensor) -> Tensor:
    return torch.log_softmax(next_logits(backbone, states), dim=1)
