"""Logits -> token: each row is a function of its own logits, parameters and one number alone.

A random row takes the token at which the cumulated probability of its filtered distribution, in
order of token id, passes a number in [0, 1) that the caller made for this request and position.
No generator lives here, so neither a neighbour nor a preemption can change a draw. The filters run
in vLLM's order: temperature, min_p, top_k, top_p. Penalties and logit bias are left out.

Legend: n rows, m of them random, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.sampling_params import SamplingParams

# top_p looks at this many likeliest tokens first, and at 16 times more until it has seen enough;
# most nuclei are small, and sorting 49,152 tokens costs ten times as much.
FIRST_LOOK = 256
MIN_TEMPERATURE = 1e-6  # below it a division would overflow; the likeliest token has it all anyway


@dataclass
class SampledToken:
    """One row's result; after an error its token_id means nothing, and other rows are not touched.

    logprobs: token id -> log probability under the raw logits, for the token taken and the
    likeliest ones, when asked for.
    """

    token_id: int
    logprobs: dict[int, float] | None = None
    error: str | None = None


def sample(
    logits: Tensor,
    params: list[SamplingParams],
    draws: list[float | None],
    suppressed: list[list[int]] | None = None,
) -> list[SampledToken]:
    """Choose a token for each row of logits [n, V] float32.

    Greedy rows take the largest logit, of equal ones the lowest id, whatever their neighbours do.
    draws[i] in [0, 1) decides random row i; suppressed[i] are token ids that row i may not take
    (stop tokens before min_tokens). A row without a finite largest logit gets an error of its own.
    Raises ValueError for a random row without a draw.
    """
    allowed = _suppress(logits, suppressed)  # [n, V]
    best, tokens = allowed.max(-1)  # [n], [n]; a NaN counts as largest
    is_sound = best.isfinite().tolist()
    random_rows = [i for i, p in enumerate(params) if is_sound[i] and not p.is_greedy]
    if random_rows:
        if missing := [i for i in random_rows if draws[i] is None]:
            raise ValueError(f"rows {missing} are sampled at random but have no draw")
        rows = torch.tensor(random_rows, device=logits.device)  # [m]
        weights = filtered_weights(
            allowed[rows] - best[rows, None], [params[i] for i in random_rows]
        )  # [m, V]
        tokens[rows] = inverse_cdf(weights, [draws[i] for i in random_rows])  # [m]

    results = [SampledToken(token) for token in tokens.tolist()]
    for i in [i for i, sound in enumerate(is_sound) if not sound]:
        results[i].error = (
            f"the largest of {logits.shape[1]} logits is {best[i].item()}: the model gave "
            "NaN or infinity, or every token is suppressed"
        )
    _add_logprobs(results, logits, params)
    return results


def filtered_weights(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Probabilities after temperature, with 0 for tokens that min_p, top_k or top_p cut off.

    logits [m, V], largest 0 in each row -> weights [m, V] >= 0, not normalized again. Tokens as
    likely as the last one kept by top_k or top_p are kept too.
    """
    vocab = logits.shape[1]

    def column(values: list[float], rows: list[int]) -> Tensor:
        return torch.tensor([values[i] for i in rows], device=logits.device)[:, None]  # [rows, 1]

    everyone = list(range(len(params)))
    temperature = column([max(p.temperature, MIN_TEMPERATURE) for p in params], everyone)
    weights = torch.softmax(logits / temperature, -1)  # [m, V]
    min_p, top_k, top_p = zip(*((p.min_p, p.top_k, p.top_p) for p in params), strict=True)
    if rows := [i for i in everyone if min_p[i] > 0]:
        floor = column(min_p, rows) * weights[rows].amax(-1, keepdim=True)  # [rows, 1]
        _cut_below(weights, rows, floor)
    if rows := [i for i in everyone if 0 < top_k[i] < vocab]:
        largest = weights[rows].topk(max(top_k[i] for i in rows)).values  # [rows, max k]
        _cut_below(weights, rows, largest.gather(1, column(top_k, rows) - 1))
    if rows := [i for i in everyone if top_p[i] < 1]:
        _cut_below(weights, rows, nucleus_floor(weights[rows], column(top_p, rows)))
    return weights


