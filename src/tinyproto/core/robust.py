"""Robust statistics of uploads: compare what each client sent with what the others sent.

Each function takes rows `values` (M, K, w) of M clients with `present` (M, K), which clients hold which class, and
ignores rows that are not present. A network is one row of one class.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-30


def unscaled(values: Tensor, present: Tensor, counts: Tensor) -> Tensor:
    """Remove n_ij from count-scaled rows n_ij·c_ij: keep directions, and give all rows of a client one length.

    That length is Σ_j ‖n_ij c_ij‖ / n_i, the client's mean ‖c_ij‖ over its `counts` n_i (M,), so no n_ij is needed.
    """
    lengths = row_lengths(values, present)  # (M, K)
    mean = lengths.sum(1) / counts.clamp_min(1)  # (M,)
    return values * (mean[:, None] / lengths.clamp_min(_TINY)).unsqueeze(2)


def row_lengths(values: Tensor, present: Tensor) -> Tensor:
    """Return ‖row‖ (M, K); zero if no row is present."""
    lengths: Tensor = torch.linalg.vector_norm(values, dim=2)
    return lengths * present


def coordinate_median(values: Tensor, present: Tensor) -> Tensor:
    """Return the median over a class's holders, coordinate by coordinate, (K, w); zero if there are none."""
    return values.masked_fill(~present.unsqueeze(2), torch.nan).nanquantile(0.5, dim=0).nan_to_num()


def trimmed_mean(values: Tensor, present: Tensor, share: float) -> Tensor:
    """Return the mean over a class's holders, coordinate by coordinate, without the largest and smallest `share`.

    At least one of each is left out if three or more clients hold the class, and never all of them.
    """
    holders = present.sum(0)  # (K,)
    cut = (share * holders).long().clamp_min(1)
    cut = torch.minimum(cut, ((holders - 1) // 2).clamp_min(0))
    ordered = values.masked_fill(~present.unsqueeze(2), torch.inf).sort(0).values  # those absent come last
    place = torch.arange(len(values)).unsqueeze(1)  # (M, 1)
    kept = (place >= cut) & (place < holders - cut)  # (M, K)
    total = torch.where(kept.unsqueeze(2), ordered, torch.zeros_like(ordered)).sum(0)
    return total / kept.sum(0).clamp_min(1).unsqueeze(1)


def trusted(values: Tensor, present: Tensor, tolerance: float) -> Tensor:
    """Return which rows (M, K) to trust, compared with what a class's other holders sent.

    If most rows of a client are far off, each weighed by the holders of its class, none of its rows is trusted:
    those of classes with few holders would pass otherwise. The other clients are then judged again without it.
    """
    near = near_centre(values, present, tolerance)
    holders = present.sum(0) * (present.sum(0) >= 3)  # (K,): how many votes a class is worth
    against, votes = ((present & ~near) * holders).sum(1), (present * holders).sum(1)  # (M,)
    honest = present & (2 * against <= votes).unsqueeze(1)
    return near_centre(values, honest, tolerance)


def near_centre(values: Tensor, present: Tensor, tolerance: float) -> Tensor:
    """Return which rows (M, K) lie within `tolerance` typical distances of their class's centre, and on its side.

    The centre is the coordinate-wise median over a class's holders. The typical distance is the median over the class,
    or over all rows if that is larger. Rows no farther off than the centre is long always count as near: once most
    clients have converged, the typical distance says nothing about the others. A row is on the other side if it points
    away from the mean direction of the class's rows. With fewer than three holders there is no majority; then a row
    may be at most `tolerance` times as long as the median row.
    """
    if not bool(present.any()):
        return present
    lengths = row_lengths(values, present)
    near = present & (lengths <= tolerance * lengths[present].median())
    several = present.sum(0) >= 3  # (K,)
    judged = present & several
    if not bool(judged.any()):
        return near
    centre = coordinate_median(values, present)  # (K, w)
    distances = torch.linalg.vector_norm(values - centre, dim=2)  # (M, K)
    typical = distances.masked_fill(~judged, torch.nan).nanmedian(0).values.nan_to_num()
    typical = typical.clamp_min(float(distances[judged].median()))
    limit = torch.maximum(tolerance * typical, torch.linalg.vector_norm(centre, dim=1))  # (K,)
    directions = values * (present / lengths.clamp_min(_TINY)).unsqueeze(2)
    aside = (directions * directions.sum(0)).sum(2) < 0  # (M, K)
    return torch.where(several, present & (distances <= limit) & ~aside, near)


def krum_order(values: Tensor, present: Tensor, hostile: int) -> Tensor:
    """Return the clients (M,) from the most to the least central by Krum's score, with up to `hostile` hostile ones.

    Krum needs 2f + 3 clients or more. The distance of two clients is the mean over the classes that both hold; a pair
    without a common class counts as the median pair. A score is the sum over a client's M − f − 2 nearest.
    """
    clients = len(values)
    squared = torch.full((clients, clients), torch.nan, dtype=values.dtype)
    for one in range(clients):
        common = present[one] & present  # (M, K)
        apart = ((values - values[one]).square().sum(2) * common).sum(1) / common.sum(1)
        squared[one] = apart  # NaN where nothing is common
    squared.fill_diagonal_(torch.nan)
    squared = torch.where(squared.isnan(), squared.nanmedian().nan_to_num(), squared)
    squared.fill_diagonal_(torch.inf)
    scores = squared.sort(1).values[:, : clients - hostile - 2].sum(1)
    return scores.argsort(stable=True)