def _cut_below(weights: Tensor, rows: list[int], floor: Tensor) -> None:
    """In place: set to 0 what is below floor [rows, 1] in those rows of weights [m, V]."""
    kept = weights[rows]  # [rows, V]
    weights[rows] = kept.masked_fill_(kept < floor, 0)


def nucleus_floor(weights: Tensor, top_p: Tensor) -> Tensor:
    """Smallest weight in the least set of likeliest tokens that holds top_p of the mass.

    weights [m, V], top_p [m, 1] -> [m, 1].

    >>> nucleus_floor(torch.tensor([[0.125, 0.5, 0.125, 0.25]]), torch.tensor([[0.6]]))
    tensor([[0.2500]])
    """
    needed = top_p * weights.sum(-1, keepdim=True, dtype=torch.float64)  # [m, 1]
    count = FIRST_LOOK
    while True:
        largest = weights.topk(min(count, weights.shape[1])).values  # [m, count]
        mass = largest.double().cumsum(-1)  # [m, count]
        if count >= weights.shape[1] or (mass[:, -1:] >= needed).all():
            break
        count *= 16
    num_kept = (mass - largest < needed).sum(-1, keepdim=True)  # [m, 1], at least 1
    return largest.gather(1, num_kept - 1)  # [m, 1]


def inverse_cdf(weights: Tensor, draws: list[float]) -> Tensor:
    """First token of each row whose cumulated weight passes its draw's part of the whole.

    weights [m, V] >= 0, draws m numbers in [0, 1) -> token ids [m]; a token of weight 0 is never
    taken.

    >>> inverse_cdf(torch.tensor([[0.0, 1.0, 0.0, 3.0]]).expand(3, 4), [0.0, 0.2499, 0.25])
    tensor([1, 1, 3])
    """
    cumulated = weights.cumsum(-1)  # [m, V]
    total = cumulated[:, -1:]  # [m, 1]
    draw = torch.tensor(draws, dtype=torch.float64, device=weights.device)[:, None]  # [m, 1]
    target = (draw * total).float()  # [m, 1]
    target = target.minimum(total.nextafter(torch.zeros_like(total)))  # rounding may reach total
    return torch.searchsorted(cumulated, target, right=True)[:, 0]  # [m]


def _suppress(logits: Tensor, suppressed: list[list[int]] | None) -> Tensor:
    """logits [n, V], or a copy of them with -inf for the suppressed ids."""
    pairs = [(i, token) for i, ids in enumerate(suppressed or []) for token in ids]
    if not pairs:
        return logits
    rows, tokens = torch.tensor(pairs, device=logits.device).T  # each [pairs]
    return logits.index_put((rows, tokens), logits.new_tensor(-torch.inf))  # [n, V]


def _add_logprobs(
    results: list[SampledToken], logits: Tensor, params: list[SamplingParams]
) -> None:
    """Fill in the logprobs of the rows that ask for them, from the raw logits [n, V]."""
    rows = [i for i, p in enumerate(params) if p.logprobs is not None and not results[i].error]
    if not rows:
        return
    logprobs = logits[rows].log_softmax(-1)  # [rows, V]
    most = min(max(params[i].logprobs for i in rows), logits.shape[1])
    values, ids = (top.tolist() for top in logprobs.topk(most))  # each [rows, most]
    for j, i in enumerate(rows):
        token, asked = results[i].token_id, params[i].logprobs
        likeliest = dict(zip(ids[j][:asked], values[j][:asked], strict=True))
        results[i].logprobs = {token: logprobs[j, token].item(), **likeliest}
